"""The renderer of results in notebooks: structure, escaping, and colours of the page around it."""

import dataclasses
import inspect
import re
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.public_callables import public_names
from helpers.valid_arguments import (
    INSTANCES,
    chain,
    gaussian,
    one_sample,
    openings,
    plan,
    regression_draws,
    steps,
    svi,
)
from scipy import stats

from dpjax import federated
from dpjax._html import HTMLTable, render_html
from dpjax._html_tables import draws_table, leaf_table
from dpjax.bayes import sgmcmc
from dpjax.bayes.conjugate.posteriors import BetaPosterior, Posterior
from dpjax.bayes.regression import Prediction, RegressionPosterior
from dpjax.bayes.variational import DPSVIResult
from dpjax.certificates import Report
from dpjax.gradients.bookkeeping.routes import Explanation, LeafRoute, Route
from dpjax.mechanisms.base import Mechanism
from dpjax.training import TrainResult
from dpjax.training.run import RunResult

SCRIPT = "<script>alert('x')</script> & \"quotes\""
VOID = {"br", "hr", "img"}


class Structure(HTMLParser):
    """The open elements of a page, which must be closed in order, and its texts."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.open, self.texts = [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("columns", [(), (SCRIPT, SCRIPT)])
def test_render_html_escapes_all_texts(columns, folded):
    table = HTMLTable(SCRIPT, [(SCRIPT, SCRIPT)], columns, folded)
    inner = render_html(SCRIPT, [table])
    page = render_html(
        SCRIPT,
        [table],
        notes_heading=SCRIPT,
        notes=[SCRIPT],
        enclosed_heading=SCRIPT,
        enclosed_html=inner,
    )
    structure = Structure(page)
    assert "script" not in structure.tags
    # Title, caption and cells twice, headings of notes and of the enclosed result, one note.
    assert structure.texts.count(SCRIPT) == 2 * (4 + len(columns)) + 3


def test_render_html_structure():
    pairs = HTMLTable("Pairs", [("a", "1"), ("b", "2")])
    wide = HTMLTable("Wide", [("a", "1", "2")], ("name", "low", "high"), folded=True)
    empty = HTMLTable("Empty", [])
    structure = Structure(render_html("Title", [pairs, wide, empty], notes=["one"]))
    assert structure.tags.count("table") == 2
    assert structure.tags.count("caption") == structure.tags.count("summary") == 1
    assert structure.tags.count("tr") == 3 + 1
    assert structure.tags.count("th") == 3 + 3
    assert structure.tags.count("li") == 1
    assert "Empty" not in structure.texts


def test_render_html_takes_colours_from_the_page():
    style = re.search(r"<style>(.*?)</style>", render_html("t", []), re.DOTALL)[1]
    colours = re.findall(r"(?<![\w-])(?:color|background|border|border-top):([^;}]+)", style)
    assert colours
    for colour in colours:
        assert "currentColor" in colour or colour.split("!")[0] in ("inherit", "transparent", "0")


# Instances of public classes that notebooks show, by name.
PARTIES = federated.Parties(num_holders=7, num_nodes=3, num_dropouts=1, num_colluders=2)
CHAIN = sgmcmc.ChainResult({"w": np.zeros((2, 3, 40)), "b": np.ones((2, 3))}, chain(), False)
OTHERS = {
    "bayes.sgmcmc.ChainResult": lambda: CHAIN,
    "bayes.regression.RegressionDraws": regression_draws,
    "federated.FederatedSum": plan,
    "federated.Parties": lambda: PARTIES,
    "guarantee.Guarantee": lambda: steps().guarantee,
    "federated.Result": lambda: federated.combine(plan(), openings()),
    "training.TrainResult": lambda: TrainResult({"w": np.ones((3, 2))}, steps(), seeded=True),
}
DISPLAYED = {
    name: make
    for name, make in {**INSTANCES, **OTHERS}.items()
    if name in OTHERS or hasattr(public_names().get(f"dpjax.{name}"), "_repr_html_")
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DISPLAYED)
def test_repr_html_of_public_classes(name):
    instance = DISPLAYED[name]()
    structure = Structure(instance._repr_html_())
    assert structure.tags.count("h4") >= 1
    assert structure.tags.count("table") >= 1

    # What the guarantee describes is shown; a run names its steps.
    guarantee = getattr(instance, "guarantee", None)
    if guarantee is not None:
        shown = {*structure.texts}
        assert {*guarantee.description, *guarantee.description.values(), guarantee.unit} <= shown


def test_repr_html_is_of_all_mechanisms_and_results():
    classes = [one for one in public_names().values() if inspect.isclass(one)]
    bases = (Mechanism, RunResult, Report, Posterior)
    shown = [one for one in classes if issubclass(one, bases)]
    assert len(shown) > 30
    assert all(hasattr(one, "_repr_html_") for one in shown)


@pytest.mark.parametrize(
    "make",
    [
        lambda: dataclasses.replace(steps(), unit=SCRIPT),
        lambda: TrainResult({SCRIPT: np.ones(2)}, dataclasses.replace(steps(), unit=SCRIPT), False),
        lambda: sgmcmc.ChainResult(
            {SCRIPT: np.zeros((1, 2))}, dataclasses.replace(chain(), unit=SCRIPT), False
        ),
        lambda: Explanation((LeafRoute(SCRIPT, (2,), Route("ghost", SCRIPT, 1)),), 4),
        lambda: dataclasses.replace(steps().guarantee, description={SCRIPT: SCRIPT}),
    ],
    ids=["mechanism", "train", "chain", "explanation", "guarantee"],
)
def test_repr_html_is_escaped(make):
    structure = Structure(make()._repr_html_())
    assert "script" not in structure.tags
    assert any("<script>" in text for text in structure.texts)


@pytest.mark.parametrize("make", [steps, gaussian, chain, one_sample, plan])
def test_mechanism_repr_html_has_fields_of_text(make):
    mechanism = make()
    texts = Structure(mechanism._repr_html_()).texts
    for field in dataclasses.fields(mechanism):
        if field.repr:
            value = repr(getattr(mechanism, field.name))
            assert f"{field.name}={value}" in repr(mechanism)
            assert any(value.startswith(text.rstrip("…")) for text in texts if text)


def test_explanation_repr_html_has_cells_of_text():
    route = Route("ghost", "dot_general, 1 outer product", 12_345)
    explanation = Explanation((LeafRoute("['w']", (784, 256), route),), 32, microbatch_size=8)
    structure = Structure(explanation._repr_html_())
    text = " ".join(str(explanation).split())
    cells = ["['w']", "(784, 256)", "ghost", "98,760", route.reason]
    assert " ".join(cells) in text
    assert {*cells} < {*structure.texts}
    assert text.endswith(structure.texts[-1])


def test_run_result_repr_html_leaves_private_values_out():
    private = DPSVIResult({"loc": 0.25}, "STATE", np.array([777.5]), steps(), True, svi(), None)
    texts = Structure(private._repr_html_()).texts
    assert "0.25" in texts
    assert not any("777.5" in text or "STATE" in text for text in texts)
    assert any("protects nobody" in text for text in texts)


def test_regression_posterior_repr_html_has_marginal_quantiles():
    precision = np.array([[4.0, 1.0], [1.0, 9.0]])
    known = RegressionPosterior(
        jnp.array([1.0, -2.0]), jnp.array(precision), jnp.array(jnp.inf), jnp.array(0.5)
    )
    texts = Structure(known._repr_html_()).texts
    deviations = np.sqrt(0.5 * np.diag(np.linalg.inv(precision)))
    for mean, deviation in zip([1.0, -2.0], deviations, strict=True):
        for value in (mean, deviation, *stats.norm(mean, deviation).ppf([0.05, 0.95])):
            assert f"{value:.4g}" in texts

    unknown = known._replace(shape=jnp.array(3.0))
    scale = np.sqrt(0.5 / 3 * np.linalg.inv(precision)[0, 0])
    texts = Structure(unknown._repr_html_()).texts
    assert f"{stats.t(6, 1.0, scale).ppf(0.95):.4g}" in texts
    assert f"{stats.t(6, 1.0, scale).std():.4g}" in texts
    assert known._replace(mean=jnp.ones((3, 2)))._repr_html_() is None


@pytest.mark.parametrize("freedom", [5.0, np.inf])
def test_prediction_repr_html_has_intervals(freedom):
    prediction = Prediction(jnp.array([1.0, -2.0]), jnp.array([0.5, 2.0]), jnp.array(freedom))
    texts = Structure(prediction._repr_html_()).texts
    for mean, scale in ((1.0, 0.5), (-2.0, 2.0)):
        for value in (mean, scale, *stats.t(freedom, mean, scale).ppf([0.05, 0.95])):
            assert f"{value:.4g}" in texts
    assert ("normal" in texts) == np.isinf(freedom)
    assert ("Student's t with 5 degrees of freedom" in texts) == np.isfinite(freedom)
    assert prediction._replace(mean=jnp.ones((3, 2)))._repr_html_() is None


def test_parties_repr_html_has_fields_and_what_follows():
    structure = Structure(PARTIES._repr_html_())
    texts = structure.texts
    assert "details" not in structure.tags
    for field in dataclasses.fields(PARTIES):
        assert repr(getattr(PARTIES, field.name)) in texts[texts.index(field.name) :]
    for heading, value in (("shares of noise that count", 3), ("least holders in a sum", 6)):
        assert texts[texts.index(heading) + 1] == str(value)


def test_guarantee_repr_html_is_that_of_its_run():
    run = steps().guarantee.of_run(seeded=True, num_steps=7)
    texts = Structure(run._repr_html_()).texts
    assert any(text.startswith("7 steps; its key was derived from a seed") for text in texts)
    assert any("protects nobody" in text for text in texts)
    planned = Structure(steps().guarantee._repr_html_()).texts
    assert not any("protects nobody" in text for text in planned)


def test_conjugate_posterior_repr_html_has_interval():
    texts = Structure(BetaPosterior(np.array([2.0]), np.array([3.0]))._repr_html_()).texts
    for value in (0.4, *stats.beta(2, 3).ppf([0.05, 0.95])):
        assert f"{value:.4g}" in texts
    many = BetaPosterior(np.full(1_000, 2.0), np.full(1_000, 3.0))
    assert Structure(many._repr_html_()).tags.count("tr") == 2


def test_draws_table_cuts_entries_off():
    draws = np.random.default_rng(0).normal(size=(200, 7, 10))
    table = draws_table("", "w", draws)
    assert len(table.rows) == 31
    assert table.rows[-1][0] == "… 40 more"
    assert table.rows[11] == (
        "w[1, 1]",
        *(
            f"{value:.4g}"
            for value in (
                draws[:, 1, 1].mean(),
                draws[:, 1, 1].std(),
                *np.quantile(draws[:, 1, 1], [0.05, 0.95]),
            )
        ),
    )


def test_leaf_table_values():
    tree = {"big": jnp.arange(9.0), "key": jax.random.key(0), "small": np.array([1.5, -2.0])}
    rows = {row[0]: row[1:] for row in leaf_table("", tree).rows}
    assert rows["['big']"] == ("(9,)", "float32", "0 to 8")
    assert rows["['small']"] == ("(2,)", "float32", "1.5, -2")
    assert rows["['key']"][2] == ""
    assert leaf_table("", [1.0] * 50).rows[-1][0] == "… 20 more"

"""What is drawn in the figures of every experiment, compared with its published records.

For each figure the data of named curves, bars or dots are those of the records' columns, and each
moves when its column does (a power check: a figure of other data, or of none, fails).
"""

import copy
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

from experiments.lib.publication import PUBLISHED, load_publication
from experiments.lib.registry import MODULES, Record, load_experiments

ACCURACY = "test accuracy %"
Expected = Callable[[dict[str, Record]], tuple[Sequence[float] | None, Sequence[float] | None]]


def column(part: str, name: str, *rows: str) -> Callable[[dict[str, Record]], list[float]]:
    """A column of these rows, or of all that have it."""

    def values(records):
        named = [records[row] for row in rows] if rows else records.values()
        found = [getattr(record, part).get(name) for record in named]
        return [value for value in found if value is not None or rows]

    return values


def series(row, *names):
    def values(records):
        found = records[row].series
        for name in names:
            found = found[name]
        return found

    return values


def points(row, *names, columns=(0, 1)):
    """Points ``(x, y, ...)`` of a series, by default its first two columns."""

    def values(records):
        found = np.array(series(row, *names)(records), float)
        return tuple(None if c is None else found[..., c] for c in columns)

    return values


def xy(x, y):
    return lambda records: (x and x(records), y and y(records))


def mean_by_seed(row):
    """Epochs and mean over seeds of an accuracy."""
    return lambda records: np.mean(series(row, "accuracy % by epoch, each seed")(records), 0).T


# (experiment, figure, number of the axes, label, data): None where an axis is only a position.
CURVES: list[tuple[str, str, int, str, Expected]] = [
    ("gdp.mnist", "accuracy", 0, "row 1: σ = 1.3", points("1", "accuracy % by epoch")),
    ("gdp.mnist", "accuracy", 0, "row 6: σ = 0.5", points("6", "accuracy % by epoch")),
    (
        "gdp.mnist",
        "epsilon",
        0,
        "MA ε",
        lambda r: (
            None,
            [x.measured["MA ε"] / x.certified["ε, published epochs"] for x in r.values()],
        ),
    ),
    (
        "gdp.mnist",
        "epsilon",
        0,
        "CLT ε",
        lambda r: (
            None,
            [x.measured["CLT ε"] / x.certified["ε, published epochs"] for x in r.values()],
        ),
    ),
    ("gdp.adult", "training", 0, "NoisySGD", mean_by_seed("NoisySGD")),
    ("gdp.adult", "training", 0, "SGD, no privacy", mean_by_seed("SGD, no privacy")),
    ("gdp.adult", "training", 1, "certified", points("NoisySGD", "ε by epoch", "certified")),
    ("gdp.adult", "training", 1, "CLT ε", points("NoisySGD", "ε by epoch", "CLT ε")),
    ("gdp.imdb", "training", 0, "NoisyAdam", mean_by_seed("NoisyAdam")),
    ("gdp.imdb", "training", 1, "MA ε", points("NoisyAdam", "ε by epoch", "MA ε")),
    (
        "gdp.movielens",
        "training",
        0,
        "private networks, by user",
        points("private networks, by user", "RMSE by epoch"),
    ),
    (
        "gdp.curves",
        "profiles",
        0,
        "moments accountant",
        xy(series("2", "epsilons"), series("2", "deltas", "MA")),
    ),
    (
        "gdp.curves",
        "profiles",
        0,
        "certified",
        xy(series("2", "epsilons"), series("2", "deltas", "lower")),
    ),
    (
        "gdp.curves",
        "trade_offs",
        1,
        "certified",
        lambda r: (None, 1 - np.array(r["2"].series["detected"]["lower"])),
    ),
    (
        "gdp.curves",
        "trade_offs",
        5,
        "central limit",
        lambda r: (None, 1 - np.array(r["6"].series["detected"]["CLT"])),
    ),
    (
        "gdp.curves",
        "attacks",
        0,
        "row 3: σ = 0.7",
        lambda r: (
            None,
            np.divide(r["3"].series["detected"]["lower"], r["3"].series["detected"]["CLT"]),
        ),
    ),
    (
        "gdp.curves",
        "one_epoch",
        0,
        "f, 234 steps",
        lambda r: (None, 1 - np.array(r["A.1"].series["detected"]["lower"])),
    ),
    (
        "gdp.noise_saved",
        "training",
        0,
        "CLT: σ = 1.06",
        points("top: CLT", "accuracy % by epoch"),
    ),
    (
        "gdp.noise_saved",
        "noise",
        0,
        "central limit",
        points("top: MA", "ε by σ", "CLT"),
    ),
    (
        "gdp.noise_saved",
        "noise",
        1,
        "certified (PLD)",
        points("bottom: MA", "ε by σ", "PLD"),
    ),
    ("bayes.bob", "errors", 0, "source", xy(None, column("source", "mean, error kg"))),
    ("bayes.bob", "errors", 1, "measured", xy(None, column("measured", "attack, error kg"))),
    (
        "bayes.bob",
        "errors",
        1,
        "closed form",
        xy(None, column("measured", "closed form, attack, error kg")),
    ),
    (
        "bayes.conjugate",
        "consistency",
        0,
        "sampling: slope −0.50",
        xy(
            series("consistency: beta-binomial", "n"),
            series("consistency: beta-binomial", "sampling"),
        ),
    ),
    (
        "bayes.conjugate",
        "consistency",
        1,
        "private: slope −0.95",
        xy(
            series("consistency: Dirichlet-multinomial", "n"),
            series("consistency: Dirichlet-multinomial", "private"),
        ),
    ),
    *(
        (
            "bayes.conjugate",
            "coverage",
            0,
            label,
            lambda r, label=label: (
                np.concatenate(
                    [
                        x.measured[f"{label} coverage %"]
                        for x in r.values()
                        if f"{label} coverage %" in x.measured
                    ]
                ),
                None,
            ),
        )
        for label in ("naive", "noise-aware")
    ),
    (
        "bayes.clipping",
        "bounds",
        2,
        "clipped and noisy",
        xy(
            lambda r: r["simulated, both"].settings["factors"],
            series("simulated, both", "noisy"),
        ),
    ),
    (
        "bayes.clipping",
        "bounds",
        5,
        "clipped, no noise",
        xy(lambda r: r["wine, both"].settings["factors"], series("wine, both", "clipped")),
    ),
    *(
        (
            "bayes.wine",
            "errors",
            0,
            row,
            xy(lambda r, row=row: r[row].settings["epsilons"], series(row, "errors")),
        )
        for row in ("trusted, Laplace", "naive, every holder's record")
    ),
    (
        "bayes.wine",
        "sizes",
        0,
        "ε = 1",
        lambda r: (
            [250, 500, 1000, 2000, 4000],
            [
                r[f"trusted, Gaussian{size}"].measured["MAE, ε = 1"]
                for size in (", n = 250", ", n = 500", ", n = 1,000", "", ", n = 4,000")
            ],
        ),
    ),
    *(
        (
            "bayes.coverage",
            "coverage",
            axes,
            label,
            xy(
                lambda r: [record.settings["num_examples"] for record in r.values()],
                column("measured", f"{label}, {what} %"),
            ),
        )
        for axes, what in enumerate(("coefficients", "predictions"))
        for label in ("noise-aware", "naive", "exact")
    ),
    ("bayes.gdsc", "spearman", 0, "projected", points("projected", "Spearman by ε")),
    (
        "bayes.gdsc",
        "spearman",
        1,
        "no projection",
        points("no projection", "Spearman by number of lines, ε = 2"),
    ),
    *(
        (
            "bayes.holders",
            "errors",
            0,
            row,
            xy(lambda r, row=row: r[row].settings["epsilons"], series(row, "errors")),
        )
        for row in ("trusted aggregator", "distributed, N = 5, T = 1")
    ),
    ("bayes.holders", "penalty", 0, "T = 0", points("noise of a sum, T = 0", "noise")),
    *(
        (
            "bayes.holders_costs",
            "sizes",
            0,
            label,
            lambda r, label=label: (
                [78, 1_000, 10_000, 100_000, 1_000_000],
                [
                    r[f"additive shares: N = 10, M = 3, {size} numbers"].measured[f"{label} (ms)"]
                    for size in ("78", "1,000", "10,000", "100,000", "1,000,000")
                ],
            ),
        )
        for label in ("a holder", "a node", "all parties")
    ),
    *(
        (
            f"dpvi.{name}",
            "accuracy",
            axes,
            label,
            lambda r, account=account, adjacency=adjacency, part=part: tuple(
                zip(
                    *[
                        (getattr(x, part)[f"{account}, {adjacency}"], x.measured["accuracy %"])
                        for x in r.values()
                        if x.settings["part"] == "noise"
                    ],
                    strict=True,
                )
            ),
        )
        for name in ("abalone", "adult")
        for axes, adjacency in enumerate(("replace one", "add/remove"))
        for label, account, part in (
            ("certified", "ε", "certified"),
            ("moments accountant", "MA ε", "measured"),
            ("advanced composition", "AC ε", "measured"),
        )
    ),
    (
        "dpvi.abalone",
        "settings",
        0,
        "σ = 2",
        lambda r: tuple(
            zip(
                *[
                    (x.settings["c"], x.measured["accuracy %"])
                    for x in r.values()
                    if x.settings["part"] == "clip" and x.settings["sigma"] == 2
                ],
                strict=True,
            )
        ),
    ),
    (
        "dpvi.adult",
        "settings",
        1,
        "σ = 0.8",
        lambda r: tuple(
            zip(
                *[
                    (x.settings["sampling_rate"], x.measured["accuracy %"])
                    for x in r.values()
                    if x.settings["part"] == "rate" and x.settings["sigma"] == 0.8
                ],
                strict=True,
            )
        ),
    ),
    (
        "dpvi.mixture",
        "density",
        0,
        "replace one",
        xy(
            column("certified", "ε, replace one"),
            column("measured", "log density per record", *[f"σ = {s}" for s in (0.8, 2, 6, 20)]),
        ),
    ),
    *(
        (f"bdp.{name}", "accounts", 0, "not private", points("not private", "accuracy % by epoch"))
        for name in ("mnist", "cifar10")
    ),
    *(
        (
            f"bdp.{name}",
            "accounts",
            1,
            label,
            lambda r, label=label, part=part: (
                [getattr(x, part)[label] for x in r.values() if "DP ε" in x.certified],
                None,
            ),
        )
        for name in ("mnist", "cifar10")
        for label, part in (("DP ε", "certified"), ("BDP ε", "measured"))
    ),
    *(
        (
            f"bdp.{name}",
            "norms",
            0,
            label,
            points(
                "not private",
                "norms by epoch: quantiles 0.5, 0.9, 0.99, largest",
                columns=(None, index),
            ),
        )
        for name in ("mnist", "cifar10")
        for label, index in (("median", 0), ("0.99 quantile", 2), ("largest", 3))
    ),
    *(
        (
            f"bdp.{name}",
            "accounts",
            0,
            f"{label}, with noise",
            lambda r, label=label, part=part: tuple(
                zip(
                    *[
                        (getattr(x, part)[label], x.measured[ACCURACY])
                        for x in r.values()
                        if "BDP ε" in x.measured
                    ],
                    strict=True,
                )
            ),
        )
        for name in ("abalone", "adult")
        for label, part in (("DP ε", "certified"), ("BDP ε", "measured"))
    ),
    *(
        (
            "bdp.figures",
            figure,
            0,
            label,
            xy(None, series(f"{number}: 0.05 quantile", *names)),
        )
        for figure, number in (("steps", 1), ("noise_clipped", 3), ("noise_unclipped", 4))
        for label, names in (
            ("moments accountant, as published", ["MA, published"]),
            ("moments accountant, best λ", ["MA"]),
            ("certified DP, clipped: replace one", ["certified", "replace_one"]),
            ("certified DP, clipped: add or remove", ["certified", "add_remove"]),
        )
    ),
    *(
        (
            "bdp.figures",
            "orders",
            0,
            f"C = {c}",
            xy(series(f"5: C = {c}", "orders"), series(f"5: C = {c}", "bayesian")),
        )
        for c in (0.1, 0.7, 1)
    ),
    (
        "bdp.limits",
        "draws",
        0,
        "Bayesian, Student (Theorem 4)",
        xy(
            lambda r: r["number of draws"].settings["draws"],
            lambda r: r["number of draws"].measured["Bayesian ε, Student"],
        ),
    ),
    (
        "bdp.limits",
        "draws",
        0,
        "distribution-free lower limit",
        xy(None, series("number of draws", "limit")),
    ),
    (
        "bdp.limits",
        "tails",
        0,
        "shape 0.5",
        xy(None, lambda r: r["tails: Weibull, shape 0.5"].measured["Bayesian ε, Student"]),
    ),
    (
        "bdp.incomes",
        "attacks",
        1,
        "clipped at 99 %",
        lambda r: (
            r["clipped at 99 %, ε = 2"].series["incomes"],
            100 * np.array(r["clipped at 99 %, ε = 2"].series["accuracies"]),
        ),
    ),
    *(
        (
            "scattering.linear",
            "accuracy",
            axes,
            "source, claimed",
            xy(column("source", "ε", row), column("source", ACCURACY, row)),
        )
        for axes, row in enumerate(
            ("MNIST, private normalisation, ε = 3", "Fashion-MNIST, group normalisation, ε = 3")
        )
    ),
    (
        "scattering.linear",
        "accuracy",
        0,
        "private normalisation",
        xy(
            column("certified", "ε", "MNIST, private normalisation, ε = 3"),
            column("measured", ACCURACY, "MNIST, private normalisation, ε = 3"),
        ),
    ),
    *(
        (
            "sgmcmc.bounds",
            "epsilons",
            0,
            f"certified, batches of {batch}",
            lambda r, place=place: (
                [0.1, 0.5, 1, 2],
                [r[f"steps for ε = {e}"].series["constant"][place][1] for e in (0.1, 0.5, 1, 2)],
            ),
        )
        for place, batch in enumerate(("100", "256", "1,000", "5,000"))
    ),
    (
        "sgmcmc.adult",
        "accuracy",
        0,
        "DP-SGD",
        xy(
            column("certified", "ε", *[f"DP-SGD, ε = {e}" for e in (0.1, 0.3, 1)]),
            column("measured", ACCURACY, *[f"DP-SGD, ε = {e}" for e in (0.1, 0.3, 1)]),
        ),
    ),
    *(
        (
            "sgmcmc.mnist",
            "frontier",
            0,
            label,
            xy(column("certified", "ε, as run", row), column("measured", ACCURACY, row)),
        )
        for label, row in (
            ("DP-SGLD, noise as printed", "MNIST: DP-SGLD"),
            ("DP-SGHMC, temperature 1", "MNIST: DP-SGHMC, temperature 1"),
            ("DP-SGHMC, noise as printed", "MNIST: DP-SGHMC"),
        )
    ),
    *(
        (
            "sgmcmc.mnist",
            "calibration",
            0,
            label,
            xy(series(row, "reliability", "confidence"), series(row, "reliability", "accuracy")),
        )
        for label, row in (("non-private", "MNIST: non-private"), ("DP-SGD", "MNIST: DP-SGD"))
    ),
    *(
        (
            "sgmcmc.inversion",
            "identified",
            0,
            f"{unit}: {label}",
            xy(
                column("certified", "ε", *[f"softmax, {unit}, ε = {e}" for e in (1, 10)]),
                column(part, name, *[f"softmax, {unit}, ε = {e}" for e in (1, 10)]),
            ),
        )
        for unit, label, part, name in (
            ("one picture", "identified", "measured", "identified %"),
            ("one picture", "accuracy", "measured", ACCURACY),
            ("one person", "identified", "measured", "identified %"),
            ("one person", "accuracy", "measured", ACCURACY),
            ("one person", "identified, at most", "certified", "identified, at most %"),
        )
    ),
    (
        "pate.analysis",
        "releases",
        0,
        "source",
        lambda r: (
            [x.source["ε"] for x in r.values() if x.source and not x.row.startswith("claim")],
            None,
        ),
    ),
    *(
        (
            "pate.analysis",
            "agreement",
            0,
            f"{size} teachers",
            xy(
                series(f"simulated, LNMax, {size} teachers", "votes for the plurality"),
                series(f"simulated, LNMax, {size} teachers", "epsilon"),
            ),
        )
        for size in (100, 400)
    ),
    *(
        (f"pate.{name}", "releases", axes, label, xy(column(part, value, *rows), None))
        for name, plain in (
            ("adult", "random forest, no privacy"),
            ("mnist", "network, no privacy"),
            ("svhn", "network, no privacy"),
        )
        for rows in [
            [
                plain,
                *{
                    "adult": ["LNMax, 500 queries"],
                    "mnist": ["LNMax, 100 queries", "LNMax, 1,000 queries"],
                    "svhn": ["LNMax, 500 queries", "LNMax, 1,000 queries"],
                }[name],
                "Confident-GNMax",
            ]
        ]
        for axes, label, part, value in (
            (0, "student, source", "source", ACCURACY),
            (0, "student", "measured", ACCURACY),
            (0, "teachers, mean", "measured", "teachers %"),
            (0, "plurality", "measured", "plurality of votes %"),
            (0, "answers", "measured", "answers right %"),
            (1, "source", "source", "ε"),
            (
                1,
                "data-dependent, not publishable",
                "measured",
                "not publishable: ε in both directions",
            ),
            (1, "any votes, certified", "certified", "ε"),
        )
    ),
    *(
        ("course.differencing", "attack", axes, label, xy(None, column(part, name)))
        for axes, label, part, name in (
            (1, "exact answers", "measured", "rows recovered, exact %"),
            (1, "noisy answers", "measured", "rows recovered, noisy %"),
        )
    ),
    *(
        (
            "course.local",
            "errors",
            0,
            f"{model}, ε = {epsilon}",
            xy(
                lambda r: [100, 1_000, 10_000],
                column(
                    "measured",
                    f"{model}, error",
                    *[f"ε = {name}, n = {n}" for n in ("100", "1,000", "10,000")],
                ),
            ),
        )
        for model in ("local", "global")
        for epsilon, name in ((0.5, "0.5"), (1.1, "log 3"), (3, "3"))
    ),
]

# Drawn from a computation beside the records, from pictures, or compared in the experiment's test.
NOT_BY_COLUMN = {
    ("gdp_movielens", "models"),  # one dot for each row, sorted: below
    ("bayes_wishart", "attacks"),  # rates from counts, and the constant's formula
    ("bayes_wishart", "degrees"),
    ("bayes_holders", "published"),
    ("bdp_mnist", "distances"),  # histograms: below
    ("bdp_cifar10", "distances"),
    ("bdp_limits", "coverage"),  # shares from counts: below
    ("bdp_limits", "composition"),
    ("bdp_incomes", "percentiles"),  # labels without data, curves in the same colour
    ("sgmcmc_bounds", "steps"),  # curves of formulas
    ("sgmcmc_inversion", "faces"),  # pictures: below
    ("sgmcmc_inversion", "digits"),
}


def drawn(axes: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns x and y of what has this label: a curve, the dots like it, bars, or error bars."""
    for container in axes.containers:
        if container.get_label() == label and isinstance(container, BarContainer):
            bars = container.patches
            return np.array([b.get_x() for b in bars]), np.array([b.get_height() for b in bars])
        if container.get_label() == label and isinstance(container, ErrorbarContainer):
            return container.lines[0].get_xdata(), container.lines[0].get_ydata()
    (line,) = [each for each in axes.lines if each.get_label() == label]

    def style(each):
        marker, width = each.get_marker(), each.get_linewidth()
        return to_hex(each.get_color()), marker, each.get_linestyle(), width

    # `draw_by_row` draws one line for each row, the first with the label.
    alike = [e for e in axes.lines if style(e) == style(line) and e.get_label()[0] == "_"]
    dots = [line, *(e for e in alike if line.get_linestyle() == "None")]
    x, y = zip(*[(each.get_xdata(), each.get_ydata()) for each in dots], strict=True)
    return np.concatenate(x), np.concatenate(y)


@pytest.fixture(scope="module")
def published():
    """Records and figures by experiment, each drawn once."""
    made: dict[str, tuple[dict[str, Record], dict[str, Figure]]] = {}

    def draw(module):
        if module not in made:
            (experiment,) = load_experiments([f"experiments.{module}"])
            records = load_publication(PUBLISHED, experiment.name, "quick").records
            figures = experiment.figures(records)
            made[module] = {record.row: record for record in records}, figures
        return made[module]

    return draw


def check_curve(figures, records, figure, axes, label, expected):
    x, y = drawn(figures[figure].axes[axes], label)
    for found, wanted in zip((x, y), expected(records), strict=True):
        if wanted is not None:
            wanted = np.array([np.nan if value is None else value for value in wanted], float)
            np.testing.assert_allclose(np.asarray(found, float), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("module", "figure", "axes", "label", "expected"),
    [pytest.param(*curve, id="-".join(map(str, curve[:4]))) for curve in CURVES],
)
def test_curves_have_the_data_of_the_records(published, module, figure, axes, label, expected):
    records, figures = published(module)
    check_curve(figures, records, figure, axes, label, expected)


@pytest.mark.parametrize("module", sorted({curve[0] for curve in CURVES}))
def test_power_curves_of_other_records_are_noticed(published, module):
    """Records whose measured, certified, published and series values are 7 % larger."""
    records, figures = published(module)
    larger = {}
    for row, record in records.items():
        other = copy.deepcopy(record)
        for part in ("measured", "certified", "source", "series"):
            getattr(other, part).update(_grown(getattr(other, part)))
        larger[row] = other
    for _, figure, axes, label, expected in [curve for curve in CURVES if curve[0] == module]:
        if figure in ("epsilon", "attacks"):
            continue  # ratios of two columns stay
        with pytest.raises(AssertionError):
            check_curve(figures, larger, figure, axes, label, expected)


def _grown(values):
    if isinstance(values, dict):
        return {name: _grown(value) for name, value in values.items()}
    if isinstance(values, list):
        return [_grown(value) for value in values]
    return 1.07 * values + 1e-9 if isinstance(values, float | int) else values


@pytest.mark.parametrize("module", [module.removeprefix("experiments.") for module in MODULES])
def test_every_figure_is_compared_with_its_records(published, module):
    (experiment,) = load_experiments([f"experiments.{module}"])
    compared = {figure for curve, figure, *_ in CURVES if curve == module}
    exempt = {figure for name, figure in NOT_BY_COLUMN if name == experiment.name}
    assert compared | exempt == set(published(module)[1])
    assert not compared & exempt


def test_errors_of_movielens_are_sorted_dots(published):
    records, figures = published("gdp.movielens")
    (axes,) = figures["models"].axes
    dots = [float(line.get_xdata()[0]) for line in axes.lines if len(line.get_xdata()) == 1]
    names = [text.get_text() for text in axes.get_yticklabels()]
    errors = {record.row: record.measured["RMSE"] for record in records.values()}
    measured = [dot for dot in dots if dot in errors.values()]
    assert sorted(measured) == sorted(errors.values())
    assert sorted(names, key=lambda name: -errors[name]) == names


@pytest.mark.parametrize("module", ["bdp.mnist", "bdp.cifar10"])
def test_histograms_of_distances_are_shares_of_the_counts(published, module):
    records, figures = published(module)
    axes = figures["distances"].axes
    counts = np.array(records["not private"].series["distances"]["disjoint pairs"]["train"])
    (stairs,) = [patch for patch in axes[0].patches if patch.get_label() == "train"]
    np.testing.assert_allclose(stairs.get_data().values, counts / counts.sum(), rtol=1e-6)


def test_shares_of_trials_are_those_of_the_counts(published):
    records, figures = published("bdp.limits")
    axes = figures["coverage"].axes[0]
    for level, container in zip((0, 1), axes.containers, strict=True):
        normal = records["normal"]
        shares = [counts[level] / normal.settings["trials"] for counts in normal.series["student"]]
        np.testing.assert_allclose(container.lines[0].get_ydata(), shares)
        np.testing.assert_array_equal(container.lines[0].get_xdata(), normal.settings["draws"])


@pytest.mark.parametrize(("figure", "plain"), [("faces", "softmax"), ("digits", "digits")])
def test_pictures_are_those_of_the_records(published, figure, plain):
    records, figures = published("sgmcmc.inversion")
    shown = records[f"{plain}, no privacy"].series
    images = [np.asarray(axes.images[0].get_array()) for axes in figures[figure].axes]
    width = 2 * len(shown["pictures"])  # each picture, and each smoothed
    for row, pictures in enumerate((shown["class means"], shown["pictures"])):
        for column_number, picture in enumerate(pictures):
            image = images[row * width + column_number]
            np.testing.assert_array_equal(image, np.reshape(picture, image.shape))

"""One row of every experiment, on few records and steps: what it returns, and what is made of it.

Settings are those of the quick profile, shortened. The result must have the columns, series and
certificate of the published record, and finding, remarks and figures must be made of the published
records with this one in the place of its row.
"""

import ast
import dataclasses
import importlib
import inspect
import math

import numpy as np
import pytest

from experiments.data import Dataset, RatingsDataset, Split, load_data, split_ratings
from experiments.gdp import mnist as gdp_mnist
from experiments.lib.models import MnistMLP
from experiments.lib.publication import PUBLISHED, load_publication
from experiments.lib.registry import MODULES, Record, Row, RowContext, load_experiments


def few_digits(num_train=400, num_test=100):
    """Small digits, where an experiment reads images."""
    data = load_data("digits")
    train, test = (
        Split(*(leaf[:size] for leaf in part))
        for part, size in ((data.train, num_train), (data.test, num_test))
    )
    return dataclasses.replace(data, train=train, test=test, is_stand_in=True, note="Few.")


def few_faces():
    """Seven training and three test images of each of ten digits."""
    data = load_data("digits")
    rows = [np.flatnonzero(data.train.y == label) for label in range(10)]
    pick = [np.concatenate([each[a:b] for each in rows]) for a, b in ((0, 7), (7, 10))]
    train, test = (Split(data.train.x[rows], data.train.y[rows]) for rows in pick)
    return dataclasses.replace(data, train=train, test=test, is_stand_in=True)


def few_features(num_train=0, num_test=0):
    """Random features in the place of CIFAR-10's."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(250, 3888)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = rng.integers(0, 10, 250).astype(np.int32)
    parts = Split(features[:200], labels[:200]), Split(features[200:], labels[200:])
    return Dataset("features", *parts, "memory", True, 10, "Random features.")


def few_persons():
    """A table of 123 binary features."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (500, 123)).astype(np.float32)
    y = x[:, 0].astype(np.int32)
    return Dataset(
        "persons", Split(x[:400], y[:400]), Split(x[400:], y[400:]), "memory", True, 2, "Made up."
    )


def few_reviews():
    """Token sequences of length 256."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 10_000, (200, 256)).astype(np.int32)
    labels = (tokens[:, -1] % 2).astype(np.int32)
    parts = Split(tokens[:150], labels[:150]), Split(tokens[150:], labels[150:])
    return Dataset("reviews", *parts, "memory", True, 2, "Made up.")


def few_ratings():
    """Ratings of 20 films by 30 users."""
    rng = np.random.default_rng(0)
    pairs = np.stack(np.divmod(rng.permutation(600)[:400], 20), axis=1)
    train, test = split_ratings(pairs, pairs.sum(axis=1) % 5)
    return RatingsDataset("ratings", train, test, "memory", True, 5, "Made up.", 30, 20)


EPOCH = {"epochs": 1}
# A dense network in the place of the convolutional one, which takes long to compile.
DIGITS = {"data_set": few_digits, "MnistCNN": MnistMLP}
LABELLED = {
    "teachers": {
        "num_teachers": 10, "network": "MLP", "epochs": 1, "batch_size": 20, "augment": False,
        "num_labels": 50,
    },
    "student": {"network": "MLP", "num_steps": 3, "batch_size": 16, "unlabeled_batch_size": 0},
}  # fmt: skip

# experiment: row, shortened settings, and what is read in the place of the data.
ROWS = {
    "gdp.mnist": ("2", {**EPOCH, "expected_batch_size": 40}, DIGITS),
    "gdp.adult": (
        "NoisySGD",
        {**EPOCH, "expected_batch_size": 40, "seeds": (0,)},
        {"data_set": few_persons},
    ),
    "gdp.imdb": (
        "NoisyAdam",
        {**EPOCH, "expected_batch_size": 30, "seeds": (0,)},
        {"data_set": few_reviews},
    ),
    "gdp.movielens": (
        "private networks",
        {**EPOCH, "sampling_rate": 0.25},
        {"data_set": few_ratings},
    ),
    "gdp.curves": ("1", {"num_steps": 40}, {}),
    "gdp.noise_saved": (
        "top: PLD",
        {**EPOCH, "expected_batch_size": 40},
        DIGITS,
    ),
    "bayes.bob": ("ε = 1, N = 25", {"repeats": 500}, {}),
    "bayes.conjugate": ("consistency: beta-binomial", {"n": (100, 200), "repeats": 5}, {}),
    "bayes.clipping": ("simulated, both", {"repeats": 2, "num_train": 100}, {}),
    "bayes.wine": ("trusted, Gaussian", {"repeats": 2, "num_train": 200}, {}),
    "bayes.coverage": ("n = 100", {"num_data_sets": 4, "num_draws": 20, "num_warmup": 20}, {}),
    "bayes.noise_aware": (
        "exponential, C = 8, ε = 1",
        {"num_steps": 400, "num_data_sets": 2, "num_examples": 500},
        {},
    ),
    "bayes.models": (
        "hierarchical logistic regression, C = 2, diagonal",
        {"num_steps": 200, "num_data_sets": 2, "num_examples": 500},
        {},
    ),
    "bayes.user_models": (
        "Poisson with offset, diagonal, falling rate",
        {"num_examples": 500, "sampling_rate": 0.5, "num_steps": 400, "num_data_sets": 2},
        {"_SVI_STEPS": 20},
    ),
    "bayes.gdsc": ("projected", {"num_repeats": 2, "epsilons": (1.0, 2.0), "sizes": (400,)}, {}),
    "bayes.wishart": ("Wishart, d = 5", {"draws": 500}, {}),
    "bayes.holders": ("distributed, N = 10, T = 0", {"repeats": 1, "num_train": 200}, {}),
    "bayes.holders_costs": ("additive shares: N = 10, M = 3, 78 numbers", {"rounds": 1}, {}),
    "dpvi.abalone": ("σ = 3.549", {}, {}),
    "dpvi.adult": ("σ = 2.226", {}, {}),
    "dpvi.gradients": (
        "Abalone, ε = 1: aligned",
        {"num_steps": 10, "repeats": 2, "learning_rates": (0.1,), "l2_clips": (1.0, 3.0)},
        {},
    ),
    "dpvi.mixture": ("σ = 6", {"num_steps": 10, "repeats": 2}, {}),
    "bdp.mnist": ("DP ε 2.2", {**EPOCH, "batch_size": 40}, DIGITS),
    "bdp.cifar10": (
        "ε 0.76 at 1e-10",
        {"epochs": 2, "batch_size": 40, "num_train": 200, "num_test": 50},
        {"load_features": few_features},
    ),
    "bdp.abalone": ("DP ε 0.61 at δ = 1e-10", {}, {}),
    "bdp.adult": ("DP ε 0.2 at δ = 1e-10", {}, {}),
    "bdp.figures": ("5: C = 0.7", {}, {}),
    "bdp.limits": ("normal", {"trials": 50}, {}),
    "bdp.incomes": ("clipped at 99 %, ε = 1", {"releases": 500}, {}),
    "scattering.linear": (
        "Fashion-MNIST, group normalisation, ε = 3",
        {**EPOCH, "num_train": 100, "num_test": 50, "sampling_rate": 0.2},
        {"load_images": lambda name: few_digits(100, 50)},
    ),
    "sgmcmc.bounds": ("η = 0.1, batches of 256", {}, {}),
    "sgmcmc.adult": (
        "SGLD, the source's step",
        {"num_steps": 50, "runs": 2},
        {"data_set": few_persons},
    ),
    "sgmcmc.mnist": (
        "MNIST: DP-SGLD",
        {"num_steps": 10, "num_kept": 5, "batch_size": 40},
        {"load_images": lambda name: few_digits()},
    ),
    "sgmcmc.inversion": (
        "softmax, one person, ε = 10",
        {"num_steps": 3},
        {"load_images": lambda name: few_faces()},
    ),
    "pate.analysis": ("Adult: Confident-GNMax", {}, {}),
    "pate.adult": (
        "LNMax, 500 queries",
        {"num_teachers": 10, "num_trees": 2, "num_queries": 20},
        {"data_set": few_persons},
    ),
    "pate.mnist": ("LNMax, 100 queries", LABELLED, {}),
    "pate.svhn": ("LNMax, 500 queries", LABELLED, {}),
    "rehearsal.settings": (
        "Poisson regression, ε = 1",
        {"epochs": (1.0,), "plans": ((8, 1.0),), "clips": (1.0,), "learning_rates": (0.01, 0.1)},
        {},
    ),
    "training.tuned": (
        "search: geometric, mean 8",
        {"pool": 4, "num_steps": 10},
        {},
    ),
    "course.differencing": ("sum", {"entries": 100}, {}),
    "course.local": ("ε = 3, n = 100", {"repeats": 50}, {}),
    "audit.mechanisms": ("Laplace, ε = 4", {}, {}),
    "accounting.allocation": ("t = 100, σ = 0.6, δ = 0.001", {"draws": 2**20}, {}),
    "training.correlated": (
        "Fashion-MNIST, one pass, ε = 8",
        {"num_train": 400, "batch_size": 50, "learning_rates": (1.0, 2.0), "seeds": 2},
        {"load_images": lambda name: few_digits()},
    ),
}


# Those that take longest, nearly all of it to compile.
SLOW = (
    "bayes.clipping bayes.coverage bayes.gdsc bayes.holders bayes.models bayes.noise_aware"
    " bayes.user_models bayes.wine bdp.abalone bdp.adult bdp.cifar10 bdp.mnist dpvi.abalone"
    " dpvi.adult dpvi.gradients dpvi.mixture gdp.adult gdp.imdb gdp.mnist gdp.movielens"
    " gdp.noise_saved pate.analysis pate.mnist pate.svhn rehearsal.settings scattering.linear"
    " sgmcmc.adult sgmcmc.inversion sgmcmc.mnist training.correlated training.tuned"
).split()


def _modules():
    for module in MODULES:
        name = module.removeprefix("experiments.")
        yield pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])


@pytest.mark.parametrize("module", list(_modules()))
def test_shortened_rows_have_the_published_columns_and_take_their_place(
    module, tmp_path, monkeypatch
):
    name, changes, data = ROWS[module]
    source = importlib.import_module(f"experiments.{module}")
    for function, read in data.items():
        # noise_saved trains by the function of the table.
        owner = gdp_mnist if function == "MnistCNN" and module.startswith("gdp.") else source
        monkeypatch.setattr(owner, function, read)
    if module.startswith("pate."):
        images = importlib.import_module("experiments.pate.images")
        monkeypatch.setattr(images, "load_images", lambda name: few_digits())
    (experiment,) = load_experiments([f"experiments.{module}"])
    if hasattr(source, "STUDY"):  # all points of a study with one program run at once
        study = dataclasses.replace(source.STUDY, num_steps=10, repeats={"quick": 2})
        monkeypatch.setattr(source, "STUDY", study)
        experiment = dataclasses.replace(experiment, rows=study.rows, run_row=study.run_row)
    if hasattr(source, "TABLE"):  # likewise
        table = dataclasses.replace(source.TABLE, num_steps=10, repeats=2)
        experiment = dataclasses.replace(experiment, rows=table.rows, run_row=table.run_row)
    (row,) = [row for row in experiment.rows("quick") if row.name == name]
    assert set(changes) <= set(row.settings)
    short = Row(name, {**row.settings, **changes}, row.source)
    result = experiment.run_row(short, RowContext(tmp_path, fresh=True, profile="quick"))

    # The same columns, series and certificate as the published record.
    published = load_publication(PUBLISHED, experiment.name, "quick").records
    (before,) = [record for record in published if record.row == name]
    assert set(result.measured) == set(before.measured)
    assert set(result.certified) == set(before.certified)
    assert set(result.series) == set(before.series)
    assert bool(result.certificate) == bool(before.certificate)
    for column, value in [*result.measured.items(), *result.certified.items()]:
        numbers = [value] if isinstance(value, float | int) else (value or [])
        assert not any(math.isnan(number) for number in np.ravel(numbers)), column
    assert all(np.all(np.asarray(bound, float) >= 0) for bound in result.certified.values())

    # Finding, remarks and figures are made of it beside the other rows.
    record = Record(
        experiment.name, name, "quick", short.settings, row.source, result.measured,
        result.certified, 1.0, series=result.series, certificate=result.certificate,
    )  # fmt: skip
    records = [record if other.row == name else other for other in published]
    assert experiment.finding(records).sentence
    assert all(experiment.remarks(records))
    assert experiment.figures(records).keys() <= experiment.page.captions.keys()


def calls_without_stand_in(source):
    """Lines of calls of ``load_data`` that fail where the data cannot be had; digits always can."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    for call in calls:
        names = [ast.unparse(each) for each in (call.func, *call.args)]
        if "load_data" in names and "'digits'" not in names:
            given = {each.arg: ast.unparse(each.value) for each in call.keywords}
            if given.get("stand_in") != "True":
                yield call.lineno


def test_every_experiment_runs_without_its_data():
    """``make reproduce`` works on a machine without network: other data stand in, and are named."""
    for module in MODULES:
        source = inspect.getsource(importlib.import_module(module))
        assert list(calls_without_stand_in(source)) == [], module
    assert list(calls_without_stand_in("load_data(name)\npartial(load_data, 'wine')")) == [1, 2]

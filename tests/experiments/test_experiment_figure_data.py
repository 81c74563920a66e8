"""What is drawn in the figures of every experiment, compared with its published records.

For each figure the data of named curves, bars or dots are those of the records' columns, and each
moves when its column does (a power check: a figure of other data, or of none, fails).
"""

import copy
from fnmatch import fnmatch

import numpy as np
import pytest
from helpers.quick import slow_except
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

from experiments.lib.publication import PUBLISHED, load_publication
from experiments.lib.registry import MODULES, Record, load_experiments

# Experiments, figure, number of the axes | label | x | y. Data of an axis are "rows > part > name",
# then names and the number of a column within a series. Rows are those that match, or
# of a ".setting=value", that have both values. "-" is an axis that is only a position, and "points"
# the next column of the points of x. A value may be "1 - " another, or divided by another.
CURVES = """
gdp.mnist accuracy 0 | 1 | 1 > series > accuracy % by epoch > 0 | points
gdp.mnist accuracy 5 | 6 | 6 > series > accuracy % by epoch > 0 | points
gdp.mnist epsilon 0 | MA ε | - | * > measured > MA ε / * > certified > ε, published epochs
gdp.mnist epsilon 0 | CLT ε | - | * > measured > CLT ε / * > certified > ε, published epochs
gdp.adult training 0 | NoisySGD | NoisySGD > series > accuracy % by epoch, each seed > mean > 0 | points
gdp.adult training 0 | SGD, no privacy | SGD, no privacy > series > accuracy % by epoch, each seed > mean > 0 | points
gdp.adult training 1 | certified | NoisySGD > series > ε by epoch > certified > 0 | points
gdp.adult training 1 | CLT ε | NoisySGD > series > ε by epoch > CLT ε > 0 | points
gdp.imdb training 0 | NoisyAdam | NoisyAdam > series > accuracy % by epoch, each seed > mean > 0 | points
gdp.imdb training 1 | MA ε | NoisyAdam > series > ε by epoch > MA ε > 0 | points
gdp.movielens training 0 | private networks, by user | private networks, by user > series > RMSE by epoch > 0 | points
gdp.curves profiles 0 | moments accountant | 2 > series > epsilons | 2 > series > deltas > MA
gdp.curves profiles 0 | certified | 2 > series > epsilons | 2 > series > deltas > lower
gdp.curves trade_offs 1 | certified | - | 1 - 2 > series > detected > lower
gdp.curves trade_offs 5 | central limit | - | 1 - 6 > series > detected > CLT
gdp.curves one_epoch 0 | f, 234 steps | - | 1 - A.1 > series > detected > lower
gdp.noise_saved training 0 | CLT: σ = 1.06 | top: CLT > series > accuracy % by epoch > 0 | points
gdp.noise_saved noise 0 | central limit | top: MA > series > ε by σ > CLT > 0 | points
gdp.noise_saved noise 1 | certified (PLD) | bottom: MA > series > ε by σ > PLD > 0 | points
bayes.conjugate consistency 0 | sampling: slope −0.50 | consistency: beta-binomial > series > n | consistency: beta-binomial > series > sampling
bayes.conjugate consistency 1 | private: slope −0.95 | consistency: Dirichlet* > series > n | consistency: Dirichlet* > series > private
bayes.conjugate coverage 0 | naive | * > measured > naive coverage % | -
bayes.conjugate coverage 0 | noise-aware | * > measured > noise-aware coverage % | -
bayes.clipping bounds 2 | clipped and noisy | simulated, both > settings > factors | simulated, both > series > noisy
bayes.clipping bounds 5 | clipped, no noise | wine, both > settings > factors | wine, both > series > clipped
bayes.wine errors 0 | trusted, Laplace | trusted, Laplace > settings > epsilons | trusted, Laplace > series > errors
bayes.wine errors 0 | naive, every holder's record | naive, every holder's record > settings > epsilons | naive, every holder's record > series > errors
bayes.coverage coverage 0 | noise-aware | * > settings > num_examples | * > measured > noise-aware, coefficients %
bayes.coverage coverage 0 | naive | * > settings > num_examples | * > measured > naive, coefficients %
bayes.coverage coverage 0 | exact | * > settings > num_examples | * > measured > exact, coefficients %
bayes.coverage coverage 1 | noise-aware | * > settings > num_examples | * > measured > noise-aware, predictions %
bayes.coverage coverage 1 | naive | * > settings > num_examples | * > measured > naive, predictions %
bayes.coverage coverage 1 | exact | * > settings > num_examples | * > measured > exact, predictions %
bayes.noise_aware coverage 0 | noise-aware | *C = * > measured > noise-aware, coverage % | -
bayes.noise_aware coverage 0 | last iterate | *C = * > measured > last iterate, coverage % | -
bayes.noise_aware coverage 1 | noise-aware | *C = * > measured > noise-aware, length over not private | -
bayes.models coverage 0 | noise-aware | * > measured > noise-aware, coverage % | -
bayes.models coverage 0 | guide alone | * > measured > guide alone, coverage % | -
bayes.user_models coverage 0 | noise-aware | * > measured > noise-aware, coverage % | -
bayes.user_models coverage 0 | guide alone | * > measured > guide alone, coverage % | -
bayes.gdsc spearman 0 | projected | projected > series > Spearman by ε > 0 | points
bayes.gdsc spearman 1 | no projection | no projection > series > Spearman by number of lines, ε = 2 > 0 | points
bayes.holders errors 0 | trusted aggregator | trusted aggregator > settings > epsilons | trusted aggregator > series > errors
bayes.holders errors 0 | distributed, N = 5, T = 1 | distributed, N = 5, T = 1 > settings > epsilons | distributed, N = 5, T = 1 > series > errors
bayes.holders penalty 0 | T = 0 | noise of a sum, T = 0 > series > noise > 0 | points
bayes.holders_costs sizes 0 | a holder | - | additive shares: N = 10, M = 3,* > measured > a holder (ms)
bayes.holders_costs sizes 0 | a node | - | additive shares: N = 10, M = 3,* > measured > a node (ms)
bayes.holders_costs sizes 0 | all parties | - | additive shares: N = 10, M = 3,* > measured > all parties (ms)
dpvi.abalone,dpvi.adult accuracy 0 | certified | .part=noise > certified > ε, replace one | .part=noise > measured > accuracy %
dpvi.abalone,dpvi.adult accuracy 0 | moments accountant | .part=noise > measured > MA ε, replace one | .part=noise > measured > accuracy %
dpvi.abalone,dpvi.adult accuracy 0 | advanced composition | .part=noise > measured > AC ε, replace one | .part=noise > measured > accuracy %
dpvi.abalone,dpvi.adult accuracy 1 | certified | .part=noise > certified > ε, add/remove | .part=noise > measured > accuracy %
dpvi.abalone,dpvi.adult accuracy 1 | moments accountant | .part=noise > measured > MA ε, add/remove | .part=noise > measured > accuracy %
dpvi.abalone,dpvi.adult accuracy 1 | advanced composition | .part=noise > measured > AC ε, add/remove | .part=noise > measured > accuracy %
dpvi.abalone settings 0 | σ = 2 | c = *, σ = 2 > settings > c | c = *, σ = 2 > measured > accuracy %
dpvi.adult settings 1 | σ = 0.8 | q = *, σ = 0.8 > settings > sampling_rate | q = *, σ = 0.8 > measured > accuracy %
dpvi.mixture density 0 | replace one | * > certified > ε, replace one | * > measured > log density per record
bdp.mnist,bdp.cifar10 accounts 0 | not private | not private > series > accuracy % by epoch > 0 | points
bdp.mnist,bdp.cifar10 accounts 1 | DP ε | * > certified > DP ε | -
bdp.mnist,bdp.cifar10 accounts 1 | BDP ε | * > measured > BDP ε | -
bdp.mnist,bdp.cifar10 norms 0 | median | - | not private > series > norms by epoch: quantiles 0.5, 0.9, 0.99, largest > 0
bdp.mnist,bdp.cifar10 norms 0 | 0.99 quantile | - | not private > series > norms by epoch: quantiles 0.5, 0.9, 0.99, largest > 2
bdp.mnist,bdp.cifar10 norms 0 | largest | - | not private > series > norms by epoch: quantiles 0.5, 0.9, 0.99, largest > 3
bdp.abalone,bdp.adult accounts 0 | DP ε, with noise | [!s]* > certified > DP ε | [!s]* > measured > test accuracy %
bdp.abalone,bdp.adult accounts 0 | BDP ε, with noise | [!s]* > measured > BDP ε | [!s]* > measured > test accuracy %
bdp.figures steps 0 | moments accountant, as published | - | 1: 0.05 quantile > series > MA, published
bdp.figures steps 0 | moments accountant, best λ | - | 1: 0.05 quantile > series > MA
bdp.figures steps 0 | certified DP, clipped: replace one | - | 1: 0.05 quantile > series > certified > replace_one
bdp.figures steps 0 | certified DP, clipped: add or remove | - | 1: 0.05 quantile > series > certified > add_remove
bdp.figures noise_clipped 0 | moments accountant, as published | - | 3: 0.05 quantile > series > MA, published
bdp.figures noise_clipped 0 | moments accountant, best λ | - | 3: 0.05 quantile > series > MA
bdp.figures noise_clipped 0 | certified DP, clipped: replace one | - | 3: 0.05 quantile > series > certified > replace_one
bdp.figures noise_clipped 0 | certified DP, clipped: add or remove | - | 3: 0.05 quantile > series > certified > add_remove
bdp.figures noise_unclipped 0 | moments accountant, as published | - | 4: 0.05 quantile > series > MA, published
bdp.figures noise_unclipped 0 | moments accountant, best λ | - | 4: 0.05 quantile > series > MA
bdp.figures noise_unclipped 0 | certified DP, clipped: replace one | - | 4: 0.05 quantile > series > certified > replace_one
bdp.figures noise_unclipped 0 | certified DP, clipped: add or remove | - | 4: 0.05 quantile > series > certified > add_remove
bdp.figures orders 0 | C = 0.1 | 5: C = 0.1 > series > orders | 5: C = 0.1 > series > bayesian
bdp.figures orders 0 | C = 0.7 | 5: C = 0.7 > series > orders | 5: C = 0.7 > series > bayesian
bdp.figures orders 0 | C = 1 | 5: C = 1 > series > orders | 5: C = 1 > series > bayesian
bdp.limits draws 0 | Bayesian, Student (Theorem 4) | number of draws > settings > draws | number of draws > measured > Bayesian ε, Student
bdp.limits draws 0 | distribution-free lower limit | - | number of draws > series > limit
bdp.limits tails 0 | shape 0.5 | - | tails: Weibull, shape 0.5 > measured > Bayesian ε, Student
bdp.incomes attacks 1 | clipped at 99 % | clipped at 99 %, ε = 2 > series > incomes | 100 * clipped at 99 %, ε = 2 > series > accuracies
scattering.linear accuracy 0 | source, claimed | MNIST, private * > source > ε | MNIST, private * > source > test accuracy %
scattering.linear accuracy 1 | source, claimed | Fashion-MNIST, group * > source > ε | Fashion-MNIST, group * > source > test accuracy %
scattering.linear accuracy 0 | private normalisation | MNIST, private * > certified > ε | MNIST, private * > measured > test accuracy %
sgmcmc.adult accuracy 0 | DP-SGD | DP-SGD, ε* > certified > ε | DP-SGD, ε* > measured > test accuracy %
sgmcmc.mnist frontier 0 | DP-SGLD, noise as printed | MNIST: DP-SGLD > certified > ε, as run | MNIST: DP-SGLD > measured > test accuracy %
sgmcmc.mnist frontier 0 | DP-SGHMC, temperature 1 | MNIST: DP-SGHMC, temperature 1 > certified > ε, as run | MNIST: DP-SGHMC, temperature 1 > measured > test accuracy %
sgmcmc.mnist frontier 0 | DP-SGHMC, noise as printed | MNIST: DP-SGHMC > certified > ε, as run | MNIST: DP-SGHMC > measured > test accuracy %
sgmcmc.mnist calibration 0 | non-private | MNIST: non-private > series > reliability > confidence | MNIST: non-private > series > reliability > accuracy
sgmcmc.mnist calibration 0 | DP-SGD | MNIST: DP-SGD > series > reliability > confidence | MNIST: DP-SGD > series > reliability > accuracy
sgmcmc.inversion identified 0 | one picture: identified | softmax, one picture, ε* > certified > ε | softmax, one picture, ε* > measured > identified %
sgmcmc.inversion identified 0 | one picture: accuracy | softmax, one picture, ε* > certified > ε | softmax, one picture, ε* > measured > test accuracy %
sgmcmc.inversion identified 0 | one person: identified | softmax, one person, ε* > certified > ε | softmax, one person, ε* > measured > identified %
sgmcmc.inversion identified 0 | one person: accuracy | softmax, one person, ε* > certified > ε | softmax, one person, ε* > measured > test accuracy %
sgmcmc.inversion identified 0 | one person: identified, at most | softmax, one person, ε* > certified > ε | softmax, one person, ε* > certified > identified, at most %
pate.analysis releases 0 | source | [!c]* > source > ε | -
pate.analysis agreement 0 | 100 teachers | simulated, LNMax, 100 * > series > votes for the plurality | simulated, LNMax, 100 * > series > epsilon
pate.analysis agreement 0 | 400 teachers | simulated, LNMax, 400 * > series > votes for the plurality | simulated, LNMax, 400 * > series > epsilon
pate.adult,pate.mnist,pate.svhn releases 0 | student, source | * > source > test accuracy % | -
pate.adult,pate.mnist,pate.svhn releases 0 | student | * > measured > test accuracy % | -
pate.adult,pate.mnist,pate.svhn releases 0 | teachers, mean | * > measured > teachers % | -
pate.adult,pate.mnist,pate.svhn releases 0 | plurality | * > measured > plurality of votes % | -
pate.adult,pate.mnist,pate.svhn releases 0 | answers | * > measured > answers right % | -
pate.adult,pate.mnist,pate.svhn releases 1 | source | * > source > ε | -
pate.adult,pate.mnist,pate.svhn releases 1 | data-dependent, not publishable | * > measured > not publishable: ε in both directions | -
pate.adult,pate.mnist,pate.svhn releases 1 | any votes, certified | * > certified > ε | -
rehearsal.settings errors 0 | rehearsed | * > measured > error, rehearsed / * > measured > error, best of 50 | -
rehearsal.settings errors 0 | defaults | * > measured > error, defaults / * > measured > error, best of 50 | -
rehearsal.settings errors 0 | median of 50 | * > measured > error, median of 50 / * > measured > error, best of 50 | -
course.local errors 0 | local, ε = 0.5 | - | ε = 0.5, n* > measured > local, error
course.local errors 0 | local, ε = 1.1 | - | ε = log 3, n* > measured > local, error
course.local errors 0 | local, ε = 3 | - | ε = 3, n* > measured > local, error
course.local errors 0 | global, ε = 0.5 | - | ε = 0.5, n* > measured > global, error
course.local errors 0 | global, ε = 1.1 | - | ε = log 3, n* > measured > global, error
course.local errors 0 | global, ε = 3 | - | ε = 3, n* > measured > global, error
accounting.allocation epsilons 0 | random allocation | ε by σ, t = 100, one epoch > series > ε by σ > upper > 0 | points
accounting.allocation epsilons 1 | Poisson | ε by σ, t = 100, 10 epochs > series > ε by σ > Poisson > 0 | points
training.correlated errors 0 | n = 512 | .part=errors > measured > n = 512, one pass | -
training.correlated errors 1 | n = 2,048 | .part=errors > measured > n = 2,048, 8 passes | -
training.correlated accuracy 0 | Poisson | * > measured > accuracy %, Poisson | -
training.correlated accuracy 0 | BLT | * > measured > accuracy %, BLT | -
audit.mechanisms epsilons 0 | certified, at most | * > certified > ε | -
audit.mechanisms epsilons 0 | audited, at least | *, ε = * > measured > audited ε | -
"""  # noqa: E501


def column(records, rows, part, name):
    """Returns the values by row of the rows that match, in the order of the records."""
    if rows.startswith("."):
        setting, value = rows[1:].split("=")
        named = [r for r in records.values() if str(r.settings.get(setting)) == value]
    else:
        named = [record for row, record in records.items() if fnmatch(row, rows)]
    values = {record.row: getattr(record, part).get(name) for record in named}
    return {row: value for row, value in values.items() if value is not None}


def read_values(records, path):
    """Returns the values of an axis by row, as in `CURVES`."""
    if path.startswith(("1 - ", "100 * ")):
        number, sign, other = path.split(" ", 2)
        values = read_values(records, other)
        return {r: 1 - v if sign == "-" else float(number) * v for r, v in values.items()}
    if " / " in path:
        above, below = (read_values(records, each) for each in path.split(" / "))
        return {row: above[row] / below[row] for row in above}
    rows, part, name, *names = path.split(" > ")
    by_row = {}
    for row, value in column(records, rows, part, name).items():
        for each in names:
            if each == "mean":
                value = np.mean(value, axis=0)
            elif each.isdigit():
                value = np.asarray(value, float)[..., int(each)]
            else:
                value = value[each]
        by_row[row] = np.asarray(value, float)
    assert by_row, path
    return by_row


def expected_data(records, x, y):
    """Returns the values on both axes, ``None`` for positions."""
    if y == "points":
        start, _, number = x.rpartition(" > ")
        y = f"{start} > {int(number) + 1}"
    axes = [read_values(records, path) if path != "-" else None for path in (x, y)]
    both = set.intersection(*[set(values) for values in axes if values is not None])
    return [
        values and np.concatenate([np.ravel(v) for row, v in values.items() if row in both])
        for values in axes
    ]


def curves_of(module):
    """Returns ``(figure, axes, label, x, y)`` for each line of `CURVES` of the experiment."""
    lines = [line.split(" | ") for line in CURVES.strip().splitlines()]
    every = [(*place.split(), *rest) for place, *rest in lines]
    return [curve for modules, *curve in every if module in modules.split(",")]


# Drawn from a computation beside the records, from pictures, or compared in the experiment's test.
NOT_BY_COLUMN = {
    ("bayes_wine", "sizes"),  # points of five rows: below
    ("bayes_wishart", "attacks"),  # rates from counts
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


def check_curve(figures, records, figure, axes, label, x, y):
    shown = drawn(figures[figure].axes[int(axes)], label)
    for values, expected in zip(shown, expected_data(records, x, y), strict=True):
        if expected is not None:
            finite = np.asarray(values, float)
            finite = finite[~np.isnan(finite)]  # dots of rows without the value
            np.testing.assert_allclose(finite, expected, rtol=1e-5)


NAMES = [module.removeprefix("experiments.") for module in MODULES]
LONG = {"dpvi.mixture", "sgmcmc.inversion"}


@pytest.mark.parametrize("module", slow_except(set(NAMES) - LONG, NAMES))
def test_figures_have_the_data_of_the_records(published, module):
    records, figures = published(module)
    curves = curves_of(module)
    for curve in curves:
        check_curve(figures, records, *curve)

    # Every figure is compared, here or below.
    (experiment,) = load_experiments([f"experiments.{module}"])
    compared = {figure for figure, *_ in curves}
    exempt = {figure for name, figure in NOT_BY_COLUMN if name == experiment.name}
    assert compared | exempt == set(figures)
    assert not compared & exempt

    # Power: the figures are not those of records whose values are 7 % larger.
    larger = copy.deepcopy(records)
    for record in larger.values():
        for part in ("measured", "certified", "source", "series"):
            getattr(record, part).update(_grown(getattr(record, part)))
    for curve in curves:
        if not any(" / " in path for path in curve):  # ratios of two columns stay
            with pytest.raises(AssertionError):
                check_curve(figures, larger, *curve)


def _grown(values):
    if isinstance(values, dict):
        return {name: _grown(value) for name, value in values.items()}
    if isinstance(values, list):
        return [_grown(value) for value in values]
    return 1.07 * values + 1e-9 if isinstance(values, float | int) else values


def test_errors_by_number_of_wines(published):
    records, figures = published("bayes.wine")
    rows = [
        f"trusted, Gaussian{n}"
        for n in (", n = 250", ", n = 500", ", n = 1,000", "", ", n = 4,000")
    ]
    errors = [records[row].measured["MAE, ε = 1"] for row in rows]
    np.testing.assert_allclose(drawn(figures["sizes"].axes[0], "ε = 1")[1], errors)


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

"""The pictures of `bayes_wishart`: what attacks attain, and what the constant costs."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax.accounting.tradeoff import ApproximateDP
from dpjax.adjacency import Adjacency
from dpjax.bayes.regression import RegressionBounds, WishartNoise, sheffet_degrees_of_freedom
from experiments.bayes.attack_rates import Counts
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.registry import Record

_LEVELS = np.geomspace(1e-5, 1, 200)
_EPSILONS = np.geomspace(0.05, 0.99, 14)
_DELTA = 1e-4
_DIMENSION = 5
_LEAST, _MOST = 7e-6, 1.3
_NOISES = {
    "Wishart(d + 1)": (PALETTE[1], "o", "published Wishart(d + 1)"),
    "Laplace": (MEASURED, "s", "Laplace"),
    "Gaussian": (CERTIFIED, "^", "Gaussian"),
    "Wishart": (PALETTE[3], "D", "Wishart, 30 degrees of freedom"),
}


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Returns the attacks if all of one dimension were run, and the degrees of freedom."""
    attacked = [r for r in records if r.settings.get("dimension") == _DIMENSION]
    drawn = {"degrees": (_degrees_figure(), _DEGREES)}
    if len(attacked) == len(_NOISES):
        drawn = {"attacks": (_attacks_figure(attacked), _ATTACKS), **drawn}
    return drawn


_ATTACKS = (
    "d = 5, ε = 1: how often a test says that the row is not in the data, where it is not (up) and"
    " where it is (right). Points: the test of the support; those without a hit or an alarm lie on"
    " the edge. Lines: tests of the release along the row. Dashed: the most that pure ε = 1 allows."
)
_DEGREES = (
    "Degrees of freedom of Wishart noise above the dimension, at scale R² and δ = 1e-4: what"
    " Sheffet's theorem asks for, and what the exact profile does."
)


def _attacks_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=6.8, height=4.4)
    pure = ApproximateDP(1.0).true_positive_rate(_LEVELS)
    axes.loglog(_LEVELS, pure, "--", color=SOURCE, label="pure ε = 1")
    for record in records:
        _draw_tests(axes, record)
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.set(xlim=(_LEAST, _MOST), ylim=(_LEAST, _MOST))
    axes.legend(loc="lower right")
    return figure


def _draw_tests(axes: Axes, record: Record) -> None:
    colour, marker, label = _NOISES[record.settings["noise"]]
    support, *along = [Counts(*counts) for counts in record.series["tests"]]
    shares = np.array([(t.alarms / t.draws, t.hits / t.draws) for t in along])
    axes.plot(shares[:, 0], shares[:, 1], color=colour, linewidth=1.2)
    edge = _LEVELS[0]
    place = [max(count / support.draws, edge) for count in (support.alarms, support.hits)]
    axes.plot(*place, marker, color=colour, label=label, clip_on=False, markersize=8)


def _degrees_figure() -> Figure:
    figure, (axes,) = new_figure(height=3.8)
    asked = [sheffet_degrees_of_freedom(1, epsilon=float(e), delta=_DELTA) - 1 for e in _EPSILONS]
    axes.loglog(_EPSILONS, asked, color=SOURCE, label="Sheffet 2019")
    axes.loglog(_EPSILONS, _fewest("replace_one"), color=MEASURED, label="replace one")
    axes.loglog(_EPSILONS, _fewest("add_remove"), color=CERTIFIED, label="add or remove")
    axes.set(xlabel="ε", ylabel="degrees of freedom − d")
    axes.set_xticks([0.05, 0.1, 0.2, 0.5, 1.0], labels=["0.05", "0.1", "0.2", "0.5", "1"])
    axes.minorticks_off()
    axes.legend()
    return figure


def _fewest(adjacency: Adjacency) -> list[int]:
    bounds = RegressionBounds(x_norm=1.0, y_size=1.0)
    made = [
        WishartNoise.from_epsilon(
            bounds, epsilon=float(epsilon), delta=_DELTA, adjacency=adjacency, num_features=1
        )
        for epsilon in _EPSILONS
    ]
    return [mechanism.degrees_of_freedom - mechanism.dimension for mechanism in made]

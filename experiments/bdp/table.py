"""Rows of Table 1 with neural networks: results, gradient distances (Figure 2), figures, remarks.

Both tests on distances assume independent samples. The distances of all pairs of a sample are
dependent, so that the tests reject equal distributions far more often than at their level.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from scipy import stats
from scipy.spatial.distance import pdist

from dpjax import bdp
from dpjax._typing import LossFn, PRNGKey, PyTree
from experiments.bdp.classifiers import EXAMPLES, MEAN, PLAIN, Settings, Task, train
from experiments.data import Dataset, Split
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.models import cross_entropy
from experiments.lib.plots import draw_by_row, draw_curve, set_epoch_axis
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.verdicts import compare_published, format_upper_bound

ACCURACY = "test accuracy %"
DP, BDP, DP_ATTACK, BDP_ATTACK = "DP ε", "BDP ε", "DP attack", "BDP attack"
ABOVE = "norms above the clip %"
_PAIRS_EPSILON = "BDP ε by the source's pairs"
_CURVE, _NORMS = "accuracy % by epoch", "norms by epoch: quantiles 0.5, 0.9, 0.99, largest"
_DISJOINT, _ALL = "disjoint pairs", "all pairs"
_NUM_PAIRS, _NUM_EXAMPLES, _NUM_BINS = 500, 100, 40
_MOST_COLUMNS = 3


def published_row(
    accuracy: float, dp: tuple[float, float] | None = None, bdp: tuple[float, float] | None = None
) -> dict[str, float]:
    """Returns the published values: accuracy, and (epsilon, attack bound) by DP and BDP."""
    found = {ACCURACY: accuracy}
    for names, figures in (((DP, DP_ATTACK), dp), ((BDP, BDP_ATTACK), bdp)):
        found.update(zip(names, figures or (), strict=False))
    return found


def run_row(row: Row, context: RowContext, task: Task, landmark: float) -> Result:
    """Trains a row and computes the DP and BDP accounts; ``landmark`` is an accuracy in %."""
    target = row.settings["target"]
    settings = Settings(**{**row.settings, "target": target and tuple(target)})
    run = train(settings, task, context.folder)
    key = jax.random.key(settings.seed + 1)
    series = {
        _CURVE: run.curve,
        _NORMS: run.norms,
        "distances": compare(key, cross_entropy(task.model), run.weights, task.data),
    }
    reached = (epoch for epoch, accuracy in run.curve if accuracy >= landmark)
    measured = {
        ACCURACY: run.curve[-1][1],
        f"epochs to {landmark:g} percent": next(reached, None),
        "largest norm": max(quantiles[-1] for quantiles in run.norms),
    }
    note = f"{task.data.note} Seeded key: the noise is reproducible, so this run is not private."
    if settings.epochs < settings.published_epochs:
        note += (
            f" Shortened: fewer than {settings.published_epochs} epochs, so accuracies are lower"
            " than the source's; every ε is that of the epochs run."
        )
    if settings.way == PLAIN:
        return Result(measured, {}, note, series)
    certificate = bdp.certificate(run.account, settings.delta)
    epsilon, attack = certificate.epsilon, certificate.attack_success
    if settings.way == MEAN:
        measured[_PAIRS_EPSILON] = bdp.epsilon(run.published, 1e-10).bdp
    else:
        measured[ABOVE] = 100 * run.share_clipped
    noise: Any = run.mechanism.noise_multiplier
    # BDP epsilon relies on assumptions, so it is measured, not certified.
    measured |= {"noise multiplier": noise, BDP: epsilon.bdp, BDP_ATTACK: attack.bdp}
    at_population = bdp.epsilon(run.account, 1e-10).dp
    certified = {DP: epsilon.dp, DP_ATTACK: attack.dp, "DP ε at δ = 1e-10": at_population}
    return Result(measured, certified, note, series, str(certificate))


def compare(key: PRNGKey, loss_fn: LossFn, weights: PyTree, data: Dataset) -> Values:
    """Compares gradient distances within the training and the test part, by kind of pairs."""
    train_key, test_key = jax.random.split(key)
    found = {}
    for name, distances in ((_DISJOINT, disjoint_distances), (_ALL, all_distances)):
        train = distances(train_key, loss_fn, weights, data.train)
        test = distances(test_key, loss_fn, weights, data.test)
        found[name] = compare_samples(train, test)
    return found


def disjoint_distances(key: PRNGKey, loss_fn: LossFn, weights: PyTree, part: Split) -> np.ndarray:
    """Returns gradient distances of disjoint pairs of examples, which are independent."""
    num_pairs = min(_NUM_PAIRS, len(part.y) // 2)
    pairs = np.asarray(bdp.sample_disjoint_pairs(key, len(part.y), num_pairs=num_pairs))
    first, second = ((part.x[rows], part.y[rows]) for rows in pairs)
    return np.asarray(bdp.gradient_pairs(loss_fn, weights, first, second).distances, float)


def all_distances(key: PRNGKey, loss_fn: LossFn, weights: PyTree, part: Split) -> np.ndarray:
    """Returns gradient distances of all pairs of 100 examples, which are dependent."""
    rows = np.asarray(jax.random.permutation(key, len(part.y))[:_NUM_EXAMPLES])
    examples = jnp.asarray(part.x[rows]), jnp.asarray(part.y[rows])
    gradients = jax.jit(jax.vmap(jax.grad(loss_fn), in_axes=(None, 0)))(weights, examples)
    flat = [np.asarray(leaf, float).reshape(len(rows), -1) for leaf in jax.tree.leaves(gradients)]
    return pdist(np.concatenate(flat, axis=1))


def compare_samples(train: np.ndarray, test: np.ndarray) -> Values:
    """Returns histograms of two samples, and p-values of the t-test and Levene's test."""
    edges = np.linspace(0, max(train.max(), test.max()), _NUM_BINS + 1)
    return {
        "edges": edges.tolist(),
        "train": np.histogram(train, edges)[0].tolist(),
        "test": np.histogram(test, edges)[0].tolist(),
        "t": float(stats.ttest_ind(train, test).pvalue),
        "levene": float(stats.levene(train, test).pvalue),
    }


def _format_p_values(found: Values) -> str:
    return f"p = {found['t']:.2g} (t), {found['levene']:.2g} (Levene)"


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    """Draws accuracies, DP and BDP epsilon, gradient norms, and gradient distances (Figure 2)."""
    return {
        "accounts": _accounts_figure(records),
        "norms": _norms_figure(records),
        "distances": distances_figure(records),
    }


def _accounts_figure(records: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6)
    for record, colour in zip(records, PALETTE, strict=False):
        draw_curve(left, *np.transpose(record.series[_CURVE]), color=colour, label=record.row)
    left.set_ylabel("test accuracy (%)")
    set_epoch_axis(left)
    left.legend(loc="best", fontsize=8)
    private = [record for record in records if record.certified]
    epsilons = {DP: ("certified", DP, CERTIFIED, "s"), BDP: ("measured", BDP)}
    draw_by_row(right, private, epsilons)
    right.set(xlabel="ε", xscale="log")
    right.legend()
    return figure


def _norms_figure(records: Sequence[Record]) -> Figure:
    figure, axes = new_figure(columns=len(records), width=2.6 * len(records), height=3.2)
    for axis, record in zip(axes, records, strict=True):
        quantiles = list(zip(*record.series[_NORMS], strict=True))
        epochs = range(1, len(quantiles[0]) + 1)
        for index, label in ((0, "median"), (2, "0.99 quantile"), (3, "largest")):
            axis.plot(epochs, quantiles[index], color=PALETTE[index], marker="o", label=label)
        if record.settings["way"] == EXAMPLES:
            axis.axhline(record.settings["l2_clip"], color="black", linestyle=":", linewidth=1)
        axis.set_yscale("log")
        axis.set_title(record.row, fontsize=9)
        set_epoch_axis(axis)
    axes[0].set_ylabel("norm of one gradient")
    axes[0].legend(fontsize=8)
    return figure


def distances_figure(records: Sequence[Record]) -> Figure:
    """Draws histograms of the gradient distances, a column for each of the first rows."""
    compared = [record for record in records if "distances" in record.series][:_MOST_COLUMNS]
    figure, axes = new_figure(rows=2, columns=len(compared), width=3.4 * len(compared), height=6.0)
    shown = [(name, record) for name in (_DISJOINT, _ALL) for record in compared]
    for axis, (name, record) in zip(axes, shown, strict=True):
        found = record.series["distances"][name]
        for part, colour in (("train", MEASURED), ("test", PALETTE[1])):
            shares = np.array(found[part]) / sum(found[part])
            axis.stairs(shares, found["edges"], color=colour, label=part, linewidth=1.4)
        axis.set(xlabel="distance of two gradients", ylabel="share of the pairs", yscale="log")
        title = f"{record.row}\n" if name == _DISJOINT else ""
        axis.set_title(f"{title}{name}:\n{_format_p_values(found)}", fontsize=9)
    axes[0].legend()
    return figure


def remarks(records: Sequence[Record]) -> list[str]:
    """Compares DP and BDP of each run, and reports the tests of Figure 2."""
    private = [record for record in records if record.certified]
    return [*map(_compare_accounts, private), *map(_state_tests, records)]


def _compare_accounts(record: Record) -> str:
    dp, bdp = record.certified[DP], record.measured[BDP]
    both = (
        f"{record.row}: DP ε = {format_upper_bound(dp)} for every record, BDP ε ="
        f" {format_upper_bound(bdp)} for 99.999 % of records from the data distribution"
    )
    if record.settings["way"] == MEAN:
        claim = format_upper_bound(record.measured[_PAIRS_EPSILON])
        return (
            f"{both}. One example can move the clipped mean by 2 C, so an outlier has almost no"
            f" protection. The source's formula, on pairs, gives {claim} at δ_μ = 1e-10; it is not"
            " an upper bound."
        )
    verdict = "BDP ε is smaller, for such records only." if bdp < dp else "BDP ε is not smaller."
    return (
        f"{both}, with {format_value(record.measured[ABOVE])} % of the norms above the clip bound:"
        f" {verdict}"
    )


def _state_tests(record: Record) -> str:
    distances = record.series["distances"]
    found = "; ".join(f"{name} {_format_p_values(distances[name])}" for name in (_DISJOINT, _ALL))
    return (
        f"Gradient distances of train and test, {record.row}: {found}. A p-value above 0.05 does"
        " not prove the absence of leakage; that of all pairs treats dependent samples as"
        " independent."
    )


def finding(records: Sequence[Record], protocol: str, is_full: Callable[[Record], bool]) -> Finding:
    """Compares with published accuracies, and the published DP ε with that of the protocol.

    Args:
      records: of all rows.
      protocol: the row of the source's protocol.
      is_full: whether a run is not shortened, so that its accuracy is compared.
    """
    claims = [r for r in records if r.row == protocol and r.certified[DP] > r.source[DP]]
    both = [r for r in records if BDP in r.measured and DP in r.certified and r.row != protocol]
    smaller = sum(record.measured[BDP] < record.certified[DP] for record in both)
    clauses = [
        f"the source's protocol has a certified DP ε of {format_upper_bound(r.certified[DP])} where"
        f" {r.source[DP]:g} is published"
        for r in claims
    ]
    if both:
        clauses.append(
            f"with clipped examples the BDP ε is below the certified DP ε in {smaller} of"
            f" {len(both)} rows"
        )
    comparison = compare_published(
        records, ACCURACY, 1.0, "published accuracies", "points", is_full
    )
    return comparison.finding("; ".join(clauses), bool(claims))

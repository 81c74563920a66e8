"""Rows of Table 1 with neural networks: results, gradient distances (Figure 2), figures, remarks.

Both tests on distances assume independent numbers. The distances of all pairs of a sample are not
independent: equal distributions are then called different far more often than one time in twenty.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from scipy import stats
from scipy.spatial.distance import pdist

from dpjax import bdp
from dpjax._typing import LossFn, PRNGKey
from dpjax.datasets import Dataset, Split
from experiments.bdp.classifiers import EXAMPLES, MEAN, PLAIN, Settings, Task, train
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.models import cross_entropy
from experiments.lib.plots import draw_by_row, draw_curve, set_epoch_axis
from experiments.lib.registry import Record, Result, Row, RowContext
from experiments.lib.sweeps import column
from experiments.lib.verdicts import format_upper_bound

ACCURACY = "test accuracy %"
DP, BDP, DP_ATTACK, BDP_ATTACK = "DP ε", "BDP ε", "DP attack", "BDP attack"
ABOVE = "norms above the clip %"
_PAIRS_EPSILON = "BDP ε by the source's pairs"
_CURVE, _NORMS = "accuracy % by epoch", "norms by epoch: quantiles 0.5, 0.9, 0.99, largest"
_DISJOINT, _ALL = "disjoint pairs", "all pairs"
_NUM_PAIRS, _NUM_EXAMPLES, _NUM_BINS = 500, 100, 40
_MOST_COLUMNS = 3

TWO_ACCOUNTS = (
    "DP ε is certified (PLD) for every record at δ = 1e-5; BDP ε is that of the same steps for"
    " 99.999 % of the records drawn like the data, by the Bayesian accountant at δ_μ = 1e-10, from"
    " the norms that clipping computes; neighbours differ by the presence of one record. An"
    " attacker with a flat prior is right about one record at most e^ε / (1 + e^ε) of the time. The"
    " Bayesian column does not cover outliers and rests on the assumptions that its certificate"
    " lists.\n\n"
)
DESCRIPTION = (
    f"{TWO_ACCOUNTS}"
    "“The source's protocol” is that of its published code: the mean of a batch is clipped, not"
    " its examples. One example can then carry the mean from one end of the ball to the other, so"
    " its noise is 0.5 σ in units of what is certified. Clipping to a ball never lengthens a"
    " difference, so the Bayesian account of that run is from the unclipped norms over the batch"
    " size. Beside it stands the source's own formula, from pairs of examples: not an upper bound."
    "\n\nStep sizes and clips that the source does not give were settled in a few tries with test"
    " accuracies in view, which no ε counts."
)


def published_row(
    accuracy: float, dp: tuple[float, float] | None = None, bdp: tuple[float, float] | None = None
) -> dict[str, float]:
    """The source's figures of a row: accuracy, then epsilon and attack bound by both accounts."""
    found = {ACCURACY: accuracy}
    for names, figures in (((DP, DP_ATTACK), dp), ((BDP, BDP_ATTACK), bdp)):
        found.update(zip(names, figures or (), strict=False))
    return found


def run_row(row: Row, context: RowContext, task: Task, landmark: float) -> Result:
    """Trains a row, and computes both accounts of the same steps."""
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
            f" Shortened: fewer than {settings.published_epochs} epochs, so not the source's"
            " accuracy, and every ε is that of the epochs that were run."
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
    # A Bayesian epsilon rests on assumptions: it is measured, never certified.
    measured |= {"noise multiplier": noise, BDP: epsilon.bdp, BDP_ATTACK: attack.bdp}
    at_population = bdp.epsilon(run.account, 1e-10).dp
    certified = {DP: epsilon.dp, DP_ATTACK: attack.dp, "DP ε at δ = 1e-10": at_population}
    return Result(measured, certified, note, series, str(certificate))


def compare(key: PRNGKey, loss_fn: LossFn, weights: Any, data: Dataset) -> dict[str, Any]:
    """Compares gradient distances within the training and within the test part, JSON-ready.

    Returns:
      ``"disjoint pairs"`` and ``"all pairs"``, each with ``"train"`` and ``"test"`` (counts by bin
      of ``"edges"``) and the p-values ``"t"`` and ``"levene"``.
    """
    train_key, test_key = jax.random.split(key)
    found = {}
    for name, distances in ((_DISJOINT, disjoint_distances), (_ALL, all_distances)):
        train = distances(train_key, loss_fn, weights, data.train)
        test = distances(test_key, loss_fn, weights, data.test)
        found[name] = compare_samples(train, test)
    return found


def disjoint_distances(key: PRNGKey, loss_fn: LossFn, weights: Any, part: Split) -> np.ndarray:
    """Returns the gradients' distances of disjoint pairs of examples: independent numbers."""
    num_pairs = min(_NUM_PAIRS, len(part.y) // 2)
    pairs = np.asarray(bdp.sample_disjoint_pairs(key, len(part.y), num_pairs=num_pairs))
    first, second = ((part.x[rows], part.y[rows]) for rows in pairs)
    return np.asarray(bdp.gradient_pairs(loss_fn, weights, first, second).distances, float)


def all_distances(key: PRNGKey, loss_fn: LossFn, weights: Any, part: Split) -> np.ndarray:
    """Returns the gradients' distances of all pairs of 100 examples: dependent numbers."""
    rows = np.asarray(jax.random.permutation(key, len(part.y))[:_NUM_EXAMPLES])
    examples = jnp.asarray(part.x[rows]), jnp.asarray(part.y[rows])
    gradients = jax.jit(jax.vmap(jax.grad(loss_fn), in_axes=(None, 0)))(weights, examples)
    flat = [np.asarray(leaf, float).reshape(len(rows), -1) for leaf in jax.tree.leaves(gradients)]
    return pdist(np.concatenate(flat, axis=1))


def compare_samples(train: np.ndarray, test: np.ndarray) -> dict[str, Any]:
    """Returns histograms of two samples, and p-values of equal means and of equal variances."""
    edges = np.linspace(0, max(train.max(), test.max()), _NUM_BINS + 1)
    return {
        "edges": edges.tolist(),
        "train": np.histogram(train, edges)[0].tolist(),
        "test": np.histogram(test, edges)[0].tolist(),
        "t": float(stats.ttest_ind(train, test).pvalue),
        "levene": float(stats.levene(train, test).pvalue),
    }


def _format_p_values(found: Mapping[str, Any]) -> str:
    return f"p = {found['t']:.2g} (t), {found['levene']:.2g} (Levene)"


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Accuracy by epoch, both epsilons of each run, norms, and gradient distances (Figure 2)."""
    accounts = (
        "Left: test accuracy as training goes on, by noise. Right: both ε of the same runs, which"
        " are never to be quoted one without the other. Where many norms reach the clip bound, both"
        " accounts see the same, and the Bayesian one is the larger for its smaller δ."
    )
    norms = (
        "Norms of the drawn examples' gradients, by epoch (of the updated weights only, where few"
        " are): median, 0.99 quantile and the largest. Dotted: the clip bound. The Bayesian account"
        " is decided by the largest."
    )
    distances = (
        "Distances of the gradients of two images, after training, within the training and within"
        " the test part. Above: disjoint pairs, which are independent. Below: all pairs of 100"
        " images, as in the source's code, where an image is in 99 of them. Student's t-test"
        " compares means, Levene's variances. All pairs are not independent, and their p-values are"
        " worth nothing: two samples of one distribution are called different. A p-value above"
        " 0.05 is no proof that nothing leaks: it says that these few numbers do not show it."
    )
    return {
        "accounts": (_accounts_figure(records), accounts),
        "norms": (_norms_figure(records), norms),
        "distances": (distances_figure(records), distances),
    }


def _accounts_figure(records: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6)
    for record, colour in zip(records, PALETTE, strict=False):
        draw_curve(left, *np.transpose(record.series[_CURVE]), color=colour, label=record.row)
    left.set_ylabel("test accuracy (%)")
    set_epoch_axis(left)
    left.legend(loc="best", fontsize=8)
    private = [record for record in records if record.certified]
    epsilons = {
        DP: (column(private, DP), CERTIFIED, "s"),
        BDP: (column(private, BDP), MEASURED, "o"),
    }
    draw_by_row(right, [record.row for record in private], epsilons)
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
    """Histograms of the first rows that have distances: a column for each row."""
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
    """Compares the two accounts of each run, and states the tests of Figure 2."""
    private = [record for record in records if record.certified]
    return [*map(_compare_accounts, private), *map(_state_tests, records)]


def _compare_accounts(record: Record) -> str:
    dp, bdp = record.certified[DP], record.measured[BDP]
    both = (
        f"{record.row}: DP ε = {format_upper_bound(dp)} for every record, BDP ε ="
        f" {format_upper_bound(bdp)} for 99.999 % of those like the data"
    )
    if record.settings["way"] == MEAN:
        claim = format_upper_bound(record.measured[_PAIRS_EPSILON])
        return (
            f"{both}. One example can move the clipped mean by 2 C, so the noise"
            " promises next to nothing to an outlier. The source's formula, on pairs, gives"
            f" {claim} at δ_μ = 1e-10, and is no upper bound."
        )
    verdict = (
        "here the Bayesian account does say more, of such records alone."
        if bdp < dp
        else "the Bayesian account adds nothing."
    )
    return (
        f"{both}, with {format_value(record.measured[ABOVE])} % of the norms above the clip bound:"
        f" {verdict} The cost is a mean of exponentials, which the largest norms decide."
    )


def _state_tests(record: Record) -> str:
    distances = record.series["distances"]
    found = "; ".join(f"{name} {_format_p_values(distances[name])}" for name in (_DISJOINT, _ALL))
    return (
        f"Gradient distances of train and test, {record.row}: {found}. A p-value above 0.05 is no"
        " proof of no leak; one of all pairs takes dependent numbers for independent ones."
    )

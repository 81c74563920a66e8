"""Figure 2 of Triastcyn and Faltings (2020): do gradient distances tell training data from others?

Both tests take their numbers for independent ones. Of all pairs of a sample they are not: then
equal distributions are called different far more often than one time in twenty.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats
from scipy.spatial.distance import pdist

from dpjax.bdp.replace_one import gradient_pairs, sample_disjoint_pairs
from dpjax.datasets import Dataset, Split
from experiments.lib.figures import MEASURED, PALETTE, new_figure
from experiments.lib.registry import Record

_NUM_PAIRS, _NUM_EXAMPLES, _NUM_BINS = 500, 100, 40
_MOST_COLUMNS = 3

CAPTION = (
    "How far the gradients of two images are apart, after training, within the training and within"
    " the test part. Above: disjoint pairs, which are independent. Below: all pairs of 100 images,"
    " as in the source's code, where an image is in 99 of them. Student's t-test compares means,"
    " Levene's variances. All pairs are not independent, and their p-values are worth nothing: two"
    " samples of one distribution are told apart. A p-value above 0.05 is no proof that nothing"
    " leaks: it says that these few numbers do not show it."
)


def compare(loss_fn: Any, params: Any, data: Dataset, key: jax.Array) -> dict[str, Any]:
    """Distances of gradients at ``params`` within the training and the test part, JSON-ready.

    Returns:
      ``"disjoint pairs"`` and ``"all pairs"``, each with ``"train"`` and ``"test"`` (counts by bin
      of ``"edges"``) and the p-values ``"t"`` and ``"levene"``.
    """
    train_key, test_key = jax.random.split(key)
    parts = ((train_key, data.train), (test_key, data.test))
    disjoint = [_disjoint(loss_fn, params, part, key) for key, part in parts]
    together = [_all_pairs(loss_fn, params, part, key) for key, part in parts]
    return {"disjoint pairs": _tested(*disjoint), "all pairs": _tested(*together)}


def _disjoint(loss_fn: Any, params: Any, part: Split, key: jax.Array) -> np.ndarray:
    num_pairs = min(_NUM_PAIRS, len(part.y) // 2)
    pairs = np.asarray(sample_disjoint_pairs(key, len(part.y), num_pairs=num_pairs))
    first, second = ((part.x[rows], part.y[rows]) for rows in pairs)
    return np.asarray(gradient_pairs(loss_fn, params, first, second).distances, float)


def _all_pairs(loss_fn: Any, params: Any, part: Split, key: jax.Array) -> np.ndarray:
    rows = np.asarray(jax.random.permutation(key, len(part.y))[:_NUM_EXAMPLES])
    examples = jnp.asarray(part.x[rows]), jnp.asarray(part.y[rows])
    gradients = jax.jit(jax.vmap(jax.grad(loss_fn), in_axes=(None, 0)))(params, examples)
    flat = [np.asarray(leaf, float).reshape(len(rows), -1) for leaf in jax.tree.leaves(gradients)]
    return pdist(np.concatenate(flat, axis=1))


def _tested(train: np.ndarray, test: np.ndarray) -> dict[str, Any]:
    edges = np.linspace(0, max(train.max(), test.max()), _NUM_BINS + 1)
    return {
        "edges": edges.tolist(),
        "train": np.histogram(train, edges)[0].tolist(),
        "test": np.histogram(test, edges)[0].tolist(),
        "t": float(stats.ttest_ind(train, test).pvalue),
        "levene": float(stats.levene(train, test).pvalue),
    }


def distances_figure(records: Sequence[Record]) -> Figure:
    """Histograms of the first rows that have distances: a column for each row."""
    compared = [record for record in records if "distances" in record.series][:_MOST_COLUMNS]
    figure, axes = new_figure(rows=2, columns=len(compared), width=3.4 * len(compared), height=6.0)
    ways = ("disjoint pairs", "all pairs")
    for number, axis in enumerate(axes):
        record, way = compared[number % len(compared)], ways[number // len(compared)]
        _draw(axis, record.series["distances"][way])
        title = f"{record.row}\n" if number < len(compared) else ""
        axis.set_title(f"{title}{way}:\n{p_values(record.series['distances'][way])}", fontsize=9)
    axes[0].legend()
    return figure


def _draw(axis: Axes, found: Mapping[str, Any]) -> None:
    for part, colour in (("train", MEASURED), ("test", PALETTE[1])):
        heights = np.array(found[part]) / sum(found[part])
        axis.stairs(heights, found["edges"], color=colour, label=part, linewidth=1.4)
    axis.set(xlabel="distance of two gradients", ylabel="share of the pairs", yscale="log")


def p_values(found: Mapping[str, Any]) -> str:
    """Both tests' p-values in words."""
    return f"p = {found['t']:.2g} (t), {found['levene']:.2g} (Levene)"

"""Rows of Table 1 with neural networks: results, gradient distances (Figure 2), figures, remarks.

Both tests on distances assume independent samples. The distances of all pairs of a sample are
dependent, so that the tests reject equal distributions far more often than at their level.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from scipy import stats
from scipy.spatial.distance import pdist

import dpjax
from dpjax import bdp
from dpjax._files import write_atomically
from dpjax._typing import LossFn, Params, PRNGKey, PyTree
from dpjax.training import Report
from dpjax.transforms.noise import AddGaussianNoiseState
from experiments.data import Dataset, Split
from experiments.lib import training
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.models import accuracy_percent, cross_entropy
from experiments.lib.plots import draw_by_row, draw_curve, set_epoch_axis
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.verdicts import compare_published, format_upper_bound

PLAIN, MEAN, EXAMPLES = "not private", "mean clipped", "examples clipped"
ORDERS = (*range(1, 33), 40, 48, 64, 96, 128)
# Steps in parts are faster, but take longer to compile: for runs of several epochs.
_PHYSICAL_BATCH_SIZE = 144
# Exceeds every gradient norm, so that nothing is clipped.
_NO_CLIP = 1e9
_NUM_TRAINING_PAIRS = 256


@dataclass(frozen=True)
class Settings:
    """Training and privacy settings of one row."""

    way: str  # what is clipped: PLAIN, MEAN (the source's code) or EXAMPLES
    optimizer: str
    learning_rate: float
    epochs: int
    published_epochs: int
    batch_size: int  # mean Poisson batch size
    l2_clip: float = 1.0  # on the mean gradient, or on each example's
    # on the mean or the sum; None to calibrate to target
    noise_std: float | None = None
    # DP (epsilon, delta) to calibrate the noise to
    target: tuple[float, float] | None = None
    share_of_weights: float = 1.0  # probability that a step updates a weight
    # of DP, and of BDP for 99.999 % of the records
    delta: float = 1e-5
    seed: int = 0

    def mechanism(self, num_examples: int, unit: str) -> dpjax.SubsampledGaussian:
        """Returns the subsampled Gaussian mechanism of the run, under zero-out.

        For a clipped mean the sensitivity of the sum is ``2 l2_clip batch_size``: one example can
        move the mean from one end of the clipping ball to the other.
        """
        of_mean = self.way == MEAN
        bound = 2 * self.l2_clip * self.batch_size if of_mean else self.l2_clip
        multiplier = 1.0
        if self.noise_std is not None:
            multiplier = self.noise_std * (self.batch_size if of_mean else 1) / bound
        mechanism = dpjax.SubsampledGaussian(
            dpjax.PoissonSampling(
                num_examples,
                self.batch_size / num_examples,
                physical_batch_size=_PHYSICAL_BATCH_SIZE if self.epochs > 1 else 0,
            ),
            l2_clip=bound,
            noise_multiplier=multiplier,
            num_steps=self.epochs * num_examples // self.batch_size,
            adjacency="zero_out",
            unit=unit,
        )
        if self.target is None:
            return mechanism
        return dpjax.calibrate(mechanism, epsilon=self.target[0], delta=self.target[1])


class Task(NamedTuple):
    """A network, its data and the unit of privacy."""

    model: nn.Module
    data: Dataset
    unit: str


class Program(NamedTuple):
    """Arguments of a private training step."""

    loss_fn: LossFn
    params: Params  # weights; with random weight masks, (weights, step number)
    # of the sums; without clipping and noise, unless examples are clipped
    mechanism: dpjax.SubsampledGaussian
    optimizer: optax.GradientTransformation  # clips and perturbs the mean if way is MEAN
    key: PRNGKey  # for batches and noise

    @staticmethod
    def weights(params: PyTree) -> PyTree:
        """Returns the network's weights."""
        return params[0] if isinstance(params, tuple) else params


class Run(NamedTuple):
    """A trained network, its gradient norms and its privacy accounts."""

    weights: PyTree
    # that was run; of a run without privacy, that of its batches
    mechanism: dpjax.SubsampledGaussian
    curve: training.Curve  # test accuracy (%) by epoch
    # of the drawn examples' gradients: 0.5, 0.9, 0.99 quantile and largest, by epoch
    norms: list[list[float]]
    share_clipped: float  # of the drawn examples, those whose norm reached the bound
    account: bdp.AccountantState  # BDP account under zero-out, from gradient norms
    # the source's formula on pairs; not an upper bound
    published: bdp.AccountantState


def train(settings: Settings, task: Task, folder: Path) -> Run:
    """Trains a network with a BDP account of its gradient norms; resumes from ``folder``.

    If an epoch was checkpointed but its norms were not saved, the account assumes the worst case.
    """
    data, loss_fn = task.data, cross_entropy(task.model)
    key, init_key, pair_key = jax.random.split(jax.random.key(settings.seed), 3)
    weights = task.model.init(init_key, data.train.x[:1])["params"]
    mechanism = settings.mechanism(len(data.train.y), task.unit)
    program = make_program(key, settings, loss_fn, weights, mechanism)
    accuracy, path = accuracy_percent(task.model), folder / "epochs.json"
    account = bdp.init(mechanism, orders=ORDERS)
    accountant = bdp.TrainingAccountant(account, folder / "account.npz")
    epochs = json.loads(path.read_text("utf-8")) if path.exists() else {}

    def record(report: Report) -> None:
        accountant(report._replace(mechanism=mechanism))
        epoch = round(report.num_releases * settings.batch_size / len(data.train.y))
        norms, mask = np.asarray(report.infos.norms), np.asarray(report.infos.mask)
        quantiles = [*np.quantile(norms[mask], (0.5, 0.9, 0.99)).tolist(), float(norms[mask].max())]
        share_clipped = float((norms[mask] >= mechanism.l2_clip).mean())
        found = {"steps": len(mask), "norms": quantiles, "share_clipped": share_clipped}
        if settings.way == MEAN:
            keys = jax.random.split(jax.random.fold_in(pair_key, epoch))
            params = program.weights(report.params)
            found["distances"] = _pair_distances(keys, loss_fn, params, data, settings).tolist()
        epochs[str(epoch)] = found
        write_atomically(path, json.dumps(epochs).encode())

    trained = training.train(
        program.key,
        training.Task(
            program.loss_fn,
            tuple(data.train),
            program.optimizer,
            lambda params: accuracy(program.weights(params), data.test),
        ),
        program.params,
        program.mechanism,
        steps_per_report=-(-mechanism.num_steps // settings.epochs),
        folder=folder,
        on_report=record,
    )
    weights, state = program.weights(trained.params), accountant.state
    curve = [(float(round(epoch)), percent) for epoch, percent in trained.curve]
    if state.num_done < mechanism.num_steps:
        state = bdp.update_worst_case(state, mechanism.num_steps - state.num_done)
    found = list(epochs.values())
    steps = [epoch["steps"] for epoch in found]
    return Run(
        weights,
        mechanism,
        curve,
        [epoch["norms"] for epoch in found],
        float(np.average([epoch["share_clipped"] for epoch in found], weights=steps)),
        state,
        _account_of_pairs(account, found) if settings.way == MEAN else account,
    )


def make_program(
    key: PRNGKey,
    settings: Settings,
    loss_fn: LossFn,
    weights: PyTree,
    mechanism: dpjax.SubsampledGaussian,
) -> Program:
    """Returns the arguments of the private step for these settings."""
    weights_key, noise_key, key = jax.random.split(key, 3)
    optimizer = getattr(optax, settings.optimizer)(settings.learning_rate)
    params = weights
    if settings.share_of_weights < 1:
        loss_fn, optimizer = _update_drawn_weights(
            weights_key, loss_fn, optimizer, settings.share_of_weights
        )
        params = (weights, jnp.zeros(()))
    if settings.way == EXAMPLES:
        return Program(loss_fn, params, mechanism, optimizer, key)
    if settings.way == MEAN:
        optimizer = optax.chain(clip_mean(noise_key, settings, mechanism), optimizer)
    # The optimiser adds the noise after clipping the mean; the sum itself has none.
    noiseless = dataclasses.replace(mechanism, l2_clip=_NO_CLIP, noise_multiplier=0.0)
    return Program(loss_fn, params, noiseless, optimizer, key)


def clip_mean(
    key: PRNGKey, settings: Settings, mechanism: dpjax.SubsampledGaussian
) -> optax.GradientTransformation:
    """Clips the mean gradient of a batch and adds noise to it, as the source's code does.

    `dpjax.train` refuses optimisers with noise, which belongs to the mechanism: the state of this
    one is a plain tuple.
    """
    size, noise = settings.batch_size, mechanism.noise(key)
    clip = optax.clip_by_global_norm(settings.l2_clip)

    def init(params: PyTree) -> tuple[Any, ...]:
        return tuple(noise.init(params))

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> PyTree:
        clipped, _ = clip.update(updates, optax.EmptyState(), params)
        of_batch = jax.tree.map(lambda leaf: size * leaf, clipped)
        noisy, after = noise.update(of_batch, AddGaussianNoiseState(*state), params)
        return jax.tree.map(lambda leaf: (1 / size) * leaf, noisy), tuple(after)

    return optax.GradientTransformation(init, update)


def _update_drawn_weights(
    key: PRNGKey, loss_fn: LossFn, optimizer: optax.GradientTransformation, share: float
) -> tuple[LossFn, optax.GradientTransformation]:
    """Returns loss and optimiser of (weights, step number), where a step updates random weights."""

    def drawn(params: PyTree) -> PyTree:
        weights, step = params
        return draw_weights(jax.random.fold_in(key, step.astype(jnp.int32)), weights, share)

    def loss(params: PyTree, example: PyTree) -> jax.Array:
        return _freeze_others(loss_fn, drawn(params))(params[0], example)

    def update(updates: PyTree, state: PyTree, params: PyTree) -> PyTree:
        kept = jax.tree.map(lambda keep, u: jnp.where(keep, u, 0), drawn(params), updates[0])
        kept, state = optimizer.update(kept, state, params[0])
        return (kept, jnp.ones(())), state

    return loss, optax.GradientTransformation(lambda params: optimizer.init(params[0]), update)


def draw_weights(key: PRNGKey, weights: PyTree, share: float) -> PyTree:
    """Returns random boolean masks of the weights, True with probability ``share``."""
    leaves, treedef = jax.tree.flatten(weights)
    keys = jax.random.split(key, len(leaves))
    masks = [
        jax.random.bernoulli(k, share, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, masks)


def _freeze_others(loss_fn: LossFn, kept: Any) -> LossFn:
    """Returns the loss with zero gradient for the weights that are not kept."""

    def hold(keep: jax.Array, leaf: jax.Array) -> jax.Array:
        return jnp.where(keep, leaf, jax.lax.stop_gradient(leaf))

    return lambda weights, example: loss_fn(jax.tree.map(hold, kept, weights), example)


def _pair_distances(
    keys: jax.Array, loss_fn: LossFn, weights: PyTree, data: Dataset, settings: Settings
) -> np.ndarray:
    """Returns gradient distances of disjoint pairs of examples, on masked weights."""
    num_pairs = min(_NUM_TRAINING_PAIRS, len(data.train.y) // 2)
    pairs = bdp.sample_disjoint_pairs(keys[0], len(data.train.y), num_pairs=num_pairs)
    kept = draw_weights(keys[1], weights, settings.share_of_weights)
    first, second = ((data.train.x[rows], data.train.y[rows]) for rows in np.asarray(pairs))
    found = bdp.gradient_pairs(_freeze_others(loss_fn, kept), weights, first, second)
    return np.asarray(found.distances)


def _account_of_pairs(
    account: bdp.AccountantState, epochs: list[dict[str, Any]]
) -> bdp.AccountantState:
    """Accounts by the source's formula, from pair distances instead of norms."""
    mechanism: Any = account.mechanism
    for epoch in epochs:
        moments = bdp.subsampled_gaussian_log_moments(
            account.orders,
            np.array(epoch["distances"], np.float32),
            sampling_rate=mechanism.sampling.sampling_rate,
            noise_std=mechanism.noise_multiplier * mechanism.l2_clip,
        )
        steps = np.broadcast_to(moments, (epoch["steps"], *moments.shape))
        account = bdp.update_from_log_moments(account, steps)
    return account


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
    """Returns remarks on DP and BDP ε of each run, and on the tests of Figure 2."""
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
    """Compares with published accuracies, and the published DP ε with that of the protocol."""
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

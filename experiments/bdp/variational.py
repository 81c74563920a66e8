"""Variational rows of Table 1 of Triastcyn and Faltings (2020): rows, results, figure, remarks.

Each step samples weights from the variational distribution q and updates q's parameters with the
clipped gradients at these weights. The account compares q after a step with and without one record.
It would cover the release of one weight sample per step if the state before it were public; it does
not cover the release of q's parameters.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import dpjax
from dpjax import bdp
from dpjax._typing import PyTree
from dpjax.sampling.base import gather
from experiments.bdp.table import (
    ABOVE,
    ACCURACY,
    BDP,
    BDP_ATTACK,
    DP,
    DP_ATTACK,
    ORDERS,
    published_row,
)
from experiments.bdp.table import finding as table_finding
from experiments.data import Dataset
from experiments.dpvi.inference import Point, fit, make_mechanism
from experiments.dpvi.logistic import (
    accuracy_percent_of_draws,
    logistic_inference,
    windowed_adagrad,
)
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, new_figure
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.sweeps import column, percent
from experiments.published.bdp import UnclippedGaussian

# Number of sampled records of a step for which the step without them is computed.
_NUM_RECORDS = 64


class Trajectory(NamedTuple):
    """Variational distributions of each step, with and without single records."""

    mean: Any  # after each step, (steps, d)
    scale: jax.Array | np.ndarray  # standard deviations, of the same shape
    other_mean: np.ndarray  # means without one sampled record, (steps, records, d)
    other_scale: jax.Array | np.ndarray  # standard deviations without it
    mask: Any  # which records were sampled, bool (steps, records)


def run_source_protocol(
    data: Dataset,
    *,
    l2_clip: float,
    sampling_rate: float,
    num_steps: int,
    learning_rate: float,
    seed: int,
) -> Trajectory:
    """Fits without noise; computes each step also without each of some sampled records."""
    sampling = dpjax.PoissonSampling(len(data.train.y), sampling_rate)
    optimizer = windowed_adagrad(learning_rate)
    records, key = tuple(data.train), jax.random.key(seed)
    return jax.tree.map(np.asarray, _run(sampling, optimizer, num_steps, l2_clip, records, key))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _run(
    sampling: dpjax.PoissonSampling,
    optimizer: optax.GradientTransformation,
    num_steps: int,
    l2_clip: Any,
    records: PyTree,
    key: jax.Array,
) -> Trajectory:
    start = (jnp.zeros(records[0].shape[1]), jnp.zeros(records[0].shape[1]))
    rate = sampling.expected_batch_size / sampling.num_examples

    def data_free_loss(params: PyTree, normal: jax.Array) -> jax.Array:
        """Negative log prior and entropy, up to a constant."""
        weights = params[0] + jnp.exp(params[1]) * normal
        return 0.5 * jnp.sum(weights**2) - params[1].sum()

    def update(
        params: PyTree, state: PyTree, summed: PyTree, normal: jax.Array
    ) -> tuple[PyTree, PyTree]:
        free = jax.grad(data_free_loss)(params, normal)
        gradient = jax.tree.map(lambda s, f: s / rate + f, summed, free)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    def step(carry: PyTree, key: jax.Array) -> tuple[Any, Trajectory]:
        params, state, sampler = carry
        draw, sampler = sampling.draw(sampler)
        batch = sampling.batch(draw, 0)
        normal = jax.random.normal(key, params[0].shape)
        grads = _clipped_gradients(params, gather(records, batch.indices), normal, l2_clip)
        kept = jax.tree.map(lambda g: jnp.where(batch.mask[:, None], g, 0), grads)
        summed = jax.tree.map(lambda g: g.sum(axis=0), kept)
        left_out = jax.tree.map(lambda s, g: s - g[:_NUM_RECORDS], summed, kept)
        others, _ = jax.vmap(lambda s: update(params, state, s, normal))(left_out)
        params, state = update(params, state, summed, normal)
        found = Trajectory(
            params[0], jnp.exp(params[1]), others[0], jnp.exp(others[1]), batch.mask[:_NUM_RECORDS]
        )
        return (params, state, sampler), found

    sampler_key, steps_key = jax.random.split(key)
    carry = (start, optimizer.init(start), sampling.init(sampler_key))
    return jax.lax.scan(step, carry, jax.random.split(steps_key, num_steps))[1]


def _clipped_gradients(
    params: PyTree, records: PyTree, normal: jax.Array, l2_clip: float
) -> PyTree:
    """Returns each record's clipped gradient: leaves ``(records, d)``."""

    def loss(params: PyTree, record: PyTree) -> jax.Array:
        x, y = record
        weights = params[0] + jnp.exp(params[1]) * normal
        return -jax.nn.log_sigmoid((2 * y - 1) * (x @ weights))

    grads = jax.vmap(jax.grad(loss), (None, 0))(params, records)
    norms = jnp.sqrt(sum(jnp.sum(g**2, axis=1) for g in grads))
    factors = jnp.minimum(1, l2_clip / jnp.maximum(norms, 1e-12))
    return jax.tree.map(lambda g: factors[:, None] * g, grads)


def account(
    run: Trajectory, sampling_rate: float, num_examples: int, orders: Sequence[int]
) -> bdp.AccountantState:
    """Returns the BDP account of the release of one weight sample per step, under add/remove.

    The two normal distributions of a step are replaced by two of equal scale with the same Rényi
    divergence of order 2 (the larger direction), whose distance enters the formula of the
    subsampled Gaussian mechanism.

    Privacy:
      No guarantee (see the module); the DP epsilon is infinite.
    """
    sampling = dpjax.PoissonSampling(num_examples, sampling_rate)
    mechanism = UnclippedGaussian(sampling, noise_std=1.0, num_steps=len(run.mean))
    moments = bdp.subsampled_gaussian_log_moments(
        orders, distances(run), sampling_rate=sampling_rate, noise_std=1.0
    )
    return bdp.update_from_log_moments(bdp.init(mechanism, orders=orders), moments, run.mask)


def distances(run: Trajectory) -> np.ndarray:
    """Returns the distances of each step's distributions in standard deviations."""
    one = (run.mean[:, None], run.scale[:, None])
    other = (run.other_mean, run.other_scale)
    both = [
        bdp.diagonal_gaussian_log_moments((1,), *pair) for pair in ((*one, *other), (*other, *one))
    ]
    return np.sqrt(np.maximum(*both)[..., 0])


PLAIN, SOURCE_PROTOCOL = "not private", "source's protocol (reconstructed)"
_DELTA, _POPULATION_DELTA = 1e-5, 1e-10
_SEED, _NUM_DRAWS = 0, 100
_RECONSTRUCTED = "reconstructed BDP ε"


@dataclass(frozen=True, eq=False)
class Table:
    """Two rows of Table 1 for one data set, and rows with noise."""

    data: Callable[[], Dataset]
    l2_clip: float  # bound on the gradient of one log-likelihood
    sampling_rate: float
    num_steps: int
    # σ of the rows with noise, by name; over twice the clip, as in Honkela (2017)
    sigmas: Mapping[str, float]
    # accuracy without privacy, accuracy, then ε and attack bound by DP and by BDP
    published: tuple[float, float, tuple[float, float], tuple[float, float]]
    repeats: int  # runs of each row with noise, for the mean accuracy
    learning_rate: float = 0.1

    def rows(self, profile: str) -> list[Row]:
        """Returns the rows, which are the same in both profiles."""
        del profile
        plain, private, dp, bdp = self.published
        sources = {PLAIN: published_row(plain), SOURCE_PROTOCOL: published_row(private, dp, bdp)}
        sigmas: dict[str, float] = {PLAIN: 0.0, SOURCE_PROTOCOL: 0.0, **self.sigmas}
        common = {**self.settings, "repeats": self.repeats, "delta": _DELTA, "seed": _SEED}
        return [
            Row(name, {"sigma": sigma, **common}, sources.get(name, {}))
            for name, sigma in sigmas.items()
        ]

    @property
    def settings(self) -> Values:
        """Settings shared by all fits of the table."""
        names = ("l2_clip", "sampling_rate", "num_steps", "learning_rate")
        return {name: getattr(self, name) for name in names}

    def run_row(self, row: Row, context: RowContext) -> Result:
        """Runs a row and computes its DP and BDP accounts."""
        del context
        note = (
            f"{self.data().note} The first {len(self.data().train.y):,} records train. Seeded keys:"
            " the noise is reproducible, so these runs are not private."
        )
        if row.name == SOURCE_PROTOCOL:
            return _source_result(self, note)
        run = _fits(self)[row.settings["sigma"]]
        measured = {ACCURACY: run.accuracies.mean(), "largest norm": run.norms[run.mask].max()}
        if row.name == PLAIN:
            return Result(measured, {}, note)
        return _noisy_result(self, row.settings["sigma"], run, measured, note)


class Repeats(NamedTuple):
    """Repeated runs of one row."""

    # on the test records (%), of predictions by draws of the weights, (repeats,)
    accuracies: np.ndarray
    norms: np.ndarray  # unclipped, of the records drawn in the first repeat, (steps, slots)
    mask: np.ndarray  # which slots hold a drawn record, bool (steps, slots)


@functools.cache
def _fits(table: Table) -> dict[float, Repeats]:
    """Returns the DP-SVI runs by σ, computed together."""
    data, sigmas, key = table.data(), [0.0, *table.sigmas.values()], jax.random.key(_SEED)
    fits = fit(
        key,
        logistic_inference(len(data.train.y), table.sampling_rate, table.learning_rate),
        [Point(sigma, table.l2_clip) for sigma in sigmas],
        tuple(data.train),
        num_steps=table.num_steps,
        repeats=table.repeats,
        with_norms=True,
    )
    keys = jax.random.split(key, table.repeats)
    accuracies = np.asarray(_score(fits.params, tuple(data.test), keys), float)
    assert fits.norms is not None
    assert fits.mask is not None
    runs = zip(accuracies, np.asarray(fits.norms[:, 0]), np.asarray(fits.mask[:, 0]), strict=True)
    return {sigma: Repeats(*run) for sigma, run in zip(sigmas, runs, strict=True)}


@jax.jit
def _score(params: PyTree, test: PyTree, keys: jax.Array) -> jax.Array:
    """Returns accuracies (%) of fitted parameters, ``(points, repeats)``, by weight samples."""

    def score(params: PyTree, key: jax.Array) -> jax.Array:
        x, y = test
        return accuracy_percent_of_draws(params, x, y, key, _NUM_DRAWS)

    return jax.vmap(jax.vmap(score), (0, None))(params, keys)


def _noisy_result(
    table: Table, sigma: float, run: Repeats, measured: dict[str, Any], note: str
) -> Result:
    num_examples = len(table.data().train.y)
    mechanism = make_mechanism(
        sigma, table.l2_clip, table.sampling_rate, table.num_steps, num_examples
    )
    state = bdp.update(bdp.init(mechanism, orders=ORDERS), run.norms, run.mask)
    certificate = bdp.certificate(state, _DELTA)
    return Result(
        # BDP epsilon relies on assumptions, so it is measured, not certified.
        measured={
            **measured,
            ABOVE: percent(run.norms[run.mask] >= table.l2_clip),
            BDP: certificate.epsilon.bdp,
            BDP_ATTACK: certificate.attack_success.bdp,
        },
        certified={
            DP: certificate.epsilon.dp,
            DP_ATTACK: certificate.attack_success.dp,
            "DP ε at δ = 1e-10": bdp.epsilon(state, _POPULATION_DELTA).dp,
            "DP ε at δ = 1e-3": bdp.epsilon(state, 1e-3).dp,
        },
        note=f"{note} Accuracies are means over {table.repeats} runs, every ε is that of one run.",
        certificate=str(certificate),
    )


def _source_result(table: Table, note: str) -> Result:
    data = table.data()
    run = run_source_protocol(data, **table.settings, seed=_SEED)
    state = account(run, table.sampling_rate, len(data.train.y), ORDERS)
    epsilon = bdp.epsilon(state, _POPULATION_DELTA)
    params = {"mean": run.mean[None, None, -1], "scale": run.scale[None, None, -1]}
    keys = jax.random.split(jax.random.key(_SEED), 1)
    return Result(
        measured={
            ACCURACY: float(_score(params, tuple(data.test), keys)[0, 0]),
            _RECONSTRUCTED: epsilon.bdp,
            "its attack bound": float(bdp.attack_success(epsilon.bdp)),
        },
        certified={DP: epsilon.dp, DP_ATTACK: 1.0},
        note=f"{note} One run; its BDP ε is measured, not certified: see the description.",
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    """Draws accuracy against DP and BDP ε."""
    noisy = [record for record in records if BDP in record.measured]
    if not noisy:
        return {}
    figure, (axes,) = new_figure(width=8.8)
    for name, colour, marker in ((DP, CERTIFIED, "s"), (BDP, MEASURED, "o")):
        style: dict[str, Any] = {"color": colour, "markersize": 7, "label": f"{name}, with noise"}
        axes.plot(column(noisy, name), column(noisy, ACCURACY), marker, **style)
    for record in records:
        measured, source = record.measured, record.source
        if record.row == PLAIN:
            axes.axhline(measured[ACCURACY], color="black", linewidth=1, label=PLAIN)
        if record.row == SOURCE_PROTOCOL:
            style = {"markersize": 8, "color": PALETTE[3], "label": "no noise, reconstructed BDP"}
            axes.plot(measured[_RECONSTRUCTED], measured[ACCURACY], "x", **style)
            style |= {"color": PALETTE[4], "label": "no noise, published BDP"}
            axes.plot(source[BDP], source[ACCURACY], "x", **style)
    axes.set(xlabel="ε", ylabel="test accuracy (%)", xscale="log")
    figure.legend(loc="outside right center")
    return {"accounts": figure}


def remarks(records: Sequence[Record]) -> list[str]:
    """Compares BDP with DP ε of each row with noise."""
    return [_compare(record) for record in records if BDP in record.measured]


def _compare(record: Record) -> str:
    dp, bdp = record.certified[DP], record.measured[BDP]
    verdict = "BDP ε is smaller, for such records only" if bdp < dp else "BDP ε is not smaller"
    return (
        f"{record.row}: accuracy {record.measured[ACCURACY]:.1f} % at DP ε ="
        f" {np.ceil(100 * dp) / 100:.2f} for every record; BDP ε = {np.ceil(100 * bdp) / 100:.2f}"
        f" for 99.999 % of records from the data distribution: {verdict}, with"
        f" {record.measured[ABOVE]:.0f} % of the norms above the clip bound."
    )


def finding(records: Sequence[Record]) -> Finding:
    """Returns the finding of the table, see `experiments.bdp.table.finding`."""
    return table_finding(records, SOURCE_PROTOCOL, lambda record: True)

"""Planted bugs of differentially private code, and what catches each of them.

Every bug is a small wrong version of one right program: a DP-SGD step, a loop with a sampler, a
statistic, the votes of PATE, an account. Many were found in published libraries. `check_one`
applies the checks of `dpjax.audit` to one of them, or to one of the right programs, which must
pass. `check_own` applies the checks to a user's step, and `planted_in` plants bugs in it for the
user's own tests.

A step is built of four functions: per-record gradients, clipped sum, noise, and the keys of noise
and of the next step. A bug replaces one of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from scipy.special import ndtri

from dpjax._typing import PRNGKey, PyTree
from dpjax.adjacency import Adjacency, check_adjacency, sensitivity_factor
from dpjax.audit._program import check_program
from dpjax.audit._step_checks import check_step
from dpjax.audit._values import is_key, is_raw_key
from dpjax.audit._worlds import audit
from dpjax.certificates.render import round_up
from dpjax.gradients import clipped_grad
from dpjax.mechanisms import Gaussian, Mechanism, SubsampledGaussian, mechanism_of
from dpjax.sampling import PoissonSampling, Sampling, ShuffledEpochs
from dpjax.sensitivity import Sensitivity
from dpjax.training import private_step
from dpjax.training.step import PrivateStep
from dpjax.transforms import add_gaussian_noise, differentially_private_aggregate

Catcher = Literal["property", "program", "audit", "event"]
Step: TypeAlias = Callable[..., Any]
Tree: TypeAlias = dict[str, jax.Array]

L2_CLIP, NOISE_MULTIPLIER, NUM_RECORDS = 1.5, 2.0, 8
NOISE_STD = L2_CLIP * NOISE_MULTIPLIER
_DELTA = 1e-5


@dataclass(frozen=True)
class StepOfRecords:
    """A step with records and the mechanism that it is claimed to be: arguments of `check_step`."""

    step: Step
    records: PyTree
    mechanism: SubsampledGaussian | Gaussian
    init: Callable[[PRNGKey], Any] | None = None
    num_runs: int | None = 10_000
    null_record: PyTree | None = None


@dataclass(frozen=True)
class ReleaseOfWorlds:
    """Code run on two neighbouring data sets, with its claimed mechanism: arguments of `audit`."""

    release: Callable[[PRNGKey, Any], Any]
    first: Any
    second: Any
    mechanism: Mechanism
    score: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class LoopAndClaim:
    """The mechanism that is accounted for, and that which the state of the loop describes.

    Attributes:
      claimed: as it was typed for the account.
      run: makes the loop and returns `dpjax.mechanism_of` of its state and its sampler.
    """

    claimed: Mechanism
    run: Callable[[], Mechanism]


Program: TypeAlias = StepOfRecords | ReleaseOfWorlds | LoopAndClaim


@dataclass(frozen=True, kw_only=True)
class PlantedBug:
    """A wrong program.

    Attributes:
      number: in the corpus.
      name: in some words.
      description: what is wrong, a sentence.
      caught_by: the check that must catch it: ``"property"`` (`check_step`), ``"audit"``,
        ``"event"`` (the state of the loop against the account), ``"program"`` (its jaxpr) or
        ``"error"`` (it cannot be run).
      program: makes it.
      source: where the bug was found in published code.
    """

    number: int
    name: str
    description: str
    caught_by: Catcher
    program: Callable[[], Program]
    source: str = ""


@dataclass(frozen=True)
class Result:
    """What the checks found in one program.

    Attributes:
      number, name: of the planted bug; zero for a right program.
      expected: the check that must catch it, empty for a right program.
      caught: what each check that objects says, by check.
    """

    number: int
    name: str
    expected: str
    caught: dict[str, str] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Whether the expected check found the bug; of a right program, whether none objected."""
        return self.expected in self.caught if self.expected else not self.caught


# ---------------------------------------------------------------------------------------------
# The right step, of replaceable functions.


def per_record_gradients(params: Tree, records: Tree) -> Tree:
    """Returns the gradients of a linear regression of several outputs, one for each record."""

    def loss(own: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sum((x @ own["w"] + own["b"] - y) ** 2) / 2

    return jax.vmap(jax.grad(loss), (None, 0, 0))(params, records["x"], records["y"])


def norms(gradients: Tree) -> jax.Array:
    """Returns the L2 norm of each record's gradient, over all leaves; infinite if it overflows."""
    squares = [jnp.sum(leaf.reshape(len(leaf), -1) ** 2, axis=1) for leaf in gradients.values()]
    return jnp.sqrt(sum(squares[1:], squares[0]))


def scale_records(gradients: Tree, factors: jax.Array) -> Tree:
    """Returns each record's gradient times its factor; those with a factor that is NaN are zero."""

    def scale(leaf: jax.Array) -> jax.Array:
        shape = (-1,) + (1,) * (leaf.ndim - 1)
        usable = jnp.isfinite(factors).reshape(shape)
        return jnp.where(usable, leaf * factors.reshape(shape), 0.0)

    return {name: scale(leaf) for name, leaf in gradients.items()}


def sum_records(gradients: Tree) -> Tree:
    """Returns the sum of the records' gradients."""
    return {name: leaf.sum(axis=0) for name, leaf in gradients.items()}


def clip(gradients: Tree, bound: jax.Array | float = L2_CLIP) -> Tree:
    """Returns the gradients clipped to the bound in L2 over all leaves; if not finite, zero."""
    length = norms(gradients)
    factors = jnp.minimum(1.0, bound / length)
    return scale_records(gradients, jnp.where(jnp.isfinite(length), factors, jnp.nan))


def clipped_sum(gradients: Tree) -> Tree:
    """Returns the sum of the clipped gradients."""
    return sum_records(clip(gradients))


def add_noise(key: PRNGKey, total: Tree, std: jax.Array | float = NOISE_STD) -> Tree:
    """Returns the sum plus Gaussian noise, by a key for each leaf."""
    keys = jax.random.split(key, len(total))
    return {
        name: leaf + std * jax.random.normal(own, leaf.shape)
        for own, (name, leaf) in zip(keys, total.items(), strict=True)
    }


def split_key(key: PRNGKey) -> tuple[PRNGKey, PRNGKey]:
    """Returns the key of the next step and that of this step's noise."""
    next_key, noise_key = jax.random.split(key)
    return next_key, noise_key


def make_step(
    *,
    gradients: Callable[[Tree, Tree], Tree] = per_record_gradients,
    aggregate: Callable[[Tree], Tree] = clipped_sum,
    noise: Callable[[PRNGKey, Tree], Tree] = add_noise,
    keys: Callable[[PRNGKey], tuple[PRNGKey, PRNGKey]] = split_key,
) -> Step:
    """Returns a step of a loop: gradients, clipped sum, noise, and the gradient step."""

    def step(state: tuple[PRNGKey, Tree], records: Tree) -> tuple[Tree, tuple[PRNGKey, Tree]]:
        key, params = state
        next_key, noise_key = keys(key)
        released = noise(noise_key, aggregate(gradients(params, records)))
        params = jax.tree.map(lambda p, g: p - 0.01 * g, params, released)
        return released, (next_key, params)

    return step


def init(key: PRNGKey) -> tuple[PRNGKey, Tree]:
    """Returns the state of the first step: the key and parameters of zero."""
    return key, {"b": jnp.zeros(4), "w": jnp.zeros((7, 4))}


def example_records() -> Tree:
    """Returns made-up records whose gradients are clipped."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(NUM_RECORDS, 7)), rng.normal(size=(NUM_RECORDS, 4))
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}


def claim(
    adjacency: Any = "add_remove", sensitivity: float = L2_CLIP, std: float = NOISE_STD
) -> Gaussian:
    """Returns the mechanism of one step."""
    return Gaussian(Sensitivity(sensitivity, "l2", adjacency), std)


def of_step(step: Step | None = None, **parts: Any) -> Callable[[], StepOfRecords]:
    """Returns a function that builds the reference step with some of its parts replaced."""
    return lambda: StepOfRecords(step or make_step(**parts), example_records(), claim(), init)


# ---------------------------------------------------------------------------------------------
# Bugs of the clipped sum.


def _clip_after_mean(gradients: Tree) -> Tree:
    mean = {name: leaf.mean(axis=0, keepdims=True) for name, leaf in gradients.items()}
    return sum_records(clip(mean))


def _clip_each_leaf(gradients: Tree) -> Tree:
    clipped = [clip({name: leaf}) for name, leaf in gradients.items()]
    return sum_records({name: leaf for each in clipped for name, leaf in each.items()})


def _clip_each_coordinate(gradients: Tree) -> Tree:
    return sum_records(
        {
            name: jnp.clip(jnp.nan_to_num(leaf), -L2_CLIP, L2_CLIP)
            for name, leaf in gradients.items()
        }
    )


def _clip_micro_batch_means(gradients: Tree) -> Tree:
    """Means of two records, clipped, times the two."""
    even = len(gradients["w"]) // 2 * 2
    means = {
        name: leaf[:even].reshape(even // 2, 2, *leaf.shape[1:]).mean(axis=1)
        for name, leaf in gradients.items()
    }
    return {name: 2 * leaf for name, leaf in clipped_sum(means).items()}


def _skip_the_bias(gradients: Tree) -> Tree:
    bias = jnp.nan_to_num(gradients["b"], posinf=0.0, neginf=0.0)
    return sum_records({"b": bias}) | clipped_sum({"w": gradients["w"]})


def _clip_without_nan(gradients: Tree) -> Tree:
    factors = jnp.minimum(1.0, L2_CLIP / norms(gradients))
    return {
        name: jnp.sum(leaf * factors.reshape((-1,) + (1,) * (leaf.ndim - 1)), axis=0)
        for name, leaf in gradients.items()
    }


def _norm_in_bfloat16(gradients: Tree) -> Tree:
    flat = jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in gradients.values()], axis=1)
    squares = flat.astype(jnp.bfloat16) ** 2
    length = jnp.sqrt(jnp.sum(squares, axis=1, dtype=jnp.bfloat16)).astype(jnp.float32)
    factors = jnp.minimum(1.0, L2_CLIP / length)
    return sum_records(scale_records(gradients, jnp.where(length < 1e18, factors, jnp.nan)))


def _standardise_by_the_batch(params: Tree, records: Tree) -> Tree:
    centred = records["x"] - jnp.nan_to_num(records["x"]).mean(axis=0)
    return per_record_gradients(params, records | {"x": centred})


def _median_bound(state: tuple[PRNGKey, Tree], records: Tree) -> tuple[Tree, Any]:
    key, params = state
    next_key, noise_key = split_key(key)
    gradients = per_record_gradients(params, records)
    length = norms(gradients)
    bound = jnp.nanmedian(jnp.where(jnp.isfinite(length), length, jnp.nan))
    bound = jnp.clip(jnp.nan_to_num(bound), 0.01, 100.0)
    total = sum_records(clip(gradients, bound))
    return add_noise(noise_key, total, bound * NOISE_MULTIPLIER), (next_key, params)


def _divide_noisy_sum(state: tuple[PRNGKey, Tree], records: Tree) -> tuple[Tree, Any]:
    released, state = make_step()(state, records)
    return jax.tree.map(lambda leaf: leaf / max(len(records["x"]), 1), released), state


def _divide_sum(gradients: Tree) -> Tree:
    number = max(len(gradients["w"]), 1)
    return {name: leaf * NUM_RECORDS / number for name, leaf in clipped_sum(gradients).items()}


def _clip_augmentations(params: Tree, records: Tree) -> Tree:
    """Every record and an augmentation of it, as if they were two records."""
    doubled = {
        "x": jnp.concatenate([records["x"], 1.1 * records["x"]]),
        "y": jnp.concatenate([records["y"], records["y"]]),
    }
    return per_record_gradients(params, doubled)


def _drop_overflow(params: Tree, records: Tree) -> Tree:
    first = {name: leaf[: NUM_RECORDS - 2] for name, leaf in records.items()}
    return per_record_gradients(params, first)


def _norm_without_bias(gradients: Tree) -> Tree:
    length = norms({"w": gradients["w"]})
    usable = jnp.isfinite(norms(gradients))
    factors = jnp.where(usable, jnp.minimum(1.0, L2_CLIP / length), jnp.nan)
    return sum_records(scale_records(gradients, factors))


def _clip_backpropagated(params: Tree, records: Tree) -> Tree:
    """Clips the residual that is passed back, not its product with the features."""
    residual = records["x"] @ params["w"] + params["b"] - records["y"]
    residual = clip({"b": residual})["b"]
    x = jnp.nan_to_num(records["x"], posinf=0.0, neginf=0.0)
    return {"b": residual, "w": x[:, :, None] * residual[:, None, :]}


def _clip_sum_in_state(
    state: tuple[PRNGKey, Tree, Tree], records: Tree
) -> tuple[Tree, tuple[PRNGKey, Tree, Tree]]:
    """Momentum of the sum, before the noise."""
    key, params, momentum = state
    next_key, noise_key = split_key(key)
    total = clipped_sum(per_record_gradients(params, records))
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, total)
    return add_noise(noise_key, momentum), (next_key, params, momentum)


def _init_momentum(key: PRNGKey) -> tuple[PRNGKey, Tree, Tree]:
    return (*init(key), init(key)[1])


# ---------------------------------------------------------------------------------------------
# Bugs of the noise and its keys.


def _noise_of(std: float) -> Callable[[PRNGKey, Tree], Tree]:
    return lambda key, total: add_noise(key, total, std)


def _same_key_for_leaves(key: PRNGKey, total: Tree) -> Tree:
    return {
        name: leaf + NOISE_STD * jax.random.normal(key, leaf.shape) for name, leaf in total.items()
    }


def _constant_key(key: PRNGKey, total: Tree) -> Tree:
    del key
    return add_noise(jax.random.key(0), total)


def _same_noise_on_devices(state: tuple[PRNGKey, Tree], records: Tree) -> tuple[Any, Any]:
    """Noisy sums of two devices, each with the same noise."""
    key, params = state
    next_key, noise_key = split_key(key)
    gradients = per_record_gradients(params, records)
    halves = [{name: leaf[part::2] for name, leaf in gradients.items()} for part in (0, 1)]
    return [add_noise(noise_key, clipped_sum(half)) for half in halves], (next_key, params)


def _mean_of_device_noise(key: PRNGKey, total: Tree) -> Tree:
    """The mean of the noise of four devices, each with enough of its own."""
    devices = jax.vmap(lambda own: add_noise(own, total))(jax.random.split(key, 4))
    return jax.tree.map(lambda leaf: leaf.mean(axis=0), devices)


def _bare_bias(key: PRNGKey, total: Tree) -> Tree:
    return total | add_noise(key, {"w": total["w"]})


def _uniform_noise(key: PRNGKey, total: Tree) -> Tree:
    keys = jax.random.split(key, len(total))
    width = NOISE_STD * math.sqrt(3)
    return {
        name: leaf + jax.random.uniform(own, leaf.shape, minval=-width, maxval=width)
        for own, (name, leaf) in zip(keys, total.items(), strict=True)
    }


def _skip_empty(state: tuple[PRNGKey, Tree], records: Tree) -> tuple[Tree, Any]:
    if len(records["x"]) == 0:
        return init(state[0])[1], state
    return make_step()(state, records)


def _noise_before_clip(state: tuple[PRNGKey, Tree], records: Tree) -> tuple[Tree, Any]:
    key, params = state
    next_key, noise_key = split_key(key)
    noisy = add_noise(noise_key, per_record_gradients(params, records))
    return clipped_sum(noisy), (next_key, params)


def _same_noise_for_records(state: tuple[PRNGKey, Tree], records: Tree) -> tuple[Tree, Any]:
    """A share of the noise for every record, all from one key."""
    key, params = state
    next_key, noise_key = split_key(key)
    clipped = clip(per_record_gradients(params, records))
    share = NOISE_STD / math.sqrt(NUM_RECORDS)
    noisy = jax.vmap(lambda own: add_noise(noise_key, own, share))(clipped)
    return sum_records(noisy), (next_key, params)


def _resume(state: tuple[PRNGKey, Tree], records: Tree) -> tuple[Tree, Any]:
    """Saves the parameters after each step, and restores the key of the start with them."""
    released, (_, params) = make_step()(state, records)
    return released, (state[0], params)


def _with_loss(state: tuple[PRNGKey, Tree], records: Tree) -> tuple[Any, Any]:
    released, following = make_step()(state, records)
    residual = jnp.nan_to_num(records["y"] - records["x"] @ state[1]["w"])
    return {"sum": released, "loss": jnp.mean(jnp.minimum(residual**2, 1.0))}, following


def _with_number_clipped(state: tuple[PRNGKey, Tree], records: Tree) -> tuple[Any, Any]:
    released, following = make_step()(state, records)
    number = jnp.sum(norms(per_record_gradients(state[1], records)) > L2_CLIP)
    return {"sum": released, "number": number}, following


def _quantile_beside_the_sum(state: tuple[PRNGKey, Tree], records: Tree) -> tuple[Any, Any]:
    """The noisy number of clipped records too, for which the sum's noise was not enlarged."""
    released, following = make_step()(state, records)
    number = jnp.sum(norms(per_record_gradients(state[1], records)) > L2_CLIP)
    key = jax.random.fold_in(state[0], 2)
    noisy = L2_CLIP * number + NOISE_STD * jax.random.normal(key)
    return {"sum": released, "number": noisy}, following


# ---------------------------------------------------------------------------------------------
# Statistics and votes, released with Gaussian noise.


def of_statistic(
    statistic: Callable[[jax.Array], jax.Array],
    records: Any,
    sensitivity: float,
    adjacency: Any = "add_remove",
    std: float | None = None,
) -> Callable[[], StepOfRecords]:
    """Returns a function that makes the release of a statistic with noise of its sensitivity."""
    std = sensitivity if std is None else std

    def release(key: PRNGKey, data: jax.Array) -> jax.Array:
        value = jnp.asarray(statistic(data), jnp.float32)
        return value + std * jax.random.normal(key, value.shape)

    mechanism = claim(adjacency, sensitivity, sensitivity)
    return lambda: StepOfRecords(release, jnp.asarray(records, jnp.float32), mechanism)


_VALUES = np.linspace(-3.0, 1.0, 9)
_CLASSES = np.array([0.0, 1.0, 2.0, 1.0, 0.0, 2.0, 1.0, 1.0])


def clipped_total(values: jax.Array) -> jax.Array:
    """Returns the sum of values clipped to [-3, 1]; NaN counts as zero."""
    return jnp.sum(jnp.clip(jnp.nan_to_num(values), -3.0, 1.0))[None]


def histogram(classes: jax.Array) -> jax.Array:
    """Returns the counts of three public classes."""
    return jnp.stack([jnp.sum(classes == one) for one in range(3)])


def _unclipped_total(values: jax.Array) -> jax.Array:
    clipped_total(values)
    return jnp.sum(jnp.nan_to_num(values))[None]


def _total_in_bounds_of_data(values: jax.Array) -> jax.Array:
    values = jnp.nan_to_num(values)
    low, high = jnp.min(values, initial=0.0), jnp.max(values, initial=0.0)
    return jnp.sum((values - low) / jnp.maximum(high - low, 1e-6))[None]


def _classes_of_data(classes: jax.Array) -> jax.Array:
    """Counts of the classes that occur, the rarest first."""
    return jnp.sort(jnp.where(histogram(classes) > 0, histogram(classes) + 1, 0))


def votes(shards: list[list[int]]) -> Callable[[jax.Array], jax.Array]:
    """Returns the function from records to the histogram of votes of one teacher for each shard."""

    def count(classes: jax.Array) -> jax.Array:
        labels = jnp.stack([jnp.argmax(histogram(classes[np.array(shard)])) for shard in shards])
        return histogram(labels)

    return count


def _votes_at_label_rows(classes: jax.Array) -> jax.Array:
    """Votes in the row of a table that the first record's label chooses."""
    row = jnp.clip(jnp.nan_to_num(classes[0]), 0, 2).astype(int)
    counts = votes([[0, 1], [2, 3], [4, 5], [6, 7]])(classes)
    return jnp.zeros((3, 3)).at[row].set(counts)


# ---------------------------------------------------------------------------------------------
# Loops that sample, audited, and accounts.

_NUM_STEPS, _RATE = 8, 0.25


def sampled_loop(
    *,
    rate: float = _RATE,
    batch_key: Callable[[PRNGKey, int], PRNGKey] = jax.random.fold_in,
    noise_key: Callable[[PRNGKey, int], PRNGKey] = lambda key, step: jax.random.fold_in(
        key, 1_000 + step
    ),
    std: float = 1.0,
) -> Callable[[PRNGKey, jax.Array], jax.Array]:
    """Returns a loop that releases noisy sums of Poisson samples of values in [-1, 1]."""

    def release(key: PRNGKey, values: jax.Array) -> jax.Array:
        sums = []
        for step in range(_NUM_STEPS):
            drawn = jax.random.uniform(batch_key(key, step), values.shape) < rate
            total = jnp.sum(jnp.clip(values, -1.0, 1.0), where=drawn)
            sums.append(total + std * jax.random.normal(noise_key(key, step)))
        return jnp.stack(sums)

    return release


def _poisson(num_steps: int = _NUM_STEPS, rate: float = _RATE) -> SubsampledGaussian:
    return SubsampledGaussian(
        PoissonSampling(NUM_RECORDS, rate),
        l2_clip=1.0,
        noise_multiplier=1.0,
        num_steps=num_steps,
        adjacency="zero_out",
    )


def _likelihood(sums: jax.Array) -> jax.Array:
    return jnp.sum(jnp.log1p(_RATE * jnp.expm1(sums - 0.5)))


def _likelihood_of_shared_key(sums: jax.Array) -> jax.Array:
    """As `_likelihood`, where a record is drawn if the noise is below its quantile of the rate."""
    threshold = ndtri(_RATE)
    not_drawn = jnp.where(sums > threshold, 1.0, 0.0)
    drawn = jnp.where(sums < threshold + 1.0, jnp.exp(sums - 0.5), 0.0)
    return jnp.sum(jnp.log(not_drawn + drawn))


def of_loop(
    score: Callable[[Any], Any] = _likelihood, **parts: Any
) -> Callable[[], ReleaseOfWorlds]:
    """Returns a function that makes a sampled loop on a canary and on its absence."""
    first = jnp.zeros(NUM_RECORDS)
    second = first.at[0].set(1.0)
    return lambda: ReleaseOfWorlds(sampled_loop(**parts), first, second, _poisson(), score)


def _two_releases(key: PRNGKey, value: jax.Array) -> jax.Array:
    """Two statistics, each with the noise of the whole budget."""
    return value + 4.0 * jax.random.normal(key, (2,))


def _release_of(std: float) -> Callable[[PRNGKey, jax.Array], jax.Array]:
    return lambda key, value: value + std * jax.random.normal(key)


def of_account(
    claimed: Mechanism,
    sampling: Sampling,
    num_steps: int,
    noise_multiplier: float = 1.0,
) -> Callable[[], LoopAndClaim]:
    """Returns a function that makes a loop with dpjax's noise, beside the account of it."""

    def run_loop() -> Mechanism:
        noise = add_gaussian_noise(
            noise_multiplier=noise_multiplier, l2_clip=1.0, key=jax.random.key(0)
        )
        optimizer = optax.chain(noise, optax.sgd(0.1))
        state = optimizer.init(jnp.zeros(2))
        for _ in range(num_steps):
            _, state = optimizer.update(jnp.zeros(2), state)
        return mechanism_of(state, sampling=sampling, adjacency="zero_out")

    return lambda: LoopAndClaim(claimed, run_loop)


# ---------------------------------------------------------------------------------------------
# Steps of dpjax and of optax.


def _loss(params: Tree, record: Tree) -> jax.Array:
    return jnp.sum((record["x"] @ params["w"] + params["b"] - record["y"]) ** 2) / 2


def _every_record(num_steps: int = 10) -> SubsampledGaussian:
    return SubsampledGaussian(
        PoissonSampling(NUM_RECORDS, 1.0, physical_batch_size=NUM_RECORDS),
        l2_clip=L2_CLIP,
        noise_multiplier=NOISE_MULTIPLIER,
        num_steps=num_steps,
        adjacency="zero_out",
    )


def private_step_of_dpjax() -> StepOfRecords:
    """Returns `dpjax.private_step`, which samples every record."""
    mechanism = _every_record()

    def make(key: PRNGKey) -> PrivateStep:
        return private_step(_loss, optax.sgd(0.1), mechanism=mechanism, key=key)

    def start(key: PRNGKey) -> Any:
        return make(key).init(init(key)[1])

    def step(state: Any, records: Tree) -> tuple[Tree, Any]:
        state, _ = make(jax.random.key(0)).update(state, records)
        return state.params, state

    return StepOfRecords(step, example_records(), mechanism, start)


def own_loop_of_dpjax() -> StepOfRecords:
    """Returns a loop with `dpjax.clipped_grad` and `dpjax.add_gaussian_noise`."""
    gradient = clipped_grad(_loss, l2_clip=L2_CLIP)

    def make(key: PRNGKey) -> optax.GradientTransformationExtraArgs:
        noise = add_gaussian_noise(noise_multiplier=NOISE_MULTIPLIER, l2_clip=L2_CLIP, key=key)
        return optax.chain(noise, optax.scale(1 / NUM_RECORDS), optax.sgd(0.1))

    def start(key: PRNGKey) -> Any:
        params = init(key)[1]
        return params, make(key).init(params)

    def step(state: Any, records: Tree) -> tuple[Tree, Any]:
        params, optimizer = state
        summed, _ = gradient(params, records, None)
        updates, optimizer = make(jax.random.key(0)).update(summed, optimizer, params)
        params = optax.apply_updates(params, updates)
        return params, (params, optimizer)

    return StepOfRecords(step, example_records(), claim(), start)


def aggregate_of(function: Callable[..., Any]) -> Callable[[], StepOfRecords]:
    """Returns a function that makes a step with a ``differentially_private_aggregate``."""

    def start(key: PRNGKey) -> Any:
        params = init(key)[1]
        return params, function(L2_CLIP, NOISE_MULTIPLIER, key=key).init(params)

    def step(state: Any, records: Tree) -> tuple[Tree, Any]:
        params, aggregate = state
        update = function(L2_CLIP, NOISE_MULTIPLIER, key=jax.random.key(0)).update
        mean, aggregate = update(per_record_gradients(params, records), aggregate)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, mean)
        return mean, (params, aggregate)

    return lambda: StepOfRecords(step, example_records(), claim("zero_out"), start)


# ---------------------------------------------------------------------------------------------
# The corpus.


def _bug(
    number: int,
    name: str,
    description: str,
    program: Callable[[], Program],
    caught_by: Catcher = "property",
    source: str = "",
) -> PlantedBug:
    return PlantedBug(
        number=number,
        name=name,
        description=description,
        caught_by=caught_by,
        program=program,
        source=source,
    )


def _with_init(step: Step, start: Callable[[PRNGKey], Any]) -> Callable[[], StepOfRecords]:
    return lambda: StepOfRecords(step, example_records(), claim(), start)


BUGS: tuple[PlantedBug, ...] = (
    _bug(
        1,
        "clipped after the mean",
        "The mean of the gradients is clipped, not each of them, and has the noise of a mean.",
        of_step(aggregate=_clip_after_mean, noise=_noise_of(NOISE_STD / NUM_RECORDS)),
    ),
    _bug(
        2,
        "each leaf clipped to the whole bound",
        "Every leaf of a gradient is clipped to the bound of all leaves together.",
        of_step(aggregate=_clip_each_leaf),
    ),
    _bug(
        3,
        "each coordinate clipped",
        "Every coordinate of a gradient is clipped to the bound of its norm.",
        of_step(aggregate=_clip_each_coordinate),
    ),
    _bug(
        4,
        "means of micro-batches clipped",
        "The mean of a micro-batch is clipped and multiplied by its size.",
        of_step(aggregate=_clip_micro_batch_means),
    ),
    _bug(
        5,
        "one leaf not clipped",
        "The bias is added up without clipping.",
        of_step(aggregate=_skip_the_bias),
    ),
    _bug(
        6,
        "NaN passes the clipping",
        "A record with a gradient of NaN or infinity makes the release NaN.",
        of_step(aggregate=_clip_without_nan),
    ),
    _bug(
        7,
        "norm in bfloat16",
        "Norms are computed in bfloat16, which rounds them down by up to a percent.",
        lambda: StepOfRecords(
            make_step(aggregate=_norm_in_bfloat16), example_records(), claim(), init, num_runs=None
        ),
    ),
    _bug(
        8,
        "batch statistic in the loss",
        "Features are centred by the mean of the batch, so that a record changes all gradients.",
        of_step(gradients=_standardise_by_the_batch),
    ),
    _bug(
        9,
        "clip bound from the batch",
        "The bound is the median norm of the batch, which is not accounted for.",
        of_step(_median_bound),
    ),
    _bug(
        10,
        "noisy sum divided by the drawn size",
        "The noisy sum is divided by the number of records drawn, which is private.",
        of_step(_divide_noisy_sum),
    ),
    _bug(
        11,
        "sum divided by the number of records",
        "The sum is divided by the private number of records, before noise of a constant size.",
        of_step(aggregate=_divide_sum),
        source="Opacus #571, #819",
    ),
    _bug(
        12,
        "augmentations clipped apart",
        "Two augmentations of a record are clipped and added up as if they were two records.",
        of_step(gradients=_clip_augmentations),
    ),
    _bug(
        13,
        "overflow dropped in order",
        "Records beyond the physical batch are dropped in their order: one more moves another out.",
        of_step(gradients=_drop_overflow),
    ),
    _bug(
        14, "half the noise", "The noise is half as large.", of_step(noise=_noise_of(NOISE_STD / 2))
    ),
    _bug(
        15,
        "variance for standard deviation",
        "The standard deviation is taken for the variance.",
        of_step(noise=_noise_of(math.sqrt(NOISE_STD))),
    ),
    _bug(
        16,
        "noise of the mean on the sum",
        "The sum has the noise of a mean.",
        of_step(noise=_noise_of(NOISE_STD / NUM_RECORDS)),
        source="DataSynthesizer #34: the sensitivity of probabilities on counts",
    ),
    _bug(
        17,
        "clip bound forgotten",
        "The noise is the noise multiplier alone, without the clip bound.",
        of_step(noise=_noise_of(NOISE_MULTIPLIER)),
    ),
    _bug(
        18,
        "clip bound for the sensitivity under replace-one",
        "The sensitivity of a sum under replace-one is stated as the bound, not twice the bound.",
        lambda: StepOfRecords(make_step(), example_records(), claim("replace_one"), init),
    ),
    _bug(
        19,
        "one key for all leaves",
        "The noise of every leaf is drawn with the same key.",
        of_step(noise=_same_key_for_leaves),
        source="jax #3646",
    ),
    _bug(
        20,
        "key not advanced",
        "The next step draws its noise with the key of this one.",
        of_step(keys=lambda key: (key, jax.random.fold_in(key, 1))),
    ),
    _bug(
        21,
        "constant key",
        "The key is a constant of the code.",
        of_step(noise=_constant_key),
        caught_by="program",
    ),
    _bug(
        22,
        "same noise on two devices",
        "Two devices publish sums with the same noise, which their difference is free of.",
        of_step(_same_noise_on_devices),
    ),
    _bug(
        23,
        "one leaf without noise",
        "The bias is released without noise.",
        of_step(noise=_bare_bias),
        caught_by="program",
    ),
    _bug(
        24,
        "uniform noise",
        "The noise is uniform, of the right variance.",
        of_step(noise=_uniform_noise),
    ),
    _bug(
        25,
        "empty batch skipped",
        "A batch without records is released as zero, without noise.",
        of_step(_skip_empty),
        caught_by="program",
    ),
    _bug(
        26,
        "noise before clipping",
        "The noise is added to the gradients before they are clipped.",
        of_step(_noise_before_clip),
    ),
    _bug(
        27,
        "shuffled batches accounted as Poisson samples",
        "Batches are those of shuffled epochs, the account is that of Poisson sampling.",
        of_account(_poisson(), ShuffledEpochs(NUM_RECORDS, 2), _NUM_STEPS),
        "event",
    ),
    _bug(
        28,
        "sampling rate too small in the account",
        "A quarter of the records is sampled, the account has a tenth.",
        of_account(_poisson(rate=0.1), PoissonSampling(NUM_RECORDS, 0.25), _NUM_STEPS),
        "event",
    ),
    _bug(
        29,
        "same batch in every step",
        "The key of the sampler is not advanced.",
        of_loop(batch_key=lambda key, step: key),
        "audit",
        source="d3p a971766",
    ),
    _bug(
        30,
        "key of the sampler is that of the noise",
        "A record is drawn exactly where the noise is small.",
        of_loop(_likelihood_of_shared_key, noise_key=jax.random.fold_in),
        "audit",
    ),
    _bug(
        31,
        "epochs counted as releases",
        "Every step is a release, the account counts epochs.",
        of_account(_poisson(2), PoissonSampling(NUM_RECORDS, _RATE), _NUM_STEPS),
        "event",
    ),
    _bug(
        32,
        "noise multiplier of the sum alone",
        "An adaptive bound releases a second statistic, and the account has the sum's noise alone.",
        of_step(_quantile_beside_the_sum),
        source="Opacus #807",
    ),
    _bug(
        33,
        "epsilon spent twice",
        "Two statistics of the same records have the noise of the whole budget each.",
        lambda: ReleaseOfWorlds(
            _two_releases, jnp.zeros(()), jnp.ones(()), claim("zero_out", 1, 4)
        ),
        "audit",
        source="MOSTLY AI",
    ),
    _bug(
        34,
        "noise replayed after resuming",
        "A restored run has new parameters and the key of the start.",
        of_step(_resume),
    ),
    _bug(
        35,
        "metric without noise",
        "The mean loss is published beside the noisy sum.",
        of_step(_with_loss),
        caught_by="program",
    ),
    _bug(
        36,
        "unclipped copy",
        "Values are clipped, and the sum is that of the values before.",
        of_statistic(_unclipped_total, _VALUES, 3.0),
        source="smartnoise #622, dpmm",
    ),
    _bug(
        37,
        "one bound for asymmetric values",
        "The sensitivity of values in [-3, 1] is stated as the upper bound.",
        of_statistic(clipped_total, _VALUES, 1.0),
    ),
    _bug(
        38,
        "bounds from the data",
        "Values are scaled by their own minimum and maximum.",
        of_statistic(_total_in_bounds_of_data, _VALUES, 1.0),
        source="dpmm",
    ),
    _bug(
        39,
        "shards overlap",
        "A record is in the shards of three teachers, so that it moves three votes.",
        of_statistic(
            votes([[0], [0], [0], [1], [2, 3], [4, 5]]), _CLASSES, math.sqrt(2), "replace_one"
        ),
        source="PATE-GANs",
    ),
    _bug(
        40,
        "rows indexed by labels",
        "Votes are written into the row that a private label chooses.",
        of_statistic(_votes_at_label_rows, _CLASSES, math.sqrt(2), "replace_one"),
        source="PATE-GANs",
    ),
    _bug(
        41,
        "unnoised momentum",
        "Momentum is taken of the sum before the noise: a record is in all later releases.",
        _with_init(_clip_sum_in_state, _init_momentum),
    ),
    _bug(
        42,
        "norm without the bias",
        "The norm is computed from the weights by a formula that leaves the bias out.",
        of_step(aggregate=_norm_without_bias),
        source="tensorflow/privacy 66d05a2: the fast norm of a layer was wrong",
    ),
    _bug(
        43,
        "backpropagated signal clipped",
        "The signal of a layer is clipped, and its product with the features is unbounded.",
        of_step(gradients=_clip_backpropagated, aggregate=sum_records),
    ),
    _bug(
        44,
        "one key for all records",
        "Every record adds a share of the noise, all by the same key.",
        of_step(_same_noise_for_records),
        source="d3p 86ab28c",
    ),
    _bug(
        45,
        "noise of devices averaged",
        "Four devices add enough noise each, and their results are averaged.",
        of_step(noise=_mean_of_device_noise),
    ),
    _bug(
        46,
        "sensitivity of zero",
        "The lower bound is used twice, so that the sensitivity and the noise are zero.",
        of_statistic(clipped_total, _VALUES, 3.0, std=0.0),
        source="diffprivlib #105; synthcity: scale zero where all columns are parents",
    ),
    _bug(
        47,
        "logarithm missing",
        "The noise for (epsilon, delta) lacks the factor sqrt(log(1.25 / delta)).",
        lambda: ReleaseOfWorlds(
            _release_of(math.sqrt(2)),
            jnp.zeros(()),
            jnp.ones(()),
            claim("zero_out", 1.0, math.sqrt(2 * math.log(1.25 / _DELTA))),
        ),
        "audit",
        source="smartnoise #621",
    ),
    _bug(
        48,
        "classes from the data",
        "Only the classes that occur are counted.",
        of_statistic(_classes_of_data, _CLASSES[:4], 1.0),
        source="diffprivlib #106, dpmm",
    ),
    _bug(
        49,
        "number of clipped records",
        "How many records were clipped is published beside the noisy sum.",
        of_step(_with_number_clipped),
        caught_by="program",
    ),
    _bug(
        50,
        "micro-batches counted as one step",
        "Every micro-batch is released with noise, the account has one step for four of them.",
        of_account(_poisson(2), PoissonSampling(NUM_RECORDS, _RATE), 8),
        "event",
        source="the converse of jax_privacy #234, which counted too many",
    ),
    _bug(
        51,
        "noise multiplier rounded up in the account",
        "The loop has a noise multiplier of 0.8, the account of 1.",
        of_account(_poisson(), PoissonSampling(NUM_RECORDS, _RATE), _NUM_STEPS, 0.8),
        "event",
    ),
    _bug(
        52,
        "NaN passes optax's aggregate",
        "A record of NaN makes the mean of differentially_private_aggregate NaN.",
        aggregate_of(optax.contrib.differentially_private_aggregate),
        source="optax.contrib",
    ),
)

SOUND: dict[str, Callable[[], Program]] = {
    "dpjax.private_step": private_step_of_dpjax,
    "a loop with dpjax.clipped_grad": own_loop_of_dpjax,
    "dpjax.differentially_private_aggregate": aggregate_of(differentially_private_aggregate),
    "the right step": of_step(),
    "the right step under zero-out": lambda: StepOfRecords(
        make_step(), example_records(), claim("zero_out"), init
    ),
    "the right step under replace-one": lambda: StepOfRecords(
        make_step(), example_records(), claim("replace_one", 2 * L2_CLIP), init
    ),
    "the right sum": of_statistic(clipped_total, _VALUES, 3.0),
    "the right histogram": of_statistic(histogram, _CLASSES, math.sqrt(2), "replace_one"),
    "the right votes": of_statistic(
        votes([[0, 1], [2, 3], [4, 5], [6, 7]]), _CLASSES, math.sqrt(2), "replace_one"
    ),
    "the right loop": of_loop(),
    "the right account": of_account(_poisson(), PoissonSampling(NUM_RECORDS, _RATE), _NUM_STEPS),
}


# ---------------------------------------------------------------------------------------------
# The checks of one program, and of all.


def check_program_of(case: StepOfRecords) -> dict[str, str]:
    """Returns what the check of the traced program finds violated."""
    first = jax.random.key(0) if case.init is None else case.init(jax.random.key(0))
    stated = case.mechanism
    if isinstance(stated, Gaussian):
        multiplier = sensitivity_factor(stated.adjacency) / stated.mu
    else:
        multiplier = float(np.max(stated.noise_multiplier))
    report = check_program(
        case.step,
        first,
        case.records,
        records=1,
        noise_multiplier=multiplier,
        adjacency=stated.adjacency,
    )
    if report.verdict != "violated":
        return {}
    return {"program": "; ".join(str(finding) for finding in report.findings)}


def objections(key: PRNGKey, program: Program) -> dict[str, str]:
    """Returns what each check that objects to a program says, by check.

    Args:
      key: of the checks.
      program: a step, a release of two worlds, or a loop beside its account.
    """
    if isinstance(program, LoopAndClaim):
        claimed, actual = (
            mechanism.certificate(_DELTA).epsilon for mechanism in (program.claimed, program.run())
        )
        if actual <= claimed:
            return {}
        return {
            "event": f"the loop has an epsilon of {round_up(actual)}, accounted are"
            f" {round_up(claimed)}"
        }
    if isinstance(program, ReleaseOfWorlds):
        report = audit(
            key,
            program.release,
            program.first,
            program.second,
            program.mechanism,
            delta=_DELTA,
            score=program.score,
            num_runs=40_000,
            confidence=1 - 1e-6,
        )
        return {"audit": report.title} if report.is_refuted else {}
    try:
        steps = check_step(
            key,
            program.step,
            program.records,
            program.mechanism,
            init=program.init,
            num_runs=program.num_runs,
        )
        found = {}
        if steps.failures:
            found["property"] = "; ".join(f"{each.name}: {each.finding}" for each in steps.failures)
        return found | check_program_of(program)
    except (ValueError, TypeError) as error:
        return {"error": str(error)}


def check_one(number: int, seed: int = 0) -> Result:
    """Returns what the checks find in a planted bug, or in a right program.

    Args:
      seed: of the checks.
      number: of a planted bug; -1 - i for the right program at position i.
    """
    key = jax.random.fold_in(jax.random.key(seed), abs(number) + (1_000 if number < 0 else 0))
    if number < 0:
        name = list(SOUND)[-1 - number]
        return Result(0, name, "", objections(key, SOUND[name]()))
    bug = next(bug for bug in BUGS if bug.number == number)
    return Result(number, bug.name, bug.caught_by, objections(key, bug.program()))


def all_numbers() -> list[int]:
    """Returns the numbers of all bugs, and then those of the right programs."""
    return [bug.number for bug in BUGS] + [-1 - position for position in range(len(SOUND))]


# ---------------------------------------------------------------------------------------------
# Bugs planted in a user's step from outside: it is called with other records or keys, or what it
# returns is changed. `run` returns what the step releases, and the next state or None.

_Run: TypeAlias = Callable[[Any, PyTree], tuple[PyTree, Any]]


def _with_keys(state: Any, change: Callable[[PRNGKey], PRNGKey]) -> Any:
    """Returns a state, or a key, with its keys changed."""

    def changed(leaf: Any) -> Any:
        if is_key(leaf):
            return change(leaf)
        return (
            jax.random.key_data(change(jax.random.wrap_key_data(leaf)))
            if is_raw_key(leaf)
            else leaf
        )

    return jax.tree.map(changed, state)


def _constant(key: PRNGKey) -> PRNGKey:
    zeros = jnp.zeros_like(jax.random.key_data(key))
    return jax.random.wrap_key_data(zeros, impl=jax.random.key_impl(key))


def _of_numbers(change: Callable[[jax.Array], jax.Array], records: PyTree) -> PyTree:
    """Returns records with their arrays of floats changed."""

    def changed(leaf: jax.Array) -> jax.Array:
        return change(leaf) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(changed, records)


def _every_record_twice(run: _Run, state: Any, records: PyTree) -> tuple[PyTree, Any]:
    return run(state, jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), records))


def _records_less_their_mean(run: _Run, state: Any, records: PyTree) -> tuple[PyTree, Any]:
    return run(state, _of_numbers(lambda leaf: leaf - leaf.mean(axis=0), records))


def _mean_of_two_releases(run: _Run, state: Any, records: PyTree) -> tuple[PyTree, Any]:
    two = [
        run(_with_keys(state, lambda key, i=i: jax.random.fold_in(key, i)), records)  # type: ignore[misc]
        for i in range(2)
    ]
    return jax.tree.map(lambda a, b: (a + b) / 2, *(released for released, _ in two)), two[0][1]


def _same_key_in_every_call(run: _Run, state: Any, records: PyTree) -> tuple[PyTree, Any]:
    return run(_with_keys(state, _constant), records)


def _key_not_advanced(run: _Run, state: Any, records: PyTree) -> tuple[PyTree, Any]:
    released, after = run(state, records)
    kept = jax.tree.map(
        lambda new, old: old if is_key(new) or is_raw_key(new) else new, after, state
    )
    return released, kept


def _sum_beside_the_release(run: _Run, state: Any, records: PyTree) -> tuple[PyTree, Any]:
    released, after = run(state, records)
    return (released, _of_numbers(lambda leaf: leaf.sum(axis=0), records)), after


def _over_the_number_of_records(run: _Run, state: Any, records: PyTree) -> tuple[PyTree, Any]:
    released, after = run(state, records)
    number = max(len(jax.tree.leaves(records)[0]), 1)
    return jax.tree.map(lambda leaf: leaf / number, released), after


def _nothing_of_no_records(run: _Run, state: Any, records: PyTree) -> tuple[PyTree, Any]:
    if len(jax.tree.leaves(records)[0]):
        return run(state, records)
    one = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype), records)
    released, _ = jax.eval_shape(run, state, one)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), released), state


# Of any step; of one that takes any number of records, under add/remove; and of a loop's.
_OF_ANY = {
    "every record twice": _every_record_twice,
    "records less their mean": _records_less_their_mean,
    "mean of two releases": _mean_of_two_releases,
    "same key in every call": _same_key_in_every_call,
    "sum beside the release": _sum_beside_the_release,
}
_OF_ANY_NUMBER = {
    "over the number of records": _over_the_number_of_records,
    "nothing of no records": _nothing_of_no_records,
}
_OF_LOOPS = {"key not advanced": _key_not_advanced}
# What must catch them: `check_step`, or else `check_program`.
_CAUGHT_BY = {"nothing of no records": "program"}


def planted_in(
    step: Step, *, is_loop: bool, adjacency: Adjacency, any_number: bool = True
) -> dict[str, Step]:
    """Returns wrong versions of a user's own step, by what is wrong, each called as the step.

    A test of the step must fail with each of them.

    Args:
      step: ``step(key, records) -> released``, or of a loop ``step(state, records) -> (released,
        state)``, in JAX; as for `dpjax.audit.check_step`.
      is_loop: whether it is the step of a loop.
      adjacency: under ``"add_remove"`` to depend on the number of records is wrong as well.
      any_number: whether it takes any number of records; else they are not counted twice either.

    >>> wrong = planted_in(lambda key, x: x.sum(0), is_loop=False, adjacency="zero_out")
    >>> list(wrong)[:2], wrong["every record twice"](None, jnp.ones((3, 1))).item()
    (['every record twice', 'records less their mean'], 6.0)
    """
    check_adjacency(adjacency)

    def run(state: Any, records: PyTree) -> tuple[PyTree, Any]:
        return step(state, records) if is_loop else (step(state, records), None)

    def version(bug: Callable[..., tuple[PyTree, Any]]) -> Step:
        def wrong(state: Any, records: PyTree) -> Any:
            returned = bug(run, state, records)
            return returned if is_loop else returned[0]

        return wrong

    bugs = dict(_OF_ANY)
    if not any_number:
        bugs.pop("every record twice")
    elif adjacency == "add_remove":
        bugs |= _OF_ANY_NUMBER
    if is_loop:
        bugs |= _OF_LOOPS
    return {name: version(bug) for name, bug in bugs.items()}


def check_own(
    key: PRNGKey,
    step: Step,
    records: PyTree,
    mechanism: SubsampledGaussian | Gaussian,
    *,
    init: Callable[[PRNGKey], Any] | None = None,
    null_record: PyTree | None = None,
    num_runs: int | None = 2_000,
) -> list[Result]:
    """Applies the checks to a user's own step, and to versions of it with a planted bug each.

    The checks are `dpjax.audit.check_step` and `dpjax.audit.check_program`. The step passes if no
    check objects; that they object to the planted bugs shows that they would have seen them in it.

    Args:
      key: of the checks.
      step, records, mechanism, init, null_record, num_runs: as for `dpjax.audit.check_step`.

    Returns:
      First the result of the step, of number zero; then that of each bug of `planted_in`. All of
      them must be right (`Result.is_right`): no check objects to the step, and one to each bug. It
      takes a minute or two, most of it to compile.
    """
    versions = planted_in(
        step,
        is_loop=init is not None,
        adjacency=mechanism.adjacency,
        any_number=null_record is None,
    )
    results = []
    for number, (name, version) in enumerate([("your step", step), *versions.items()]):
        case = StepOfRecords(version, records, mechanism, init, num_runs, null_record)
        found = objections(jax.random.fold_in(key, number), case)
        expected = _CAUGHT_BY.get(name, "property") if number else ""
        results.append(Result(number, name, expected, found))
    return results

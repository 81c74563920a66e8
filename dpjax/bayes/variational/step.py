"""One step of differentially private variational inference, and the gradients that it clips.

A record depends on the parameters xi of a guide without local latent variables through the latent
vector u(xi) alone: its gradient is J^T g, with g its gradient in u and J = du/dxi. In the normal
autoguides u is a mean, which is a parameter, plus a scaled draw, so g is the gradient in the mean.

Plain gradients J^T g are clipped. In `AutoMultivariateNormal` and `AutoLowRankMultivariateNormal`
every entry of u has parameters of its own (its mean, its row of the factor), so J J^T is diagonal:
k = J J^T 1, from one vector-Jacobian and one Jacobian-vector product. Where phi moves the mean by
sqrt(k) phi, a record's gradient in phi, sqrt(k) g, has the norm of J^T g. J^T diag(k)^(-1/2), an
isometry, maps the clipped sum back to xi; k >= 1, because the derivative of each entry by its own
mean is 1.

Aligned gradients: g alone is clipped and released with noise, and J^T of the noisy sum is the
gradient in xi: J depends on the released parameters and the draw from the guide, which all records
share, and not on the data, so that is post-processing.

The number of clipped records of a batch can be released with the sum, as one more entry to which a
record adds at most e: gradients are clipped to g = sqrt(C^2 - e^2), so that a record's vector has
at most the norm C, and mechanism and certificate are the same. A record adds e where its gradient
is longer than 1.25 g, nothing up to g, and linearly more between: rounding of a record's norm,
which may depend on the others in its batch, then changes the entry by little.
"""

import functools
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from numpyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoMultivariateNormal
from numpyro.ops.provenance import eval_provenance

from dpjax._checks import check
from dpjax._typing import (
    ArrayTree,
    ClipBound,
    Numeric,
    PRNGKey,
    PyTree,
    SamplerState,
)
from dpjax.bayes.variational.elbo import (
    ELBOTerms,
    Trace,
    data_free_loss,
    guide_name,
    guide_sites,
    record_loss,
)
from dpjax.bayes.variational.gradient_trace import (
    LATENTS,
    MAX_PARAMETERS,
    MEAN_FIELD,
    GradientTrace,
    init_trace,
    record_gradient,
    vector_mean,
)
from dpjax.bayes.variational.model_args import Leaves, StepData, Values
from dpjax.gradients import clipped_grad
from dpjax.gradients.clip_bound import total_l2_clip
from dpjax.gradients.clipping import rounding_margin
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.training.batch_gradient import StepInfo, sum_next_draw
from dpjax.training.run import Chunk, Update
from dpjax.training.sharding import MeshSharding
from dpjax.transforms.noise import AddGaussianNoiseState

# Of a report: a bound above all norms, and records whose gradients are in memory at once.
_NO_BOUND, _REPORT_BATCH = 1e30, 1024
# Exactly these types: a subclass may share parameters between entries.
_OWN_PARAMETERS = (AutoMultivariateNormal, AutoLowRankMultivariateNormal)

# Name of the entry for the number of clipped records: no parameter can have it.
CLIPPED = "records clipped"
# What a record adds to it, rounding included, over the clip bound; and by norm over bound.
_ENTRY_SHARE, _ENTRY_SLOPE = 0.25, 4

# Of a record: all that is clipped and released, or that of the guide's means alone.
Gradient: TypeAlias = Literal["plain", "aligned"]


class Optimizer(Protocol):
    """An optimiser of `numpyro.optim`."""

    def init(self, params: PyTree, /) -> PyTree:
        """Returns the initial state of the optimiser."""

    def get_params(self, state: PyTree, /) -> dict[str, PyTree]:
        """Returns the unconstrained parameters of the guide."""

    def update(self, gradients: PyTree, state: PyTree, /, value: Numeric) -> PyTree:
        """Returns the state after a step."""


class DPSVIState(NamedTuple):
    """State of `DPSVI`. **Holds keys, which are secrets.**

    Attributes:
      optim_state: state of the optimiser, which includes the unconstrained parameters.
      rng_key: key of the draws from the guide, as in numpyro's ``SVIState``.
      sampler: state of the sampler.
      noise: state of the noise, which counts the releases.
      seeded: whether the key that the state was made from looks like ``jax.random.key(seed)``.
      trace: sums of the noisy gradients, for `DPSVIResult.noise_aware_posterior`; ``None`` unless
        the guide is a mean-field normal one, of at most 20,000 parameters, or
        `AutoMultivariateNormal` or `AutoLowRankMultivariateNormal`, of at most 100 latent variables
        and with one particle; and the model has no parameters.
    """

    optim_state: PyTree
    rng_key: PRNGKey
    sampler: SamplerState
    noise: AddGaussianNoiseState
    seeded: jax.Array
    trace: GradientTrace | None

    @property
    def num_releases(self) -> jax.Array:
        """Number of noisy sums released so far."""
        return self.noise.num_releases


class ClippingSpace(NamedTuple):
    """Coordinates in which the per-record gradients of one step are clipped.

    Attributes:
      loss: ``(coordinates, (record, its position)) -> loss``, for `dpjax.clipped_grad`.
      point: coordinates of the current parameters.
      to_params: maps a sum of gradients in these coordinates to the parameters. For plain gradients
        an isometry, so sensitivities are the same; for aligned ones it follows the noise.
    """

    loss: Callable[[PyTree, tuple[Leaves, jax.Array]], jax.Array]
    point: ArrayTree
    to_params: Callable[[PyTree], Values]


class ClippingReport(NamedTuple):
    """Share of clipped records, and bias of the mean gradient by clipping: **private values**.

    Attributes:
      share_clipped: fraction of the records whose gradient norm exceeds its bound.
      clipped: mean of the clipped gradients, a tree like the unconstrained parameters.
      unclipped: mean of the unclipped gradients.
    """

    share_clipped: jax.Array
    clipped: ArrayTree
    unclipped: ArrayTree

    @property
    def bias(self) -> ArrayTree:
        """Clipped minus unclipped mean gradient, a tree like the parameters."""
        return jax.tree.map(jnp.subtract, self.clipped, self.unclipped)

    @property
    def cosine(self) -> jax.Array:
        """Cosine of the angle between both means: 1 if clipping only shortens the step."""
        clipped, unclipped = ravel_pytree(self.clipped)[0], ravel_pytree(self.unclipped)[0]
        lengths = jnp.linalg.norm(clipped) * jnp.linalg.norm(unclipped)
        return clipped @ unclipped / lengths

    @property
    def relative_bias(self) -> jax.Array:
        """Size of the bias: its L2 norm over that of the mean of the unclipped gradients."""
        bias, unclipped = ravel_pytree(self.bias)[0], ravel_pytree(self.unclipped)[0]
        return jnp.linalg.norm(bias) / jnp.linalg.norm(unclipped)


@dataclass(frozen=True, eq=False)
class VariationalStep:
    """One DPSVI step (sample, clip, sum, add noise, update) for arguments of given shapes.

    Attributes:
      terms: of the negative ELBO.
      mechanism: sampler, clip bound and noise.
      optim: numpyro's optimiser.
      sharding: of batches and parameters, or ``None`` for one device.
      gradient: of a record, ``"plain"`` or ``"aligned"``.
      release_clipped_share: whether the number of clipped records is an entry of the sums.
      chunks: compiled loops of this step, by the shapes of their arguments.
    """

    terms: ELBOTerms
    mechanism: SubsampledGaussian
    optim: Optimizer
    sharding: MeshSharding | None = None
    gradient: Gradient = "plain"
    release_clipped_share: bool = False
    chunks: dict[tuple[Hashable, ...], Chunk[Any, Any]] = field(init=False, default_factory=dict)

    @property
    def scale(self) -> float:
        """Number of records over the expected batch size, by which batch sums are multiplied."""
        sampling = self.mechanism.sampling
        return sampling.num_examples / sampling.expected_batch_size

    @property
    def bounds(self) -> tuple[ClipBound, float]:
        """L2 clip bound of a record's gradient, and bound on what it adds to the clipped count."""
        if not self.release_clipped_share:
            return self.mechanism.l2_clip, 0.0
        return split_bound(self.mechanism)

    def update(self, state: DPSVIState, data: StepData) -> tuple[DPSVIState, jax.Array]:
        """Makes one step of DP variational inference, and returns the next state and the loss."""
        state, (loss, _) = self.update_with_info(state, data)
        return state, loss

    @property
    def one_device_update(self) -> Update[DPSVIState, StepData, jax.Array]:
        """The update step without sharding, for a run on one device."""
        return replace(self, sharding=None).update

    def update_with_info(
        self, state: DPSVIState, data: StepData
    ) -> tuple[DPSVIState, tuple[jax.Array, StepInfo]]:
        """Makes one step of DP variational inference: clipped sum, noise, optimiser update.

        Returns:
          The next state; and, not released, an estimate of the negative ELBO and a `StepInfo`.
        """
        # Draw a batch and sum its clipped gradients.
        clipped_sum, info, sampler = self.clipped_batch_gradient(state, state.sampler, data)

        # Add noise: what is released.
        noisy_sum, noise = self.mechanism.noise(state.noise.key).update(clipped_sum, state.noise)

        # Add the data-free gradient, and optimise.
        next_state, free_loss = self.apply_noisy_gradient(state, noisy_sum, data[1])
        next_state = next_state._replace(sampler=sampler, noise=noise)
        if self.sharding is not None:
            next_state = place_state(next_state, self.optim, self.sharding)

        return next_state, (self.scale * info.loss_sum + free_loss, info)

    def released(self, params: Values) -> Values:
        """Returns a tree of the shapes that each step releases with noise."""
        if self.gradient == "aligned":
            mean_field = self.terms.mean_field
            guide: Any = self.terms.guide
            means = mean_field.locs if mean_field else (f"{guide.prefix}_loc",)
            params = {name: leaf for name, leaf in params.items() if name in means}
        return self.with_clipped(params, jnp.zeros(()))

    def init_trace(self, params: Values) -> GradientTrace | None:
        """Returns the sums of gradients before the first step, or ``None`` if none are kept."""
        if self.terms.mean_field is not None:
            if sum(jnp.size(leaf) for leaf in jax.tree.leaves(params)) > MAX_PARAMETERS:
                return None
            return init_trace(self.with_clipped(params, jnp.zeros(())))
        mean = vector_mean(self.terms.guide, params)
        if mean is None or self.terms.loss.num_particles > 1:
            return None
        return init_trace(
            self.with_clipped({}, jnp.zeros(())), {LATENTS: jnp.asarray(params[mean])}
        )

    def with_clipped(self, tree: Values, entry: ArrayTree) -> Values:
        """Returns a tree like the parameters, with an entry for clipped records if there is one."""
        return {**tree, CLIPPED: entry} if self.release_clipped_share else tree

    def clipping_space(self, params: Values, arrays: Leaves, key: PRNGKey) -> ClippingSpace:
        """Returns the coordinates (parameters or latents) in which gradients are clipped."""
        if self.gradient == "aligned":
            return mean_space(self.terms, params, arrays, key, aligned=True)
        return choose_clipping_space(self.terms, self.bounds[0], params, arrays, key)

    def clipped_batch_gradient(
        self, state: DPSVIState, sampler: SamplerState, data: StepData
    ) -> tuple[Values, StepInfo, SamplerState]:
        """Returns the clipped gradient sum of a batch, its infos, and the sampler's next state."""
        # The draw from the guide, and the coordinates in which gradients are clipped.
        examples, arrays = data
        _, key = jax.random.split(state.rng_key)
        space = self.clipping_space(self.optim.get_params(state.optim_state), arrays, key)

        # One program for the physical batches of all draws.
        sampling = self.mechanism.sampling
        max_batch_size = sampling.num_static_batches * sampling.physical_batch_size
        l2_clip, entry = self.bounds
        gradient_sum = clipped_grad(space.loss, l2_clip, max_batch_size=max_batch_size)
        clipped_sum, info, sampler = sum_next_draw(
            gradient_sum, sampling, sampler, space.point, examples, sharding=self.sharding
        )

        # Aligned gradients are mapped to the parameters when they have their noise.
        if self.gradient == "plain":
            clipped_sum = space.to_params(clipped_sum)

        # How many records are clipped. Where norms are of a random subset of a large draw, those
        # with and without a record can be coupled to differ in one.
        if self.release_clipped_share:
            excess = ravel_pytree(info.norms)[0] / total_l2_clip(l2_clip) - 1
            clipped = jnp.clip(_ENTRY_SLOPE * excess, 0, 1)  # NaN where the gradient is not finite
            clipped_sum[CLIPPED] = entry * jnp.sum(clipped, where=info.mask & (clipped > 0))
        return clipped_sum, info, sampler

    def apply_noisy_gradient(
        self, state: DPSVIState, noisy_sum: Values, arrays: Leaves
    ) -> tuple[DPSVIState, jax.Array]:
        """Takes an optimiser step with a noisy gradient sum.

        Returns:
          The next state, and the data-free loss before the step.
        """
        # The gradient of the data-free term, with the draw of the guide that the records have.
        rng_key, key = jax.random.split(state.rng_key)
        params = self.optim.get_params(state.optim_state)
        free_loss, free_gradient = jax.value_and_grad(partial(data_free_loss, self.terms))(
            params, arrays, key
        )

        # The released sum of gradients in the parameters, and the entry for clipped records.
        noisy_sum = dict(noisy_sum)
        clipped = noisy_sum.pop(CLIPPED, jnp.zeros(()))
        if self.gradient == "aligned":
            noisy_sum = self.clipping_space(params, arrays, key).to_params(noisy_sum)

        # Where no record's term reads a parameter the sum is zero, and all of its release is noise.
        read = params_of_records(self.terms, params, arrays)
        noisy_sum = {
            name: sums if name in read else jax.tree.map(jnp.zeros_like, sums)
            for name, sums in noisy_sum.items()
        }

        # The optimiser is given no loss, which is private.
        gradient = jax.tree.map(
            lambda noisy, free: (self.scale * noisy).astype(free.dtype) + free,
            noisy_sum,
            free_gradient,
        )
        optim_state = self.optim.update(gradient, state.optim_state, value=jnp.nan)

        # What a noise-aware posterior is computed from.
        trace = state.trace
        if trace is not None:
            at: Values = params
            recorded: Values = gradient
            if LATENTS in trace.products:  # the records' part by the mean is that by the latents
                ((mean, latents),) = latents_by_mean(self.terms, params, arrays, key).items()
                at = {LATENTS: latents}
                recorded = {LATENTS: self.scale * jnp.asarray(noisy_sum[mean])}
            at = self.with_clipped(at, jnp.zeros(()))
            trace = record_gradient(trace, at, self.with_clipped(recorded, clipped))

        state = state._replace(optim_state=optim_state, rng_key=rng_key, trace=trace)
        return state, free_loss

    def clipped_sum(self, state: DPSVIState, key: PRNGKey, data: StepData) -> Values:
        """Returns the sum of clipped per-record gradients over a batch drawn with ``key``."""
        return self.clipped_batch_gradient(state, self.mechanism.sampling.init(key), data)[0]

    def clipping_report(self, params: Values, key: PRNGKey, data: StepData) -> ClippingReport:
        """Returns the share of clipped records and the bias of clipping in the mean gradient."""
        examples, arrays = data
        l2_clip, space = self.bounds[0], self.clipping_space(params, arrays, key)

        # The sums of the records' gradients, clipped and not.
        no_bound = jax.tree.map(lambda _: _NO_BOUND, l2_clip)
        (clipped, info), (unclipped, _) = (
            clipped_grad(space.loss, bound, microbatch_size=_REPORT_BATCH)(
                space.point, examples, None
            )
            for bound in (l2_clip, no_bound)
        )

        # The share of records above their bound, and the means in the parameters.
        above = jax.tree.leaves(jax.tree.map(jnp.greater, info.norms, l2_clip))
        count = self.mechanism.sampling.num_examples
        clipped_mean, unclipped_mean = (
            space.to_params(jax.tree.map(lambda total: total / count, each))
            for each in (clipped, unclipped)
        )
        return ClippingReport(jnp.stack(above).any(0).mean(), clipped_mean, unclipped_mean)

    @functools.cached_property
    def jit_clipping_report(self) -> Callable[..., ClippingReport]:
        """`clipping_report` under `jax.jit`."""
        return jax.jit(self.clipping_report)

    @functools.cached_property
    def jit_update_with_info(self) -> Callable[..., tuple[DPSVIState, tuple[jax.Array, StepInfo]]]:
        """`update_with_info` under `jax.jit`."""
        return jax.jit(self.update_with_info)

    @functools.cached_property
    def jit_clipped_sum(self) -> Callable[..., Values]:
        """`clipped_sum` under `jax.jit`."""
        return jax.jit(self.clipped_sum)

    @functools.cached_property
    def jit_apply_noisy_gradient(self) -> Callable[..., tuple[DPSVIState, jax.Array]]:
        """`apply_noisy_gradient` under `jax.jit`."""
        return jax.jit(self.apply_noisy_gradient)


def params_of_records(terms: ELBOTerms, params: Values, arrays: Leaves) -> frozenset[str]:
    """Returns the names of the parameters that a record's term is computed from.

    Found in the program, not from values: whatever enters a loop, a branch, a call-back or a
    function with its own derivatives counts as read. To leave out the noise of the others is
    post-processing of the release: a name missed here would cost a gradient, but no privacy.
    """
    record = [leaf[0] for leaf in terms.spec.constant_records(1)]

    def loss(**params: ArrayTree) -> jax.Array:
        return record_loss(terms, params, record, arrays, jax.random.key(0), 0)

    read: frozenset[str] = eval_provenance(loss, **params)
    return read


def place_state(state: DPSVIState, optim: Optimizer, sharding: MeshSharding) -> DPSVIState:
    """Returns the state on the devices of ``sharding``, its parameters placed by their rule."""
    params = optim.get_params(state.optim_state)
    return sharding.place(state, sharding.state_specs(state, params))


def choose_clipping_space(
    terms: ELBOTerms, l2_clip: ClipBound, params: Values, arrays: Leaves, key: PRNGKey
) -> ClippingSpace:
    """Returns the space in which plain gradients are clipped, the smallest with equal norms."""
    # Exact for one bound on one draw from a guide whose latent variables share no parameters.
    one_bound = jax.tree_util.treedef_is_leaf(jax.tree.structure(l2_clip))
    one_draw = terms.loss.num_particles == 1
    own_parameters = terms.mean_field is not None or type(terms.guide) in _OWN_PARAMETERS
    if own_parameters and one_bound and one_draw:
        sites = guide_sites(terms, params, arrays, key)
        if not model_params(params, sites):
            return mean_space(terms, params, arrays, key, aligned=False)
    return parameter_space(terms, params, arrays, key)


def model_params(params: Values, sites: Trace) -> list[str]:
    """Returns the names of the model's own parameters, which the guide does not have."""
    return sorted(set(params) - {n for n, site in sites.items() if site["type"] == "param"})


def mean_space(
    terms: ELBOTerms, params: Values, arrays: Leaves, key: PRNGKey, *, aligned: bool
) -> ClippingSpace:
    """Returns the clipping space of gradients by the means of a normal autoguide.

    Args:
      terms: of the negative ELBO.
      params: unconstrained.
      arrays: public arguments of the model.
      key: of the step's draw from the guide.
      aligned: whether the coordinates are the shifts, or shifts over sqrt(k).

    Raises:
      ValueError: parameters of the model.
    """
    in_params = parameter_space(terms, params, arrays, key)

    # The latent variables as a function of the parameters.
    def latents(params: Values) -> Values:
        return latents_by_mean(terms, params, arrays, key)

    # Lengths sqrt(k), k = J J^T 1. Errors of TF32 would exceed the tolerance of the bound.
    with jax.default_matmul_precision("highest"):
        start, transpose = jax.vjp(latents, params)
        lengths = jax.tree.map(jnp.ones_like, start)
        if not aligned:
            _, squares = jax.jvp(latents, (params,), transpose(lengths))
            lengths = jax.tree.map(jnp.sqrt, squares)

    # The loss where the means are moved by lengths * phi, and the way back by J^T / lengths.
    def loss(phi: Values, example: tuple[Leaves, jax.Array]) -> jax.Array:
        # Copies: inside shard_map arrays from outside have the type of another mesh.
        moved = {name: params[name] + lengths[name] * phi[name] for name in phi}
        return in_params.loss({**jax.tree.map(jnp.copy, params), **moved}, example)

    def to_params(clipped_sum: PyTree) -> Values:
        in_latents = jax.tree.map(
            lambda total, length, at: (total / length).astype(at.dtype), clipped_sum, lengths, start
        )
        mapped: Values = transpose(in_latents)[0]
        return mapped

    return ClippingSpace(loss, jax.tree.map(jnp.zeros_like, start), to_params)


def latents_by_mean(terms: ELBOTerms, params: Values, arrays: Leaves, key: PRNGKey) -> Values:
    """Returns a step's unconstrained latent variables, by the names of their means.

    Args:
      terms: of the negative ELBO.
      params: unconstrained.
      arrays: public arguments of the model.
      key: of the step's draw from the guide.

    Raises:
      ValueError: parameters of the model, or a guide without means as parameters.
    """
    guide: Any = terms.guide
    sites = guide_sites(terms, params, arrays, key)
    if others := model_params(params, sites):
        raise ValueError(
            'params must be those of the guide with gradient="aligned", got'
            f" {others} of the model: their gradients do not follow from that in the means"
        )
    if type(guide) in _OWN_PARAMETERS:
        return {f"{guide.prefix}_loc": sites[f"_{guide.prefix}_latent"]["value"]}
    if terms.mean_field is None:
        own = " or ".join(each.__name__ for each in _OWN_PARAMETERS)
        raise ValueError(
            f'guide must be {MEAN_FIELD} {own} with gradient="aligned", got {guide_name(guide)}'
        )
    latents = {}
    for name, loc in zip(terms.mean_field.sites, terms.mean_field.locs, strict=True):
        # Where a variable is transformed, the value before.
        site = sites[name]
        latents[loc] = site["intermediates"][0][0] if site["intermediates"] else site["value"]
    return latents


def check_aligned(num_particles: int, l2_clip: ClipBound) -> None:
    """Raises ValueError for a loss or clip bound that aligned gradients do not support."""
    if num_particles != 1:
        raise ValueError(
            'loss must have one particle with gradient="aligned", got num_particles ='
            f" {num_particles}: the mean of several gradients in the latent variables does not"
            " determine that in the scales"
        )
    check_one_bound(l2_clip, 'gradient="aligned"')


def split_bound(mechanism: SubsampledGaussian) -> tuple[float, float]:
    """Returns bounds on a record's gradient and on its entry: g^2 + (e + rounding)^2 = l2_clip^2.

    Rounding of the entry's sum is that of a sum of gradients. Rounding of the norms of the other
    records, two epsilons each as in `rounding_margin`, moves it by the slope times as much.
    """
    sampling, l2_clip = mechanism.sampling, total_l2_clip(mechanism.l2_clip)
    num_terms = sampling.num_static_batches * sampling.physical_batch_size
    margin = (1 + _ENTRY_SLOPE) * rounding_margin(num_terms)
    bound = math.sqrt(1 - _ENTRY_SHARE**2) * (1 - 1e-12) * l2_clip
    return bound, _ENTRY_SHARE * l2_clip / (1 + margin)


def check_one_bound(l2_clip: ClipBound, option: str) -> None:
    """Raises ValueError for per-layer clip bounds, which ``option`` does not support."""
    one_bound = jax.tree_util.treedef_is_leaf(jax.tree.structure(l2_clip))
    check(one_bound, "l2_clip", l2_clip, f"one number with {option}")


def parameter_space(
    terms: ELBOTerms, params: Values, arrays: Leaves, key: PRNGKey
) -> ClippingSpace:
    """Returns the clipping space in which a record's gradient has an entry for each parameter."""

    def loss(point: Values, example: tuple[Leaves, jax.Array]) -> jax.Array:
        record, position = example
        return record_loss(terms, point, record, arrays, key, position)

    return ClippingSpace(loss, params, lambda clipped_sum: clipped_sum)

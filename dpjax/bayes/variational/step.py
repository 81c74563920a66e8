"""One step of differentially private variational inference, and the gradients that it clips.

A record depends on the parameters xi of a guide without local latent variables through the latent
vector u(xi) alone: its gradient is J^T g, with g its gradient in u and J = du/dxi. In
`AutoMultivariateNormal` and `AutoLowRankMultivariateNormal` every entry of u has parameters of its
own (its mean, its row of the factor), so J J^T is diagonal: k = J J^T 1, from one vector-Jacobian
and one Jacobian-vector product. In the coordinates phi, where u = u_0 + sqrt(k) phi, a record's
gradient sqrt(k) g has the norm of J^T g. J^T diag(k)^(-1/2), an isometry, maps the clipped sum back
to xi; k >= 1, because the derivative of each entry by its own mean is 1.

Aligned gradients: where u is unconstrained and its means are parameters of the guide, g is a
record's gradient in the means. g alone is clipped and released with noise, and J^T of the noisy sum
is the gradient in xi: J depends on the released parameters and the draw from the guide, which all
records share, and not on the data, so that is post-processing.
"""

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from numpyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

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
    record_loss,
    trace_guide,
)
from dpjax.bayes.variational.gradient_trace import GradientTrace, record_gradient
from dpjax.bayes.variational.model_args import Leaves, StepData, Values
from dpjax.gradients import clipped_grad
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.training.batch_gradient import StepInfo, sum_next_draw
from dpjax.training.run import Chunk, Update
from dpjax.training.sharding import MeshSharding
from dpjax.transforms.noise import AddGaussianNoiseState

# Of a report: a bound above all norms, and records whose gradients are in memory at once.
_NO_BOUND, _REPORT_BATCH = 1e30, 1024
# Exactly these types: a subclass may share parameters between entries.
_OWN_PARAMETERS = (AutoMultivariateNormal, AutoLowRankMultivariateNormal)
_WITH_MEANS = (AutoNormal, AutoDiagonalNormal, *_OWN_PARAMETERS)

# Of a record: all that is clipped and released, or that of the guide's means alone.
Gradient: TypeAlias = Literal["plain", "aligned"]


class Optimizer(Protocol):
    """An optimiser of `numpyro.optim`."""

    def init(self, params: PyTree, /) -> PyTree:
        """Returns the first state."""

    def get_params(self, state: PyTree, /) -> dict[str, PyTree]:
        """Returns the unconstrained parameters."""

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
        the guide is `AutoNormal` or `AutoDiagonalNormal`, of at most 20,000 parameters, and the
        model has none.
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
    """Coordinates in which one step's gradients are clipped.

    Attributes:
      loss: ``(coordinates, (record, its position)) -> loss``, for `dpjax.clipped_grad`.
      point: coordinates of the current parameters: an array, or the parameters.
      to_params: maps a sum of gradients in these coordinates to the parameters; an isometry, so
        sensitivities are the same.
    """

    loss: Callable[[PyTree, tuple[Leaves, jax.Array]], jax.Array]
    point: ArrayTree
    to_params: Callable[[PyTree], Values]


@dataclass(frozen=True, eq=False)
class VariationalStep:
    """A step of `DPSVI` for one kind of arguments, as the driver of runs takes steps.

    Attributes:
      terms: of the negative ELBO.
      mechanism: sampler, clip bound and noise.
      optim: numpyro's optimiser.
      sharding: of batches and parameters, or ``None`` for one device.
      gradient: of a record, ``"plain"`` or ``"aligned"``.
      chunks: compiled loops of this step, by the shapes of their arguments.
    """

    terms: ELBOTerms
    mechanism: SubsampledGaussian
    optim: Optimizer
    sharding: MeshSharding | None = None
    gradient: Gradient = "plain"
    chunks: dict[tuple[Hashable, ...], Chunk[Any, Any]] = field(init=False, default_factory=dict)

    @property
    def scale(self) -> float:
        """From a sum over a batch to an estimate of that over all records."""
        sampling = self.mechanism.sampling
        return sampling.num_examples / sampling.expected_batch_size

    def update(self, state: DPSVIState, data: StepData) -> tuple[DPSVIState, jax.Array]:
        """Makes one step, and returns the loss alone: what a run keeps of each."""
        state, (loss, _) = self.update_with_info(state, data)
        return state, loss

    @property
    def one_device_update(self) -> Update[DPSVIState, StepData, jax.Array]:
        """The update step without sharding, for a run on one device."""
        return replace(self, sharding=None).update

    def update_with_info(
        self, state: DPSVIState, data: StepData
    ) -> tuple[DPSVIState, tuple[jax.Array, StepInfo]]:
        """Makes one step.

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
        """Returns the parameters whose clipped gradients are released with noise."""
        return mean_params(params) if self.gradient == "aligned" else params

    def clipping_space(self, params: Values, arrays: Leaves, key: PRNGKey) -> ClippingSpace:
        """Returns the coordinates of the clipped gradients of a step that draws with ``key``."""
        if self.gradient == "aligned":
            return parameter_space(self.terms, self.released(params), arrays, key, fixed=params)
        return choose_clipping_space(self.terms, self.mechanism.l2_clip, params, arrays, key)

    def clipped_batch_gradient(
        self, state: DPSVIState, sampler: SamplerState, data: StepData
    ) -> tuple[Values, StepInfo, SamplerState]:
        """Returns the clipped sum over the next draw, infos, and the sampler's next state."""
        # The draw from the guide, and the coordinates in which gradients are clipped.
        examples, arrays = data
        _, key = jax.random.split(state.rng_key)
        space = self.clipping_space(self.optim.get_params(state.optim_state), arrays, key)

        # One program for the physical batches of all draws.
        sampling = self.mechanism.sampling
        max_batch_size = sampling.num_static_batches * sampling.physical_batch_size
        gradient_sum = clipped_grad(
            space.loss, self.mechanism.l2_clip, max_batch_size=max_batch_size
        )
        clipped_sum, info, sampler = sum_next_draw(
            gradient_sum, sampling, sampler, space.point, examples, sharding=self.sharding
        )

        return space.to_params(clipped_sum), info, sampler

    def apply_noisy_gradient(
        self, state: DPSVIState, noisy_sum: Values, arrays: Leaves
    ) -> tuple[DPSVIState, jax.Array]:
        """Returns the state with updated parameters, and the data-free loss before the update."""
        # The gradient of the data-free term, with the draw of the guide that the records have.
        rng_key, key = jax.random.split(state.rng_key)
        params = self.optim.get_params(state.optim_state)
        free_loss, free_gradient = jax.value_and_grad(partial(data_free_loss, self.terms))(
            params, arrays, key
        )
        if self.gradient == "aligned":
            noisy_sum = align(self.terms, noisy_sum, params, arrays, key)

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
            trace = record_gradient(trace, params, gradient)

        state = state._replace(optim_state=optim_state, rng_key=rng_key, trace=trace)
        return state, free_loss

    def clipped_sum(self, state: DPSVIState, key: PRNGKey, data: StepData) -> Values:
        """Returns the clipped sum of a batch that is drawn with ``key``."""
        return self.clipped_batch_gradient(state, self.mechanism.sampling.init(key), data)[0]

    def clipping_report(self, params: Values, key: PRNGKey, data: StepData) -> "ClippingReport":
        """Returns the effect of clipping on the mean gradient of all records."""
        examples, arrays = data
        l2_clip, space = self.mechanism.l2_clip, self.clipping_space(params, arrays, key)

        # The sums of the records' gradients, clipped and not.
        no_bound = jax.tree.map(lambda _: _NO_BOUND, l2_clip)
        (clipped, info), (unclipped, _) = (
            clipped_grad(space.loss, bound, microbatch_size=_REPORT_BATCH)(space.point, examples)
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
    def jit_clipping_report(self) -> Callable[..., "ClippingReport"]:
        """`clipping_report`, compiled."""
        return jax.jit(self.clipping_report)

    @functools.cached_property
    def jit_update_with_info(self) -> Callable[..., tuple[DPSVIState, tuple[jax.Array, StepInfo]]]:
        """`update_with_info`, compiled."""
        return jax.jit(self.update_with_info)

    @functools.cached_property
    def jit_clipped_sum(self) -> Callable[..., Values]:
        """`clipped_sum`, compiled."""
        return jax.jit(self.clipped_sum)

    @functools.cached_property
    def jit_apply_noisy_gradient(self) -> Callable[..., tuple[DPSVIState, jax.Array]]:
        """`apply_noisy_gradient`, compiled."""
        return jax.jit(self.apply_noisy_gradient)


def place_state(state: DPSVIState, optim: Optimizer, sharding: MeshSharding) -> DPSVIState:
    """Returns the state on the devices of ``sharding``, its parameters placed by their rule."""
    params = optim.get_params(state.optim_state)
    return sharding.place(state, sharding.state_specs(state, params))


def choose_clipping_space(
    terms: ELBOTerms, l2_clip: ClipBound, params: Values, arrays: Leaves, key: PRNGKey
) -> ClippingSpace:
    """Returns the latent variables where their coordinates are exact, else the parameters."""
    # Exact for one bound on one draw from a guide that gives each latent variable parameters.
    in_params = parameter_space(terms, params, arrays, key)
    one_bound = jax.tree_util.treedef_is_leaf(jax.tree.structure(l2_clip))
    one_draw = terms.loss.num_particles == 1
    autoguide: Any = terms.guide
    if not (type(autoguide) in _OWN_PARAMETERS and one_bound and one_draw):
        return in_params

    def guide_sites(params: Values) -> Trace:
        return trace_guide(terms, params, terms.spec.constant_records(1), arrays, (key, key))

    sites = guide_sites(params)
    if {name for name, site in sites.items() if site["type"] == "param"} != set(params):
        return in_params  # the model has some too
    name = f"_{autoguide.prefix}_latent"

    def latent(params: Values) -> jax.Array:
        return guide_sites(params)[name]["value"]

    # k = J J^T 1. Errors of TF32 would exceed the tolerance of the bound.
    with jax.default_matmul_precision("highest"):
        start, transpose = jax.vjp(latent, params)
        _, squares = jax.jvp(latent, (params,), transpose(jnp.ones_like(start)))
    lengths, values = jnp.sqrt(squares), terms.constrain(params)

    # The loss at u_0 + sqrt(k) phi, and the way back by J^T / sqrt(k).
    def constrain(phi: jax.Array) -> dict[str, ArrayTree]:
        # Copies: inside shard_map arrays from outside have the type of another mesh.
        return {**jax.tree.map(jnp.copy, values), name: start + lengths * phi}

    in_latents = parameter_space(replace(terms, constrain=constrain), params, arrays, key)
    return ClippingSpace(
        in_latents.loss,
        jnp.zeros_like(start),
        lambda clipped_sum: transpose((clipped_sum / lengths).astype(start.dtype))[0],
    )


def mean_params(params: Values) -> Values:
    """Returns the means among the parameters of a guide that `check_aligned` accepts."""
    return {name: leaf for name, leaf in params.items() if name.endswith("_loc")}


def align(
    terms: ELBOTerms, noisy_sum: Values, params: Values, arrays: Leaves, key: PRNGKey
) -> Values:
    """Returns J^T of a gradient in the means: that in all parameters of the guide.

    Args:
      terms: of the negative ELBO, whose guide `check_aligned` accepts.
      noisy_sum: by name of the means.
      params: unconstrained, of the step.
      arrays: public arguments of the model.
      key: of the step's draw from the guide.
    """
    autoguide: Any = terms.guide

    # The unconstrained latent variables, by the name of their means.
    def latents(params: Values) -> Values:
        sites = trace_guide(terms, params, terms.spec.constant_records(1), arrays, (key, key))
        others = set(params) - {n for n, site in sites.items() if site["type"] == "param"}
        if others:
            raise ValueError(
                'params must be those of the guide with gradient="aligned", got'
                f" {sorted(others)} of the model: their gradients do not follow from that in the"
                " means"
            )
        if type(autoguide) is not AutoNormal:
            name = f"{autoguide.prefix}_loc"
            return {name: sites[f"_{autoguide.prefix}_latent"]["value"]}
        values = {}
        for name in noisy_sum:
            site = sites[name.removesuffix(f"_{autoguide.prefix}_loc")]
            before = site["intermediates"]  # the value before each transform
            values[name] = before[0][0] if before else site["value"]
        return values

    values, transpose = jax.vjp(latents, params)
    in_latents = jax.tree.map(lambda leaf, value: leaf.astype(value.dtype), noisy_sum, values)
    aligned: Values = transpose(in_latents)[0]
    return aligned


def check_aligned(guide: Callable[..., object], num_particles: int, l2_clip: ClipBound) -> None:
    """Raises ValueError where the gradient in the means does not determine that of a record."""
    if type(guide) not in _WITH_MEANS:
        allowed = ", ".join(each.__name__ for each in _WITH_MEANS)
        raise ValueError(
            f'guide must be one of {allowed} with gradient="aligned", which have their means as'
            f" parameters, got {type(guide).__name__}"
        )
    if num_particles != 1:
        raise ValueError(
            'loss must have one particle with gradient="aligned", got num_particles ='
            f" {num_particles}: the mean of several gradients in the latent variables does not"
            " determine that in the scales"
        )
    if not jax.tree_util.treedef_is_leaf(jax.tree.structure(l2_clip)):
        raise ValueError(
            'l2_clip must be one number with gradient="aligned", which clips the gradient in the'
            f" means alone, got {l2_clip}"
        )


def parameter_space(
    terms: ELBOTerms,
    params: Values,
    arrays: Leaves,
    key: PRNGKey,
    fixed: Values | None = None,
) -> ClippingSpace:
    """Returns parameters as coordinates, for any model and guide.

    Args:
      terms: of the negative ELBO.
      params: the coordinates, unconstrained.
      arrays: public arguments of the model.
      key: of the step's draw from the guide.
      fixed: all parameters, where ``params`` are some of them.
    """

    def loss(point: Values, example: tuple[Leaves, jax.Array]) -> jax.Array:
        record, position = example
        if fixed is not None:
            # Copies: inside shard_map arrays from outside have the type of another mesh.
            point = {**jax.tree.map(jnp.copy, fixed), **point}
        return record_loss(terms, point, record, arrays, key, position)

    return ClippingSpace(loss, params, lambda clipped_sum: clipped_sum)


class ClippingReport(NamedTuple):
    """Effect of clipping on the mean gradient of all records. **Private values**, not released.

    Attributes:
      share_clipped: fraction of the records whose gradient norm exceeds its bound.
      clipped: mean of the clipped gradients, a tree like the unconstrained parameters; like the
        guide's means with ``gradient="aligned"``.
      unclipped: mean of the unclipped gradients.
    """

    share_clipped: jax.Array
    clipped: ArrayTree
    unclipped: ArrayTree

    @property
    def bias(self) -> ArrayTree:
        """Clipped minus unclipped mean gradient, a tree like both."""
        return jax.tree.map(jnp.subtract, self.clipped, self.unclipped)

    @property
    def cosine(self) -> jax.Array:
        """Cosine of the angle between both means: 1 if clipping only shortens the step."""
        clipped, unclipped = ravel_pytree(self.clipped)[0], ravel_pytree(self.unclipped)[0]
        lengths = jnp.linalg.norm(clipped) * jnp.linalg.norm(unclipped)
        return clipped @ unclipped / lengths

    @property
    def relative_bias(self) -> jax.Array:
        """L2 norm of the bias over the L2 norm of the unclipped mean."""
        bias, unclipped = ravel_pytree(self.bias)[0], ravel_pytree(self.unclipped)[0]
        return jnp.linalg.norm(bias) / jnp.linalg.norm(unclipped)

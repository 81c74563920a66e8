"""Clipped per-record gradients: in the guide's parameters, or in fewer coordinates, exactly.

A record depends on the parameters xi of a guide without local latent variables through the latent
vector u(xi) alone: its gradient is J^T g, with g its gradient in u and J = du/dxi. In
`AutoMultivariateNormal` and `AutoLowRankMultivariateNormal` every entry of u has parameters of its
own (its mean, its row of the factor), so J J^T is diagonal: k = J J^T 1, from one vector-Jacobian
and one Jacobian-vector product. In the coordinates phi, where u = u_0 + sqrt(k) phi, a record's
gradient sqrt(k) g has the norm of J^T g. J^T diag(k)^(-1/2), an isometry, maps the clipped sum back
to xi; k >= 1, because the derivative of each entry by its own mean is 1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from numpyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoMultivariateNormal

from dpjax._checks import batch_length
from dpjax._typing import ArrayTree, ClipBound, LossFn, PRNGKey
from dpjax.bayes.variational.arguments import Leaves, Values, fill_records
from dpjax.bayes.variational.elbo import Problem, record_loss, trace_guide
from dpjax.bayes.variational.model_trace import Trace
from dpjax.gradients import clipped_grad

# Exactly these types: a subclass may share parameters between entries.
_OWN_PARAMETERS = (AutoMultivariateNormal, AutoLowRankMultivariateNormal)
_NO_BOUND = 1e30
_REPORT_BATCH = 1024  # records whose gradients are in memory at once


class Coordinates(NamedTuple):
    """Coordinates in which one step's gradients are clipped.

    Attributes:
      loss: ``(coordinates, (record, its index)) -> loss``, for `dpjax.clipped_grad`.
      point: coordinates of the current parameters.
      to_params: maps a sum of gradients in these coordinates to the parameters; an isometry, so
        sensitivities are the same.
    """

    loss: Callable[[Any, Any], jax.Array]
    point: Any  # an array, or the parameters
    to_params: Callable[[Any], Any]


def choose_coordinates(
    problem: Problem,
    l2_clip: ClipBound,
    params: Values,
    records: Leaves,
    arrays: Leaves,
    key: PRNGKey,
) -> Coordinates:
    """Returns latent coordinates where they are exact, else the parameters.

    Args:
      problem: model and guide.
      l2_clip: one number, or a tree of them, which bounds the parameters group by group.
      params: unconstrained parameters.
      records: shapes and dtypes are used.
      arrays: the public arrays.
      key: of the step.
    """
    one_bound = jax.tree_util.treedef_is_leaf(jax.tree.structure(l2_clip))
    one_draw = problem.loss.num_particles == 1
    autoguide: Any = problem.guide
    if not (type(autoguide) in _OWN_PARAMETERS and one_bound and one_draw):
        return parameter_coordinates(problem, params, arrays, key)
    one_record = [leaf[:1] for leaf in fill_records(records)]

    def guide(params: Any) -> Trace:
        return trace_guide(problem, params, one_record, arrays, (key, key))

    if {name for name, site in guide(params).items() if site["type"] == "param"} != set(params):
        return parameter_coordinates(problem, params, arrays, key)  # the model has some too
    name = f"_{autoguide.prefix}_latent"

    def latent(params: Any) -> jax.Array:
        return guide(params)[name]["value"]

    with jax.default_matmul_precision("highest"):  # TF32 errors would exceed the bound's tolerance
        start, transpose = jax.vjp(latent, params)
        _, squares = jax.jvp(latent, (params,), transpose(jnp.ones_like(start)))
    lengths, values = jnp.sqrt(squares), problem.constrain(params)

    def constrain(phi: Any) -> dict[str, Any]:
        # Copies: inside shard_map arrays from outside have the type of another mesh.
        return {**jax.tree.map(jnp.copy, values), name: start + lengths * phi}

    in_latents = problem._replace(constrain=constrain)
    return Coordinates(
        parameter_coordinates(in_latents, params, arrays, key).loss,
        jnp.zeros_like(start),
        lambda summed: transpose((summed / lengths).astype(start.dtype))[0],
    )


def parameter_coordinates(
    problem: Problem, params: Values, arrays: Leaves, key: PRNGKey
) -> Coordinates:
    """Returns the parameters themselves as coordinates, for any model and guide.

    Arguments as `choose_coordinates`.
    """

    def loss(point: Values, example: tuple[Leaves, jax.Array]) -> jax.Array:
        record, index = example
        return record_loss(problem, point, record, arrays, key, index)

    return Coordinates(loss, params, lambda summed: summed)


class ClippingReport(NamedTuple):
    """Effect of clipping on the mean gradient of all records. **Private values**, not released.

    Attributes:
      share_clipped: fraction of the records whose gradient norm exceeds its bound.
      clipped: mean of the clipped gradients, a tree like the unconstrained parameters.
      unclipped: mean of the unclipped gradients.
    """

    share_clipped: jax.Array
    clipped: Any
    unclipped: Any

    @property
    def bias(self) -> Any:
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
        """L2 norm of the bias over the L2 norm of the unclipped mean."""
        bias, unclipped = ravel_pytree(self.bias)[0], ravel_pytree(self.unclipped)[0]
        return jnp.linalg.norm(bias) / jnp.linalg.norm(unclipped)


def report_clipping(
    loss: LossFn, l2_clip: ClipBound, params: Values, data: ArrayTree
) -> ClippingReport:
    """Compares the mean gradient over ``data`` with that of gradients clipped to ``l2_clip``.

    >>> loss = lambda w, x: -jnp.sum(w * x)
    >>> data = jnp.array([[3.0, 0.0], [0.0, 1.0]])
    >>> report = report_clipping(loss, 1.0, jnp.zeros(2), data)
    >>> float(report.share_clipped), report.clipped.tolist(), report.bias.tolist()
    (0.5, [-0.5, -0.5], [1.0, 0.0])
    """
    no_bound = jax.tree.map(lambda _: _NO_BOUND, l2_clip)
    (clipped, info), (unclipped, _) = (
        clipped_grad(loss, bound, microbatch_size=_REPORT_BATCH)(params, data)
        for bound in (l2_clip, no_bound)
    )
    over = jax.tree.leaves(jax.tree.map(jnp.greater, info.norms, l2_clip))
    share = jnp.stack(over).any(0).mean()
    count = batch_length(data)
    means = [jax.tree.map(lambda total: total / count, g) for g in (clipped, unclipped)]
    return ClippingReport(share, *means)

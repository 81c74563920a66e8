"""The coordinates in which a record's gradient is clipped: the parameters, or shorter ones.

Outside of local latent variables a record meets the parameters xi in the latent variables u(xi)
alone: its gradient is J^T g, with g its gradient in u and J = du/dxi. `AutoMultivariateNormal` and
`AutoLowRankMultivariateNormal` give every entry of u parameters of its own (its mean, its row of
the factor), so J J^T is diagonal: k = J J^T 1, at the price of one step back and one forth. In phi,
where u = u_0 + sqrt(k) phi, a record's gradient sqrt(k) g has the length of J^T g, and as few
numbers as u. J^T diag(k)^(-1/2), which keeps lengths, takes the clipped sum back to xi; k >= 1,
because each mean moves its own entry by as much.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoMultivariateNormal

from dpjax.bayes.variational.elbo import Problem, Trace, record_loss, run_guide
from dpjax.bayes.variational.records import blank

# Of these very types: a subclass may share parameters between entries.
_OWN_PARAMETERS = (AutoMultivariateNormal, AutoLowRankMultivariateNormal)


class Coordinates(NamedTuple):
    """Where to clip one step's gradients, and how to come back.

    Attributes:
      loss: ``(coordinates, (record, its index)) -> loss``, as `dpjax.clipped_grad` wants it.
      point: coordinates of the present parameters.
      to_params: from a sum of gradients in these coordinates to the same sum in the parameters;
        it keeps lengths, and so sensitivities.
    """

    loss: Callable[[Any, Any], jax.Array]
    point: Any
    to_params: Callable[[Any], Any]


def coordinates(
    problem: Problem, l2_clip: Any, params: Any, records: Any, arrays: Any, key: jax.Array
) -> Coordinates:
    """Chooses, by what is known while tracing.

    Args:
      problem: model and guide.
      l2_clip: one number, or a tree of them, which bounds the parameters group by group.
      params: unconstrained parameters.
      records: of which shapes alone are used.
      arrays: the arguments that are no records.
      key: of the step.
    """
    one_bound = jax.tree_util.treedef_is_leaf(jax.tree.structure(l2_clip))
    one_draw = problem.loss.num_particles == 1
    autoguide: Any = problem.guide
    if not (type(autoguide) in _OWN_PARAMETERS and one_bound and one_draw):
        return in_parameters(problem, params, arrays, key)
    shown = [leaf[:1] for leaf in blank(records)]

    def guide(params: Any) -> Trace:
        return run_guide(problem, params, shown, arrays, key, key)

    if {name for name, site in guide(params).items() if site["type"] == "param"} != set(params):
        return in_parameters(problem, params, arrays, key)  # the model has some too
    name = f"_{autoguide.prefix}_latent"
    return _in_latents(problem, name, lambda p: guide(p)[name]["value"], params, arrays, key)


def in_parameters(problem: Problem, params: Any, arrays: Any, key: jax.Array) -> Coordinates:
    """The parameters themselves: what every model and guide allow."""
    return Coordinates(_loss(problem, arrays, key), params, lambda summed: summed)


def _in_latents(
    problem: Problem,
    name: str,
    latent: Callable[[Any], jax.Array],
    params: Any,
    arrays: Any,
    key: jax.Array,
) -> Coordinates:
    """phi, of guides whose latent vector, site ``name``, is ``latent(params)``."""
    with jax.default_matmul_precision("highest"):  # TF32 would err by more than a clip may
        start, pull = jax.vjp(latent, params)
        _, squares = jax.jvp(latent, (params,), pull(jnp.ones_like(start)))
    lengths, values = jnp.sqrt(squares), problem.constrain(params)

    def at(phi: jax.Array) -> dict[str, Any]:
        return {**values, name: start + lengths * phi}

    def to_params(summed: jax.Array) -> Any:
        return pull((summed / lengths).astype(start.dtype))[0]

    loss = _loss(problem._replace(constrain=at), arrays, key)
    return Coordinates(loss, jnp.zeros_like(start), to_params)


def _loss(problem: Problem, arrays: Any, key: jax.Array) -> Callable[[Any, Any], jax.Array]:
    def loss(point: Any, example: Any) -> jax.Array:
        record, index = example
        return record_loss(problem, point, record, arrays, key, index)

    return loss

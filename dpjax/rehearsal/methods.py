"""What a rehearsal can run in steps: training of a loss, and variational inference of a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import jax
import optax
from numpyro.infer.autoguide import AutoNormal

from dpjax._checks import check_choice, check_function, check_type
from dpjax._typing import LossFn, Numeric, Params, PyTree
from dpjax.bayes.variational.step import Gradient
from dpjax.gradients.loss_checks import check_params, split_params

# A learning rate -> an optax optimiser.
OptimizerFn = Callable[[Numeric], optax.GradientTransformation]

# Records over batch size, and epochs, that are tried where none are given.
Plans = tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class Training:
    """`dpjax.train` of a loss, to be rehearsed.

    Attributes:
      loss_fn: ``loss_fn(params, example) -> scalar``, as for `dpjax.train`.
      params: the first ones, as for `dpjax.train`: chosen without the private records.
      optimizer: from a learning rate, such as ``optax.adam``.
      score: ``score(params, fresh) -> scalar``, the error on fresh records, lower is better; by
        default their mean loss. Of an ``nnx.Module`` it is given an ``nnx.State``.
      constant_score: ``constant_score(fresh) -> scalar``, the error of the best prediction that
        does not depend on the features; by default the error of ``params``, before any step.

    Raises:
      TypeError: what must be a function is none.
      ValueError: parameters that are not arrays of floats.
    """

    loss_fn: LossFn
    params: Params
    optimizer: OptimizerFn = optax.adam
    score: Callable[[PyTree, PyTree], jax.Array] | None = None
    constant_score: Callable[[PyTree], jax.Array] | None = None
    default_plans: ClassVar[Plans] = ((64, 5.0), (64, 20.0), (8, 20.0))

    def __post_init__(self) -> None:
        check_function("loss_fn", self.loss_fn)
        check_function("optimizer", self.optimizer, "learning_rate")
        check_params(split_params(self.params, None, keyed=False)[1])
        for name in ("score", "constant_score"):
            if getattr(self, name) is not None:
                check_function(name, getattr(self, name))


@dataclass(frozen=True, eq=False)
class Inference:
    """`DPSVI` of a numpyro model, to be rehearsed.

    Its error is that of the posterior means of the latent variables: the root mean square of their
    distances from the truth, in units of the prior's standard deviation (half the distance between
    its quantiles at 16 and 84 %). A result that ignores the records, the prior's medians, has an
    error of about one.

    Attributes:
      model: called on the arguments that a world's records are.
      guide: from the model a guide, such as the class ``AutoNormal``; called anew for each program.
      optimizer: from a learning rate, such as ``optax.adam``.
      posterior: whose intervals are checked: those of the ``"guide"``, or of the ``"noise-aware"``
        posterior.
      gradient, release_clipped_share: as of `DPSVI`.
      model_kwargs: public arguments of the model that are no covariates.

    Raises:
      TypeError: what must be a function is none, ``release_clipped_share`` no bool.
      ValueError: a ``posterior`` or ``gradient`` of another name.
    """

    model: Callable[..., object]
    guide: Callable[[Callable[..., object]], Callable[..., object]] = AutoNormal
    optimizer: OptimizerFn = optax.adam
    posterior: Literal["guide", "noise-aware"] = "guide"
    gradient: Gradient = "plain"
    release_clipped_share: bool = False
    model_kwargs: Mapping[str, object] = field(default_factory=dict)
    default_plans: ClassVar[Plans] = ((8, 20.0), (8, 80.0))

    def __post_init__(self) -> None:
        check_function("model", self.model)
        check_function("guide", self.guide, "model")
        check_function("optimizer", self.optimizer, "learning_rate")
        check_type("model_kwargs", self.model_kwargs, Mapping, "a mapping from arguments")
        check_choice("posterior", self.posterior, ("guide", "noise-aware"))
        check_choice("gradient", self.gradient, get_args(Gradient))
        check_type("release_clipped_share", self.release_clipped_share, bool, "True or False")

"""Steps of one inference, compiled once for each kind of arguments, and checked before."""

from typing import Any

import jax
from numpyro.infer import SVI

from dpjax.bayes.variational.elbo import Problem
from dpjax.bayes.variational.known import Known, kind_of
from dpjax.bayes.variational.records import Arguments, Layout, split_arguments
from dpjax.bayes.variational.refusals import check_problem
from dpjax.bayes.variational.step import DPSVIState, make_step
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.training.loop import compile_steps
from dpjax.training.step import StepInfo


class Steps:
    """What `DPSVI` runs.

    Args:
      svi: numpyro's, of the same model, guide, optimiser and loss.
      mechanism: of all steps.
      static_kwargs: arguments of model and guide in every call.
    """

    def __init__(
        self, svi: SVI, mechanism: SubsampledGaussian, static_kwargs: dict[str, Any]
    ) -> None:
        self._svi, self._mechanism, self._static_kwargs = svi, mechanism, static_kwargs
        self._one = jax.jit(self._update, static_argnums=(3, 4))
        self._loops: dict[Any, Any] = {}
        self._known: dict[Any, Known] = {}  # by kind of arguments, the last one checked last

    def split(self, args: Any, kwargs: Any) -> Arguments:
        """Tells records from other arguments."""
        num_examples = self._mechanism.sampling.num_examples
        return split_arguments(args, {**kwargs, **self._static_kwargs}, num_examples)

    def learn(self, known: Known, params: Any, parts: Arguments) -> None:
        """Checks model and guide with these arguments, and remembers what is known of them.

        Raises:
          ValueError: naming the site and what is allowed.
        """
        check_problem(self._problem(parts.layout, known.structure.plate), params, parts)
        self._known.pop(kind_of(parts), None)
        self._known[kind_of(parts)] = known

    def last_known(self) -> Known:
        """Returns what `learn` remembered last."""
        if not self._known:
            raise ValueError("init must be called first, got a DPSVI that has seen no arguments")
        return next(reversed(self._known.values()))

    def problem(self, state: DPSVIState, parts: Arguments) -> Problem:
        """Returns model and guide with these arguments; checked, where they are of a new kind."""
        kind = kind_of(parts)
        if kind not in self._known:
            params = self._svi.optim.get_params(state.optim_state)
            self.learn(Known.of(self._svi.model, parts), params, parts)
        return self._problem(parts.layout, self._known[kind].structure.plate)

    def one(
        self, state: DPSVIState, parts: Arguments
    ) -> tuple[DPSVIState, tuple[jax.Array, StepInfo]]:
        """Makes one step: see `make_step`."""
        plate = self.problem(state, parts).plate
        return self._one(state, parts.records, parts.arrays, parts.layout, plate)

    def loop(self, state: DPSVIState, parts: Arguments, most: int) -> Any:
        """Returns ``run(state, data, count) -> (state, losses)`` for up to ``most`` steps.

        ``data`` are ``(parts.records, parts.arrays)``; the loop is kept for others of their shapes.
        """
        data, plate = (parts.records, parts.arrays), self.problem(state, parts).plate
        leaves, treedef = jax.tree.flatten((state, data))
        kind = (parts.layout, most, treedef, tuple(jax.typeof(leaf) for leaf in leaves))
        if kind not in self._loops:

            def update(state: Any, data: Any) -> Any:
                records, arrays = data
                state, (loss, _) = self._update(state, records, arrays, parts.layout, plate)
                return state, loss

            self._loops[kind] = compile_steps(update, state, data, most)
        return self._loops[kind]

    def _problem(self, layout: Layout, plate: str) -> Problem:
        svi = self._svi
        return Problem(svi.model, svi.guide, svi.loss, svi.constrain_fn, plate, layout)

    def _update(
        self, state: DPSVIState, records: Any, arrays: Any, layout: Layout, plate: str
    ) -> tuple[DPSVIState, tuple[jax.Array, StepInfo]]:
        problem = self._problem(layout, plate)
        return make_step(problem, self._mechanism, self._svi.optim, state, records, arrays)

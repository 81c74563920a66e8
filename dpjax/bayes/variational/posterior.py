"""Posterior samples, predictions and diagnostics from the parameters of a guide."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy.typing as npt
from numpyro.infer import ELBO, SVI, Predictive

from dpjax._checks import as_key, check_count, check_type
from dpjax._extras import requires_extra
from dpjax._typing import PRNGKey
from dpjax.bayes.variational.arguments import Values, as_arrays, check_whole
from dpjax.bayes.variational.clipping import ClippingReport, choose_coordinates, report_clipping
from dpjax.bayes.variational.compiled_steps import CompiledSteps
from dpjax.bayes.variational.step import DPSVIState, with_index
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian


class VariationalPosterior:
    """The part of `DPSVI` that reads its parameters: samples, predictions, diagnostics."""

    mechanism: SubsampledGaussian
    static_kwargs: dict[str, Any]
    _svi: SVI
    _steps: CompiledSteps

    @property
    def model(self) -> Callable[..., Any]:
        """The numpyro model."""
        return self._svi.model

    @property
    def guide(self) -> Callable[..., Any]:
        """The numpyro guide."""
        return self._svi.guide

    @property
    def optim(self) -> Any:
        """The optimizer, as a numpyro one."""
        return self._svi.optim

    @property
    def loss(self) -> ELBO:
        """The ELBO, negated, as a numpyro loss."""
        return self._svi.loss

    def get_params(self, svi_state: DPSVIState) -> dict[str, Any]:
        """Returns the values of the param sites by name, released after every step.

        Args:
          svi_state: a state of this `DPSVI`.
        """
        return self._svi.get_params(svi_state)

    def evaluate(self, svi_state: DPSVIState, *args: Any, **kwargs: Any) -> jax.Array:
        """Returns the negative ELBO on all records, as numpyro computes it.

        Args:
          svi_state: a state of this `DPSVI`.
          *args: of the model, the whole data set included.
          **kwargs: of the model.

        Privacy:
          The result is a **private** value, not released.
        """
        args, kwargs = as_arrays(args, {**kwargs, **self.static_kwargs})
        check_whole((args, kwargs), self.mechanism.sampling.num_examples)
        return self._svi.evaluate(svi_state, *args, **kwargs)

    def posterior_samples(
        self, rng_key: PRNGKey, params: DPSVIState | Values, num_samples: int
    ) -> dict[str, jax.Array]:
        """Draws the global latent variables from the guide: postprocessing, at no privacy cost.

        Their spread is that of the guide, which does not include the noise: see `DPSVI`.

        Args:
          rng_key: a JAX key.
          params: what `get_params` or `run` returned, or a state.
          num_samples: number of draws.

        Returns:
          For each latent variable of the model outside of the plate an array
          ``(1, num_samples, ...)``: arviz's axes, one chain (see `to_arviz`).
        """
        check_count("num_samples", num_samples)
        model_trace = self._steps.last_trace()
        args, kwargs = model_trace.zero_arguments()
        draw = Predictive(
            self.guide,
            params=self._params(params),
            num_samples=num_samples,
            return_sites=list(model_trace.latents),
            parallel=True,
        )
        return {name: draws[None] for name, draws in draw(rng_key, *args, **kwargs).items()}

    def predict(
        self,
        rng_key: PRNGKey,
        params: DPSVIState | Values,
        num_samples: int,
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, jax.Array]:
        """Draws from the posterior predictive at public inputs: postprocessing, at no privacy cost.

        The uncertainty of the parameters does not include the noise: see `DPSVI`.

        Args:
          rng_key: a JAX key.
          params: what `get_params` or `run` returned, or a state.
          num_samples: number of draws.
          *args: of the model, new ones, with ``None`` for what it observes.
          **kwargs: of the model.

        Returns:
          As `numpyro.infer.Predictive`: for each observed or deterministic site an array
          ``(num_samples, ...)``.
        """
        check_count("num_samples", num_samples)
        args, kwargs = as_arrays(args, {**kwargs, **self.static_kwargs})
        draw = Predictive(
            self.model,
            guide=self.guide,
            params=self._params(params),
            num_samples=num_samples,
            parallel=True,
        )
        return draw(rng_key, *args, **kwargs)

    def clipping_report(
        self, rng_key: PRNGKey, svi_state: DPSVIState, *args: Any, **kwargs: Any
    ) -> ClippingReport:
        """Returns the bias that clipping adds to the mean gradient of all records.

        Args:
          rng_key: for the latent variables, drawn once (for each particle) as a step does.
          svi_state: gradients are taken at its parameters.
          *args: of the model, the whole data set included.
          **kwargs: of the model.

        Privacy:
          The report holds **private** values, not released.
        """
        check_whole((args, kwargs), self.mechanism.sampling.num_examples)
        parts = self._steps.split(args, kwargs)
        problem = self._steps.problem(svi_state, parts)
        params, l2_clip = self.optim.get_params(svi_state.optim_state), self.mechanism.l2_clip
        key = as_key(rng_key)
        where = choose_coordinates(problem, l2_clip, params, parts.records, parts.arrays, key)
        report = report_clipping(where.loss, l2_clip, where.point, with_index(parts.records))
        means = map(where.to_params, (report.clipped, report.unclipped))
        return ClippingReport(report.share_clipped, *means)

    def _params(self, params: DPSVIState | Values) -> Values:
        return self.get_params(params) if isinstance(params, DPSVIState) else params


def to_arviz(samples: Mapping[str, npt.ArrayLike]) -> Any:
    """Returns posterior samples with axes ``(chain, draw, ...)`` as an `xarray.DataTree` for arviz.

    Args:
      samples: what `DPSVI.posterior_samples` returned.

    >>> import numpy as np
    >>> to_arviz({"w": np.zeros((1, 10, 3))}).posterior["w"].dims
    ('chain', 'draw', 'w_dim_0')
    """
    check_type("samples", samples, Mapping, "a mapping from names to draws")
    with requires_extra("arviz"):
        from arviz_base import from_dict

    return from_dict({"posterior": dict(samples)})

"""``DPSVI``: numpyro's stochastic variational inference, private by one description."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.infer import ELBO, SVI, Trace_ELBO
from numpyro.infer.svi import SVIRunResult
from tqdm import tqdm

from dpjax._validation import as_key, check_count
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.certificate import Certificate
from dpjax.bayes.variational.clipping_report import ClippingReport, report_clipping
from dpjax.bayes.variational.coordinates import coordinates
from dpjax.bayes.variational.known import Known, first_state
from dpjax.bayes.variational.posterior import draw_latents, draw_predictions
from dpjax.bayes.variational.refusals import check_loss, check_optimizer
from dpjax.bayes.variational.step import DPSVIState, with_index
from dpjax.bayes.variational.steps import Steps
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.sampling.base import Sampling
from dpjax.training.step import StepInfo

_REPORTS = 20  # of the progress bar


class DPSVI:
    """`numpyro.infer.SVI` with differential privacy: the same model, guide, optimiser and calls.

    Minus the ELBO is a sum of one term for each record, -E_q[log p(x_i | theta)], and a term free
    of data, KL(q || p). A step draws a batch, draws theta from the guide once for all of it, clips
    each record's gradient with respect to the unconstrained parameters, adds noise to their sum,
    multiplies it by ``num_examples / expected_batch_size``, adds the gradient of the data-free term
    and lets the optimiser step. With no noise and no clipping that is numpyro's step.

    The model must have one ``numpyro.plate`` over the records, with every observed site under it.
    Which arguments are records is told by shape: arrays (in any tree of ``args`` and ``kwargs``)
    with a leading axis of ``sampling.num_examples``. All others are public and stay whole: numbers,
    arrays of another length (refused where another axis is as long as the records, or a list is).
    Whatever model and guide hold besides, in a closure or an object, is taken as public too: an
    array as long as the records is refused there, but a mean or a part of the data cannot be told.
    A public array that is as long by chance has to be padded.

    The model sees the records one at a time, as arrays of length one; a ``subsample_size`` of the
    plate is the sampler's business here, and its factor n/b is left out.
    So ``len(y)`` and ``y.shape[0]`` are 1 in a record's term: a likelihood that divides by them is
    silently another one than numpyro's. Give such a number as an argument, or write it down; as the
    size of the plate they are right.

    Local latent variables (under the plate) need an amortised guide, whose term is clipped with the
    record's, or have to be marginalised. Refused with an explanation: guides with parameters for
    each record, discrete latent variables, sites observed outside of the plate, priors that read
    the records, ``handlers.scale``, mutable state (running statistics of batch normalisation),
    guides that follow the records themselves (`AutoLaplaceApproximation`, `AutoDAIS`).
    Mean-field guides, `AutoMultivariateNormal` and `AutoLowRankMultivariateNormal` cost little more
    than numpyro's step. Under the latter two a record's gradient is formed for each latent variable
    (where there is one particle, one number ``l2_clip``, and no parameter in the model); under all
    other guides for each parameter, which is slow where there are thousands.
    A ``handlers.mask`` whose entries are an argument with one for each record works as usual, and
    so do modules of `numpyro.contrib.module` without mutable state.

    Args:
      model: as numpyro's.
      guide: as numpyro's; autoguides too.
      optim: an optax or numpyro optimiser. One that asks for the loss's value is given NaN: the
        loss is not released.
      loss: `numpyro.infer.Trace_ELBO` (the default) or `TraceMeanField_ELBO`; particles are
        averaged inside each record's term.
      sampling: how batches are drawn (`dpjax.PoissonSampling`, ...), and of how many records.
      num_steps: how many updates may be made; further ones give NaN.
      l2_clip: bound on one record's gradient: of the unscaled term, so of one log-likelihood.
      noise_multiplier: noise standard deviation over ``l2_clip``; a number, or one for each step.
      adjacency: ``"add_remove"`` or ``"replace_one"``.
      unit: the unit of privacy, in words.
      **static_kwargs: further arguments for model and guide, as numpyro's.

    Attributes:
      mechanism: the `dpjax.SubsampledGaussian` that sampler, noise and account all come from.

    Privacy:
      A run releases its parameters, every step's: `mechanism` says at what price. Anything made of
      them is free: posterior samples, predictions, an average over steps. **Not** released: losses,
      the state (it holds keys), `evaluate`, `clipping_report`. Starting values are computed on
      blank records, so they say nothing about the data; but not those of an autoguide that was set
      up on the data before (by `numpyro.infer.SVI`), or of ``init_params`` made from them.
      A second run is a second release, and needs a new key: two runs with one key, or from one
      state, add the same noise, and the difference of what they release has none, so on
      neighbouring data it shows the record.

    Source: Jälkö, Dikmen, Honkela (2017), "Differentially private variational inference for
    non-conjugate models", Section 3, whose clipped term had a share 1/N of the KL term in it.

    >>> import numpyro, optax
    >>> import numpyro.distributions as dist
    >>> from numpyro.infer.autoguide import AutoNormal
    >>> from dpjax.sampling import PoissonSampling
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0, 1))
    ...     with numpyro.plate("records", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1), obs=y)
    >>> svi = DPSVI(model, AutoNormal(model), optax.adam(0.05),
    ...             sampling=PoissonSampling(1000, 0.1), num_steps=200, l2_clip=2.0,
    ...             noise_multiplier=2.0, adjacency="add_remove")
    >>> result = svi.run(jax.random.key(0), 200, 0.5 + jnp.zeros(1000), progress_bar=False)
    >>> round(float(result.params["mean_auto_loc"]), 1), svi.certificate(1e-5).epsilon < 4
    (0.5, True)
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: Any,
        loss: ELBO | None = None,
        *,
        sampling: Sampling,
        num_steps: int,
        l2_clip: Any,
        noise_multiplier: float | tuple[float, ...],
        adjacency: Adjacency,
        unit: str = "one record",
        **static_kwargs: Any,
    ) -> None:
        loss = Trace_ELBO() if loss is None else loss
        check_loss(loss)
        check_optimizer(optim)
        self.mechanism = SubsampledGaussian(
            sampling, l2_clip, noise_multiplier, num_steps, adjacency, unit
        )
        self.static_kwargs = static_kwargs
        self._svi = SVI(model, guide, optim, loss)
        self._steps = Steps(self._svi, self.mechanism, static_kwargs)

    @property
    def model(self) -> Callable[..., Any]:
        """As given."""
        return self._svi.model

    @property
    def guide(self) -> Callable[..., Any]:
        """As given."""
        return self._svi.guide

    @property
    def optim(self) -> Any:
        """As a numpyro optimiser."""
        return self._svi.optim

    @property
    def loss(self) -> ELBO:
        """The objective."""
        return self._svi.loss

    def certificate(self, delta: float) -> Certificate:
        """What one run of all ``num_steps`` guarantees at ``delta``."""
        return self.mechanism.certificate(delta)

    def init(
        self, rng_key: jax.Array, *args: Any, init_params: Any = None, **kwargs: Any
    ) -> DPSVIState:
        """Returns the first state; refuses what cannot be made private.

        Args:
          rng_key: a JAX key (`dpjax.release_key()` for a release): guide, sampler and noise.
          *args: of the model, the whole data set among them.
          init_params: starting values by name, as numpyro's.
          **kwargs: of the model.

        Raises:
          ValueError: naming the site and what is allowed.
        """
        svi_key, sampler_key, noise_key = jax.random.split(as_key(rng_key), 3)
        parts = self._steps.split(args, kwargs)
        known = Known.of(self.model, parts)
        svi_state = first_state(self._svi, svi_key, parts, init_params)
        params = self.optim.get_params(svi_state.optim_state)
        self._steps.learn(known, params, parts)
        noise = self.mechanism.noise(noise_key).init(params)
        sampler = self.mechanism.sampling.init(sampler_key)
        return DPSVIState(svi_state.optim_state, svi_state.rng_key, sampler, noise)

    def get_params(self, svi_state: DPSVIState) -> dict[str, Any]:
        """The values of the param sites: released, after every step."""
        return self._svi.get_params(svi_state)

    def update(
        self, svi_state: DPSVIState, *args: Any, **kwargs: Any
    ) -> tuple[DPSVIState, jax.Array]:
        """One step; the batch is drawn here, so ``args`` are the whole data set.

        Returns:
          The next state, and an estimate of minus the ELBO: a **private** value, not released.
        """
        state, (loss, _) = self._steps.one(svi_state, self._steps.split(args, kwargs))
        return state, loss

    def update_with_info(
        self, svi_state: DPSVIState, *args: Any, **kwargs: Any
    ) -> tuple[DPSVIState, StepInfo]:
        """As `update`, with what the step saw of the records: **private** values.

        The norms are those that a Bayesian account is kept of: see `dpjax.bayesian`.
        """
        state, (_, info) = self._steps.one(svi_state, self._steps.split(args, kwargs))
        return state, info

    def run(
        self,
        rng_key: jax.Array,
        num_steps: int,
        *args: Any,
        progress_bar: bool = True,
        init_state: DPSVIState | None = None,
        init_params: Any = None,
        **kwargs: Any,
    ) -> SVIRunResult:
        """Many steps in one loop on the device, compiled once for all runs of the same shape.

        Args:
          rng_key: as for `init`; a new one for each run, as the same one draws the same noise.
          num_steps: how many to make.
          *args: of the model, the whole data set among them.
          progress_bar: show one (of steps alone: losses are private); the loop then comes back to
            the host some twenty times.
          init_state: to go on from, once: going on twice from one state draws the same noise
            twice. Its noise goes on being counted.
          init_params: as for `init`.
          **kwargs: of the model.

        Returns:
          ``(params, state, losses)`` as numpyro's. Only ``params`` are released; ``losses``
          (``(num_steps,)``) are **private** values, which no certificate covers.
        """
        check_count("num_steps", num_steps)
        if init_state is None:
            init_state = self.init(rng_key, *args, init_params=init_params, **kwargs)
        state = jax.tree.map(jnp.array, init_state)  # its own copies: the loop donates them
        most = -(-num_steps // _REPORTS) if progress_bar else num_steps
        parts = self._steps.split(args, kwargs)
        run, losses = self._steps.loop(state, parts, most), []
        with tqdm(total=num_steps, unit="step", disable=not progress_bar) as bar:
            for done in range(0, num_steps, most):
                count = min(most, num_steps - done)
                data = parts.records, parts.arrays
                state, some = jax.block_until_ready(run(state, data, count))
                losses.append(some)
                bar.update(count)
        return SVIRunResult(self.get_params(state), state, jnp.concatenate(losses))

    def evaluate(self, svi_state: DPSVIState, *args: Any, **kwargs: Any) -> jax.Array:
        """Minus the ELBO on all records, as numpyro computes it: a **private** value."""
        return self._svi.evaluate(svi_state, *args, **{**kwargs, **self.static_kwargs})

    def posterior_samples(
        self, rng_key: jax.Array, params: Any, num_samples: int
    ) -> dict[str, jax.Array]:
        """Draws the global latent variables from the guide; free of further privacy cost.

        Args:
          rng_key: a JAX key.
          params: what `get_params` or `run` gave, or a state.
          num_samples: how many.

        Returns:
          For each latent variable of the model outside of the plate an array
          ``(1, num_samples, ...)``: arviz's axes, one chain (see `to_arviz`).
        """
        known = self._steps.last_known()
        names, arguments = known.structure.latents, known.blank_arguments()
        params = self._params(params)
        return draw_latents(self.guide, params, names, rng_key, num_samples, arguments)

    def predict(
        self, rng_key: jax.Array, params: Any, num_samples: int, *args: Any, **kwargs: Any
    ) -> dict[str, jax.Array]:
        """Draws from the posterior predictive at public inputs; free of further privacy cost.

        Args:
          rng_key: a JAX key.
          params: what `get_params` or `run` gave, or a state.
          num_samples: how many.
          *args: of the model, new ones, with ``None`` for what it observes.
          **kwargs: of the model.

        Returns:
          As `numpyro.infer.Predictive`: for each observed or deterministic site an array
          ``(num_samples, ...)``.
        """
        arguments = args, {**kwargs, **self.static_kwargs}
        params = self._params(params)
        return draw_predictions(self.model, self.guide, params, rng_key, num_samples, arguments)

    def clipping_report(
        self, rng_key: jax.Array, svi_state: DPSVIState, *args: Any, **kwargs: Any
    ) -> ClippingReport:
        """How clipping bends the gradient at this state, over all records: **private** values.

        Args:
          rng_key: for the latent variables, drawn once (for each particle) as a step does.
          svi_state: whose parameters are looked at.
          *args: of the model, the whole data set among them.
          **kwargs: of the model.
        """
        parts = self._steps.split(args, kwargs)
        problem = self._steps.problem(svi_state, parts)
        params, l2_clip = self.optim.get_params(svi_state.optim_state), self.mechanism.l2_clip
        key = as_key(rng_key)
        where = coordinates(problem, l2_clip, params, parts.records, parts.arrays, key)
        report = report_clipping(where.loss, l2_clip, where.point, with_index(parts.records))
        means = map(where.to_params, (report.clipped, report.unclipped))
        return ClippingReport(report.share_clipped, *means)

    def _params(self, params: Any) -> Any:
        return self.get_params(params) if isinstance(params, DPSVIState) else params

"""Differentially private stochastic variational inference (`DPSVI`) for numpyro models."""

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from numpyro.infer import ELBO, SVI, Predictive, Trace_ELBO
from numpyro.infer.svi import SVIState

from dpjax._checks import (
    as_count,
    as_key,
    check,
    check_choice,
    check_count,
    check_share,
    check_type,
)
from dpjax._hashing import hash_arrays
from dpjax._html import HTMLTable
from dpjax._html_tables import leaf_table
from dpjax._typing import PRNGKey, PyTree
from dpjax.bayes._data_tree import Draws, make_data_tree
from dpjax.bayes.variational.elbo import ELBOTerms, find_mean_field, guide_name
from dpjax.bayes.variational.full_curvature import (
    IN_DIRECTIONS,
    FullCurvaturePosterior,
    fit_curvature,
    guide_covariance,
    read_latents,
)
from dpjax.bayes.variational.gradient_trace import (
    LATENTS,
    MAX_PARAMETERS,
    MEAN_FIELD,
    average_iterates,
    no_trace_error,
    settled_burn_in,
    tail_blocks,
    tail_products,
    tail_sums,
)
from dpjax.bayes.variational.model_args import (
    ArgsAndKwargs,
    ModelArgs,
    PositionedSource,
    StepData,
    Values,
    as_arrays,
    split_model_args,
    whole_arrays,
)
from dpjax.bayes.variational.noise_aware import (
    MIN_TAIL_STEPS,
    ClippedShare,
    MeanFieldPosterior,
    NoiseAwarePosterior,
    as_vectors,
    draw_prior,
    draw_prior_means,
    find_conflicts,
    find_normal_priors,
    find_priors,
    find_problems,
    find_small_clip,
    fit_optimum,
    move_by_loss,
    moves_by_priors,
)
from dpjax.bayes.variational.step import (
    CLIPPED,
    ClippingReport,
    DPSVIState,
    Gradient,
    Optimizer,
    VariationalStep,
    check_aligned,
    check_one_bound,
    place_state,
    split_bound,
)
from dpjax.bayes.variational.validate import (
    check_first_argument,
    check_loss,
    check_optimizer,
    check_program,
    check_terms,
    find_sites,
    initial_value,
)
from dpjax.gradients.clip_bound import check_clip_numbers, total_l2_clip
from dpjax.keys import seeded_flag
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.sampling.fixed_size import FixedSizeSampling
from dpjax.sampling.poisson import PoissonSampling, TruncatedPoissonSampling
from dpjax.training.batch_gradient import StepInfo
from dpjax.training.data import Stream, as_training_data
from dpjax.training.run import (
    Chunk,
    InfoT,
    Plan,
    RunResult,
    RunStateT,
    TrainingData,
    Update,
    check_processes,
    compile_chunk,
    run,
)
from dpjax.training.sharding import MeshSharding

_PROGRESS_UPDATES = 20
# Steps of a run whose parameters are averaged, each a block of its own or more.
_LEAST_AVERAGED = 16
# Constant records that starting values are found on: a model may need values other than zero.
_INITIAL_RECORDS = (0.0, 1.0, 0.5)


@dataclass(frozen=True)
class DPSVIResult(RunResult):
    """The parameters that a run of `DPSVI` released, and its mechanism.

    Iterates over ``params, state, losses``, as numpyro's result does.

    Attributes:
      params: values of the param sites by name, after the last step.
      state: the last `DPSVIState`. **Not released**: it holds keys.
      losses: estimates of the negative ELBO before each step of this call. **Private** values,
        which no certificate covers.
      mechanism: the mechanism **as run**: all steps that led to ``params``, those before
        ``init_state`` and of earlier calls on ``checkpoint_dir`` included.
      seeded: whether the first key of these steps looks like ``jax.random.key(seed)``, whose noise
        can be reproduced.
      svi: the inference that was run.
      model_args: structure, shapes and public arrays of its arguments, without the records.
      first_plan: the steps planned at first, where a run on a folder was continued with more.
    """

    params: Values
    state: DPSVIState
    losses: jax.Array
    mechanism: SubsampledGaussian
    seeded: bool
    svi: "DPSVI" = field(repr=False)
    model_args: ModelArgs = field(repr=False)
    first_plan: int | None = None

    def __iter__(self) -> Iterator[Values | DPSVIState | jax.Array]:
        return iter((self.params, self.state, self.losses))

    def posterior_samples(self, rng_key: PRNGKey, num_samples: int) -> dict[str, jax.Array]:
        """Draws the global latent variables from the guide: see `DPSVI.posterior_samples`.

        Args:
          rng_key: a JAX key.
          num_samples: number of draws.

        Returns:
          For each latent variable an array ``(1, num_samples, ...)``.
        """
        return self.svi._draw_latents(rng_key, self.params, num_samples, self.model_args)

    def averaged_params(self, *, burn_in: float | None = None) -> Values:
        """Returns the average of the iterates (Polyak averaging) over the last steps of the run.

        Its error by noise is smaller than that of the last iterate, the more so the larger the
        learning rate. Averaged without constraints. Scales, too, are averages: the guide's
        intervals still leave the noise out (see `noise_aware_posterior`).

        Args:
          burn_in: share of the steps that are left out, in [0, 1), rounded up to whole blocks, of
            which there are 17 to 32. By default the least after which no parameter has a trend, by
            t-tests of the blocks' means at 1 %: at most one half, with a warning where there is a
            trend after that.

        Returns:
          As ``params``; draws from the guide at them: `DPSVI.posterior_samples`.

        Privacy:
          Post-processing of what the run released: no further cost.

        Raises:
          ValueError: another guide than a mean-field normal one (see `noise_aware_posterior`) of at
            most 20,000 parameters, whose sums are not kept; fewer than 16 steps; or
            parameters that are not finite.

        Source: Jälkö, Prediger, Honkela, Kaski (2022), "DPVIm: Differentially private variational
        inference improved", whose rule for the tail has a fixed slope in the place of
        the t-test.
        """
        if burn_in is not None:
            check_share("burn_in", burn_in)
        trace = self.state.trace
        if trace is None or not trace.sums.keys() >= self.params.keys():
            raise ValueError(
                f"guide must be {MEAN_FIELD} of at most {MAX_PARAMETERS:,} parameters, and the"
                f" model without param sites, got {guide_name(self.svi.guide)} and parameters"
                " of shapes"
                f" {jax.tree.map(jnp.shape, self.params)}"
            )
        if int(trace.num_steps) < _LEAST_AVERAGED:
            raise ValueError(
                f"the run must have {_LEAST_AVERAGED} steps or more, got {int(trace.num_steps)}"
            )
        trace = trace._replace(sums={name: trace.sums[name] for name in self.params})
        if not all(np.isfinite(sums).all() for sums in trace.sums.values()):
            raise ValueError("the parameters must be finite, got NaN or infinity: the run diverged")

        # Where the tail begins.
        if burn_in is None:
            burn_in = settled_burn_in(trace)
            if burn_in is None:
                burn_in = 0.5
                warnings.warn(
                    "the parameters have a trend over the second half of the steps, of which the"
                    " average is taken: more steps, or a larger learning rate",
                    stacklevel=2,
                )

        averages = {
            name: jnp.asarray(mean, jnp.result_type(self.params[name]))
            for name, mean in average_iterates(trace, burn_in).items()
        }
        return dict(self.svi._svi.constrain_fn(averages))

    def noise_aware_posterior(
        self, *, burn_in: float = 0.2, mean_from: float | None = None
    ) -> NoiseAwarePosterior:
        """Returns the posterior that includes the noise, from the trace of released gradients.

        **Mean-field normal guides** (`AutoNormal`, `AutoDiagonalNormal`, or a function that
        draws each latent variable from ``Normal(loc, scale)``, transformed or not, with a param
        site of its own for each ``loc`` and each ``scale``). The optimum phi* of the guide is
        inferred from the run's noisy gradients, each linear in the parameters it was taken at, with
        known noise; draws are from the guide at draws of phi*. Exact by conjugacy where the
        gradient is linear over the tail with a diagonal curvature and nothing is clipped. Where
        coordinates are correlated, the curvature of one is that with the others moving along, so
        draws of the guide have nearly the marginal standard deviations of the posterior, and the
        noise is widened by what blocks of steps vary more than the model; much noise hides that
        (at a correlation of 0.8 and epsilon = 1 intervals of a nominal 90 % covered 82 %). Priors
        that are normal and independent are weighed against the noise, others are not. Where the
        curvature is not identified, the prior limits optimum and scale.

        **Multivariate normal guides** (`AutoMultivariateNormal`, `AutoLowRankMultivariateNormal`).
        Curvature and mean gradient of the log-likelihood are inferred from the records' noisy
        gradients, each linear in the draw of the latent variables it was taken at; NUTS draws from
        the model's own prior times the density of that mean gradient, given the curvature. So
        correlations, priors that are not normal and hyperparameters are included; the curvature
        has d (d + 1) / 2 entries, which much noise leaves unidentified in some directions.

        Any optimiser: the regressions use pairs of parameters and gradients alone. With a
        mean-field guide it takes a learning rate that does not fall to zero at once, to identify
        the curvature: iterates must vary four times as much as the optimum is uncertain. Gradients
        need not be linear over so wide a range; then let the rate fall to a tenth halfway, and take
        the mean gradient from the steps after that (``mean_from``).

        Args:
          burn_in: share of the steps that are left out, in [0, 1), rounded up to whole blocks, of
            which there are 17 to 32.
          mean_from: share of the steps before those that the mean gradient is taken from, in
            [``burn_in``, 1), by default ``burn_in``. The curvature is that of all steps after
            ``burn_in``.

        Returns:
          A `NoiseAwarePosterior`, with ``posterior_samples`` and ``predict``: a
          `MeanFieldPosterior` or a `FullCurvaturePosterior`. A warning is given for each of its
          ``problems``: curvature not identified, not settled, gradients not linear over the tail or
          over the range of the iterates, estimates that the prior hardly allows; with
          ``release_clipped_share`` moved by clipping, without it a clip bound that is small beside
          the gradients that the curvature implies.

        Privacy:
          Post-processing of what the run released: no further cost.

        Raises:
          ValueError: another guide, or one with too many parameters (20,000; 100 latent variables
            of a multivariate normal guide, with one particle), of which no trace is kept; a model
            with parameters; fewer than 100 steps in the tail, or than 10 for each latent variable
            of a multivariate normal guide; or gradients that are not finite.

        Source: Alrawajfeh, Jälkö, Honkela (2025), "Noise-aware differentially private variational
        inference", Section 3, with conjugacy in the place of their MCMC and Laplace approximation,
        and with the prior itself and no guide for multivariate normal guides; Opper & Archambeau
        (2009), "The variational Gaussian approximation revisited", for scales; Marriott & Pope
        (1954), "Bias in the estimation of autocorrelations", for curvatures.
        """
        check_share("burn_in", burn_in)
        left_out, of_mean = "burn_in", burn_in
        if mean_from is not None:
            left_out, of_mean = "mean_from", mean_from
            check_share(left_out, of_mean)
            is_later = of_mean >= burn_in
            check(is_later, left_out, of_mean, f"at least burn_in, {burn_in}")
        trace = self.state.trace
        if self.svi.mechanism.correlation is not None:
            raise ValueError(
                "mechanism's correlation must be None for a noise-aware posterior, whose likelihood"
                f" has independent noise in each step, got {self.svi.mechanism.correlation}"
            )
        if trace is None:
            raise no_trace_error(self.svi.guide, self.params, self.svi.loss.num_particles)

        # The tail of the trace, and what the mean gradient is taken from.
        planned = self.svi.mechanism
        tails = tail_sums(trace, burn_in)
        num_early = len(tail_blocks(trace, burn_in)[0]) - len(tail_blocks(trace, of_mean)[0])
        later = {name: each.later(num_early) for name, each in tails.items()}
        counts = next(iter(later.values())).counts
        if not all(np.isfinite(sums.gg).all() for sums in tails.values()):
            raise ValueError(
                "the trace must have finite gradients, got NaN or infinity: the run has diverged,"
                f" or has steps past the {self.svi.mechanism.num_steps} of its mechanism"
            )
        if counts.sum() < MIN_TAIL_STEPS or len(counts) < 4:
            raise ValueError(
                f"the tail, what a {left_out} of {of_mean} leaves, must have {MIN_TAIL_STEPS}"
                f" steps or more, in 4 blocks of the trace or more, got {int(counts.sum())} steps"
                f" in {len(counts)}; a longer run or a smaller {left_out} leaves more"
            )

        # The DP noise on a step's gradient, after scaling. Kept where no record's term reads the
        # parameter: it follows the noise of others, which a diagonal curvature leaves out.
        sigmas = np.broadcast_to(planned.noise_multiplier, planned.num_steps)
        sigmas = sigmas[: self.mechanism.num_steps][-int(counts.sum()) :]
        scale = planned.sampling.num_examples / planned.sampling.expected_batch_size
        noise_std = scale * total_l2_clip(planned.l2_clip) * sigmas
        noise_variance = float(np.mean(noise_std**2))

        # Regressions of the gradients: of each mean and standard deviation, or of the latents.
        params = self.svi.optim.get_params(self.state.optim_state)
        terms = self.svi._step(params, self.model_args).terms
        names = terms.mean_field
        if names is None:
            products = tail_products(trace, burn_in, LATENTS)
            guide = self.svi.guide.get_posterior(self.params)  # type: ignore[attr-defined]
            is_read = read_latents(terms, self.params, self.model_args)
            covariance = guide_covariance(guide)
            curvature = fit_curvature(
                tails[LATENTS], products, noise_variance, covariance, is_read, num_early=num_early
            )
            fits = {IN_DIRECTIONS: curvature.each}
            lengths: npt.ArrayLike = np.linalg.norm(curvature.combinations, axis=0)
            moves = {IN_DIRECTIONS: np.zeros(1)}  # the posterior has the priors themselves
        else:
            fits = {
                loc: fit_optimum(
                    tails[loc],
                    tails[std],
                    noise_variance,
                    constraint,
                    aligned=self.svi.gradient == "aligned",
                    num_early=num_early,
                )
                for loc, std, constraint in zip(
                    names.locs, names.scales, names.constraints, strict=True
                )
            }
            lengths = 1.0
            # What gradients of priors that are not linear add, which is known without noise.
            sums = {name: later[name] for name in (*names.locs, *names.scales)}
            moves = moves_by_priors(terms, sums, names.locs, self.model_args.arrays)

        # The share of clipped records, from what was released of their number.
        clipped = None
        if self.svi.release_clipped_share:
            bound, entry = split_bound(planned)
            batch_size = planned.sampling.expected_batch_size
            share = later[CLIPPED].g.sum() / (entry * batch_size * counts.sum())
            share_std = np.sqrt(noise_variance / counts.sum()) / (scale * entry * batch_size)
            move_of_all = move_by_loss(fits, planned.sampling.num_examples * bound, lengths)
            clipped = ClippedShare(float(share), float(share_std), move_of_all)

        # Prior draws, unconstrained, and how far estimates are from them.
        if names is None:
            draws = draw_prior(self.svi, self.model_args)
            vectors = None
            if draws is not None:
                vectors = as_vectors(self.svi, self.model_args, draws, len(covariance))
            normals = None if vectors is None else {LATENTS: vectors}
            conflicts = find_conflicts({LATENTS: curvature.mean}, normals)
        else:
            normals = draw_prior_means(self.svi, self.model_args, terms, names, params)
            conflicts = find_conflicts({loc: fit.mean for loc, fit in fits.items()}, normals)

        problems = find_problems(fits, moves, clipped, of_draws=names is None) + conflicts
        if clipped is None:
            l2_clip = total_l2_clip(planned.l2_clip)
            problems += find_small_clip(fits, l2_clip, planned.sampling.num_examples)
        for problem in problems:
            warnings.warn(problem, stacklevel=2)

        # The prior limits draws where the curvature is not identified.
        if names is None:
            return FullCurvaturePosterior(
                fits=fits,
                clipped=clipped,
                problems=problems,
                svi=self.svi,
                model_args=self.model_args,
                fit=curvature,
                prior_draws=None if curvature.each.is_identified.all() else vectors,
                terms=terms,
            )
        return MeanFieldPosterior(
            fits=fits,
            clipped=clipped,
            problems=problems,
            svi=self.svi,
            model_args=self.model_args,
            priors=find_priors(fits, normals),
            normal_priors=find_normal_priors(terms, params, names, self.model_args.arrays),
            names=names,
        )

    def _released_tables(self) -> list[HTMLTable]:
        return [leaf_table("Released parameters of the guide, by param site", self.params)]


class DPSVI:
    """`numpyro.infer.SVI` with differential privacy: the same model, guide and optimiser.

    The negative ELBO is a sum of one term for each record, -E_q[log p(x_i | theta)], and a
    data-free term, KL(q || p). A step draws a batch, draws theta from the guide once for all of it,
    clips each record's gradient with respect to the unconstrained parameters, adds noise to their
    sum, multiplies it by ``num_examples / expected_batch_size``, adds the gradient of the data-free
    term and passes it to the optimiser. Without noise and clipping that is numpyro's step. In
    parameters that no record's term reads, such as those of hyperparameters under `AutoNormal`, the
    released sum is noise alone, and is replaced by zero.

    The model must have one ``numpyro.plate`` over the records, with every observed site under it.
    Records are recognised by shape: arrays (in any tree of ``args`` and ``kwargs``) with a leading
    axis of ``sampling.num_examples``, pandas Series and DataFrames of numbers too (the model is
    given arrays). All other arguments are public and passed whole: numbers, arrays of another
    length (refused where another axis, or a list, is as long as the records).
    Values that model and guide read from a closure or an object are public too: an array as long
    as the records is refused there, but a mean or a part of the data cannot be recognised.
    A public array that is as long by chance has to be padded.

    The model is evaluated on one record at a time, as arrays of length one; a ``subsample_size`` of
    the plate is ignored, as the sampler draws the batch, and its factor n/b is left out.
    A model that mixes records (a lagged value, a rank, ``x - x.mean(0)``), or whose likelihood
    depends on ``len(y)`` or on a record's position, would be another model then: it is refused,
    after a test on synthetic records. Pass such a number or column as an argument (a column
    computed from several records makes each of them count in several: the certificate is of one).

    Local latent variables (under the plate) need an amortised guide, whose term is clipped with the
    record's, or have to be marginalised. Refused with an explanation: guides with parameters for
    each record, discrete latent variables, sites observed outside of the plate, priors that depend
    on the records, ``handlers.scale`` around records, mutable state (running statistics of batch
    normalisation), guides that use the records directly (`AutoLaplaceApproximation`, the DAIS
    guides). The other autoguides work.
    Under mean-field normal guides, `AutoMultivariateNormal` and
    `AutoLowRankMultivariateNormal` a record's gradient has one entry for each latent variable
    (where there is one particle, one number ``l2_clip``, and no parameter in the model): a step
    takes 1.5 to 2.2 times numpyro's where that is less than half a millisecond. Under all other
    guides it has one entry for each parameter, which is slow where there are thousands.
    A ``handlers.mask`` whose entries are an argument with one for each record works as usual, and
    so do modules of `numpyro.contrib.module` without mutable state, and ``obs_mask`` with a guide
    that samples the unobserved values under the plate.

    **Intervals of the guide leave the noise out**, the bias of clipping, and what too few noisy
    steps leave untrained: at epsilon = 1 nominal 90 % intervals covered 15 to 97 % of the true
    values (see the guide to private inference). `DPSVIResult.noise_aware_posterior` includes the
    noise, for mean-field normal guides, `AutoMultivariateNormal` and
    `AutoLowRankMultivariateNormal`. Check the coverage of model, clip bound and steps on simulated
    data.

    Args:
      model: as numpyro's.
      guide: as numpyro's; autoguides too.
      optim: an optax or numpyro optimiser. One that takes the loss's value is given NaN: the loss
        is not released.
      loss: `numpyro.infer.Trace_ELBO` (the default) or `TraceMeanField_ELBO`; particles are
        averaged inside each record's term.
      mechanism: sampler, clip bound, noise and number of steps, as for `dpjax.train`. Its
        ``l2_clip`` bounds one record's gradient: of the unscaled term, so of one log-likelihood.
        Updates past its ``num_steps`` give NaN.
      sharding: mesh of devices over which batches, and parameters by a rule, are split: see
        `dpjax.MeshSharding`. Records may then be `dpjax.training.split_records` of the arrays.
      gradient: ``"plain"`` clips a record's gradient in all parameters. ``"aligned"``, for one
        particle and a mean-field normal guide, `AutoMultivariateNormal` or
        `AutoLowRankMultivariateNormal`, clips and releases that in the guide's means alone, and
        computes that in the other parameters from the noisy sum and the draw from the guide, which
        is post-processing: the cost is the same, and scales have less noise.
      release_clipped_share: whether the number of clipped records is released with each sum, for
        `DPSVIResult.noise_aware_posterior`, which then knows whether clipping moves it. For the
        guides of which that is, and one number ``l2_clip``. It is an entry of the same Gaussian
        release, so the certificate is the same; what it costs is 3 % of the bound on gradients.
      **static_kwargs: further arguments for model and guide, as numpyro's.

    Attributes:
      mechanism: the one given, with ``size_scaled``, as sums are scaled by the number of records;
        ``mechanism.certificate(delta)`` is that of a plan, ``certificate(delta)`` of a
        `DPSVIResult` that of a run.
      model: the numpyro model.
      guide: the numpyro guide.
      optim: the optimiser, as one of numpyro's.
      loss: the loss, an ELBO of numpyro.
      sharding: of batches and parameters, or ``None`` for one device.
      gradient: of a record, ``"plain"`` or ``"aligned"``.
      release_clipped_share: whether the number of clipped records is released with each sum.

    Privacy:
      A run releases the parameters after every step, at the cost that its result certifies. In a
      loop with `init` and `update` that is ``mechanism.first_steps(int(state.num_releases))``.
      Postprocessing is free: posterior samples, predictions, an average over steps. **Not**
      released: losses, the state (it holds keys), `evaluate`, `clipping_report`. Starting values
      are computed on constant records, so they do not depend on the data; but not those of an
      autoguide that was set up on the data before (by `numpyro.infer.SVI`), or of ``init_params``
      computed from them.
      A second run is a second release, and needs a new key: two runs with one key, or from one
      state, add the same noise, and the difference of what they release has none, so on
      neighbouring data it reveals the record.

    Source: Jälkö, Dikmen, Honkela (2017), "Differentially private variational inference for
    non-conjugate models", Section 3, whose clipped term had a share 1/N of the KL term in it;
    Jälkö, Prediger, Honkela, Kaski (2022), "DPVIm: Differentially private variational inference
    improved", for aligned gradients.

    >>> import numpyro, optax
    >>> import numpyro.distributions as dist
    >>> from numpyro.infer.autoguide import AutoNormal
    >>> from dpjax.sampling import PoissonSampling
    >>> mechanism = SubsampledGaussian(
    ...     PoissonSampling(1000, 0.1), l2_clip=2.0, noise_multiplier=2.0, num_steps=200,
    ...     adjacency="add_remove")
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0, 1))
    ...     with numpyro.plate("records", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1), obs=y)
    >>> svi = DPSVI(model, AutoNormal(model), optax.adam(0.05), mechanism=mechanism)
    >>> result = svi.run(jax.random.key(0), 0.5 + jnp.zeros(1000), progress_bar=False)
    >>> round(float(result.params["mean_auto_loc"]), 1), result.certificate(1e-5).epsilon < 4
    (0.5, True)
    >>> posterior = result.noise_aware_posterior()
    >>> posterior.posterior_samples(jax.random.key(1), 100)["mean"].shape, posterior.problems
    ((1, 100), ())
    """

    def __init__(
        self,
        model: Callable[..., object],
        guide: Callable[..., object],
        optim: Optimizer | optax.GradientTransformation,
        loss: ELBO | None = None,
        *,
        mechanism: SubsampledGaussian,
        sharding: MeshSharding | None = None,
        gradient: Gradient = "plain",
        release_clipped_share: bool = False,
        **static_kwargs: object,
    ) -> None:
        loss = Trace_ELBO() if loss is None else loss
        check_loss(loss)
        check_optimizer(optim)
        check_type("mechanism", mechanism, SubsampledGaussian, "a SubsampledGaussian")
        check_choice("gradient", gradient, get_args(Gradient))
        check_clip_numbers(mechanism.l2_clip, "DPSVI")
        if gradient == "aligned":
            check_aligned(loss.num_particles, mechanism.l2_clip)
        check_type("release_clipped_share", release_clipped_share, bool, "True or False")
        if release_clipped_share:
            check_one_bound(mechanism.l2_clip, "release_clipped_share=True")
        self.release_clipped_share = release_clipped_share
        self.mechanism = replace(mechanism, size_scaled=True)
        self.gradient: Gradient = gradient
        self.sharding, self.static_kwargs = sharding, static_kwargs
        self._svi = SVI(model, guide, optim, loss)
        self.model, self.guide, self.loss = model, guide, loss
        self.optim: Optimizer = self._svi.optim
        # By structure and shapes of arguments and parameters.
        self._steps: dict[tuple[Hashable, ...], VariationalStep] = {}

    def with_num_examples(self, num_examples: int) -> "DPSVI":
        """Returns the same inference for another number of records, at the same sampling rate.

        Args:
          num_examples: the records, such as those of one of several holders (`dpjax.federated`).

        Raises:
          ValueError: another sampler than `dpjax.PoissonSampling`, or a number out of range.
        """
        sampling = self.mechanism.sampling
        if not isinstance(sampling, PoissonSampling):
            raise ValueError(f"sampling must be PoissonSampling, got {sampling!r}")
        sampling = replace(sampling, num_examples=num_examples, physical_batch_size=0)
        return DPSVI(
            self.model,
            self.guide,
            self.optim,
            self.loss,
            mechanism=replace(self.mechanism, sampling=sampling),
            sharding=self.sharding,
            gradient=self.gradient,
            release_clipped_share=self.release_clipped_share,
            **self.static_kwargs,
        )

    def init(
        self, rng_key: PRNGKey, *args: object, init_params: Values | None = None, **kwargs: object
    ) -> DPSVIState:
        """Checks model and guide, and returns the initial state, as `numpyro.infer.SVI.init`.

        Args:
          rng_key: a JAX key (`dpjax.release_key()` for a release), split for guide, sampler and
            noise.
          *args: of the model, the whole data set included.
          init_params: starting values by name, as numpyro's.
          **kwargs: of the model.

        Returns:
          The state, computed on constant records. **It holds keys, which are secrets.**

        Raises:
          ValueError: naming the site and what is allowed.
        """
        # A model with one plate over its records, and starting values that do not depend on them.
        key, model_args = as_key(rng_key), self._split(args, kwargs)
        svi_key, sampler_key, noise_key = jax.random.split(key, 3)
        find_sites(self.model, model_args)
        svi_state = self._init_svi(svi_key, model_args, init_params)

        # Model and guide are checked before the first step.
        params = self.optim.get_params(svi_state.optim_state)
        step = self._step(params, model_args)
        traced = step.init_trace(params)
        if self.release_clipped_share and traced is None:  # it is read from the trace
            raise no_trace_error(self.guide, params, self.loss.num_particles)
        state = DPSVIState(
            svi_state.optim_state,
            svi_state.rng_key,
            self.mechanism.sampling.init(sampler_key),
            self.mechanism.noise(noise_key).init(step.released(params)),
            seeded_flag(key),
            traced,
        )

        # All processes of `jax.distributed` must make the same run.
        data = ModelData.of(model_args, step)
        check_processes(key, params, self.mechanism, step, state, data, self.sharding)
        return state if self.sharding is None else place_state(state, self.optim, self.sharding)

    def update(
        self, svi_state: DPSVIState, *args: object, **kwargs: object
    ) -> tuple[DPSVIState, jax.Array]:
        """Makes one step on a batch that it draws from ``args``, the whole data set.

        Args:
          svi_state: the state before the step.
          *args: of the model, the whole data set included.
          **kwargs: of the model.

        Returns:
          The next state, and an estimate of the negative ELBO: a **private** value, not released.

        Privacy:
          The parameters of the next state are released.
        """
        step, data = self._step_of(svi_state, args, kwargs)
        state, (loss, _) = step.jit_update_with_info(svi_state, data)
        return state, loss

    def update_with_info(
        self, svi_state: DPSVIState, *args: object, **kwargs: object
    ) -> tuple[DPSVIState, StepInfo]:
        """Makes one step as `update`, and returns the drawn records' norms and losses.

        Args:
          svi_state: the state before the step.
          *args: of the model, the whole data set included.
          **kwargs: of the model.

        Returns:
          The next state, and a `StepInfo`: **private** values, not released. Its gradient norms are
          the input of Bayesian accounting.
        """
        step, data = self._step_of(svi_state, args, kwargs)
        state, (_, info) = step.jit_update_with_info(svi_state, data)
        return state, info

    def clipped_sum(
        self, rng_key: PRNGKey, svi_state: DPSVIState, *args: object, **kwargs: object
    ) -> Values:
        """Returns the sum of clipped per-record gradients of one batch, without noise: **private**.

        For records of several holders (`dpjax.federated`): each has a `DPSVI` over its own records,
        of the same rate, and the same state, whose key for the guide is public then.

        Args:
          rng_key: a JAX key for the batch, the holder's secret and a new one in each step.
          svi_state: the state before the step.
          *args: of the model, all records of the holder included.
          **kwargs: of the model.

        Returns:
          A tree like the unconstrained parameters; like the guide's means with
          ``gradient="aligned"``.

        Privacy:
          The sum is not released here. One record moves it by at most the clip bound, by twice that
          if it is replaced.

        Raises:
          ValueError: a sampler whose batches depend on those before, such as
            `dpjax.CyclicPoissonSampling`: this one is drawn from the key alone.
        """
        independent = PoissonSampling | TruncatedPoissonSampling | FixedSizeSampling
        allowed = "one that draws each batch independently, such as PoissonSampling"
        sampling = self.mechanism.sampling
        check(isinstance(sampling, independent), "sampling", sampling, allowed)
        step, data = self._step_of(svi_state, args, kwargs)
        return step.jit_clipped_sum(svi_state, as_key(rng_key), data)

    def update_from_sum(
        self, svi_state: DPSVIState, noisy_sum: Values, *args: object, **kwargs: object
    ) -> DPSVIState:
        """Takes an optimiser step with a noisy sum of clipped gradients: post-processing.

        The sum is multiplied by ``num_examples / expected_batch_size`` of this `DPSVI`, by default
        one over the sampling rate.

        Args:
          svi_state: the state before the step, as for `clipped_sum`.
          noisy_sum: a tree like the sum of `clipped_sum`.
          *args: of the model; of records only their shapes are used.
          **kwargs: of the model.

        Returns:
          The next state, its sampler and noise unchanged.
        """
        step, (_, arrays) = self._step_of(svi_state, args, kwargs)
        state, _ = step.jit_apply_noisy_gradient(svi_state, noisy_sum, arrays)
        return state

    def run(
        self,
        rng_key: PRNGKey,
        *args: object,
        num_steps: int | None = None,
        progress_bar: bool = True,
        init_state: DPSVIState | None = None,
        init_params: Values | None = None,
        checkpoint_dir: str | Path | None = None,
        **kwargs: object,
    ) -> DPSVIResult:
        """Runs DP variational inference for all steps, as `numpyro.infer.SVI.run`.

        In one loop on the device, compiled once for all runs of the same shape.

        Args:
          rng_key: as for `init`; a new one for each run, as the same one draws the same noise.
          *args: of the model, the whole data set included, in arrays or as a
            `dpjax.training.DataSource`, which stands for its records, stacked; only drawn ones are
            read, with the same result.
          num_steps: fewer steps than the mechanism's, which are all made by default; with
            ``checkpoint_dir``, of all calls on it together.
          progress_bar: whether to show one (of steps alone: losses are private); the loop then
            returns to the host some twenty times, as it does with checkpoints.
          init_state: state of this `DPSVI` to continue from, once: continuing twice from one state
            draws the same noise twice. Its releases are counted on, and its keys are used in place
            of ``rng_key``.
          init_params: as for `init`.
          checkpoint_dir: a folder to save to and resume from, as that of `dpjax.train`: with the
            same result, locked, continued by a mechanism with more steps and otherwise the same,
            and refused for another mechanism, data, model or optimiser.
          **kwargs: of the model.

        Returns:
          A `DPSVIResult`, whose ``certificate(delta)`` is for all steps that led to its ``params``.

        Privacy:
          Releases ``params`` after every step, and nothing else of the result.

        Raises:
          ValueError: naming the argument, site or folder, and what is allowed.
          OSError: a checkpoint cannot be written.
          LostProcessError: another process of the run has ended or cannot be reached.
        """
        key, model_args = as_key(rng_key), self._split(args, kwargs)
        check_first_argument(self.model, model_args, args)
        if num_steps is not None:
            num_steps = as_count("num_steps", num_steps)
        if checkpoint_dir is not None and init_state is not None:
            raise ValueError("init_state must be None with checkpoint_dir, which holds the state")

        # The first state.
        first_state = init_state
        if first_state is None:
            first_state = self.init(key, *args, init_params=init_params, **kwargs)
        planned = self.mechanism.noise(first_state.noise.key).description
        if first_state.noise.description != planned:
            raise ValueError(
                "init_state must be a state of this DPSVI, whose certificate counts its releases,"
                f" got one with {first_state.noise.description}, here {planned}"
            )
        params = self.optim.get_params(first_state.optim_state)
        step = self._step(params, model_args)

        def plan(num_steps: int) -> Plan[DPSVIState, StepData, jax.Array]:
            first, state, own = self.mechanism.first_steps(num_steps), first_state, step
            if num_steps < self.mechanism.num_steps:
                noise = first.noise(state.noise.key).init(step.released(params))
                state, own = state._replace(noise=noise), replace(step, mechanism=first)
            # Copies, as the loop donates its state. More epochs are more steps of the same run.
            return Plan(
                replace(first, epochs=None, tuning=None), own, jax.tree.map(jnp.array, state)
            )

        # A progress bar and checkpoints interrupt the loop on the device.
        num_done = int(first_state.num_releases)
        if num_steps is None:
            num_steps = max(0, self.mechanism.num_steps - num_done)
        interrupted = progress_bar or checkpoint_dir is not None
        steps_per_call = -(-num_steps // _PROGRESS_UPDATES) if interrupted else num_steps

        # Repeat the step, from the state or from the newest checkpoint.
        losses = [jnp.zeros(0)]
        end = run(
            plan,
            ModelData.of(model_args, step),
            num_done + num_steps,
            planned_steps=self.mechanism.num_steps,
            key=key,
            params=params,
            steps_per_call=steps_per_call,
            on_chunk=lambda num_done, state, infos: losses.append(infos),
            checkpoint_dir=checkpoint_dir,
            sharding=self.sharding,
            progress=progress_bar,
        )

        # Steps past the planned ones give NaN, whatever the data, and release nothing.
        num_released = min(end.num_done, self.mechanism.num_steps)
        return DPSVIResult(
            self.get_params(end.state),
            end.state,
            jnp.concatenate(losses),
            self.mechanism.first_steps(num_released),
            bool(end.state.seeded),
            self,
            model_args.without_records(),
            end.first_plan,
        )

    def get_params(self, svi_state: DPSVIState) -> dict[str, PyTree]:
        """Returns the parameters in ``svi_state`` by name; every step releases them."""
        if self._svi.constrain_fn is None:
            raise ValueError("init must be called first: it finds the parameters' constraints")
        return self._svi.get_params(svi_state)

    def evaluate(self, svi_state: DPSVIState, *args: object, **kwargs: object) -> jax.Array:
        """Returns the negative ELBO on all records, as numpyro computes it.

        Args:
          svi_state: a state of this `DPSVI`.
          *args: of the model, the whole data set included.
          **kwargs: of the model.

        Privacy:
          The result is a **private** value, not released.
        """
        args, kwargs = self._whole_arrays(args, kwargs)
        return self._svi.evaluate(svi_state, *args, **kwargs)

    def posterior_samples(
        self,
        rng_key: PRNGKey,
        params: DPSVIState | Values,
        num_samples: int,
        *args: object,
        **kwargs: object,
    ) -> dict[str, jax.Array]:
        """Draws the global latent variables from the guide: postprocessing, at no privacy cost.

        Their spread is that of the guide, which does not include the noise: see `DPSVI`. That of a
        run: `DPSVIResult.posterior_samples`.

        Args:
          rng_key: a JAX key.
          params: what `get_params` returned, or a state.
          num_samples: number of draws.
          *args: of the model, as for `update`; of records only their shapes are used.
          **kwargs: of the model.

        Returns:
          For each latent variable of the model outside of the plate an array
          ``(1, num_samples, ...)``: arviz's axes, one chain (see `to_arviz`).
        """
        model_args = self._split(args, kwargs)
        return self._draw_latents(rng_key, self._params(params), num_samples, model_args)

    def predict(
        self,
        rng_key: PRNGKey,
        params: DPSVIState | Values,
        num_samples: int,
        *args: object,
        **kwargs: object,
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
        self, rng_key: PRNGKey, svi_state: DPSVIState, *args: object, **kwargs: object
    ) -> ClippingReport:
        """Returns the share of clipped records and the bias of clipping: **private values**.

        Args:
          rng_key: for the latent variables, drawn once (for each particle) as a step does.
          svi_state: gradients are taken at its parameters.
          *args: of the model, the whole data set included.
          **kwargs: of the model.

        Privacy:
          The report holds **private** values, not released.
        """
        self._whole_arrays(args, kwargs)
        step, data = self._step_of(svi_state, args, kwargs)
        params = self.optim.get_params(svi_state.optim_state)
        return step.jit_clipping_report(params, as_key(rng_key), data)

    def _split(self, args: Sequence[object], kwargs: Mapping[str, object]) -> ModelArgs:
        num_examples = self.mechanism.sampling.num_examples
        return split_model_args(args, {**kwargs, **self.static_kwargs}, num_examples)

    def _whole_arrays(self, args: Sequence[object], kwargs: Mapping[str, object]) -> ArgsAndKwargs:
        num_examples = self.mechanism.sampling.num_examples
        return whole_arrays(args, {**kwargs, **self.static_kwargs}, num_examples)

    def _params(self, params: DPSVIState | Values) -> Values:
        return self.get_params(params) if isinstance(params, DPSVIState) else params

    def _draw_latents(
        self, rng_key: PRNGKey, params: Values, num_samples: int, model_args: ModelArgs
    ) -> dict[str, jax.Array]:
        check_count("num_samples", num_samples)
        draw = Predictive(
            self.guide,
            params=params,
            num_samples=num_samples,
            return_sites=list(find_sites(self.model, model_args).latents),
            parallel=True,
        )
        args, kwargs = model_args.spec.constant_args(model_args.arrays)
        return {name: draws[None] for name, draws in draw(rng_key, *args, **kwargs).items()}

    def _init_svi(self, key: PRNGKey, model_args: ModelArgs, values: Values | None) -> SVIState:
        """Numpyro's initial state on constant records, with starting values by name."""
        for constant in _INITIAL_RECORDS:
            args, kwargs = model_args.spec.constant_args(model_args.arrays, constant)
            try:
                with warnings.catch_warnings():  # constants need not be in the support of a site
                    warnings.filterwarnings("ignore", ".*Out-of-support values")
                    return self._svi.init(key, *args, init_params=values, **kwargs)
            except (RuntimeError, ValueError) as error:
                failed = error

        # Models that standardise by the records themselves have no finite value on constant ones.
        plate = find_sites(self.model, model_args).plate
        check_program(self.model, initial_value, plate, {}, model_args)
        raise failed

    def _step(self, params: Values, model_args: ModelArgs) -> VariationalStep:
        """The step for arguments and parameters of these shapes, checked if they are new."""
        leaves, treedef = jax.tree.flatten(params)
        kind = model_args.spec, treedef, tuple(jnp.shape(leaf) for leaf in leaves)
        if kind not in self._steps:
            plate = find_sites(self.model, model_args).plate
            if self._svi.constrain_fn is None:  # of a state that another object was made for
                self._init_svi(jax.random.key(0), model_args, None)
            constrain, spec = self._svi.constrain_fn, model_args.spec
            terms = ELBOTerms(self.model, self.guide, self.loss, constrain, plate, spec)
            check_terms(terms, params, model_args)
            terms = replace(terms, mean_field=find_mean_field(terms, params, model_args.arrays))
            step = VariationalStep(
                terms,
                self.mechanism,
                self.optim,
                self.sharding,
                self.gradient,
                self.release_clipped_share,
            )
            if self.gradient == "aligned":  # the guide's parameters must be all
                space_of = partial(step.clipping_space, key=jax.random.key(0))
                jax.eval_shape(lambda *given: space_of(*given).point, params, model_args.arrays)
            self._steps[kind] = step
        return self._steps[kind]

    def _step_of(
        self, state: DPSVIState, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[VariationalStep, StepData]:
        """The step from a state on arguments in arrays, and what it is given of them."""
        model_args = self._split(args, kwargs)
        data = model_args.step_data()
        return self._step(self.optim.get_params(state.optim_state), model_args), data


@dataclass(frozen=True)
class ModelData(TrainingData[StepData]):
    """Records and public arguments of a numpyro model, as `dpjax.training.run` takes data.

    Attributes:
      records: with their positions: in memory, split over processes, or a stream.
      model_args: the arguments.
      step: on arguments of these shapes; it keeps the programs.
    """

    records: TrainingData[PyTree]
    model_args: ModelArgs
    step: VariationalStep

    @staticmethod
    def of(model_args: ModelArgs, step: VariationalStep) -> "ModelData":
        """Returns the model's arguments as training data: in memory, split or a stream."""
        source = model_args.source
        data = model_args.step_data()[0] if source is None else PositionedSource(source)
        records = as_training_data(data, step.mechanism.sampling, step.sharding)
        return ModelData(records, model_args, step)

    @property
    def is_split(self) -> bool:  # type: ignore[override]
        return self.records.is_split

    def place(self, sharding: MeshSharding | None) -> "ModelData":
        """Returns itself: the records stay where they are."""
        del sharding
        return self

    def fingerprint(self) -> str:
        """Returns a hash of records and public arrays: a checkpoint of other data is refused."""
        return hash_arrays((np.array(self.records.fingerprint()), self.model_args.arrays))

    def shapes(self, state: RunStateT) -> tuple[RunStateT, StepData]:
        state, (records, positions) = self.records.shapes(state)
        return state, ((jax.tree.leaves(records), positions), self.model_args.arrays)

    def compile(
        self,
        update: Update[RunStateT, StepData, InfoT],
        state: RunStateT,
        max_steps: int,
        *,
        every: int = 1,
    ) -> Chunk[RunStateT, InfoT]:
        # Of a source the drawn records, in a buffer.
        if isinstance(self.records, Stream):

            def on_buffer(state: RunStateT, buffer: PyTree) -> tuple[RunStateT, InfoT]:
                records, positions = buffer
                data = (jax.tree.leaves(records), positions), self.model_args.arrays
                return update(state, data)

            return self.records.compile(on_buffer, state, max_steps, every=every)

        # One program for all runs on arrays of these shapes.
        data = self.model_args.step_data()
        leaves, treedef = jax.tree.flatten((state, data))
        kind = max_steps, every, treedef, tuple(jax.typeof(leaf) for leaf in leaves)
        if kind not in self.step.chunks:
            self.step.chunks[kind] = compile_chunk(update, state, data, max_steps, every)
        chunk = self.step.chunks[kind]
        return lambda state, *numbers: chunk(state, data, *numbers)


def to_arviz(samples: Draws, **groups: Draws) -> Any:
    """Returns posterior draws as an `xarray.DataTree` for arviz, with further groups.

    R-hat and effective sample sizes do not apply to independent draws, which have one chain: arviz
    shows NaN and about the number of draws. An attribute of the group ``posterior`` states it. They
    do to several chains, which `FullCurvaturePosterior` draws.

    Args:
      samples: draws with axes ``(chain, draw, ...)``, as ``posterior_samples`` of `DPSVI`, its
        results and noise-aware posteriors returns them.
      **groups: draws of ``posterior_predictive`` or ``predictions``, with as many chains and draws
        as ``samples``, and of ``prior`` and ``prior_predictive``: what `numpyro.infer.Predictive`
        returns with ``batch_ndims=2``, at **public** inputs.

    Raises:
      ValueError: draws with other axes; or a group that holds private records: ``observed_data``,
        ``constant_data``, ``log_likelihood``, ``sample_stats``.

    Privacy:
      Postprocessing of released parameters where all inputs are public. Draws at the inputs of the
      records are private values, which are not recognised here.

    >>> import numpy as np
    >>> tree = to_arviz({"w": np.zeros((1, 10, 3))}, posterior_predictive={"y": np.ones((1, 10))})
    >>> tree.posterior["w"].dims, tree.posterior_predictive["y"].dims
    (('chain', 'draw', 'w_dim_0'), ('chain', 'draw'))
    """
    check_type("samples", samples, Mapping, "a mapping from names to draws")
    note = "independent draws, not of a Markov chain: r_hat and effective sample size do not apply"
    is_one_chain = all(np.shape(draws)[:1] == (1,) for draws in samples.values())
    return make_data_tree(samples, groups, {"draws": note} if is_one_chain else {})

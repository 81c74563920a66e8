"""Everything that the golden cases use of dpjax, under names that do not change with it.

Cases call these functions and nothing else of dpjax. Where dpjax renames, moves or reorders, this
file is edited and the recorded numbers are not. Scalars are keywords here whatever dpjax does.
"""

import warnings
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from dp_accounting import DpEvent

import dpjax
from dpjax import accounting, bdp
from dpjax.accounting import UnsupportedEventError, tradeoff
from dpjax.accounting.kinds.wishart import ChiSquare
from dpjax.bayes import DPSVI, conjugate, regression, sgmcmc
from dpjax.bdp.conversion import best_order
from dpjax.gradients.bookkeeping import routes
from dpjax.transforms.noise import gaussian_like
from experiments.published import langevin
from experiments.published.regression import sheffet_degrees_of_freedom

ALPHAS = (1e-4, 1e-2, 0.1, 0.5)
ACCOUNTANTS = {"pld": "pld", "rdp": "rdp", "moments": "moments", "gdp_clt": "gdp_clt"}


# dpjax's name for each route to a clipped sum, and ours.
ROUTES = {
    "ghost": "ghost",
    "instantiate": "per-example",
    "sequential": "sequential",
    "vmap": "reference",
    "unused": "unused",
}


# Samplers and mechanisms.


def poisson(n, rate, physical=0):
    return dpjax.PoissonSampling(n, rate, physical_batch_size=physical)


def truncated_poisson(n, rate, cut):
    return dpjax.TruncatedPoissonSampling(n, rate, truncated_batch_size=cut)


def fixed_size(n, size):
    return dpjax.FixedSizeSampling(n, size)


def shuffled(n, size):
    return dpjax.ShuffledEpochs(n, size)


def subsampled_gaussian(sampling, *, noise, steps, adjacency, clip=1.0):
    return dpjax.SubsampledGaussian(
        sampling, l2_clip=clip, noise_multiplier=noise, num_steps=steps, adjacency=adjacency
    )


def sensitivity(value, norm, adjacency, *, monotone=False):
    shape = (2,) if norm == "linf" else ()  # of the certificates; see `of_shape`
    return dpjax.Sensitivity(value, norm, adjacency, monotone, shape)


def of_shape(mechanism, value):
    """The mechanism of a statistic of the value's shape."""
    if isinstance(mechanism, dpjax.RandomizedResponse):
        return mechanism
    shape = tuple(np.shape(leaf) for leaf in jax.tree.leaves(value))
    return replace(mechanism, sensitivity=replace(mechanism.sensitivity, shape=shape))


def statistic_sensitivities(adjacency):
    """The sensitivity of every statistic that dpjax has one for."""
    of, box = dpjax.sensitivity, (np.array([-1.0, 0.5]), np.array([2.0, 3.0]))
    plain = {
        "count": of.of_count(norm="l1", adjacency=adjacency),
        "histogram l1": of.of_histogram(2, norm="l1", adjacency=adjacency),
        "histogram l2": of.of_histogram(2, norm="l2", adjacency=adjacency),
        "histogram linf": of.of_histogram(2, norm="linf", adjacency=adjacency),
        "sum l1": of.of_sum((-2.0, 3.0), norm="l1", adjacency=adjacency),
        "sum of a box l2": of.of_sum(box, norm="l2", adjacency=adjacency),
        "quantile counts l2": of.of_quantile_counts(9, norm="l2", adjacency=adjacency),
        "second moment": of.of_second_moment(1.5, num_features=2, adjacency=adjacency),
        "second moment in a box": of.of_second_moment_in_box(box, adjacency=adjacency),
        "two moments l1": conjugate.of_first_two_moments(
            (-1.0, 3.0), norm="l1", adjacency=adjacency
        ),
        "two moments l2": conjugate.of_first_two_moments(
            (-1.0, 3.0), norm="l2", adjacency=adjacency
        ),
    }
    bounds = regression.RegressionBounds(x_norm_bound=2.0, y_bound=3.0)
    for norm in ("l1", "l2"):
        found = regression.statistics_sensitivities(bounds, 4, norm=norm, adjacency=adjacency)
        plain |= {f"regression {name} {norm}": one for name, one in found._asdict().items()}
    return {name: one.value for name, one in plain.items()}


def gaussian(moves, *, scale):
    return dpjax.Gaussian(moves, scale)


def laplace(moves, *, scale):
    return dpjax.Laplace(moves, scale)


def discrete_gaussian(moves, *, scale):
    return dpjax.DiscreteGaussian(moves, scale)


def discrete_laplace(moves, *, scale):
    return dpjax.DiscreteLaplace(moves, scale)


def exponential_mechanism(moves, *, scale):
    return dpjax.ExponentialMechanism(moves, scale)


def noisy_max(moves, *, scale):
    return dpjax.NoisyMax(moves, scale)


def randomized_response(categories, *, keep, adjacency="replace_one"):
    return dpjax.RandomizedResponse(categories, keep, adjacency)


def from_epsilon(kind, *args, **kwargs):
    """The mechanism of this kind with the least noise for a target."""
    kinds = {
        "gaussian": dpjax.Gaussian,
        "laplace": dpjax.Laplace,
        "discrete laplace": dpjax.DiscreteLaplace,
        "exponential mechanism": dpjax.ExponentialMechanism,
        "noisy max": dpjax.NoisyMax,
        "randomized response": dpjax.RandomizedResponse,
    }
    names = {"gaussian": ("epsilon", "delta"), "randomized response": ("epsilon", "adjacency")}
    first, *rest = args
    return kinds[kind].from_epsilon(
        first, **dict(zip(names.get(kind, ("epsilon",)), rest, strict=False)), **kwargs
    )


def composition(*parts):
    return dpjax.Composition(parts)


def chain(kind, sampling, *, clip, step_size, steps, adjacency, temperature=1.0, floor=0.0, **more):
    """``more``: ``num_chains``, ``batches``; ``friction`` of sghmc, ``gains`` of psgld."""
    kinds = {"sgld": sgmcmc.SGLD, "sghmc": sgmcmc.SGHMC, "psgld": sgmcmc.PSGLD}
    if "gains" in more:
        more["preconditioner"] = _preconditioner(more.pop("gains"))
    return kinds[kind](
        sampling,
        l2_clip=clip,
        step_size=step_size,
        num_steps=steps,
        adjacency=adjacency,
        temperature=temperature,
        min_noise_multiplier=floor,
        **more,
    )


def _preconditioner(gains):
    names = ("min_value", "max_value", "decay", "damping")
    return sgmcmc.RMSProp(**dict(zip(names, gains, strict=False)))


def decreasing(first, exponent):
    return sgmcmc.PolynomialDecay(first, exponent=exponent)


def cyclical(largest, period):
    return sgmcmc.CyclicalCosine(largest, period=period)


def one_posterior_sample(epsilon, low, high, adjacency):
    return sgmcmc.OnePosteriorSample(epsilon, low=low, high=high, adjacency=adjacency)


def hybrid(start, steps, *, epsilon, delta, keep_steps):
    return sgmcmc.hybrid(start, steps, epsilon=epsilon, delta=delta, keep_steps=keep_steps)


def regression_mechanism(kind, *, epsilon, delta, adjacency, d=3, x_norm_bound=1.5, y_bound=2.0):
    bounds = regression.RegressionBounds(x_norm_bound=x_norm_bound, y_bound=y_bound)
    kinds = {
        "perturbed": regression.PerturbedStatistics,
        "adassp": regression.AdaSSP,
        "wishart": regression.WishartNoise,
    }
    return kinds[kind].from_epsilon(
        bounds, epsilon=epsilon, delta=delta, adjacency=adjacency, num_features=d
    )


def perturbed_known_noise(*, epsilon, delta, adjacency):
    """Perturbed statistics without y^T y: the variance of the targets' noise is known."""
    bounds = regression.RegressionBounds(x_norm_bound=1.5, y_bound=2.0)
    split = regression.RegressionStatistics(0.4, 0.6, None)
    return regression.PerturbedStatistics.from_epsilon(
        bounds, epsilon=epsilon, delta=delta, adjacency=adjacency, num_features=3, split=split
    )


def wishart(*, degrees_of_freedom, scale, adjacency, d=3):
    bounds = regression.RegressionBounds(x_norm_bound=1.0, y_bound=1.0)
    return regression.WishartNoise(
        bounds, d, degrees_of_freedom=degrees_of_freedom, scale=scale, adjacency=adjacency
    )


def private_bounds(*, epsilon, adjacency):
    return regression.PrivateBounds(
        x_norm_bounds=(0.5, 1.0, 2.0),
        y_bounds=(1.0, 2.0, 4.0),
        quantile=0.9,
        epsilon=epsilon,
        adjacency=adjacency,
    )


FAMILIES = {
    "beta-binomial": conjugate.BetaBinomial(1.0, 2.0),
    "dirichlet-multinomial": conjugate.DirichletMultinomial((1.0, 2.0, 1.5)),
    "gamma-poisson": conjugate.GammaPoisson(shape=6.0, rate=2.0, largest_count=12),
    "normal": conjugate.NormalKnownVariance(
        (-4.0, 6.0), variance=1.0, prior_mean=1.0, prior_variance=0.5
    ),
    "normal-unknown": conjugate.NormalUnknownVariance(
        (-4.0, 6.0), prior_mean=1.0, prior_strength=10.0, prior_shape=10.0, prior_scale=9.0
    ),
}


def conjugate_release(family, noise, *, scale, adjacency):
    """The release of a family's sums with one kind of noise, ``scale`` times the sensitivity."""
    family, norm = FAMILIES[family], "l2" if "gaussian" in noise else "l1"
    moves = family.sensitivity(norm=norm, adjacency=adjacency)
    make = {
        "laplace": laplace,
        "gaussian": gaussian,
        "discrete laplace": discrete_laplace,
        "discrete gaussian": discrete_gaussian,
    }
    return conjugate.SufficientStatisticsMechanism(
        family, make[noise](moves, scale=scale * moves.value)
    )


# Accounting.


def certified(mechanism, delta):
    """Every accountant's epsilon (``None``: not taken), which one certifies, and the lower end."""
    found = mechanism.certificate(delta)
    values = {estimate.method: estimate.epsilon for estimate in found.estimates}
    return {
        **{name: values[theirs] for name, theirs in ACCOUNTANTS.items()},
        "certified by": found.accountant,
        "epsilon": found.epsilon,
        "lower": found.epsilon_lower,
        "releases": found.guarantee.num_releases,
        "mu": _or_none(
            lambda: accounting.gdp.mu_of_event(found.guarantee.event, found.guarantee.adjacency)
        ),
    }


def certified_event(event: DpEvent, delta, adjacency):
    """As ``certified``, for an event that no mechanism describes."""
    ours = {
        name: _or_none(lambda m=m: accounting.epsilon(event, delta, adjacency=adjacency, method=m))
        for name, m in ACCOUNTANTS.items()
    }
    lower = _or_none(lambda: accounting.epsilon_bounds(event, delta, adjacency=adjacency).lower)
    return {**ours, "lower": lower}


def risks(mechanism):
    """Attack risks by the guaranteed curve, and both curves at a few levels."""
    event, adjacency = mechanism.event, mechanism.guarantee.adjacency
    curve = accounting.tradeoff_curve(event, adjacency=adjacency)
    upper = _or_none(lambda: accounting.tradeoff_bounds(event, adjacency=adjacency).upper)
    return {
        "advantage": accounting.risk.advantage(curve),
        "true positives at 1e-3": accounting.risk.true_positive_rate(curve, 1e-3),
        "accuracy at 1/2": accounting.risk.bayes_accuracy(curve, 0.5),
        "delta at 1": curve.delta(1.0),
        "f": curve(np.array(ALPHAS)),
        "upper f": None if upper is None else upper(np.array(ALPHAS)),
    }


def profiles(event, epsilons, adjacency, direction):
    found = accounting.profile_bounds(event, epsilons, adjacency=adjacency, direction=direction)
    return {"lower": found.lower, "upper": found.upper}


def _or_none(compute):
    try:
        return compute()
    except UnsupportedEventError:
        return None


def calibrate(mechanism, **target):
    return dpjax.calibrate(mechanism, **target)


def steps_within(mechanism, **budget):
    return accounting.max_num_steps(mechanism, **budget)


def noise_of(mechanism):
    """The number or numbers that say how much noise a mechanism adds."""
    for name in ("noise_multiplier", "scale", "keep_probability", "noise_multipliers", "mu"):
        if hasattr(mechanism, name):
            return getattr(mechanism, name)
    raise TypeError(f"no number says how much noise {mechanism!r} adds")


def chain_numbers(mechanism):
    return {
        "step sizes": mechanism.step_sizes,
        "injected": mechanism.injected_noise_multipliers,
        "used": mechanism.noise_multipliers,
        "excess temperatures": mechanism.excess_temperatures,
    }


def chain_for(how, mechanism, *, epsilon, delta):
    change = {"add noise": sgmcmc.calibrate_min_noise, "scale steps": sgmcmc.calibrate_step_size}
    return change[how](mechanism, epsilon=epsilon, delta=delta)


def published_step_size_bounds(*, epsilon, delta, n, steps, clip):
    options = {"num_examples": n, "num_steps": steps, "l2_clip": clip}
    return {
        "2015": langevin.step_size_bound_2015(epsilon=epsilon, delta=delta, **options),
        "slides": langevin.step_size_bound_2017(
            3, epsilon=epsilon, delta=delta, constant=1.5, **options
        ),
    }


def wishart_numbers(*, epsilon, delta, adjacency):
    found = regression_mechanism("wishart", epsilon=epsilon, delta=delta, adjacency=adjacency)
    return {
        "degrees of freedom": found.degrees_of_freedom,
        "scale": found.scale,
        "published": sheffet_degrees_of_freedom(4, epsilon=epsilon, delta=delta),
    }


def regression_scales(mechanism):
    return mechanism.noise_scales._asdict()


# Trade-off functions.


def curve(kind, *args):
    kinds = {
        "gaussian": tradeoff.Gaussian,
        "laplace": tradeoff.Laplace,
        "identity": tradeoff.Identity,
        "approximate": lambda budget, slack: tradeoff.ApproximateDP(budget, slack=slack),
        "chi square": ChiSquare,
        "distributions": tradeoff.from_distributions,
        "profile": tradeoff.from_profile,
        "piecewise linear": tradeoff.piecewise_linear,
        "mixture": tradeoff.mixture,
        "subsample": tradeoff.subsample,
        "group": tradeoff.group,
    }
    return kinds[kind](*args)


def compose(*curves):
    return tuple(tradeoff.compose(*curves))


def power(one, count):
    return tuple(tradeoff.power(one, count))


def functionals(one, count):
    found = tradeoff.privacy_loss_moments(one)
    return {**found._asdict(), "clt mu": tradeoff.composition_clt_mu(found, count)}


def curve_values(one):
    """A curve, its inverse and its symmetric hull at a few points."""
    alphas = np.array([0.0, 1e-6, 1e-3, 0.05, 0.3, 0.7, 0.99])
    return {
        "f": one(alphas),
        "inverse": one.inverse()(alphas),
        "symmetrized": one.symmetrized()(alphas),
        "delta": one.delta(np.array([0.0, 0.5, 2.0])),
        "epsilon": one.epsilon(np.array([1e-8, 1e-5, 1e-2])),
    }


def gdp_numbers():
    return {
        "delta": accounting.gdp.delta(1.3, np.array([0.0, 0.5, 3.0, 20.0])),
        "epsilon": accounting.gdp.epsilon(1.3, np.array([1e-12, 1e-5, 0.1])),
        "clt mu": accounting.gdp.poisson_clt_mu(1.1, 256 / 60_000, 14_062),
    }


# Bayesian differential privacy.


def bdp_account(mechanism, norms, mask=None, **options):
    return bdp.update(bdp.init(mechanism, **options), norms, mask)


def bdp_at_bound(account, steps):
    return bdp.update_worst_case(account, steps)


def bdp_numbers(account, delta, share=0.99):
    found = bdp.certificate(account, delta, share=share)
    return {
        "costs": account.costs,
        "strong": tuple(bdp.epsilon(account, delta)),
        "weak": tuple(bdp.epsilon(account, delta, definition="weak")),
        "delta at 0.2": tuple(bdp.delta(account, 0.2)),
        "order": best_order(account, delta),
        "certificate": tuple(found.epsilon),
        "percentiles": [epsilon for _, epsilon in found.population_epsilons],
        "attack": tuple(found.attack_success),
    }


def bdp_divergences(orders, distances):
    sampled = {"sampling_rate": 0.05, "noise_std": 1.2}
    return {
        "gaussian": bdp.gaussian_log_moments(orders, distances, noise_std=1.2),
        "laplace": bdp.laplace_log_moments(orders, distances, scale=1.5),
        "sampled": bdp.subsampled_gaussian_log_moments(orders, distances, **sampled),
    }


def bdp_training_accountant(mechanism):
    return bdp.TrainingAccountant(bdp.init(mechanism))


# Gradients.


@contextmanager
def preferring_ghost_norms():
    """Inside, every leaf takes the route of ghost norms wherever it can."""
    before = routes._WORK_PER_FLOAT, routes._LARGE
    routes._WORK_PER_FLOAT, routes._LARGE = 10**18, 10**18
    try:
        yield
    finally:
        routes._WORK_PER_FLOAT, routes._LARGE = before


def routes_of(loss, params, batch):
    """The route of each leaf, in the order of the leaves."""
    return [ROUTES[leaf.route.name] for leaf in dpjax.explain(loss, params, batch).leaves]


def clipped_sum(loss, clip, params, batch, mask):
    """The sum, and each example's norm and loss."""
    summed, info = dpjax.clipped_grad(loss, clip)(params, batch, mask)
    return summed, info.norms, info.losses


# Draws.


def gaussian_noise(key, tree, standard_deviation):
    return gaussian_like(key, tree, standard_deviation)


def add_noise(*, noise, clip, key):
    return dpjax.add_gaussian_noise(noise_multiplier=noise, l2_clip=clip, key=key)


def mechanism_noise(mechanism, key):
    return mechanism.noise(key)


def noisy_optimizer(kind, rate, *, clip, noise, batch_size, key):
    kinds = {"sgd": dpjax.noisy_sgd, "adam": dpjax.noisy_adam}
    return kinds[kind](
        rate, l2_clip=clip, noise_multiplier=noise, expected_batch_size=batch_size, key=key
    )


def noisy_mean(*, clip, noise, key):
    return dpjax.differentially_private_aggregate(clip, noise, key)


def draws(sampling, key, count):
    """The records of the first draws, as masked physical batches."""
    state, found = sampling.init(key), []
    for _ in range(count):
        draw, state = sampling.draw(state)
        batches = [sampling.batch(draw, part) for part in range(int(sampling.num_batches(draw)))]
        found.append([np.asarray(b.indices)[np.asarray(b.mask)].tolist() for b in batches])
    return found


def release(mechanism, key, value):
    return of_shape(mechanism, value).release(key, value)


def release_symmetric(mechanism, key, value):
    triangles = jax.tree.map(lambda matrix: matrix[np.triu_indices(len(matrix))], value)
    return of_shape(mechanism, triangles).release_symmetric(key, value)


def release_whole_numbers(mechanism, seed, value):
    return release(mechanism, jax.random.key(seed), value)


def conjugate_noisy(mechanism, seed, records):
    return mechanism.release(jax.random.key(seed), records)


def frequencies(mechanism, released):
    return mechanism.frequencies(released)._asdict()


# Inference.


def regression_release(mechanism, key, x, y):
    return mechanism.release_records(key, x, y)


def release_bounds(mechanism, key, x, y):
    return [int(position) for position in mechanism.release_positions(key, x, y)]


def adassp_numbers(released):
    return {
        "statistics": _without_none(released.statistics),
        "eigenvalue": released.smallest_eigenvalue,
        "ridge": released.ridge,
    }


def statistics(released):
    return _without_none(released)


def _without_none(released):
    return {name: v for name, v in released._asdict().items() if v is not None}


def regression_posteriors(released, n):
    known = regression.known_noise_posterior(released, prior_precision=1.0, noise_precision=4.0)
    unknown = regression.unknown_noise_posterior(
        released, n, prior_precision=1.0, noise_shape=2.0, noise_rate=0.5
    )
    return {"known": known._asdict(), "unknown": unknown._asdict()}


def repair(released, floor):
    return regression.repair(released, floor)


def noise_aware_regression(key, mechanism, released, n, *, draws, warmup):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # so few draws do not mix
        found = regression.noise_aware_posterior(
            key,
            mechanism,
            released,
            num_examples=n,
            prior_precision=1.0,
            noise_shape=2.0,
            noise_rate=0.5,
            num_draws=draws,
            num_warmup=warmup,
            num_chains=4,
        )
    return {"beta": found.beta, "sigma2": found.sigma2}


def naive_conjugate(mechanism, released, n):
    found = conjugate.naive_posterior(mechanism, released, n)
    return {"mean": found.mean, "interval": tuple(found.interval(0.9))}


def noise_aware_conjugate(key, mechanism, released, n):
    found = conjugate.noise_aware_posterior(
        key, mechanism, released, num_examples=n, num_particles=200
    )
    return {"mean": found.mean, "effective size": found.effective_sample_size}


def exact_conjugate(family, records):
    found = FAMILIES[family].exact_posterior(records)
    return {"mean": found.mean, "interval": tuple(found.interval(0.9))}


def train(loss, params, data, mechanism, optimizer, key, *, on_report=None):
    result = dpjax.train(
        key, loss, params, data, optimizer, mechanism=mechanism, on_report=on_report, progress=False
    )
    return result.params


def private_step(loss, optimizer, mechanism, key) -> Any:
    return dpjax.private_step(loss, optimizer, mechanism=mechanism, key=key)


def step_numbers(state, info):
    return {
        "params": state.params,
        "releases": int(state.num_releases),
        "drawn": int(info.batch_size),
        "norms": np.asarray(info.norms)[np.asarray(info.mask)],
        "loss": info.loss_sum,
    }


def sample_chain(log_likelihood, log_prior, start, data, mechanism, key, *, burn_in, thinning):
    result = sgmcmc.sample(
        key,
        log_likelihood,
        log_prior,
        start,
        data,
        mechanism=mechanism,
        burn_in=burn_in,
        thinning=thinning,
        progress=False,
    )
    return result.samples


def chain_transformation(kind, step_size, *, n, batch_size, clip, key, log_prior, **more):
    kinds = {"sgld": sgmcmc.sgld, "sghmc": sgmcmc.sghmc, "psgld": sgmcmc.psgld}
    if "gains" in more:
        more["preconditioner"] = _preconditioner(more.pop("gains"))
    return kinds[kind](
        step_size,
        num_examples=n,
        expected_batch_size=batch_size,
        l2_clip=clip,
        key=key,
        log_prior=log_prior,
        **more,
    )


def rejection_sample(log_likelihood, draw_prior, data, mechanism, key):
    return sgmcmc.rejection_sample(key, log_likelihood, draw_prior, data, mechanism).params


def beta_sample(records, mechanism, key):
    return sgmcmc.beta_sample(key, FAMILIES["beta-binomial"], records, mechanism).params


def dpsvi(model, guide, optimizer, loss, *, sampling, steps, clip, noise, adjacency):
    mechanism = dpjax.SubsampledGaussian(
        sampling, num_steps=steps, l2_clip=clip, noise_multiplier=noise, adjacency=adjacency
    )
    return DPSVI(model, guide, optimizer, loss, mechanism=mechanism)


def dpsvi_steps(svi, key, count, *data):
    """The parameters at the start and after some steps."""
    state = svi.init(key, *data)
    first, update = svi.get_params(state), jax.jit(svi.update)
    for _ in range(count):
        state, _ = update(state, *data)
    return {"start": first, "after": svi.get_params(state)}


def dpsvi_run(svi, key, count, *data):
    return svi.run(key, *data, num_steps=count, progress_bar=False).params

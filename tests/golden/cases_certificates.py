"""Certificates of mechanisms of every kind, under every adjacency that they take."""

from functools import partial
from itertools import product

import numpy as np
from dp_accounting import dp_event

import dpjax
from dpjax import accounting
from dpjax.accounting import UnsupportedEventError
from dpjax.bayes import conjugate, regression, sgmcmc

ADD, REPLACE = "add_remove", "replace_one"
BOTH = (ADD, REPLACE)

# Noise multiplier, sampling rate, steps, delta.
POISSON = (
    (1.3, 256 / 60_000, 3515, 1e-5),
    (0.6, 256 / 60_000, 1000, 1e-5),
    (1.0, 0.01, 100, 1e-5),
    (0.7, 0.01, 300, 1e-6),
    (2.0, 0.1, 50, 1e-5),
    (2.0, 0.1, 50, 1e-9),
    (2.0, 0.1, 50, 1e-2),
    (3.0, 0.5, 10, 1e-5),
    (4.0, 0.9, 5, 1e-5),
    (5.0, 1.0, 20, 1e-5),
    (0.8, 1.0, 1, 1e-3),
    (0.5, 0.001, 10, 1e-5),
    (10.0, 0.2, 1000, 1e-6),
    (1.0, 0.05, 1, 1e-4),
    (40.0, 0.02, 100, 1e-5),
)
# Records, sampling rate, the most in a batch, noise multiplier, steps.
TRUNCATED = (
    (1000, 0.02, 20, 1.0, 50),
    (1000, 0.02, 40, 2.0, 10),
    (1000, 0.1, 100, 1.5, 20),
    (500, 0.5, 260, 3.0, 4),
    (200, 0.9, 190, 4.0, 1),
    (20, 0.5, 20, 2.0, 1),
)
# Records, batch size, noise multiplier, steps, delta.
FIXED = (
    (1000, 10, 1.0, 100, 1e-5),
    (1000, 10, 0.6, 20, 1e-6),
    (1000, 100, 2.0, 50, 1e-5),
    (60_000, 256, 1.1, 500, 1e-5),
    (100, 50, 3.0, 10, 1e-3),
    (100, 100, 2.0, 3, 1e-4),
    (2000, 20, 1.5, 1, 1e-5),
    (50, 1, 1.0, 5, 1e-3),
)
SHUFFLED = ((1000, 100, 2.0, 30), (1000, 300, 4.0, 9), (100, 10, 8.0, 1), (64, 64, 3.0, 5))
NOISES = {
    "falling": (4.0, 4.0, 3.0, 2.5),
    "alternating": (2.0, 5.0, 2.0, 5.0, 2.0),
}


def subsampled(sampling, noise, steps, adjacency, clip=1.0):
    return dpjax.SubsampledGaussian(
        sampling, l2_clip=clip, noise_multiplier=noise, num_steps=steps, adjacency=adjacency
    )


def poisson(noise, rate, steps, adjacency, n=60_000):
    return subsampled(dpjax.PoissonSampling(n, rate), noise, steps, adjacency)


def truncated(n, rate, cut, noise, steps, adjacency):
    sampling = dpjax.TruncatedPoissonSampling(n, rate, truncated_batch_size=cut)
    return subsampled(sampling, noise, steps, adjacency)


def fixed(n, size, noise, steps):
    return subsampled(dpjax.FixedSizeSampling(n, size), noise, steps, REPLACE)


def shuffled(n, size, noise, steps):
    return subsampled(dpjax.ShuffledEpochs(n, size), noise, steps, REPLACE)


def scheduled(noises, sampling, adjacency):
    return subsampled(sampling, noises, len(noises), adjacency)


def per_layer(adjacency):
    clip = {"a": 0.6, "b": 0.8}
    return subsampled(dpjax.PoissonSampling(1000, 0.1), 2.0, 20, adjacency, clip)


def sampled():
    """``{name: (make, delta)}`` of every sampler."""
    found = {}
    for (noise, rate, steps, delta), adjacency in product(POISSON, BOTH):
        name = f"poisson sigma={noise} q={rate:.4} T={steps} delta={delta} {adjacency}"
        found[name] = partial(poisson, noise, rate, steps, adjacency), delta
    for row, adjacency in product(TRUNCATED, BOTH):
        found["truncated n={} q={} B={} sigma={} T={} ".format(*row) + adjacency] = (
            partial(truncated, *row, adjacency),
            1e-5,
        )
    for *row, delta in FIXED:
        name = "fixed n={} B={} sigma={} T={} delta=".format(*row)
        found[name + str(delta)] = partial(fixed, *row), delta
    for row in SHUFFLED:
        found["shuffled n={} B={} sigma={} T={}".format(*row)] = partial(shuffled, *row), 1e-5
    for (name, noises), adjacency in product(NOISES.items(), BOTH):
        found[f"poisson {name} noise {adjacency}"] = (
            partial(scheduled, noises, dpjax.PoissonSampling(1000, 0.1), adjacency),
            1e-5,
        )
    samplers = {
        "fixed": dpjax.FixedSizeSampling(1000, 100),
        "shuffled": dpjax.ShuffledEpochs(1000, 500),
    }
    for (name, noises), (kind, sampling) in product(NOISES.items(), samplers.items()):
        found[f"{kind} {name} noise"] = partial(scheduled, noises, sampling, REPLACE), 1e-5
    for adjacency in BOTH:
        found[f"per layer {adjacency}"] = partial(per_layer, adjacency), 1e-5
    return found


KINDS = {
    "gaussian": dpjax.Gaussian,
    "laplace": dpjax.Laplace,
    "discrete_laplace": dpjax.DiscreteLaplace,
    "discrete_gaussian": dpjax.DiscreteGaussian,
    "exponential_mechanism": dpjax.ExponentialMechanism,
    "noisy_max": dpjax.NoisyMax,
}
# Kind: (sensitivity, scale) of each, delta.
STATISTICS = {
    "gaussian": (((1.0, 1.0), (1.0, 4.0), (2.5, 1.0), (1.0, 0.2)), 1e-5),
    "laplace": (((1.0, 1.0), (1.0, 8.0), (3.0, 1.0), (1.0, 0.25)), 1e-6),
    "discrete_laplace": (((1.0, 2.0), (2.0, 2.0), (4.0, 1.5), (2.0, 12.5)), 1e-6),
    "discrete_gaussian": (((1.0, 2.0), (2.0, 3.0), (1.0, 0.7), (30.0, 40.0)), 1e-6),
    "exponential_mechanism": (((1.0, 2.0), (1.0, 10.0), (0.5, 0.4)), 1e-6),
    "noisy_max": (((1.0, 2.0), (1.0, 10.0), (0.5, 0.4)), 1e-6),
}


def statistic(kind, value, scale, adjacency, monotone=False):
    cls = KINDS[kind]
    shape = (2,) if cls.norm == "linf" else ()
    return cls(dpjax.Sensitivity(value, cls.norm, adjacency, monotone, shape), scale)


def statistics():
    found = {}
    for kind, (sizes, delta) in STATISTICS.items():
        for (value, scale), adjacency in product(sizes, BOTH):
            name = f"{kind} {value} over {scale} {adjacency}"
            found[name] = partial(statistic, kind, value, scale, adjacency), delta
    for kind, adjacency in product(("exponential_mechanism", "noisy_max"), BOTH):
        name = f"{kind} monotone {adjacency}"
        found[name] = partial(statistic, kind, 1.0, 2.0, adjacency, True), 1e-6
    for categories, keep in ((2, 0.5), (2, 0.9), (5, 0.3), (10, 0.75), (100, 0.05)):
        make = partial(dpjax.RandomizedResponse, categories, keep, REPLACE)
        found[f"randomized_response k={categories} p={keep}"] = make, 1e-6
    return found


def many_counts(adjacency):
    """Laplace and discrete Laplace counts, and one selection."""
    laplace = statistic("laplace", 1.0, 5.0, adjacency)
    discrete = statistic("discrete_laplace", 2.0, 9.0, adjacency)
    best = statistic("exponential_mechanism", 1.0, 8.0, adjacency)
    return dpjax.Composition((*[laplace] * 4, *[discrete] * 3, best))


def training_and_count(adjacency):
    count = statistic("laplace", 1.0, 4.0, adjacency)
    return dpjax.Composition((poisson(1.5, 0.01, 200, adjacency), count))


def two_trainings(adjacency):
    trainings = poisson(1.5, 0.01, 200, adjacency), poisson(2.0, 0.05, 50, adjacency)
    return dpjax.Composition((*trainings, statistic("gaussian", 1.0, 5.0, adjacency)))


def concentrated_and_gaussian(adjacency):
    kinds = "discrete_gaussian", "gaussian"
    return dpjax.Composition(tuple(statistic(kind, 1.0, 3.0, adjacency) for kind in kinds))


def gaussians(adjacency):
    scales = 2.0, 3.0, 7.0
    return dpjax.Composition(
        tuple(statistic("gaussian", 1.0, scale, adjacency) for scale in scales)
    )


def answers(_):
    return dpjax.Composition((dpjax.RandomizedResponse(4, 0.2, REPLACE),) * 10)


def fixed_and_shuffled(_):
    return dpjax.Composition((fixed(1000, 100, 3.0, 20), shuffled(1000, 100, 6.0, 20)))


def compositions():
    kinds = (many_counts, training_and_count, two_trainings, concentrated_and_gaussian, gaussians)
    found = {
        f"composition {kind.__name__} {adjacency}": (partial(kind, adjacency), 1e-5)
        for kind, adjacency in product(kinds, BOTH)
    }
    for kind in (answers, fixed_and_shuffled):
        found[f"composition {kind.__name__}"] = partial(kind, REPLACE), 1e-5
    return found


REGRESSIONS = {
    "perturbed": regression.PerturbedStatistics,
    "adassp": regression.AdaSSP,
    "wishart": regression.WishartNoise,
}


def regression_mechanism(kind, epsilon, delta, adjacency, **options):
    bounds = regression.RegressionBounds(x_norm_bound=1.5, y_bound=2.0)
    return REGRESSIONS[kind].from_epsilon(
        bounds, epsilon=epsilon, delta=delta, adjacency=adjacency, num_features=3, **options
    )


def private_bounds(epsilon, adjacency):
    return regression.PrivateBounds(
        x_norm_bounds=(0.5, 1.0, 2.0),
        y_bounds=(1.0, 2.0, 4.0),
        quantile=0.9,
        epsilon=epsilon,
        adjacency=adjacency,
    )


def wishart(adjacency):
    bounds = regression.RegressionBounds(x_norm_bound=1.0, y_bound=1.0)
    return regression.WishartNoise(bounds, 3, degrees_of_freedom=60, scale=1.5, adjacency=adjacency)


def regressions():
    found = {}
    known = regression.RegressionStatistics(0.4, 0.6, None)  # no y^T y: its noise is known
    for adjacency in BOTH:
        for kind, epsilon in product(REGRESSIONS, (0.3, 2.0)):
            make = partial(regression_mechanism, kind, epsilon, 1e-5, adjacency)
            found[f"{kind} epsilon={epsilon} {adjacency}"] = make, 1e-5
        perturbed = partial(regression_mechanism, "perturbed", 1.0)
        found |= {
            f"perturbed by laplace noise {adjacency}": (partial(perturbed, 0.0, adjacency), 1e-6),
            f"perturbed, known noise {adjacency}": (
                partial(perturbed, 1e-5, adjacency, split=known),
                1e-5,
            ),
            f"wishart k=60 {adjacency}": (partial(wishart, adjacency), 1e-4),
            f"private bounds {adjacency}": (partial(private_bounds, 0.5, adjacency), 1e-6),
        }
    return found


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


def conjugate_release(family, noise, scale, adjacency):
    """The release of a family's sums with one kind of noise, ``scale`` times the sensitivity."""
    cls = KINDS[noise.replace(" ", "_")]
    moves = FAMILIES[family].sensitivity(norm=cls.norm, adjacency=adjacency)
    return conjugate.SufficientStatisticsMechanism(
        FAMILIES[family], cls(moves, scale * moves.value)
    )


def conjugates():
    found = {}
    rows = (
        ("beta-binomial", "laplace"),
        ("beta-binomial", "discrete laplace"),
        ("dirichlet-multinomial", "discrete gaussian"),
        ("gamma-poisson", "laplace"),
        ("normal", "gaussian"),
        ("normal-unknown", "laplace"),
    )
    for (family, noise), adjacency in product(rows, BOTH):
        make = partial(conjugate_release, family, noise, 2.0, adjacency)
        found[f"{family} {noise} {adjacency}"] = make, 1e-6
    return found


CHAINS = {"sgld": sgmcmc.SGLD, "sghmc": sgmcmc.SGHMC, "psgld": sgmcmc.PSGLD}


def chain(kind, adjacency, step_size=0.1, sampling=None, steps=40, clip=2.0, **more):
    return CHAINS[kind](
        sampling or dpjax.PoissonSampling(5000, 0.02),
        l2_clip=clip,
        step_size=step_size,
        num_steps=steps,
        adjacency=adjacency,
        **more,
    )


def one_posterior_sample(epsilon, low, high, adjacency):
    return sgmcmc.OnePosteriorSample(epsilon, low=low, high=high, adjacency=adjacency)


def hybrid(adjacency, keep_steps):
    start = one_posterior_sample(1.0, -2.0, 0.0, adjacency)
    steps = chain("sgld", adjacency, steps=20)
    return sgmcmc.hybrid(start, steps, epsilon=1.0, delta=1e-5, keep_steps=keep_steps)


def chains():
    decreasing = sgmcmc.PolynomialDecay(0.2, exponent=0.33)
    cyclical = sgmcmc.CyclicalCosine(0.2, period=4)
    gains = sgmcmc.RMSProp(min_value=0.1, max_value=5.0)
    rows = {
        "sgld": {"kind": "sgld"},
        "sgld printed temperature": {"kind": "sgld", "temperature": 0.5},
        "sgld floor": {"kind": "sgld", "min_noise_multiplier": 3.0},
        "sgld decreasing": {"kind": "sgld", "step_size": decreasing, "steps": 4},
        "sgld cyclical": {"kind": "sgld", "step_size": cyclical, "steps": 8},
        "sgld 3 chains, own batches": {"kind": "sgld", "num_chains": 3},
        "sgld 3 chains, shared batches": {"kind": "sgld", "num_chains": 3, "batches": "shared"},
        "sghmc": {"kind": "sghmc", "friction": 0.2},
        "psgld": {"kind": "psgld", "preconditioner": gains},
    }
    found = {
        f"{name} {adjacency}": (partial(chain, adjacency=adjacency, **row), 1e-5)
        for (name, row), adjacency in product(rows.items(), BOTH)
    }
    for adjacency in BOTH:
        one = partial(one_posterior_sample, 0.7, -2.0, 0.0, adjacency)
        found[f"one posterior sample {adjacency}"] = one, 1e-6
    for keep_steps in (False, True):
        found[f"hybrid keep_steps={keep_steps}"] = partial(hybrid, ADD, keep_steps), 1e-5
    return found


def mechanisms():
    """``{name: (make, delta)}`` of all mechanisms."""
    return sampled() | statistics() | compositions() | regressions() | conjugates() | chains()


# Whole curves take longer: of one or two mechanisms of each kind.
CURVES = (
    f"poisson sigma=2.0 q=0.1 T=50 delta=1e-05 {ADD}",
    f"poisson sigma=2.0 q=0.1 T=50 delta=1e-05 {REPLACE}",
    f"poisson sigma=5.0 q=1.0 T=20 delta=1e-05 {REPLACE}",
    f"truncated n=1000 q=0.02 B=20 sigma=1.0 T=50 {REPLACE}",
    "fixed n=1000 B=100 sigma=2.0 T=50 delta=1e-05",
    "shuffled n=1000 B=100 sigma=2.0 T=30",
    f"gaussian 1.0 over 4.0 {ADD}",
    f"laplace 1.0 over 1.0 {ADD}",
    f"laplace 1.0 over 1.0 {REPLACE}",
    f"discrete_laplace 2.0 over 2.0 {ADD}",
    f"discrete_gaussian 1.0 over 2.0 {ADD}",
    f"exponential_mechanism 1.0 over 2.0 {ADD}",
    "randomized_response k=5 p=0.3",
    f"composition training_and_count {ADD}",
    f"composition many_counts {REPLACE}",
    "composition answers",
    f"wishart epsilon=2.0 {ADD}",
    f"wishart epsilon=2.0 {REPLACE}",
    f"private bounds {ADD}",
    f"sghmc {ADD}",
)

_SAMPLED = dp_event.PoissonSampledDpEvent(0.05, dp_event.GaussianDpEvent(1.5))
EVENTS = {
    "repeat and select": dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(4.0), 10, 1),
    "concentrated": dp_event.ZCDpEvent(0.05),
    "two gaussians on one sample": dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(
            0.1, dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(3.0), 2)
        ),
        20,
    ),
    "sampled laplace": dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(1.0)),
    "nested": dp_event.ComposedDpEvent(
        [dp_event.SelfComposedDpEvent(_SAMPLED, 10), dp_event.GaussianDpEvent(6.0), _SAMPLED]
    ),
    "no noise": dp_event.GaussianDpEvent(0.0),
    "nothing": dp_event.NoOpDpEvent(),
}


METHODS = "pld", "rdp", "moments", "gdp_clt"


def _or_none(compute, *arguments, **options):
    try:
        return compute(*arguments, **options)
    except UnsupportedEventError:
        return None


def _certified(make, delta):
    """Every accountant's epsilon (``None``: not taken), which one certifies, and the lower end."""
    found = make().certificate(delta)
    values = {estimate.method: estimate.epsilon for estimate in found.estimates}
    event, adjacency = found.guarantee.event, found.guarantee.adjacency
    return {
        **{method: values[method] for method in METHODS},
        "certified by": found.accountant,
        "epsilon": found.epsilon,
        "lower": found.epsilon_lower,
        "releases": found.guarantee.num_releases,
        "mu": _or_none(accounting.gdp.mu_of_event, event, adjacency),
    }


def _certified_event(event, delta, adjacency):
    """As ``_certified``, for an event that no mechanism describes."""
    epsilon = partial(_or_none, accounting.epsilon, event, delta, adjacency=adjacency)
    bounds = _or_none(accounting.epsilon_bounds, event, delta, adjacency=adjacency)
    lower = bounds and bounds.lower
    if isinstance(event, dp_event.RepeatAndSelectDpEvent):
        # Which outputs of a selection are merged follows the last digits of exp and log.
        lower = round(lower, 3)
    return {**{m: epsilon(method=m) for m in METHODS}, "lower": lower}


def _risks(make):
    """Attack risks by the guaranteed curve, and both curves at a few levels."""
    mechanism, alphas = make(), np.array([1e-4, 1e-2, 0.1, 0.5])
    event, adjacency = mechanism.event, mechanism.guarantee.adjacency
    curve = accounting.tradeoff_curve(event, adjacency=adjacency)
    bounds = _or_none(accounting.tradeoff_bounds, event, adjacency=adjacency)
    return {
        "advantage": accounting.risk.advantage(curve),
        "true positives at 1e-3": accounting.risk.true_positive_rate(curve, 1e-3),
        "accuracy at 1/2": accounting.risk.bayes_accuracy(curve, 0.5),
        "delta at 1": curve.delta(1.0),
        "f": curve(alphas),
        "upper f": bounds and bounds.upper(alphas),
    }


def _profile(adjacency, direction):
    steps, epsilons = dp_event.SelfComposedDpEvent(_SAMPLED, 30), (-1.0, 0.0, 0.5, 2.0)
    return accounting.profile_bounds(
        steps, epsilons, adjacency=adjacency, direction=direction
    )._asdict()


_MECHANISMS = mechanisms()
CASES = {
    **{name: partial(_certified, make, delta) for name, (make, delta) in _MECHANISMS.items()},
    **{f"risks of {name}": partial(_risks, _MECHANISMS[name][0]) for name in CURVES},
    **{
        f"event {name} {adjacency}": partial(_certified_event, event, 1e-5, adjacency)
        for (name, event), adjacency in product(EVENTS.items(), BOTH)
    },
    **{
        f"profile {adjacency} {direction}": partial(_profile, adjacency, direction)
        for adjacency, direction in ((ADD, None), (ADD, "add"), (ADD, "remove"), (REPLACE, None))
    },
}

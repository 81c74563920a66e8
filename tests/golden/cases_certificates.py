"""Certificates of mechanisms of every kind, under every adjacency that they take."""

from functools import partial
from itertools import product

from dp_accounting import dp_event

from golden import api

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


def poisson(noise, rate, steps, adjacency, n=60_000):
    return api.subsampled_gaussian(
        api.poisson(n, rate), noise=noise, steps=steps, adjacency=adjacency
    )


def truncated(n, rate, cut, noise, steps, adjacency):
    sampling = api.truncated_poisson(n, rate, cut)
    return api.subsampled_gaussian(sampling, noise=noise, steps=steps, adjacency=adjacency)


def fixed(n, size, noise, steps):
    sampling = api.fixed_size(n, size)
    return api.subsampled_gaussian(sampling, noise=noise, steps=steps, adjacency=REPLACE)


def shuffled(n, size, noise, steps):
    sampling = api.shuffled(n, size)
    return api.subsampled_gaussian(sampling, noise=noise, steps=steps, adjacency=REPLACE)


def scheduled(noises, sampling, adjacency):
    return api.subsampled_gaussian(sampling, noise=noises, steps=len(noises), adjacency=adjacency)


def per_layer(adjacency):
    return api.subsampled_gaussian(
        api.poisson(1000, 0.1),
        noise=2.0,
        steps=20,
        adjacency=adjacency,
        clip={"a": 0.6, "b": 0.8},
    )


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
            partial(scheduled, noises, api.poisson(1000, 0.1), adjacency),
            1e-5,
        )
    samplers = {"fixed": api.fixed_size(1000, 100), "shuffled": api.shuffled(1000, 500)}
    for (name, noises), (kind, sampling) in product(NOISES.items(), samplers.items()):
        found[f"{kind} {name} noise"] = partial(scheduled, noises, sampling, REPLACE), 1e-5
    for adjacency in BOTH:
        found[f"per layer {adjacency}"] = partial(per_layer, adjacency), 1e-5
    return found


# Kind, norm, (sensitivity, scale), delta.
STATISTICS = (
    (api.gaussian, "l2", ((1.0, 1.0), (1.0, 4.0), (2.5, 1.0), (1.0, 0.2)), 1e-5),
    (api.laplace, "l1", ((1.0, 1.0), (1.0, 8.0), (3.0, 1.0), (1.0, 0.25)), 1e-6),
    (api.discrete_laplace, "l1", ((1.0, 2.0), (2.0, 2.0), (4.0, 1.5), (2.0, 12.5)), 1e-6),
    (api.discrete_gaussian, "l2", ((1.0, 2.0), (2.0, 3.0), (1.0, 0.7), (30.0, 40.0)), 1e-6),
    (api.exponential_mechanism, "linf", ((1.0, 2.0), (1.0, 10.0), (0.5, 0.4)), 1e-6),
    (api.noisy_max, "linf", ((1.0, 2.0), (1.0, 10.0), (0.5, 0.4)), 1e-6),
)


def statistic(kind, norm, value, scale, adjacency, monotone=False):
    return kind(api.sensitivity(value, norm, adjacency, monotone=monotone), scale=scale)


def statistics():
    found = {}
    for kind, norm, sizes, delta in STATISTICS:
        for (value, scale), adjacency in product(sizes, BOTH):
            name = f"{kind.__name__} {value} over {scale} {adjacency}"
            found[name] = partial(statistic, kind, norm, value, scale, adjacency), delta
    for kind, adjacency in product((api.exponential_mechanism, api.noisy_max), BOTH):
        name = f"{kind.__name__} monotone {adjacency}"
        found[name] = partial(statistic, kind, "linf", 1.0, 2.0, adjacency, True), 1e-6
    for categories, keep in ((2, 0.5), (2, 0.9), (5, 0.3), (10, 0.75), (100, 0.05)):
        found[f"randomized_response k={categories} p={keep}"] = (
            partial(api.randomized_response, categories, keep=keep),
            1e-6,
        )
    return found


def many_counts(adjacency):
    """Laplace and discrete Laplace counts, and one selection."""
    one = api.sensitivity(1.0, "l1", adjacency)
    two = api.sensitivity(2.0, "l1", adjacency)
    best = api.exponential_mechanism(api.sensitivity(1.0, "linf", adjacency), scale=8.0)
    return api.composition(
        *[api.laplace(one, scale=5.0)] * 4, *[api.discrete_laplace(two, scale=9.0)] * 3, best
    )


def training_and_count(adjacency):
    count = api.laplace(api.sensitivity(1.0, "l1", adjacency), scale=4.0)
    return api.composition(poisson(1.5, 0.01, 200, adjacency), count)


def two_trainings(adjacency):
    return api.composition(
        poisson(1.5, 0.01, 200, adjacency),
        poisson(2.0, 0.05, 50, adjacency),
        api.gaussian(api.sensitivity(1.0, "l2", adjacency), scale=5.0),
    )


def concentrated_and_gaussian(adjacency):
    moves = api.sensitivity(1.0, "l2", adjacency)
    return api.composition(api.discrete_gaussian(moves, scale=3.0), api.gaussian(moves, scale=3.0))


def gaussians(adjacency):
    moves = api.sensitivity(1.0, "l2", adjacency)
    return api.composition(*(api.gaussian(moves, scale=scale) for scale in (2.0, 3.0, 7.0)))


def answers(_):
    return api.composition(*[api.randomized_response(4, keep=0.2)] * 10)


def fixed_and_shuffled(_):
    return api.composition(fixed(1000, 100, 3.0, 20), shuffled(1000, 100, 6.0, 20))


def compositions():
    kinds = (many_counts, training_and_count, two_trainings, concentrated_and_gaussian, gaussians)
    found = {
        f"composition {kind.__name__} {adjacency}": (partial(kind, adjacency), 1e-5)
        for kind, adjacency in product(kinds, BOTH)
    }
    for kind in (answers, fixed_and_shuffled):
        found[f"composition {kind.__name__}"] = partial(kind, REPLACE), 1e-5
    return found


def regressions():
    found = {}
    for adjacency in BOTH:
        for kind, epsilon in product(("perturbed", "adassp", "wishart"), (0.3, 2.0)):
            make = partial(
                api.regression_mechanism, kind, epsilon=epsilon, delta=1e-5, adjacency=adjacency
            )
            found[f"{kind} epsilon={epsilon} {adjacency}"] = make, 1e-5
        laplace = partial(
            api.regression_mechanism, "perturbed", epsilon=1.0, delta=0.0, adjacency=adjacency
        )
        found[f"perturbed by laplace noise {adjacency}"] = laplace, 1e-6
        known = partial(api.perturbed_known_noise, epsilon=1.0, delta=1e-5, adjacency=adjacency)
        found[f"perturbed, known noise {adjacency}"] = known, 1e-5
        found[f"wishart k=60 {adjacency}"] = (
            partial(api.wishart, degrees_of_freedom=60, scale=1.5, adjacency=adjacency),
            1e-4,
        )
        bounds = partial(api.private_bounds, epsilon=0.5, adjacency=adjacency)
        found[f"private bounds {adjacency}"] = bounds, 1e-6
    return found


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
        make = partial(api.conjugate_release, family, noise, scale=2.0, adjacency=adjacency)
        found[f"{family} {noise} {adjacency}"] = make, 1e-6
    return found


def chain(kind, adjacency, step_size=0.1, n=5000, rate=0.02, steps=40, **more):
    return api.chain(
        kind,
        api.poisson(n, rate),
        clip=2.0,
        step_size=step_size,
        steps=steps,
        adjacency=adjacency,
        **more,
    )


def hybrid(adjacency, keep_steps):
    return api.hybrid(
        api.one_posterior_sample(1.0, -2.0, 0.0, adjacency),
        chain("sgld", adjacency, steps=20),
        epsilon=1.0,
        delta=1e-5,
        keep_steps=keep_steps,
    )


def chains():
    rows = {
        "sgld": {"kind": "sgld"},
        "sgld printed temperature": {"kind": "sgld", "temperature": 0.5},
        "sgld floor": {"kind": "sgld", "floor": 3.0},
        "sgld decreasing": {"kind": "sgld", "step_size": api.decreasing(0.2, 0.33), "steps": 4},
        "sgld cyclical": {"kind": "sgld", "step_size": api.cyclical(0.2, 4), "steps": 8},
        "sgld 3 chains, own batches": {"kind": "sgld", "num_chains": 3},
        "sgld 3 chains, shared batches": {"kind": "sgld", "num_chains": 3, "batches": "shared"},
        "sghmc": {"kind": "sghmc", "friction": 0.2},
        "psgld": {"kind": "psgld", "gains": (0.1, 5.0)},
    }
    found = {
        f"{name} {adjacency}": (partial(chain, adjacency=adjacency, **row), 1e-5)
        for (name, row), adjacency in product(rows.items(), BOTH)
    }
    for adjacency in BOTH:
        one = partial(api.one_posterior_sample, 0.7, -2.0, 0.0, adjacency)
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


def events():
    found = {}
    for (name, event), adjacency in product(EVENTS.items(), BOTH):
        found[f"event {name} {adjacency}"] = partial(api.certified_event, event, 1e-5, adjacency)
    steps = dp_event.SelfComposedDpEvent(_SAMPLED, 30)
    for adjacency, direction in ((ADD, None), (ADD, "add"), (ADD, "remove"), (REPLACE, None)):
        found[f"profile {adjacency} {direction}"] = partial(
            api.profiles, steps, (-1.0, 0.0, 0.5, 2.0), adjacency, direction
        )
    return found


def _certified(make, delta):
    return api.certified(make(), delta)


def _risks(make):
    return api.risks(make())


_MECHANISMS = mechanisms()
CASES = {
    **{name: partial(_certified, make, delta) for name, (make, delta) in _MECHANISMS.items()},
    **{f"risks of {name}": partial(_risks, _MECHANISMS[name][0]) for name in CURVES},
    **events(),
}

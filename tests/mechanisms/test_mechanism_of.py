"""The mechanism of a transformation, or of an optimiser's state in optax's wrappers; refusals."""

import functools
import inspect
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from helpers.inputs import gaussian_mechanism, update_of

from dpjax.gradients import clipped_grad
from dpjax.mechanisms import mechanism_of
from dpjax.sampling import (
    FixedSizeSampling,
    PoissonSampling,
    ShuffledEpochs,
    TruncatedPoissonSampling,
)
from dpjax.transforms import (
    add_gaussian_noise,
    clip_per_example,
    differentially_private_aggregate,
    noisy_adam,
    noisy_sgd,
)

KEY, OTHER_KEY = jax.random.split(jax.random.key(0))
POISSON = PoissonSampling(100, 0.1)
PARAMS = {"w": jnp.ones(3), "b": jnp.ones(2)}
GRADS = jax.tree.map(lambda leaf: jnp.stack(4 * [leaf]), PARAMS)
LABELS = {"w": "large", "b": "small"}
CLIP, SIGMA = 0.7, 1.1


def noise(noise_multiplier=SIGMA, l2_clip=CLIP, key=KEY):
    return add_gaussian_noise(noise_multiplier=noise_multiplier, l2_clip=l2_clip, key=key)


def read(state, sampling=POISSON, num_steps=None, adjacency="add_remove"):
    return mechanism_of(state, sampling=sampling, num_steps=num_steps, adjacency=adjacency)


def described(num_steps=3, sampling=POISSON, **changes):
    """The mechanism that is read: the bound and the noise of ``noise``, with changes."""
    fields = {"l2_clip": CLIP, "noise_multiplier": SIGMA, "num_steps": num_steps, **changes}
    return gaussian_mechanism(sampling, **fields)


def run(optimizer, updates=GRADS, steps=3):
    """The state after ``steps`` updates, compiled once."""
    traces = []

    @functools.partial(jax.jit, donate_argnums=1)
    def update(updates, state, params):
        traces.append(None)
        return optimizer.update(updates, state, params, mask=None)

    state = jax.tree.map(jnp.copy, optimizer.init(PARAMS))
    for _ in range(steps):
        _, state = update(updates, state, PARAMS)
    assert len(traces) == 1
    return state


CHAIN = (clip_per_example(CLIP), noise(), optax.adam(0.1))
WRAPPED = {
    "chain": optax.chain(*CHAIN),
    "nested chain": optax.chain(CHAIN[0], optax.chain(noise(), optax.clip(1.0)), optax.trace(0.9)),
    "named_chain": optax.named_chain(("z", CHAIN[0]), ("y", CHAIN[1]), ("a", CHAIN[2])),
    "injected learning rate": optax.chain(*CHAIN[:2], optax.inject_hyperparams(optax.adam)(0.1)),
    "injected noisy_sgd": optax.inject_hyperparams(
        noisy_sgd, static_args=("l2_clip", "noise_multiplier", "key")
    )(0.1, l2_clip=CLIP, noise_multiplier=SIGMA, expected_batch_size=10.0, key=KEY),
    "noisy_adam": noisy_adam(
        0.1, l2_clip=CLIP, noise_multiplier=SIGMA, expected_batch_size=10, key=KEY
    ),
    "masked, every leaf in": optax.masked(optax.chain(*CHAIN), {"w": True, "b": True}),
    "partition, one group": optax.partition({"all": optax.chain(*CHAIN)}, "all"),
    "partition of the optimizer": optax.chain(
        *CHAIN[:2], optax.partition({"large": optax.adam(0.1), "small": optax.sgd(0.1)}, LABELS)
    ),
    "frozen after the noise": optax.chain(
        *CHAIN[:2],
        optax.partition({"large": optax.adam(0.1), "small": optax.set_to_zero()}, LABELS),
    ),
    "apply_if_finite after the noise": optax.chain(
        *CHAIN[:2], optax.apply_if_finite(optax.adam(0.1), 3)
    ),
    "MultiSteps after the noise": optax.chain(
        *CHAIN[:2], optax.MultiSteps(optax.adam(0.1), 2).gradient_transformation()
    ),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_mechanism_of_wrapped_noise(name):
    state = run(WRAPPED[name])
    assert read(state) == described(3)
    assert read(state, num_steps=50).num_steps == 50
    with pytest.raises(ValueError, match=r"num_steps must be at least the 3 releases made, got 2"):
        read(state, num_steps=2)


def test_mechanism_of_chain_without_clip():
    state = run(optax.chain(noise(l2_clip={"w": 3.0, "b": 4.0}), optax.sgd(0.1)), PARAMS, steps=1)
    expected = described(1, l2_clip={"w": 3.0, "b": 4.0})
    assert read(state) == expected


def test_mechanism_of_initial_state_needs_num_steps():
    state = optax.chain(*CHAIN).init(PARAMS)
    assert read(state, num_steps=7).num_steps == 7
    with pytest.raises(ValueError, match=r"^num_steps must be given .* counts no release yet"):
        read(state)


def test_mechanism_of_schedule_in_a_state():
    falling = lambda step: 3.0 - jnp.minimum(step, 2)  # noqa: E731
    state = run(optax.chain(noise(falling), optax.adam(0.1)), PARAMS, steps=4)
    assert read(state).noise_multiplier == (3.0, 2.0, 1.0, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [1.1, (3.0, 1.0, 2.0)])
def test_mechanism_of_private_optimizer(sigma):
    mechanism = described(3, noise_multiplier=sigma)
    optimizer = mechanism.private_optimizer(optax.adam(0.1), key=KEY)
    state = run(optimizer, PARAMS, steps=2)
    assert read(state, num_steps=3) == mechanism
    assert read(state) == mechanism.first_steps(2)
    with pytest.raises(ValueError, match="at most the 3 planned"):
        read(state, num_steps=4)


def test_mechanism_of_refuses_another_sampling_than_the_mechanisms():
    """It would certify another epsilon than that of the run."""
    optimizer = optax.chain(described(3).noise(KEY), optax.sgd(0.1))
    state = run(optimizer, PARAMS, steps=2)
    rarer = PoissonSampling(POISSON.num_examples, POISSON.sampling_rate / 10)
    with pytest.raises(ValueError, match=r"^sampling must be that of the mechanism whose noise"):
        read(state, rarer)
    assert read(state) == described(2)

    # The size of physical batches costs memory alone.
    smaller = PoissonSampling(POISSON.num_examples, POISSON.sampling_rate, physical_batch_size=3)
    assert read(state, smaller) == described(2, sampling=smaller)

    # Noise that is stated by itself knows of no sampling.
    state = run(optax.chain(noise(), optax.sgd(0.1)), PARAMS, steps=2)
    assert read(state, rarer).sampling == rarer


@pytest.mark.parametrize(
    ("planned", "given"),
    [
        (ShuffledEpochs(40, 20), ShuffledEpochs(40, 4)),  # fewer epochs in as many steps
        (FixedSizeSampling(40, 40), ShuffledEpochs(40, 4)),
        (FixedSizeSampling(40, 20), FixedSizeSampling(40, 4)),
        (FixedSizeSampling(40, 4), FixedSizeSampling(400, 40)),
    ],
    ids=str,
)
def test_mechanism_of_refuses_another_sampling_of_any_kind(planned, given):
    mechanism = described(6, planned, adjacency="zero_out")
    state = run(mechanism.noise(KEY), PARAMS, steps=6)
    with pytest.raises(ValueError, match=r"^sampling must be that of the mechanism whose noise"):
        read(state, given, adjacency="zero_out")
    assert read(state, planned, adjacency="zero_out") == mechanism


def test_state_of_another_mechanism_is_refused():
    """Its certificate would be that of the noise of the first, whatever was added since."""
    state = run(described(3).noise(KEY), PARAMS, steps=1)
    less = described(3, noise_multiplier=SIGMA / 2).noise(KEY)
    with pytest.raises(ValueError, match="state must come from init of the transformation"):
        less.update(PARAMS, state, PARAMS)
    # More steps of the same noise are the same transformation.
    described(9).noise(KEY).update(PARAMS, state, PARAMS)


def test_mechanism_of_more_releases_than_planned():
    optimizer = optax.chain(described(2).noise(KEY), optax.sgd(0.1))
    state = run(optimizer, PARAMS, steps=3)
    with pytest.raises(ValueError, match=r"^optimizer has made 3 releases.* planned for 2"):
        read(state)
    assert read(run(optimizer, PARAMS, steps=2)) == described(2)


class TestMultiSteps:
    """Three micro-batches for each release."""

    @staticmethod
    @functools.cache
    def micro_steps():
        """The updates of seven micro-steps, and the state after them."""
        inner = optax.MultiSteps(optax.chain(noise(), optax.sgd(1.0)), 3, use_grad_mean=False)
        optimizer = optax.chain(clip_per_example(CLIP), inner.gradient_transformation())
        update = jax.jit(update_of(optimizer))
        state, outputs = optimizer.init(PARAMS), []
        for _ in range(7):
            output, state = update(GRADS, state, PARAMS)
            outputs.append(output["w"])
        return outputs, state

    def test_counts_releases_not_micro_steps(self):
        outputs, state = self.micro_steps()
        assert [bool(np.any(output)) for output in outputs] == 2 * [False, False, True] + [False]
        assert read(state) == described(2)

    def test_noise_is_that_of_bare_transformation(self):
        outputs, _ = self.micro_steps()
        bare, clipped = noise(), clip_per_example(CLIP)
        total, _ = clipped.update(GRADS, clipped.init(None), mask=None)
        total, state = jax.tree.map(lambda leaf: 3 * leaf, total), bare.init(PARAMS)
        for step in (2, 5):
            expected, state = bare.update(total, state)
            np.testing.assert_allclose(outputs[step], -expected["w"], rtol=1e-5)


class TestGroups:
    """Groups of parameters with noise of their own are one release."""

    @staticmethod
    def partition(first, second):
        return optax.partition({"large": first, "small": second}, LABELS)

    def test_noise_multiplier_of_groups(self):
        chains = [
            optax.chain(clip_per_example(c), noise(s, c, k), optax.sgd(0.1))
            for c, s, k in ((3.0, 3.0, KEY), (4.0, 4.0, OTHER_KEY))
        ]
        found = read(run(self.partition(*chains)))
        assert found.l2_clip == {"large": 3.0, "small": 4.0}
        assert found.noise_multiplier == pytest.approx((1 / 9 + 1 / 16) ** -0.5, rel=1e-12)
        assert found.num_steps == 3

    def test_schedules_of_groups(self):
        falling = lambda step: 4.0 - step  # noqa: E731
        state = self.partition(noise(falling), noise(3.0, key=OTHER_KEY)).init(PARAMS)
        found = read(state, num_steps=2).noise_multiplier
        assert found == pytest.approx((2.4, 18**-0.5 * 9), rel=1e-6)

    def test_group_without_noise(self):
        state = self.partition(noise(0.0), noise(key=OTHER_KEY)).init(PARAMS)
        assert read(state, num_steps=2).noise_multiplier == 0


REFUSED = {
    "no noise": (optax.chain(clip_per_example(CLIP), optax.adam(0.1)), "exactly one .* got 0"),
    "an optimizer without dpjax": (optax.adam(0.1), "exactly one noise transformation.* got 0"),
    "two noises": (
        optax.chain(CHAIN[0], noise(), noise(key=OTHER_KEY), optax.sgd(0.1)),
        "exactly one noise transformation.* got 2",
    ),
    "noise in the optimizer too": (
        optax.chain(
            *CHAIN[:2],
            noisy_sgd(0.1, l2_clip=1.0, noise_multiplier=1.0, expected_batch_size=1, key=OTHER_KEY),
        ),
        "exactly one noise transformation.* got 2",
    ),
    "noise before clip": (optax.chain(noise(), CHAIN[0]), "preceded by nothing but clip_per_exa"),
    "scale between": (
        optax.chain(CHAIN[0], optax.scale(2.0), noise()),
        r"\['clip_per_example', 'EmptyState',",
    ),
    "adam between": (optax.chain(CHAIN[0], optax.adam(0.1), noise()), "ScaleByAdamState"),
    "scale before": (optax.chain(optax.scale(2.0), noise()), "preceded by nothing but"),
    "batch norm of gradients": (
        optax.chain(optax.clip_by_global_norm(1.0), *CHAIN),
        "preceded by nothing but",
    ),
    "a transformation with an empty state": (
        optax.chain(
            CHAIN[0], optax.GradientTransformation(lambda _: (), optax.scale(2).update), noise()
        ),
        r"\['clip_per_example', 'tuple', 'noise'\]",
    ),
    "scale in a wrapper": (
        optax.chain(CHAIN[0], optax.MultiSteps(optax.chain(optax.scale(2.0), noise()), 2)),
        "preceded by nothing but",
    ),
    "clip twice": (optax.chain(CHAIN[0], *CHAIN), "preceded by nothing but"),
    "another bound": (optax.chain(clip_per_example(1.0), noise()), r"l2_clip=0\.7 after .*1\.0"),
    "masked noise": (
        optax.chain(optax.masked(noise(), {"w": True, "b": False}), optax.adam(0.1)),
        "1 of 2 leaves are masked out",
    ),
    "masked clip and noise": (
        optax.masked(optax.chain(*CHAIN), {"w": True, "b": False}),
        "1 of 2 leaves are masked out",
    ),
    "masked clip": (
        optax.chain(optax.masked(CHAIN[0], {"w": True, "b": False}), noise()),
        "clip_per_example must not be inside MaskedState without its noise",
    ),
    "a group without noise": (
        optax.partition({"large": optax.chain(*CHAIN), "small": optax.set_to_zero()}, LABELS),
        "the group 'small' of optax.partition has none",
    ),
    "groups inside a mask": (
        optax.masked(optax.partition({"all": noise()}, "all"), {"w": True, "b": False}),
        "1 of 2 leaves are masked out",
    ),
    "apply_if_finite": (optax.apply_if_finite(optax.chain(*CHAIN), 3), "inside ApplyIfFiniteSta"),
    "examples accumulated": (optax.MultiSteps(optax.chain(*CHAIN), 2), "must accumulate clipped"),
    "examples accumulated in a group": (
        optax.MultiSteps(optax.partition({"all": optax.chain(*CHAIN)}, "all"), 2),
        "must accumulate clipped",
    ),
    "examples accumulated before their mean": (
        optax.MultiSteps(differentially_private_aggregate(CLIP, SIGMA, KEY), 2),
        "must accumulate clipped",
    ),
    "injected noise multiplier": (
        optax.inject_hyperparams(add_gaussian_noise, static_args=("l2_clip", "key"))(
            noise_multiplier=1.0, l2_clip=1.0, key=KEY
        ),
        "Python number .* as noise_multiplier, got a JAX array",
    ),
    "injected schedule": (
        optax.inject_hyperparams(add_gaussian_noise, static_args=("l2_clip", "key"))(
            noise_multiplier=lambda step: 1.0 + step, l2_clip=1.0, key=KEY
        ),
        "Python number .* as noise_multiplier, got a JAX array",
    ),
    "injected bound": (
        optax.chain(optax.inject_hyperparams(clip_per_example)(1.0), noise(l2_clip=1.0)),
        "clip_per_example must not be inside InjectStatefulHyperparamsState",
    ),
    "injected bound of the noise": (
        optax.inject_hyperparams(noisy_sgd, static_args=("noise_multiplier", "key"))(
            0.1, l2_clip=1.0, noise_multiplier=1.0, expected_batch_size=4, key=KEY
        ),
        "Python number .* as l2_clip, got a JAX array",
    ),
    "state in a plain dictionary": (
        optax.GradientTransformation(
            lambda params: {"clip": CHAIN[0].init(params), "noise": CHAIN[1].init(params)}, None
        ),
        "must not be inside dict",
    ),
    "models side by side": (
        optax.GradientTransformation(
            lambda params: jax.vmap(lambda key: noise(key=key).init(params))(
                jax.random.split(KEY, 3)
            ),
            None,
        ),
        "must be of one model, got the states of 3 side by side",
    ),
    "steps skipped by private gradients": (
        optax.MultiSteps(noise(), 2, should_skip_update_fn=optax.skip_not_finite),
        "must not have should_skip_update_fn",
    ),
    "one key for two groups": (
        optax.partition({"large": noise(), "small": noise()}, LABELS),
        "must have noise with different keys",
    ),
    # The total is the same, the bounds are swapped: more than was noised.
    "bounds of groups other than the clip's": (
        optax.chain(
            clip_per_example({"w": 3.0, "b": 4.0}),
            optax.partition(
                {"large": noise(1.0, 4.0), "small": noise(1.0, 3.0, OTHER_KEY)}, LABELS
            ),
        ),
        "must be scaled to the bound of the clip_per_example",
    ),
    "drawn batch length": (
        optax.chain(differentially_private_aggregate(CLIP, SIGMA, KEY), optax.adam(0.1)),
        "divides by the length of the drawn batch",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_mechanism_of_refuses(name):
    optimizer, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        read(optimizer.init(PARAMS), num_steps=5)


@pytest.mark.parametrize(
    "name", ["two noises", "noise before clip", "scale between", "masked noise", "apply_if_finite"]
)
def test_power_first_description_of_refused_states(name):
    """The numbers read are those of the noise, so that only the checks refuse the state.

    A reader without these checks would certify a wrong optimizer as the right chain.
    """
    state = REFUSED[name][0].init(PARAMS)
    is_noise = lambda node: hasattr(node, "num_releases")  # noqa: E731
    nodes = jax.tree.leaves(state, is_leaf=is_noise)
    first = next(node for node in nodes if is_noise(node)).description
    found = described(5, l2_clip=first.l2_clip, noise_multiplier=first.noise_multiplier)
    assert found == read(optax.chain(*CHAIN).init(PARAMS), num_steps=5)


def test_mechanism_of_mean_over_fixed_batch():
    aggregate = differentially_private_aggregate(CLIP, SIGMA, KEY)
    fixed = FixedSizeSampling(100, 4)
    state = run(optax.chain(aggregate, optax.adam(0.1)))
    found = read(state, fixed, 3, "replace_one")
    assert found == described(3, fixed, adjacency="replace_one")
    with pytest.raises(ValueError, match="num_steps must be given"):
        read(state, fixed, None, "replace_one")


@pytest.mark.parametrize(
    ("made", "updated", "words"),
    [
        (noise(2.0), noise(1.0), r"noise_multiplier = 2\.0, the transformation has 1\.0"),
        (noise(1.0, 1.0), noise(1.0, 2.0), r"l2_clip = 1\.0"),
        (clip_per_example(1.0), clip_per_example(2.0), r"l2_clip = 1\.0"),
    ],
)
def test_update_refuses_state_of_another_transformation(made, updated, words):
    updates = PARAMS if hasattr(made.init(PARAMS), "key") else GRADS
    with pytest.raises(ValueError, match=words):
        updated.update(updates, made.init(PARAMS), PARAMS)


class TestOptimizersOfFlax:
    @pytest.mark.slow
    def test_nnx(self):
        model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.chain(*CHAIN[1:]), wrt=nnx.Param)
        sums = jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param))
        for _ in range(2):
            optimizer.update(model, sums)
        expected = described(2)
        assert read(optimizer) == read(optimizer.opt_state) == expected

    def test_linen(self):
        dense = nn.Dense(1)
        params = dense.init(jax.random.key(1), jnp.ones(2))["params"]
        state = TrainState.create(apply_fn=dense.apply, params=params, tx=optax.chain(*CHAIN[1:]))
        state = state.apply_gradients(grads=jax.tree.map(jnp.zeros_like, params))
        assert read(state) == described(1)

    def test_train_state_of_nnx(self):
        model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        graph, params = nnx.split(model, nnx.Param)
        state = nnx.TrainState.create(graph, params=params, tx=optax.chain(*CHAIN[1:]))
        assert read(state, num_steps=2) == read(state.opt_state, num_steps=2)

    def test_other_types_are_refused(self):
        class Wrapper(NamedTuple):
            """A state with the field that objects of flax have."""

            opt_state: Any

        with pytest.raises(ValueError, match="must not be inside Wrapper"):
            read(Wrapper(noise().init(PARAMS)), num_steps=2)


EVERY_LEAF = {"w": True, "b": True}
# Every function of optax and optax.contrib with a transformation as argument, with the noise there:
# None where it is certified, or the words of the refusal.
OF_OPTAX = {
    "MultiSteps": (lambda n: optax.MultiSteps(n, 2), None),
    "apply_if_finite": (lambda n: optax.apply_if_finite(n, 3), "inside ApplyIfFiniteState"),
    "chain": (lambda n: optax.chain(n, optax.sgd(0.1)), None),
    "conditionally_mask": (
        lambda n: optax.conditionally_mask(n, lambda step: step > 2),
        "inside ConditionallyMaskState",
    ),
    "conditionally_transform": (
        lambda n: optax.conditionally_transform(n, lambda step: step > 2),
        "inside ConditionallyTransformState",
    ),
    "flatten": (optax.flatten, None),
    "inject_hyperparams": (
        lambda n: optax.inject_hyperparams(lambda rate: optax.chain(n, optax.sgd(rate)))(0.1),
        None,
    ),
    "inject_stateful_hyperparams": (
        lambda n: optax.inject_stateful_hyperparams(lambda rate: optax.chain(n, optax.sgd(rate)))(
            0.1
        ),
        None,
    ),
    "lbfgs": (lambda n: optax.lbfgs(0.1, linesearch=n), "preceded by nothing but"),
    "lookahead": (lambda n: optax.lookahead(n, 3, 0.5), "inside LookaheadState"),
    "masked": (lambda n: optax.masked(n, EVERY_LEAF), None),
    "monitor": (lambda n: optax.monitor({"noise": n}), "inside MonitorState"),
    "multi_transform": (lambda n: optax.multi_transform({"all": n}, "all"), None),
    "named_chain": (lambda n: optax.named_chain(("noise", n)), None),
    "partition": (lambda n: optax.partition({"all": n}, "all"), None),
    "selective_transform": (
        lambda n: optax.selective_transform(n, freeze_mask={"w": False, "b": True}),
        "the group 'freeze' of optax.partition has none",
    ),
    "with_extra_args_support": (optax.with_extra_args_support, None),
    "contrib.galore": (
        lambda n: optax.contrib.galore(0.1, base_optimizer=n),
        "inside GaLoreState",
    ),
    "contrib.mechanize": (optax.contrib.mechanize, "inside MechanicState"),
    "contrib.sam": (lambda n: optax.contrib.sam(n, optax.sgd(0.1)), "inside SAMState"),
    "contrib.scale_by_galore": (
        lambda n: optax.contrib.scale_by_galore(2, base_optimizer=n),
        "inside GaLoreState",
    ),
    "contrib.schedule_free": (
        lambda n: optax.contrib.schedule_free(n, 0.1),
        "inside ScheduleFreeState",
    ),
    "contrib.sophia": (
        lambda n: optax.contrib.sophia(0.1, hessian_diagonal_fn=n),
        "inside SophiaState",
    ),
    "contrib.split_real_and_imaginary": (
        optax.contrib.split_real_and_imaginary,
        "inside SplitRealAndImaginaryState",
    ),
}
MORE_OF_OPTAX = {
    "sam, the noise in the other optimizer": (
        lambda n: optax.contrib.sam(optax.sgd(0.1), n),
        "inside SAMState",
    ),
    "sam, opaque": (
        lambda n: optax.contrib.sam(n, optax.sgd(0.1), opaque_mode=True),
        "inside SAMState",
    ),
}


def takes_a_transformation(function):
    """Whether a parameter is annotated as a transformation, or a collection or factory of them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # modules, constants and types of annotations
        return False
    return any("GradientTransformation" in str(p.annotation) for p in parameters)


class TestEveryWrapperOfOptax:
    def test_table_is_complete(self):
        public = {name: getattr(optax, name) for name in dir(optax) if name[0] != "_"}
        contrib = {
            f"contrib.{name}": getattr(optax.contrib, name)
            for name in dir(optax.contrib)
            if name[0] != "_"
        }
        functions = {**public, **contrib}
        assert set(OF_OPTAX) == {
            name for name, function in functions.items() if takes_a_transformation(function)
        }

    @pytest.mark.filterwarnings("ignore:inject_stateful_hyperparams:DeprecationWarning")
    @pytest.mark.parametrize("name", [*OF_OPTAX, *MORE_OF_OPTAX])
    def test_wrapper_is_certified_or_refused(self, name):
        wrap, message = {**OF_OPTAX, **MORE_OF_OPTAX}[name]
        optimizer = wrap(noise(key=KEY))
        # GaLore takes matrices alone.
        state = optimizer.init({"w": jnp.ones((3, 3)), "b": jnp.ones((2, 2))})
        if message is None:
            assert read(state, num_steps=5) == described(5)
        else:
            with pytest.raises(ValueError, match=message):
                read(state, num_steps=5)


@pytest.mark.slow
def test_power_sensitivity_under_sam():
    """What a certificate around `optax.contrib.sam` would hide: the sums' sensitivity is not 2."""
    optimizer = optax.contrib.sam(
        optax.sgd(1.0), optax.chain(optax.contrib.normalize(), optax.sgd(50.0)), opaque_mode=True
    )
    clipped = clipped_grad(lambda w, x: jnp.sum(jnp.sin(w) * x), 1.0)
    batch = jax.random.normal(jax.random.key(1), (40, 3))

    def noiseless_sum(batch):
        """The clipped sum to which a noise in place of the outer optimiser would be added."""
        sums = lambda params, _: clipped(params, batch, None)[0]  # noqa: E731
        params = jnp.zeros(3)
        updates, _ = optimizer.update(
            clipped(params, batch, None)[0], optimizer.init(params), params, grad_fn=sums
        )
        return updates

    moved = max(
        jnp.linalg.norm(noiseless_sum(batch) - noiseless_sum(jnp.delete(batch, i, axis=0)))
        for i in range(5)
    )
    assert moved > 2


class TestStatesAsTrees:
    def test_descriptions_are_no_leaves(self):
        state = optax.chain(*CHAIN[:2]).init(PARAMS)
        assert [leaf.dtype for leaf in jax.tree.leaves(state[1])] == [KEY.dtype, jnp.int32]
        assert not jax.tree.leaves(state[0])

    def test_tree_map_keeps_descriptions(self):
        state = jax.tree.map(lambda leaf: leaf, run(optax.chain(*CHAIN)))
        assert read(state).num_steps == 3

    def test_optax_tree_utilities(self):
        optimizer = optax.chain(*CHAIN)
        state = optimizer.init(PARAMS)
        doubled = optax.tree_utils.tree_map_params(optimizer, lambda leaf: 2 * leaf + 1, state)
        np.testing.assert_array_equal(doubled[2][0].mu["w"], 1)
        assert read(doubled, num_steps=3) == read(state, num_steps=3)
        assert optax.tree_utils.tree_get(state, "num_releases") == 0
        assert optax.tree_utils.tree_get(state[1], "description").noise_multiplier == SIGMA

    def test_checkpoint_of_orbax(self, tmp_path):
        optimizer = optax.chain(*CHAIN)
        state = run(optimizer)
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / "state", state)
            checkpointer.wait_until_finished()
            restored = checkpointer.restore(tmp_path / "state", optimizer.init(PARAMS))
        assert jax.tree.structure(restored) == jax.tree.structure(state)
        assert read(restored) == read(state)
        assert restored[1].key == state[1].key


TRANSFORMS = {
    "add_gaussian_noise": lambda clip, sigma: add_gaussian_noise(
        noise_multiplier=sigma, l2_clip=clip, key=KEY
    ),
    "noisy_sgd": lambda clip, sigma: noisy_sgd(
        0.1, l2_clip=clip, noise_multiplier=sigma, expected_batch_size=10, key=KEY
    ),
    "noisy_adam": lambda clip, sigma: noisy_adam(
        0.1, l2_clip=clip, noise_multiplier=sigma, expected_batch_size=10, key=KEY
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_mechanism_of_schedule(name):
    falling = lambda step: 3.0 - jnp.minimum(step, 2)  # noqa: E731
    found = mechanism_of(
        TRANSFORMS[name](1.0, falling), sampling=POISSON, num_steps=4, adjacency="replace_one"
    )
    assert found.noise_multiplier == (3.0, 2.0, 1.0, 1.0)


@pytest.mark.slow
def test_mechanism_of_schedule_is_added_noise():
    falling = optax.exponential_decay(4.0, 1, 0.5)
    transform = add_gaussian_noise(noise_multiplier=falling, l2_clip=1.0, key=KEY)
    zeros = jnp.zeros(50_000)
    state = transform.init(zeros)
    found = mechanism_of(transform, sampling=POISSON, num_steps=3, adjacency="replace_one")
    for sigma in found.noise_multiplier:
        noise, state = transform.update(zeros, state)
        # 0.32 % is one standard error: seven of them, false alarm 3e-12
        assert float(noise.std()) == pytest.approx(sigma, rel=0.0225)


@pytest.mark.parametrize(
    "plain",
    [
        optax.sgd(0.1),
        clip_per_example(1.0),
        optax.chain(
            noisy_sgd(0.1, l2_clip=1.0, noise_multiplier=1.0, expected_batch_size=10, key=KEY),
            optax.scale(2.0),
        ),
    ],
    ids=["sgd", "clip alone", "wrapped"],
)
def test_mechanism_of_refuses_plain_transformations(plain):
    with pytest.raises(ValueError, match="must be a state where dpjax's transformations are"):
        read(plain, num_steps=3)


def test_mechanism_of_refuses_numbers_out_of_range():
    transform = noisy_sgd(
        0.1, l2_clip=1.0, noise_multiplier=lambda step: 1.0 - step, expected_batch_size=10, key=KEY
    )
    for num_steps, words in ((0, "num_steps must be"), (3, "noise_multiplier must be")):
        with pytest.raises(ValueError, match=words):
            read(transform, num_steps=num_steps)


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("clip", [0.7, {"a": 3.0, "b": 4.0}])
def test_mechanism_of_transformation(name, clip):
    transform = TRANSFORMS[name](clip, 1.1)
    found = mechanism_of(
        transform, sampling=POISSON, num_steps=7, adjacency="add_remove", unit="one image"
    )
    assert found == described(7, l2_clip=clip, noise_multiplier=1.1, unit="one image")


def test_mechanism_of_mean_needs_public_length():
    aggregate, fixed = differentially_private_aggregate(CLIP, SIGMA, 0), FixedSizeSampling(100, 10)
    assert read(aggregate, fixed, 3, "replace_one") == described(3, fixed, adjacency="replace_one")
    for sampling in (POISSON, TruncatedPoissonSampling(100, 0.1, truncated_batch_size=15)):
        with pytest.raises(ValueError, match=f"private under {type(sampling).__name__}"):
            read(aggregate, sampling, 3, "replace_one")

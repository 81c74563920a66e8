"""The noise as a transformation: its scale in each step, its keys, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.inputs import gaussian_mechanism

from dpjax import (
    FixedSizeSampling,
    PoissonSampling,
    add_gaussian_noise,
    clip_per_example,
    differentially_private_aggregate,
    noisy_sgd,
)
from dpjax.transforms import correlation
from dpjax.transforms import noise as noise_module

pytestmark = pytest.mark.usefixtures("strict_numerics")

KEY = jax.random.key(3)
PARAMS = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}


def gaussian(noise_multiplier=1.0, l2_clip=1.0, key=KEY):
    return add_gaussian_noise(noise_multiplier=noise_multiplier, l2_clip=l2_clip, key=key)


def releases(transformation, count, updates=PARAMS):
    """The outputs of this many updates, and the last state."""
    state, outputs = transformation.init(updates), []
    for _ in range(count):
        output, state = transformation.update(updates, state)
        outputs.append(output)
    return outputs, state


def assert_scaled(tree, other, factor):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, factor * b, rtol=1e-5), tree, other)


class TestScale:
    @pytest.mark.slow
    def test_add_gaussian_noise_of_zero(self):
        updates = {"w": jnp.arange(6.0).reshape(3, 2), "b": jnp.ones(2)}
        (output,), _ = releases(gaussian(0.0), 1, updates)
        jax.tree.map(np.testing.assert_array_equal, output, updates)

    def test_add_gaussian_noise_to_the_sum(self):
        (noise,), _ = releases(gaussian(0.5, 2.0), 1)
        updates = jax.tree.map(lambda leaf: leaf + 3, PARAMS)
        (output,), _ = releases(gaussian(0.5, 2.0), 1, updates)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, 3 + b, rtol=1e-6, atol=1e-6), output, noise
        )

    @pytest.mark.parametrize(
        ("multiplier", "l2_clip", "deviation"),
        [(1.0, 3.0, 3.0), (2.0, 0.5, 1.0), (2.0, {"w": 3.0, "b": 4.0}, 10.0), (7, 2, 14)],
    )
    def test_add_gaussian_noise_scale(self, multiplier, l2_clip, deviation):
        (unit,), _ = releases(gaussian(), 1)
        (noise,), _ = releases(gaussian(multiplier, l2_clip), 1)
        assert_scaled(noise, unit, deviation)

    def test_add_gaussian_noise_schedule(self):
        steps = []

        def schedule(num_releases):
            steps.append(int(num_releases))
            return jnp.array([3.0, 0.5, 1.0])[num_releases]

        scheduled, state = releases(gaussian(schedule, 2.0), 3)
        units, _ = releases(gaussian(), 3)
        for multiplier, noise, unit in zip([3.0, 0.5, 1.0], scheduled, units, strict=True):
            assert_scaled(noise, unit, 2 * multiplier)
        assert steps == [0, 1, 2]
        assert state.num_releases == 3

    @pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
    def test_half_precision_sum_refused(self, dtype):
        """512 + 1 is 512 in bfloat16, 2048 + 1 is 2048 in float16: it was rounded before."""
        half = {"w": jnp.linspace(1, 100, 50), "b": jnp.ones(3, dtype)}
        words = f"updates must be sums in float32 or wider, got {jnp.dtype(dtype)}: a sum rounded"
        with pytest.raises(ValueError, match=words):
            releases(gaussian(), 1, half)


class TestWhatFloat32CannotHold:
    @pytest.mark.parametrize(
        ("noise_multiplier", "l2_clip"), [(1e-35, 1.0), (1e-20, 1e-12), (1e30, 1e5)]
    )
    def test_noise_outside_of_float32_refused(self, noise_multiplier, l2_clip):
        words = r"^noise_multiplier \* l2_clip must be between 2e-31 and 2e\+31 .*, got 1e"
        with pytest.raises(ValueError, match=words):
            gaussian(noise_multiplier, l2_clip)
        with pytest.raises(ValueError, match=words):
            differentially_private_aggregate(l2_clip, noise_multiplier, KEY)
        mechanism = gaussian_mechanism(
            l2_clip=l2_clip, noise_multiplier=(1.0, noise_multiplier), num_steps=2
        )
        with pytest.raises(ValueError, match=words):
            mechanism.noise(KEY)

    def test_noise_at_the_end_of_the_range(self):
        noise, _ = releases(
            gaussian(3e-19, 1e-12),
            1,
            {"w": jnp.zeros(1000)},
        )
        assert len(np.unique(noise[0]["w"])) > 990

    @pytest.mark.parametrize(
        ("num_examples", "noise_multiplier", "fine"),
        [
            (10**6, 1.0, True),
            (10**9, 1.0, False),
            (10**7, 1.0, False),
            (10**7, 20.0, True),
            (10**4, 1e-6, True),  # no privacy in any precision
            (10**6, 0.0, True),
        ],
    )
    def test_noise_beside_the_largest_sum(self, num_examples, noise_multiplier, fine):
        described = gaussian_mechanism(
            PoissonSampling(num_examples, 1.0),
            l2_clip=3.0,
            noise_multiplier=noise_multiplier,
            num_steps=1,
        )
        if fine:
            described.noise(KEY)
            return
        words = f"noise_multiplier must be at least .* for sums of up to {num_examples:,} examples"
        with pytest.raises(ValueError, match=words):
            described.noise(KEY)


class TestMechanism:
    @staticmethod
    def mechanism(noise_multiplier, num_steps, l2_clip=2.0):
        changes = {"noise_multiplier": noise_multiplier, "num_steps": num_steps}
        return gaussian_mechanism(PoissonSampling(50, 0.2), l2_clip=l2_clip, **changes)

    def test_noise_equals_add_gaussian_noise(self):
        described, _ = releases(self.mechanism(1.5, 4).noise(KEY), 3)
        expected, _ = releases(gaussian(1.5, 2.0), 3)
        for noise, other in zip(described, expected, strict=True):
            assert_scaled(noise, other, 1.0)

    def test_noise_of_each_step(self):
        described, _ = releases(self.mechanism((3.0, 0.5, 1.0), 3).noise(KEY), 3)
        units, _ = releases(gaussian(), 3)
        for multiplier, noise, unit in zip([3.0, 0.5, 1.0], described, units, strict=True):
            assert_scaled(noise, unit, 2 * multiplier)

    @pytest.mark.parametrize("noise_multiplier", [1.5, 0.0, (1.0, 2.0)])
    def test_noise_past_the_last_step(self, noise_multiplier):
        outputs, state = releases(self.mechanism(noise_multiplier, 2).noise(KEY), 4)
        finite = [
            [bool(np.isfinite(leaf).any()) for leaf in jax.tree.leaves(output)]
            for output in outputs
        ]
        assert finite == [[True] * 2, [True] * 2, [False] * 2, [False] * 2]
        assert state.num_releases == 4

    def test_private_optimizer_divisor(self):
        optimizer = self.mechanism(1.5, 4).private_optimizer(optax.sgd(1.0), key=KEY)
        updates = jax.tree.map(lambda leaf: leaf + 3, PARAMS)
        moved, _ = optimizer.update(updates, optimizer.init(PARAMS), PARAMS)
        (noisy,), _ = releases(gaussian(1.5, 2.0), 1, updates)
        assert_scaled(moved, noisy, -1 / 10)

    def test_noise_independent_of_adjacency(self):
        """The multiplier is over the clip bound; that two bounds may move is the accountant's."""
        changes = {"l2_clip": 2.0, "noise_multiplier": 1.5, "adjacency": "replace_one"}
        replace = gaussian_mechanism(FixedSizeSampling(50, 10), **changes)
        noise, _ = releases(replace.noise(KEY), 1)
        expected, _ = releases(self.mechanism(1.5, 4).noise(KEY), 1)
        assert_scaled(noise[0], expected[0], 1.0)


class TestKeys:
    def test_state_counts_releases(self):
        transformation = gaussian()
        state = transformation.init(PARAMS)
        assert state.num_releases == 0
        assert state.num_releases.dtype == jnp.int32
        assert state.key == KEY
        _, states = state, [state]
        for _ in range(3):
            _, state = transformation.update(PARAMS, state)
            states.append(state)
        assert [int(s.num_releases) for s in states] == [0, 1, 2, 3]
        assert len({jax.random.key_data(s.key).tobytes() for s in states}) == 4

    def test_keys_consumed_once(self, case, transformation, monkeypatch):
        """Neither by two draws, nor by a draw and a split, over steps and leaves."""
        consumed = []

        def recorded(function):
            def record(key, *args, **kwargs):
                consumed.append(jax.random.key_data(key).tobytes())
                return function(key, *args, **kwargs)

            return record

        monkeypatch.setattr(noise_module, "normal", recorded(noise_module.normal))
        monkeypatch.setattr(correlation, "_draw_once", recorded(correlation._draw_once))
        for name in ("split", "fold_in"):
            monkeypatch.setattr(jax.random, name, recorded(getattr(jax.random, name)))
        params = {"w": jnp.ones(2), "b": [jnp.ones(2), jnp.ones(2)]}
        state = transformation.init(params)
        for _ in range(3):
            _, state = transformation.update(case.updates(params), state, params, mask=None)
        draws = 3 * len(jax.tree.leaves(params))
        assert len(consumed) > draws if case.noisy else not consumed
        assert len(set(consumed)) == len(consumed)

    def test_noise_differs_between_leaves_steps_and_keys(self):
        outputs, _ = releases(
            gaussian(),
            3,
            [jnp.zeros(2), jnp.zeros(2)],
        )
        others, _ = releases(
            gaussian(key=jax.random.key(4)),
            3,
            [jnp.zeros(2)] * 2,
        )
        values = np.concatenate([leaf for tree in (*outputs, *others) for leaf in tree])
        assert len(set(values.tolist())) == len(values)

    def test_raw_key(self):
        raw, _ = releases(gaussian(key=jax.random.PRNGKey(3)), 2)
        typed, _ = releases(gaussian(), 2)
        assert_scaled(raw[1], typed[1], 1.0)


class TestRefused:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            *(({"noise_multiplier": m}, r"^noise_multiplier must be a finite number >= 0, got")
              for m in (-1.0, np.nan, np.inf, "1", None)),
            *(({"l2_clip": bound}, r"^l2_clip must be a finite number > 0, got")
              for bound in (0.0, np.nan, {"a": -1.0})),
        ],
    )  # fmt: skip
    def test_add_gaussian_noise_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            gaussian(**arguments)

    @pytest.mark.parametrize("key", [0, 1.0, None, "key", np.zeros(3)], ids=repr)
    def test_keys_of_other_types_refused(self, key):
        makers = [
            lambda: gaussian(key=key),
            lambda: noisy_sgd(
                0.1, l2_clip=1.0, noise_multiplier=1.0, expected_batch_size=10, key=key
            ),
            lambda: TestMechanism.mechanism(1.0, 2).noise(key),
        ]
        for make in makers:
            with pytest.raises(TypeError, match=r"^key must be a scalar JAX key .*release_key"):
                make()

    @pytest.fixture
    def drawn(self, monkeypatch):
        """What was drawn from the generator of normal variates."""
        drawn, normal = [], noise_module.normal

        def record(*args, **kwargs):
            drawn.append(args)
            return normal(*args, **kwargs)

        monkeypatch.setattr(noise_module, "normal", record)
        return drawn

    PER_EXAMPLE = jax.tree.map(lambda leaf: jnp.ones((4, *leaf.shape)), PARAMS)

    @pytest.mark.parametrize("jit", [False, True], ids=["", "jit"])
    def test_per_example_updates_refused(self, drawn, jit):
        noise = gaussian()
        update = jax.jit(noise.update) if jit else noise.update
        with pytest.raises(
            ValueError, match=r"^updates must be one clipped sum.*\(4, 3, 2\).*firs"
        ):
            update(self.PER_EXAMPLE, noise.init(PARAMS))
        assert not drawn

    def test_noise_before_clipping_refused(self, drawn):
        chain = optax.chain(gaussian(), clip_per_example(1.0))
        state = chain.init(PARAMS)
        with pytest.raises(ValueError, match="clipped and summed first, by clip_per_example"):
            chain.update(self.PER_EXAMPLE, state, PARAMS)
        assert not drawn

    def test_noise_after_clipping_drawn(self, drawn):
        chain = optax.chain(clip_per_example(1.0), gaussian())
        chain.update(self.PER_EXAMPLE, chain.init(PARAMS), PARAMS, mask=None)
        assert len(drawn) == len(PARAMS)

    def test_updates_of_another_shape_refused(self):
        noise = gaussian()
        with pytest.raises(
            ValueError, match=r"shaped like the parameters given to init \[\(3,\)\]"
        ):
            noise.update(jnp.ones(2), noise.init(jnp.ones(3)))


ROWS = 4


def in_a_scan(update):
    def scan(updates, state):
        def step(state, _):
            output, state = update(updates, state)
            return state, output

        return jax.lax.scan(step, state, None, length=2)[::-1]

    return scan


def in_a_cond(update):
    def cond(updates, state):
        unchanged = lambda updates, state: (updates, state)  # noqa: E731
        return jax.lax.cond(state.num_releases < 5, update, unchanged, updates, state)

    return cond


PROGRAMS = {
    "plain": lambda update: update,
    "jit": jax.jit,
    "scan": in_a_scan,
    "cond": in_a_cond,
    "remat": jax.checkpoint,
}
TRANSFORMATIONS = {
    "add_gaussian_noise": lambda key: gaussian(key=key),
    "aggregate": lambda key: differentially_private_aggregate(1.0, 1.0, key),
}


class TestUnderVmap:
    """Several sums need as many states: one key would add equal noise to each."""

    @staticmethod
    def updates(name):
        per_example = (5,) if name == "aggregate" else ()
        return jax.tree.map(lambda leaf: jnp.ones((ROWS, *per_example, *leaf.shape)), PARAMS)

    @pytest.mark.parametrize("program", PROGRAMS)
    def test_one_state_refused(self, program):
        noise = TRANSFORMATIONS["add_gaussian_noise"](KEY)
        update = jax.vmap(PROGRAMS[program](noise.update), (0, None))
        for function in (update, jax.jit(update)):
            with pytest.raises(
                ValueError, match=f"^state must be another one for each of the {ROWS}"
            ):
                function(self.updates("sum"), noise.init(PARAMS))

    @pytest.mark.slow
    @pytest.mark.parametrize("program", PROGRAMS)
    def test_one_state_each(self, program):
        noise = TRANSFORMATIONS["add_gaussian_noise"](KEY)
        states = jax.vmap(lambda key: noise.init(PARAMS)._replace(key=key))(
            jax.random.split(KEY, ROWS)
        )
        output, _ = jax.vmap(PROGRAMS[program](noise.update))(self.updates("sum"), states)
        assert len(np.unique(output["b"])) == output["b"].size

    @pytest.mark.slow
    @pytest.mark.parametrize("name", TRANSFORMATIONS)
    @pytest.mark.parametrize("inner", [0, None], ids=["inner", "outer"])
    def test_one_state_along_an_axis_refused(self, name, inner):
        transformation = TRANSFORMATIONS[name](KEY)
        states = jax.vmap(lambda _: transformation.init(PARAMS))(jnp.arange(ROWS))
        both = jax.tree.map(lambda leaf: jnp.stack([leaf] * ROWS), self.updates(name))
        update = jax.vmap(
            jax.vmap(transformation.update, (0, inner)), (0, None if inner == 0 else 0)
        )
        with pytest.raises(ValueError, match=r"^state must be another one"):
            update(both, states)

    def test_gradient_of_the_noisy_sum(self):
        noise = TRANSFORMATIONS["add_gaussian_noise"](KEY)
        states = jax.vmap(lambda key: noise.init(PARAMS)._replace(key=key))(
            jax.random.split(KEY, ROWS)
        )

        def total(updates):
            output, _ = jax.vmap(noise.update)(updates, states)
            return sum(jnp.sum(3 * leaf) for leaf in jax.tree.leaves(output))

        for leaf in jax.tree.leaves(jax.grad(total)(self.updates("sum"))):
            np.testing.assert_array_equal(leaf, 3)


def test_traced_noise_multiplier_not_in_metadata():
    """Metadata of two traces are compared, which fails for tracers of the first."""
    count = jax.jit(lambda state: state.num_releases + 1)

    def releases_of(noise_multiplier):
        changes = {"noise_multiplier": noise_multiplier, "adjacency": "zero_out"}
        mechanism = gaussian_mechanism(**changes)
        return count(mechanism.noise(KEY).init(jnp.zeros(3)))

    assert jax.jit(releases_of)(1.0) == 1
    np.testing.assert_array_equal(jax.jit(jax.vmap(releases_of))(jnp.ones(2)), [1, 1])

"""Rules that stand for a clip bound: norms of contributions, moving bounds, events and refusals."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import dpjax
from dpjax.bayes import sgmcmc
from dpjax.gradients import GradientAndSlots
from dpjax.gradients.clip_bound import total_l2_clip
from dpjax.gradients.clip_rules import AdaptiveClip, ScaledClip
from dpjax.gradients.clipping import clip_and_sum, sum_of_slots
from dpjax.transforms.inspect_state import find_noise

NORMS = jnp.array([0.0, 1e-30, 1e-6, 0.01, 0.3, 0.999, 1.0, 1.001, 2.0, 1e3, 1e18], jnp.float32)
RULES = [
    dpjax.AutomaticClip(1.5),
    dpjax.AutomaticClip(1.5, gamma=0.0),
    dpjax.PSACClip(1.5, r=0.2),
    ScaledClip(1.5, 0.7),
]
ADAPTIVE = [dpjax.QuantileClip(1.0, quantile=0.7, share=0.3), dpjax.SlackClip(1.0, num_slots=5)]


def loss(params: Any, example: Any) -> jax.Array:
    return 0.5 * (example["x"] @ params["w"] + params["b"] - example["y"]) ** 2


PARAMS = {"w": jnp.array([0.5, -1.0, 2.0]), "b": jnp.array(0.1)}


def records(n: int = 16) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3)) * np.exp(rng.normal(size=(n, 1)))
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(rng.normal(size=n), jnp.float32)}


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_contributions_stay_within_the_bound_and_reach_it(rule: Any) -> None:
    contributions = np.asarray(rule.factor(NORMS) * NORMS, np.float64)
    assert contributions.max() <= 1.5 * (1 + 2e-7)
    assert contributions.max() >= 1.5 * (1 - 1e-3)  # large gradients attain the sensitivity


def test_factors_are_those_of_the_sources() -> None:
    norm = np.array([0.02, 0.5, 7.0])
    automatic, psac = dpjax.AutomaticClip(2.0, gamma=0.1), dpjax.PSACClip(2.0, r=0.3)
    np.testing.assert_allclose(automatic.factor(jnp.asarray(norm)), 2 / (norm + 0.1), rtol=1e-6)
    expected = 2 / (norm + 0.3 / (norm + 0.3))
    np.testing.assert_allclose(psac.factor(jnp.asarray(norm)), expected, rtol=1e-6)


def joint_norms(rule: AdaptiveClip, bound: float) -> np.ndarray:
    """Norms of one example's gradient and slots together, in float64."""
    gradient = rule.at(bound).factor(NORMS) * NORMS
    slots = rule.slots(NORMS, jnp.float32(bound))
    return np.hypot(gradient, np.linalg.norm(np.asarray(slots, np.float64), axis=1))


@pytest.mark.parametrize("bound", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("rule", ADAPTIVE, ids=str)
def test_gradient_and_slots_have_norm_one_together(rule: AdaptiveClip, bound: float) -> None:
    norms = joint_norms(rule, bound)
    assert norms.max() <= 1 + 2e-7
    assert norms.max() >= 1 - 1e-6


def test_slots_of_full_weight_beside_the_gradient_exceed_norm_one() -> None:
    """Power of the test above: a count that is not paid for, and slots of a longer side."""

    class Unpaid(dpjax.QuantileClip):
        @property
        def gradient_norm(self) -> float:
            return 1.0

    class Longer(dpjax.SlackClip):
        def slots(self, norms: jax.Array, bound: jax.Array) -> jax.Array:
            return super().slots(norms, bound) * self.num_slots**0.5

    assert joint_norms(Unpaid(1.0, share=0.3), 1.0).max() > 1.1
    assert joint_norms(Longer(1.0, num_slots=5), 1.0).max() > 1.1


@pytest.mark.parametrize("method", ["vmap", "bookkeeping"])
@pytest.mark.parametrize("rule", [*RULES[:3], *ADAPTIVE], ids=str)
def test_clipped_sums_are_those_of_each_example(rule: Any, method: str) -> None:
    """Against one example at a time, in float64; a record moves the sum by at most the bound."""
    data, mask = records(), jnp.arange(16) != 3
    params: Any = PARAMS
    if isinstance(rule, AdaptiveClip):
        params = rule.with_slots(PARAMS, 0.8)
    summed, info = dpjax.clipped_grad(loss, rule, method=method)(params, data, mask)

    expected = 0.0
    for i in range(16):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], data)
        gradient = np.concatenate(
            [np.ravel(g) for g in jax.tree.leaves(jax.grad(loss)(PARAMS, one))]
        )
        norm = jnp.float32([np.linalg.norm(gradient)])
        if isinstance(rule, AdaptiveClip):
            slots = rule.slots(norm, jnp.float32(0.8))[0]
            own = np.concatenate([gradient * rule.at(0.8).factor(norm), slots])
        else:
            own = gradient * rule.factor(norm)
        assert np.linalg.norm(own) <= total_l2_clip(rule) * (1 + 1e-6)
        expected = expected + own * (i != 3)
    found = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(summed)])
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
    assert info.norms.shape == (16,)


@pytest.mark.parametrize("rule", ADAPTIVE, ids=str)
def test_masked_and_nonfinite_examples_have_no_slots(rule: AdaptiveClip) -> None:
    norms = jnp.array([0.1, jnp.nan, jnp.inf, 0.2])
    usable = jnp.array([True, True, True, False])
    slots = sum_of_slots(rule, norms, usable, jnp.float32(1.0))
    np.testing.assert_allclose(slots, rule.slots(norms[:1], jnp.float32(1.0))[0], rtol=1e-4)
    empty = sum_of_slots(rule, norms[:0], usable[:0], jnp.float32(1.0))
    assert not np.any(empty)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [(dpjax.QuantileClip(0.05, quantile=0.3, step_size=0.3), 0.3), (dpjax.SlackClip(0.05), 0.5)],
    ids=str,
)
def test_bounds_find_the_quantile(rule: AdaptiveClip, expected: float) -> None:
    """Without noise, on lognormal norms; the first slot of eight tells norms below 7/8 bounds."""
    norms = jnp.asarray(stats.lognorm(1.0).ppf((np.arange(2000) + 0.5) / 2000), jnp.float32)

    def step(bound: jax.Array, _: None) -> tuple[jax.Array, None]:
        slots = rule.slots(norms, bound).sum(0)
        return rule.next_bound(bound, slots, 2000.0), None

    bound = jax.lax.scan(step, jnp.float32(rule.initial), None, length=400)[0]
    assert abs(float(stats.lognorm(1.0).cdf(float(bound))) - expected) < 0.1


def test_the_divisor_of_the_slots_is_public() -> None:
    """Half of the sums give another bound: a twin that divides by the drawn batch sees no change.

    Of the sums alone and the expected batch size: 3.2 / 0.2 = 16 more examples below than above.
    """
    rule, bound = dpjax.QuantileClip(1.0, step_size=0.2, share=0.01), jnp.float32(1.0)
    whole, half = (rule.next_bound(bound, jnp.array([total]), 64.0) for total in (3.2, 1.6))
    np.testing.assert_allclose([whole, half], np.exp([-0.2 * 16 / 64, -0.2 * 8 / 64]), rtol=1e-5)

    drawn = [rule.next_bound(bound, jnp.array([s]), size) for s, size in [(3.2, 64), (1.6, 32)]]
    np.testing.assert_allclose(drawn[0], drawn[1])


def mechanism(rule: Any, noise: float = 1.0) -> dpjax.SubsampledGaussian:
    return dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(16, 0.5),
        l2_clip=rule,
        noise_multiplier=noise,
        num_steps=20,
        adjacency="zero_out",
    )


@pytest.mark.parametrize("rule", ADAPTIVE, ids=str)
def test_steps_release_gradient_and_slots_with_one_noise(rule: AdaptiveClip) -> None:
    """Noise of the gradient is the bound times the multiplier; that of the slots the multiplier.

    20 steps on records without a gradient, whose noise is read from parameters and bounds; a false
    alarm has probability 1e-6.
    """
    flat = {"w": jnp.zeros(400), "b": jnp.zeros(())}
    step = dpjax.private_step(
        lambda p, x: 0.0 * (p["w"].sum() + p["b"]) * x,
        optax.sgd(1.0),
        mechanism=mechanism(rule, noise=0.5),
        key=jax.random.key(1),
    )
    state, update, noises = step.init(flat), jax.jit(step.update), []
    for _ in range(20):
        bound = float(state.optimizer[1].bound)
        moved, _ = update(state, jnp.ones(16))
        change = np.asarray(moved.params["w"] - state.params["w"], np.float64)
        noises.append(-change * 8.0 * rule.gradient_norm / (bound * 0.5))
        state = moved
    assert update._cache_size() == 1
    assert not np.isnan(state.params["w"]).any()
    squares = np.sum(np.square(noises))
    low, high = stats.chi2(8000).ppf([5e-7, 1 - 5e-7])
    assert low < squares < high
    assert not low < squares * 1.1**2 < high  # power: a tenth more noise is seen
    correlation = np.corrcoef(noises[0], noises[1])[0, 1]
    assert abs(correlation) < 5 / 20


@pytest.mark.parametrize("rule", [*RULES[:3], *ADAPTIVE], ids=str)
def test_the_event_is_that_of_a_fixed_bound(rule: Any) -> None:
    assert mechanism(rule).guarantee.event == mechanism(1.0).guarantee.event
    assert mechanism(rule).first_steps(3).l2_clip == rule


@pytest.mark.parametrize("rule", [dpjax.AutomaticClip(), *ADAPTIVE], ids=str)
def test_optax_chains_state_their_noise(rule: Any) -> None:
    optimizer = dpjax.noisy_sgd(
        0.1, l2_clip=rule, noise_multiplier=1.3, expected_batch_size=8, key=jax.random.key(0)
    )
    state = optimizer.init(PARAMS)
    grads = jax.vmap(jax.grad(loss), (None, 0))(PARAMS, records())
    updates, state = jax.jit(optimizer.update)(grads, state, PARAMS, mask=None)
    assert jax.tree.map(jnp.shape, updates) == jax.tree.map(jnp.shape, PARAMS)
    noise = find_noise(state)
    assert noise.description.noise_multiplier == 1.3
    assert noise.num_releases == 1
    found = dpjax.mechanism_of(state, sampling=dpjax.PoissonSampling(16, 0.5), adjacency="zero_out")
    assert found.sensitivity == total_l2_clip(rule)
    with pytest.raises(TypeError, match="mask"):
        optimizer.update(grads, state, PARAMS)


@pytest.mark.slow
def test_noisy_chain_and_private_step_move_the_bound_alike() -> None:
    """Without noise, on all records: `noisy_sgd` and `private_step` are one algorithm."""
    rule, data = dpjax.QuantileClip(0.5), records()
    planned = dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(16, 1.0),
        l2_clip=rule,
        noise_multiplier=0.0,
        num_steps=5,
        adjacency="zero_out",
    )
    step = dpjax.private_step(loss, optax.sgd(0.1), mechanism=planned, key=jax.random.key(0))
    chain = dpjax.noisy_sgd(
        0.1, l2_clip=rule, noise_multiplier=0.0, expected_batch_size=16, key=jax.random.key(0)
    )
    state, params, own = step.init(PARAMS), PARAMS, chain.init(PARAMS)
    for _ in range(5):
        state, _ = step.update(state, data)
        grads = jax.vmap(jax.grad(loss), (None, 0))(params, data)
        updates, own = chain.update(grads, own, params, mask=None)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(state.params["w"], params["w"], rtol=1e-4)
    np.testing.assert_allclose(state.optimizer[1].bound, own[1].bound, rtol=1e-4)
    assert float(own[1].bound) != 0.5


def test_per_layer_rules_bound_the_total() -> None:
    rules = {"w": dpjax.AutomaticClip(3.0), "b": 4.0}
    assert total_l2_clip(rules) == 5.0
    grads = {"w": jnp.full((1, 3), 1e6), "b": jnp.full((1,), 1e6)}
    summed, _ = clip_and_sum(grads, rules, jnp.ones(1, bool))
    norm = np.linalg.norm(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(summed)]))
    assert 4.999 < norm <= 5.0


def test_certificates_say_how_the_bound_moves() -> None:
    text = str(mechanism(dpjax.QuantileClip(0.3)).certificate(delta=1e-5))
    assert "starts at 0.3 and follows the 0.5 quantile" in " ".join(text.split())
    text = str(mechanism(dpjax.AutomaticClip()).certificate(delta=1e-5))
    assert "normalised" in text


def test_uses_that_need_a_fixed_bound_are_refused() -> None:
    rule = dpjax.QuantileClip(1.0)
    with pytest.raises(ValueError, match="with_slots"):
        dpjax.clipped_grad(loss, rule)(PARAMS, records(), None)
    with pytest.raises(ValueError, match="one for all parameters"):
        total_l2_clip({"w": rule, "b": 1.0})
    with pytest.raises(ValueError, match="noisy_sgd"):
        dpjax.clip_per_example(rule)
    with pytest.raises(ValueError, match="SG-MCMC"):
        sgmcmc.sgld(
            0.1,
            num_examples=16,
            expected_batch_size=8,
            l2_clip=dpjax.AutomaticClip(),
            key=jax.random.key(0),
        )
    with pytest.raises(ValueError, match="correlated"):
        dpjax.add_gaussian_noise(
            noise_multiplier=1.0,
            l2_clip=rule,
            key=jax.random.key(0),
            correlation=dpjax.LambdaCGD(0.5, num_steps=4),
        )
    with pytest.raises(ValueError, match="quantile"):
        dpjax.QuantileClip(1.0, quantile=1.0)
    with pytest.raises(ValueError, match="num_slots"):
        dpjax.SlackClip(1.0, num_slots=1)


def test_a_tree_of_gradient_and_slots_has_the_shape_of_its_sum() -> None:
    tree = dpjax.SlackClip(2.0, num_slots=3).with_slots(PARAMS, 2.0)
    assert isinstance(tree, GradientAndSlots)
    assert tree.slots.tolist() == [2.0, 2.0, 2.0]

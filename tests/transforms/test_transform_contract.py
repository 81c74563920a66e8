"""What optax asks of a transformation, asked of every one of dpjax's."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.inputs import update_of

from dpjax import FixedSizeSampling, ShuffledEpochs, mechanism_of
from dpjax.transforms import AddGaussianNoiseState


def params_of(dtype=jnp.float32):
    return {"w": jnp.arange(6, dtype=dtype).reshape(2, 3), "b": jnp.ones(3, dtype)}


def avals(tree):
    """Shapes, dtypes and weak types: what must not change if nothing is to be compiled again."""
    return jax.tree.map(jax.typeof, tree)


def words(tree):
    """The same tree with the words of its keys, so that leaves can be compared."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)


def assert_close(tree, other):
    """Compiled and not, which rounds differently."""
    chex.assert_trees_all_close(words(tree), words(other), rtol=1e-5, atol=1e-6)


def test_takes_extra_arguments(transformation):
    assert isinstance(transformation, optax.GradientTransformationExtraArgs)
    assert optax.with_extra_args_support(transformation) is transformation


def test_update_shapes(case, transformation, compiled):
    params = params_of()
    state = transformation.init(params)
    chex.assert_trees_all_equal(words(state), words(jax.jit(transformation.init)(params)))
    moved, _ = compiled.update(case.updates(params), state, params)
    assert avals(moved) == avals(params)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(moved))


def test_update_optional_arguments(case, transformation):
    params = params_of()
    updates, state = case.updates(params), transformation.init(params)
    shapes = [
        jax.eval_shape(update_of(transformation), updates, state),
        jax.eval_shape(update_of(transformation), updates, state, params),
        jax.eval_shape(update_of(transformation), updates, state, params=params),
        jax.eval_shape(update_of(transformation), updates, state, params, value=1.0, loss_fn=None),
    ]
    for shape in shapes[1:]:
        assert jax.tree.structure(shape) == jax.tree.structure(shapes[0])
        assert jax.tree.leaves(shape) == jax.tree.leaves(shapes[0])


def test_update_traced_once(case, transformation, compiled):
    params = params_of()
    state = transformation.init(params)
    compiled.update(case.updates(params), state, params)
    before = len(compiled.traces)
    for _ in range(3):
        moved, state = compiled.update(case.updates(params), state, params)
        params = optax.apply_updates(params, moved)
    assert len(compiled.traces) == before


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_state_structure_and_dtypes(case, transformation, dtype):
    params = params_of(dtype)
    state = transformation.init(params)
    updates = case.updates(params)
    moved, first = jax.eval_shape(update_of(transformation), updates, state, params)
    _, second = jax.eval_shape(update_of(transformation), updates, first, params)
    assert jax.tree.structure(state) == jax.tree.structure(first)
    assert jax.tree.leaves(first) == jax.tree.leaves(second)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(first), strict=True):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)
    expected = dtype if case.ends_like_params else jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(moved)} == {np.dtype(expected)}


@pytest.mark.slow
def test_update_in_a_scan(case, transformation, compiled):
    params = params_of()

    def step(update, carry):
        params, state = carry
        moved, state = update(case.updates(params), state, params)
        return optax.apply_updates(params, moved), state

    start = (params, transformation.init(params))
    scan = lambda carry, _: (step(update_of(transformation), carry), None)  # noqa: E731
    scanned, _ = jax.lax.scan(scan, start, length=3)
    looped = start
    for _ in range(3):
        looped = step(compiled.update, looped)
    assert_close(scanned, looped)


@pytest.mark.slow
def test_update_half_precision(case, transformation, compiled):
    """The values are those of single precision, rounded once more."""
    params = params_of(jnp.bfloat16)
    updates = case.updates(params)
    moved, _ = jax.jit(update_of(transformation))(updates, transformation.init(params), params)
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (updates, params))
    expected, _ = compiled.update(wide[0], transformation.init(wide[1]), wide[1])
    for a, b in zip(jax.tree.leaves(moved), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.float32(a), b, rtol=2**-6, atol=2**-8)
    with jax.numpy_dtype_promotion("standard"):  # as apply_updates needs for single precision
        assert optax.apply_updates(params, moved)["w"].dtype == jnp.bfloat16


@pytest.mark.usefixtures("x64")
def test_update_double_precision(case, transformation):
    params = params_of(jnp.float64)
    state = transformation.init(params)
    moved, _ = jax.eval_shape(update_of(transformation), case.updates(params), state, params)
    assert {leaf.dtype for leaf in jax.tree.leaves(moved)} == {np.dtype(float)}


@pytest.mark.slow
def test_update_first_in_a_chain(case, transformation, compiled):
    rest = optax.chain(optax.scale(-0.5), optax.trace(decay=0.9))
    chain = optax.chain(optax.named_chain(("private", transformation), ("rest", rest)))
    params = params_of()
    updates = case.updates(params)
    state, alone = chain.init(params), transformation.init(params)
    moved, (state,) = jax.jit(update_of(chain))(updates, state, params, value=1.0)
    expected, alone = compiled.update(updates, alone, params)
    assert_close(moved, jax.tree.map(lambda leaf: -0.5 * leaf, expected))
    assert_close(state["private"], alone)


@pytest.mark.slow
def test_update_under_vmap(case, compiled):
    """Mapped over models, each with a key of its own: what each would have been alone."""
    keys = jax.random.split(jax.random.key(0), 3)
    models = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, 3 * leaf]), params_of())

    def one_update(update, params, key):
        return update(case.updates(params), case.make(key).init(params), params)

    together = jax.jit(
        jax.vmap(lambda params, key: one_update(update_of(case.make(key)), params, key))
    )(models, keys)
    for i in range(3):
        alone = one_update(
            compiled.update, jax.tree.map(lambda leaf, i=i: leaf[i], models), keys[i]
        )
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], together), alone)


def test_update_any_tree(case, transformation):
    """Lists, tuples, scalars, nothing at all: whatever jax takes for a tree."""
    params = {"w": [jnp.float32(1), (jnp.ones((1, 2)),)], "b": None}
    state = transformation.init(params)
    moved, _ = jax.eval_shape(update_of(transformation), case.updates(params), state, params)
    assert jax.tree.map(jnp.shape, moved) == jax.tree.map(jnp.shape, params)


def test_state_tree_map_params(transformation):
    """`tree_map_params` calls ``init`` with a tree without leaves to find out the structure."""
    state = transformation.init(params_of())
    mapped = optax.tree_utils.tree_map_params(transformation, lambda leaf: leaf, state)
    chex.assert_trees_all_equal(words(mapped), words(state))


def _is_noise(node):
    return isinstance(node, AddGaussianNoiseState)


def test_mechanism_of_state(case, transformation):
    if not case.noisy:
        pytest.skip("nothing is released")
    # The mechanism's own, or one epoch, in which a record takes part once: for correlated noise.
    state = transformation.init(params_of())
    own = [s for s in jax.tree.leaves(state, is_leaf=_is_noise) if _is_noise(s)]
    correlated = any(each.description.correlation is not None for each in own)
    sampling = ShuffledEpochs(40, 4) if correlated else FixedSizeSampling(40, 4)
    found = mechanism_of(state, sampling=sampling, num_steps=3, adjacency="replace_one")
    assert found.num_steps == 3
    assert np.ravel(found.noise_multiplier)[0] == pytest.approx(0.5)

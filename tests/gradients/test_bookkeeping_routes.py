"""Which route each kind of leaf takes, and the reason that is given."""

import jax
import jax.numpy as jnp
import pytest
from helpers import zoo_models
from helpers.bookkeeping_checks import assert_same, routes_of
from helpers.zoo import ZOO, build

import dpjax
from dpjax.gradients.bookkeeping import sums
from dpjax.gradients.bookkeeping.routes import plan_routes
from dpjax.gradients.clipping import clip_factors


def reasons(name):
    """``{path: (route, reason)}`` of an entry of the zoo."""
    explanation = dpjax.explain(*build(name, jnp.float32))
    return {leaf.leaf: (leaf.route.name, leaf.route.reason) for leaf in explanation.leaves}


def of(shapes, loss, *example):
    """The routes of parameters of these shapes; ``example`` are shapes too."""
    params = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    batch = tuple(
        jnp.zeros((2, *shape), jnp.int32 if name == "words" else jnp.float32)
        for name, shape in example
    )
    return routes_of(loss, params, batch)


def dense(p, e):
    return jnp.sum(e[0] @ p["w"] + p.get("b", 0))


def stack(p, e):
    return jnp.sum(jax.lax.scan(lambda h, w: (h @ w, None), e[0], p["w"])[0])


def convolution(p, e):
    layout = ("NHWC", "HWIO", "NHWC")
    return jnp.sum(
        jax.lax.conv_general_dilated(e[0], p["w"], (1, 1), "SAME", dimension_numbers=layout)
    )


@pytest.mark.parametrize(
    ("loss", "shape", "example", "route"),
    [
        (dense, (400, 300), (5, 400), "ghost"),
        (dense, (20, 30), (500, 20), "instantiate"),
        (dense, (1024, 1024), (600, 1024), "sequential"),
        (stack, (4, 64, 64), (30, 64), "ghost"),
        (stack, (4, 64, 64), (400, 64), "instantiate"),
        (stack, (10, 512, 512), (200, 512), "ghost"),
        (stack, (10, 512, 512), (400, 512), "sequential"),
        (convolution, (3, 3, 128, 128), (1, 4, 4, 128), "ghost"),
        (convolution, (3, 3, 3, 16), (1, 32, 32, 3), "instantiate"),
    ],
)
def test_route_of_one_weight(loss, shape, example, route):
    assert of({"w": shape}, loss, ("x", example)) == {"['w']": route}


def test_route_of_a_dense_layer_on_one_vector():
    routes = of({"w": (400, 300), "b": (300,)}, dense, ("x", (400,)))
    assert routes == {"['b']": "instantiate", "['w']": "ghost"}


# Scans over few large layers.


def layers_case(length, *, reverse=False, remat=False):
    """A loss that scans over layers of width 256 and reads what each returns."""

    def layer(h, w):
        h = jnp.tanh(h @ w["w"] + w["b"])
        return h, jnp.sum(h[0] ** 2)

    def loss(p, x):
        each = jax.checkpoint(layer) if remat else layer
        h, squares = jax.lax.scan(each, x, p, reverse=reverse)
        return jnp.sum(h) + squares @ jnp.arange(1.0, length + 1)

    keys = jax.random.split(jax.random.key(3), 3)
    params = {
        "w": 0.05 * jax.random.normal(keys[0], (length, 256, 256)),
        "b": 0.1 * jax.random.normal(keys[1], (length, 256)),
    }
    batch = jax.random.normal(keys[2], (3, 6, 256)).at[1, 0, 0].set(jnp.nan)
    return loss, params, batch


@pytest.mark.parametrize(("length", "parts"), [(8, 8), (9, 1)])
def test_few_large_layers_are_inlined(length, parts):
    loss, params, batch = layers_case(length)
    reason = dpjax.explain(loss, params, batch).leaves[1].route.reason
    assert reason.startswith("8 separate parts" if parts > 1 else "dot_general in a stack of 9")


def test_no_layers_at_all():
    def loss(p, x):
        h, each = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), jnp.sum(h)), x, p)
        return jnp.sum(h) + jnp.sum(each)

    params, batch = jnp.zeros((0, 256, 256)), jnp.ones((2, 3, 256))
    found, info = dpjax.clipped_grad(loss, 1.0)(params, batch, None)
    assert found.shape == (0, 256, 256)
    assert info.norms.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("remat", [False, True], ids=["stored", "remat"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_inlined_layers(reverse, remat):
    """As the reference of each example; entries, and what the scan returns, in their order."""
    loss, params, batch = layers_case(3, reverse=reverse, remat=remat)
    mask = jnp.array([True, True, True])
    clip = {"w": 0.5, "b": 0.2}
    found = jax.jit(dpjax.clipped_grad(loss, clip))(params, batch, mask)
    expected = jax.jit(dpjax.clipped_grad(loss, clip, method="vmap"))(params, batch, mask)
    assert found[1].num_nonfinite == 1
    assert_same(found, expected, 0.01)  # ghost norms are at most 1 % too large
    assert float(jnp.min(jnp.linalg.norm(expected[0]["w"], axis=(1, 2)))) > 0.05


# One pass for norm and sum.


def heads(p, e):
    """Two large layers on tokens, the weights of the second on the left of a product."""
    hidden = jnp.tanh(e[0] @ p["w"])
    return jnp.sum(jnp.tanh(p["head"] @ hidden.T) * e[1]) + jnp.sum(p["b"] * e[0][0, 0])


def heads_case(dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = {"w": (1024, 640), "head": (1200, 640), "b": (3,)}
    params = {
        name: 0.05 * jax.random.normal(key, shape).astype(dtype)
        for key, (name, shape) in zip(keys, shapes.items(), strict=False)
    }
    x, y = jax.random.normal(keys[3], (4, 500, 1024)), jax.random.normal(keys[4], (4, 1200, 500))
    return params, (x.at[1, 0, 0].set(jnp.nan), y * jnp.array([1e-3, 1, 1, 30])[:, None, None])


def test_the_most_expensive_leaf_takes_one_pass():
    """Of two leaves that are computed sequentially; not beyond 512 examples at a time."""
    explanation = dpjax.explain(heads, *heads_case())
    routes = {leaf.leaf: leaf.route for leaf in explanation.leaves}
    assert routes["['w']"].name == routes["['head']"].name == "sequential"
    assert routes["['head']"].reason.endswith("; norm and sum in one pass")
    assert not routes["['w']"].reason.endswith("one pass")

    params, batch = heads_case()
    example = jax.tree.map(lambda x: x[0], batch)
    plan = plan_routes(heads, params, example, 512)
    assert plan.last is not None
    assert plan.blocks[plan.last].block.leaf == 1
    assert plan_routes(heads, params, example, 513).last is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "clip", [2.0, {"b": 1.0, "head": 0.5, "w": 2.0}, dpjax.gradients.AutomaticClip(1.0)], ids=str
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=str)
def test_one_pass_agrees_with_vmap(clip, dtype):
    """One example is not finite, one is masked, two are clipped or not."""
    params, batch = heads_case(dtype)
    mask = jnp.array([True, True, True, False])
    found = dpjax.clipped_grad(heads, clip, method="bookkeeping")(params, batch, mask)
    expected = dpjax.clipped_grad(heads, clip, method="vmap")(params, batch, mask)
    assert_same(found, expected, 2e-5 if dtype == jnp.float32 else 2e-2)


@pytest.mark.slow
def test_power_one_pass_without_the_norms_of_the_other_leaves(monkeypatch):
    params, batch = heads_case()

    def clip_of_last_alone(squares, *args):
        if len(squares["head"]) == 1:  # of one example, in the pass
            squares = squares | {name: 0 * squares[name] for name in ("w", "b")}
        return clip_factors(squares, *args)

    monkeypatch.setattr(sums, "clip_factors", clip_of_last_alone)
    found = dpjax.clipped_grad(heads, 2.0, method="bookkeeping")(params, batch, None)
    expected = dpjax.clipped_grad(heads, 2.0, method="vmap")(params, batch, None)
    with pytest.raises(AssertionError):
        assert_same(found, expected, 2e-5)


@pytest.mark.parametrize("length", [(), (7,), (2, 3)])
def test_route_of_an_embedding(length):
    routes = of(
        {"table": (1000, 16)}, lambda p, e: jnp.sum(jnp.tanh(p["table"][e[0]])), ("words", length)
    )
    assert routes == {"['table']": "ghost"}


def test_route_of_shared_leaves():
    def loss(p, e):
        hidden = jnp.tanh(p["table"][e[0]] @ p["w"]) @ p["w"]
        return jax.nn.logsumexp(hidden @ p["table"].T)

    routes = of({"table": (1000, 64), "w": (64, 64)}, loss, ("words", ()))
    assert routes == {"['table']": "ghost", "['w']": "ghost"}


def test_route_of_joined_axes():
    def loss(p, e):
        joined = jnp.transpose(p["w"], (0, 2, 1)).reshape(3, 2)
        return jnp.sum(jnp.sin(e[0] @ p["w"].reshape(2, 3))) + jnp.sum(jnp.cos(e[0] @ joined.T))

    assert of({"w": (1, 2, 3)}, loss, ("x", (5, 2))) == {"['w']": "instantiate"}


@pytest.mark.slow
def test_explain_reasons_of_vmap():
    start = reasons("scan_over_steps")["['start']"]
    assert start == ("vmap", "the initial state of a scan")
    assert reasons("returned_from_loops")["['w']"] == ("vmap", "returned from scan")
    assert reasons("overlapping_parts")["['rows']"] == ("vmap", "used in parts that overlap")
    even = reasons("branches_of_layers")["['layers']['even']"]
    assert even == ("vmap", "used in cond")  # its branch is the same for all examples
    assert reasons("custom_rules")["['jvp']"] == ("vmap", "used in custom_jvp_call")
    assert reasons("custom_rules_on_the_way")["['inside']"] == ("vmap", "used in custom_vjp_call")
    assert reasons("stopped")["['frozen']"] == ("vmap", "used in stop_gradient")
    assert reasons("products_of_parameters")["['v']"] == ("vmap", "mul of several parameters")
    assert reasons("parameter_is_the_loss")["['loss']"][1] == "returned as the loss"


def test_routes_beside_an_unsupported_leaf():
    found = reasons("custom_rules_on_the_way")
    assert found["['inside']"][0] == "vmap"
    assert found["['layers']"] == ("ghost", "dot_general in a stack of 2, 1 outer product")


@pytest.mark.slow
def test_loops():
    layers = reasons("stacked_layers")
    assert layers["['layers']['b']"][1] == "broadcast_in_dim and mul in a stack of 3"
    assert layers["['layers']['low_rank']"][1].startswith("2 separate parts, one with dot_general")
    assert "dot_general in 3 iterations, 15 outer products" in layers["['every']"][1]
    assert reasons("indexed_stack")["['w']"][1].startswith("3 separate parts")
    nested = reasons("nested_stacks")["['layers']['every']"][1]
    assert nested.startswith("dot_general in 20 iterations in a stack of 2, 20 outer products")
    counted = reasons("counted_loops")["['stack']"]
    assert counted == ("ghost", "dot_general in a stack of 3, 1 outer product")
    decay = reasons("state_space_model")
    assert decay.pop("['layers']['decay']") == ("vmap", "used in exp")
    assert not any(route == "vmap" for route, _ in decay.values())
    for name in ("lstm_by_hand", "nnx_recurrent", "linen_remat_stack", "nnx_remat_stack"):
        assert not any(route == "vmap" for route, _ in reasons(name).values()), name


def test_remat():
    layers = reasons("remat_layers")
    reason = "dot_general in a stack of 3, recomputed as remat asks, 5 outer products"
    assert layers["['layers']['w']"] == ("ghost", reason)
    assert layers["['w']"][1] == "dot_general, recomputed as remat asks, 5 outer products"
    # Uses of the same entries have to be seen together, so they are kept.
    assert "recomputed" not in reasons("remat_in_loops")["['w']"][1]
    assert "recomputed" not in reasons("remat_in_loops")["['layers']['twice']"][1]


def test_explain_microbatch_size_under_remat():
    def loss(w, x):
        return jnp.sum(jax.lax.scan(jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), None)), x, w)[0])

    w, batch = jnp.zeros((8, 32, 32)), jnp.zeros((32, 64, 32))
    stored = dpjax.explain(loss, w, batch)
    assert 1 < stored.microbatch_size < 32
    assert "recomputed" not in stored.leaves[0].route.reason
    last_line = str(stored).splitlines()[-1]
    assert last_line.startswith(f"micro-batches of {stored.microbatch_size} examples")
    recomputed = dpjax.explain(loss, w, batch[:1])
    assert recomputed.microbatch_size is None
    assert "recomputed as remat asks" in recomputed.leaves[0].route.reason


@pytest.mark.slow
def test_routes_of_models():
    """All leaves have a route without per-example gradients but for those that are transformed."""
    transformed = {
        "selective_state_space": {"['log_rate']": "used in exp"},
        "linen_standardized_weights": {
            "['Dense_0']['kernel']": "mul of several parameters",
            "['kernel']": "used in reduce_sum",
        },
    }
    for name, builder in vars(zoo_models).items():
        if ZOO.get(name) is builder:
            found = reasons(name).items()
            by_vmap = {leaf: reason for leaf, (route, reason) in found if route == "vmap"}
            assert by_vmap == transformed.get(name, {}), name


def test_routes_within_calls():
    for name in (
        "nested_calls",
        "remat",
        "mapped_inside",
        "derivative_in_the_loss",
        "meta_learning",
    ):
        assert not any(route == "vmap" for route, _ in reasons(name).values())


def test_routes_of_unused_leaves():
    assert reasons("unused")["['never']"] == ("unused", "the loss does not depend on it")

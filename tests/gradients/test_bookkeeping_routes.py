"""Which route each kind of leaf takes, and the reason that is given."""

import jax
import jax.numpy as jnp
import pytest
from bookkeeping_checks import routes_of
from zoo import build

import dpjax


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


def test_a_dense_layer_on_one_vector_needs_no_gradient():
    routes = of(
        {"w": (400, 300), "b": (300,)}, lambda p, e: jnp.sum(e[0] @ p["w"] + p["b"]), ("x", (400,))
    )
    assert routes == {"['b']": "instantiate", "['w']": "ghost"}


def test_a_dense_layer_on_a_few_tokens_needs_no_gradient():
    routes = of({"w": (400, 300)}, lambda p, e: jnp.sum(e[0] @ p["w"]), ("x", (5, 400)))
    assert routes == {"['w']": "ghost"}


def test_with_many_tokens_instantiating_the_gradient_is_cheaper():
    routes = of({"w": (20, 30)}, lambda p, e: jnp.sum(e[0] @ p["w"]), ("x", (500, 20)))
    assert routes == {"['w']": "instantiate"}


def test_a_large_gradient_is_instantiated_one_example_at_a_time():
    routes = of({"w": (1024, 1024)}, lambda p, e: jnp.sum(e[0] @ p["w"]), ("x", (600, 1024)))
    assert routes == {"['w']": "sequential"}


@pytest.mark.parametrize("length", [(), (7,), (2, 3)])
def test_an_embedding_is_looked_up(length):
    routes = of(
        {"table": (1000, 16)}, lambda p, e: jnp.sum(jnp.tanh(p["table"][e[0]])), ("words", length)
    )
    assert routes == {"['table']": "ghost"}


def test_a_tied_embedding_and_a_shared_layer_are_laid_side_by_side():
    def loss(p, e):
        hidden = jnp.tanh(p["table"][e[0]] @ p["w"]) @ p["w"]
        return jax.nn.logsumexp(hidden @ p["table"].T)

    routes = of({"table": (1000, 64), "w": (64, 64)}, loss, ("words", ()))
    assert routes == {"['table']": "ghost", "['w']": "ghost"}


def test_a_convolution_on_a_large_image_and_on_a_small_one():
    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=NHWC)

    NHWC = ("NHWC", "HWIO", "NHWC")
    shapes = {"k": (3, 3, 128, 128)}
    loss = lambda p, e: jnp.sum(convolve(e[0], p["k"]))  # noqa: E731
    assert of(shapes, loss, ("x", (1, 4, 4, 128))) == {"['k']": "ghost"}
    shapes = {"k": (3, 3, 3, 16)}
    assert of(shapes, loss, ("x", (1, 32, 32, 3))) == {"['k']": "instantiate"}


def test_explain_gives_the_reason_for_vmap():
    recurrent = reasons("scan_over_steps")["['recurrent']"]
    assert recurrent == ("vmap", "scan of several parameters")
    assert reasons("branches")["['a']"] == ("vmap", "cond of several parameters")
    assert reasons("custom_rules")["['jvp']"] == ("vmap", "used in custom_jvp_call")
    assert reasons("stopped")["['frozen']"] == ("vmap", "used in stop_gradient")
    assert reasons("products_of_parameters")["['v']"] == ("vmap", "mul of several parameters")
    assert reasons("parameter_is_the_loss")["['loss']"][1] == "returned as the loss"


def test_an_unsupported_leaf_leaves_the_others_their_routes():
    found = reasons("lstm_by_hand")
    assert found["['hidden']"] == ("vmap", "used in scan")
    assert found["['into']"][0] != "vmap"


def test_plain_calls_are_looked_into():
    for name in (
        "nested_calls",
        "remat",
        "mapped_inside",
        "derivative_in_the_loss",
        "meta_learning",
    ):
        assert not any(route == "vmap" for route, _ in reasons(name).values())


def test_unused_leaves():
    assert reasons("unused")["['never']"] == ("unused", "the loss does not depend on it")

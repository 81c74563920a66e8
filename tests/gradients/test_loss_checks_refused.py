"""Losses without a per-example gradient: each must be refused when it is traced, in plain words."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from dpjax import clipped_grad
from dpjax.gradients import loss_checks
from dpjax.gradients.loss_checks import check_loss, check_params

pytestmark = pytest.mark.usefixtures("strict_numerics")

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (4, 5))
IMAGES = jax.random.normal(KEY, (4, 6, 6, 3))
W = jnp.ones((5, 4))
BATCH_AXIS = r"^loss_fn must see one example .* normalises over the batch axis .* GroupNorm or Lay"


class TestWhatIsNoLoss:
    @pytest.mark.parametrize(
        ("loss", "got"),
        [
            (lambda w, x: x @ w, r"float32\[4\]"),
            (lambda w, x: (x @ w).sum(keepdims=True), r"float32\[1\]"),
            (lambda w, x: ((x @ w).sum(), x), r"float32\[\], float32\[5\]"),
            (lambda w, x: None, "nothing"),
            (lambda w, x: jnp.argmax(x @ w), r"int32\[\]"),
            (lambda w, x: (x @ w).sum().astype(jnp.complex64), r"complex64\[\]"),
        ],
    )
    def test_loss_must_be_one_real_number(self, loss, got):
        with pytest.raises(
            ValueError, match=rf"^loss_fn must return one float scalar .* got {got}"
        ):
            clipped_grad(loss, 1.0)(W, X)

    @pytest.mark.parametrize("dtype", [jnp.int32, jnp.bool_, jnp.complex64])
    def test_check_params_dtypes(self, dtype):
        params = {"w": W, "steps": {"n": jnp.ones(2, dtype)}}
        with pytest.raises(
            ValueError, match=rf"params\['steps'\]\['n'\] has dtype {dtype.__name__}"
        ):
            check_params(params)

    @pytest.mark.parametrize("params", [{}, None, []])
    def test_check_params_empty(self, params):
        with pytest.raises(ValueError, match=r"^params must be a tree with at least one float arr"):
            check_params(params)

    def test_errors_of_the_loss_itself(self):
        def loss(w, x):
            raise NameError("name 'accuracy' is not defined")

        with pytest.raises(NameError, match="accuracy"):
            check_loss(loss, W, X)


class LinenNet(nn.Module):
    """Batch normalisation in each of the three ways to say how it is used."""

    frozen: bool
    said: str

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4)(x)
        if self.said == "when built":
            return nn.BatchNorm(use_running_average=self.frozen)(x)
        if self.said == "by name":
            return nn.BatchNorm()(x, use_running_average=self.frozen)
        return nn.BatchNorm()(x, self.frozen)


@pytest.mark.parametrize("said", ["when built", "by name", "by place"])
@pytest.mark.parametrize("batched", [True, False], ids=["x[None]", "x"])
class TestLinenBatchNorm:
    @staticmethod
    def loss(said, batched, frozen, **options):
        variables = LinenNet(True, said).init(KEY, X)

        def loss(params, x):
            inputs = {"params": params, "batch_stats": variables["batch_stats"]}
            out = LinenNet(frozen, said).apply(inputs, x[None] if batched else x, **options)
            return jnp.sum((out[0] if options else out) ** 2)

        return loss, variables["params"]

    @pytest.mark.parametrize("options", [{"mutable": ["batch_stats"]}, {}], ids=str)
    def test_training_mode_refused(self, said, batched, options):
        loss, params = self.loss(said, batched, False, **options)
        with pytest.raises(ValueError, match=r"flax\.linen\.BatchNorm updates batch_stats"):
            check_loss(loss, params, X)

    def test_fixed_statistics_accepted(self, said, batched):
        check_loss(*self.loss(said, batched, True), X)


def test_batch_statistics_among_the_parameters_of_linen():
    variables = LinenNet(True, "when built").init(KEY, X)
    with pytest.raises(ValueError, match=r"params\['batch_stats'\].* is a batch statistic"):
        check_params(variables)


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(5, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return jnp.sum(self.norm(self.linear(x)) ** 2)


@pytest.mark.parametrize("copy", [False, True], ids=["merge", "merge copy=True"])
@pytest.mark.parametrize("batched", [True, False], ids=["x[None]", "x"])
class TestNnxBatchNorm:
    @staticmethod
    def loss(copy, batched, train):
        model = NnxNet(nnx.Rngs(0))
        (model.train if train else model.eval)()
        graph, params, rest = nnx.split(model, nnx.Param, ...)

        def loss(params, x):
            return nnx.merge(graph, params, rest, copy=copy)(x[None] if batched else x)

        return loss, params

    def test_training_mode_refused(self, copy, batched):
        with pytest.raises(ValueError, match=BATCH_AXIS):
            check_loss(*self.loss(copy, batched, train=True), X)

    def test_evaluation_mode_accepted(self, copy, batched):
        check_loss(*self.loss(copy, batched, train=False), X)


def test_batch_statistics_among_the_parameters_of_nnx():
    state = nnx.state(NnxNet(nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"params.*norm.* is a batch statistic: .* mix examples"):
        check_params(state)


def normalise(x, axis):
    mean = jnp.mean(x, axis, keepdims=True)
    return (x - mean) / jnp.sqrt(jnp.var(x, axis, keepdims=True) + 1e-5)


@jax.custom_jvp
def with_own_jvp(x):
    return normalise(x, 0)


with_own_jvp.defjvp(lambda primals, tangents: (with_own_jvp(*primals), tangents[0]))


@jax.custom_vjp
def with_own_vjp(x):
    return normalise(x, 0)


with_own_vjp.defvjp(lambda x: (with_own_vjp(x), None), lambda _, g: (g,))


def in_a_cond(x):
    return jax.lax.cond(x[0, 0] > 0, lambda x: normalise(x, 0), lambda x: x, x)


def in_a_switch(x):
    return jax.lax.switch(1, [jnp.sin, lambda x: normalise(x, 0), jnp.cos], x)


def in_a_scan(x):
    return jax.lax.scan(lambda carry, _: (normalise(carry, 0), None), x, length=2)[0]


def over_the_inputs_of_a_scan(x):
    def step(carry, x):
        return carry + normalise(x, 0), None

    return jax.lax.scan(step, jnp.zeros_like(x), x[None])[0]


def in_a_while(x):
    return jax.lax.while_loop(lambda c: jnp.sum(c) < 1, lambda c: normalise(c, 0), x)


NORMALISATIONS = {
    "plain": lambda x: normalise(x, 0),
    "negative axis": lambda x: normalise(x, -2),
    "mean alone": lambda x: x - x.mean(0),
    "scale alone": lambda x: x / jnp.sqrt(jnp.mean(x * x, 0)),
    "largest": lambda x: x / jnp.max(jnp.abs(x), 0),
    "fast variance": lambda x: (x - x.mean(0)) * jax.lax.rsqrt((x**2).mean(0) - x.mean(0) ** 2 + 1),
    "affine": lambda x: 2 * normalise(x, 0) + 1,
    "of an activation": lambda x: normalise(jax.nn.relu(x) * 3, 0),
    "jax.nn.standardize": lambda x: jax.nn.standardize(x, axis=0),
    "jit": jax.jit(lambda x: normalise(x, 0)),
    "jit in jit": jax.jit(lambda x: jnp.sin(jax.jit(normalise, static_argnums=1)(x, 0))),
    "mean and difference in two jits": lambda x: x - jax.jit(lambda x: x.mean(0))(x),
    "remat": jax.checkpoint(lambda x: normalise(x, 0)),
    "custom_jvp": with_own_jvp,
    "custom_vjp": with_own_vjp,
    "cond": in_a_cond,
    "switch": in_a_switch,
    "scan": in_a_scan,
    "inputs of a scan": over_the_inputs_of_a_scan,
    "while": in_a_while,
    "vmap over features": jax.vmap(lambda x: x - x.mean(0), 1, 1),
}


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_batch_normalisation_by_hand(name):
    """Under the standard promotion of ranks, as most users have it."""
    with (
        jax.numpy_rank_promotion("allow"),
        pytest.raises(ValueError, match=BATCH_AXIS),
    ):
        check_loss(lambda w, x: jnp.sum(NORMALISATIONS[name](x[None] @ w) ** 2), W, X)


@pytest.mark.parametrize("axes", [0, (0, 1, 2), (0, 1), (0, 3)], ids=str)
def test_batch_normalisation_of_images_by_hand(axes):
    with pytest.raises(ValueError, match=BATCH_AXIS):
        check_loss(lambda w, x: jnp.sum(w[0, 0] * normalise(x[None], axes)), W, IMAGES)


def test_normalisation_over_no_axis():
    """What batch normalisation over all axes but the last does to a vector: it removes it."""
    with pytest.raises(ValueError, match=BATCH_AXIS):
        check_loss(lambda w, x: jnp.sum(normalise(x @ w, ())), W, X)


COLLECTIVES = {
    "psum": lambda x: jax.lax.psum(x, "i"),
    "pmean": lambda x: jax.lax.pmean(x, "i"),
    "pmax": lambda x: jax.lax.pmax(jax.lax.stop_gradient(x), "i"),
    "all_gather": lambda x: jax.lax.all_gather(x, "i"),
    "ppermute": lambda x: jax.lax.ppermute(x, "i", [(0, 1), (1, 0)]),
    "all_to_all": lambda x: jax.lax.all_to_all(x.reshape(2, 2), "i", 0, 0),
    "psum_scatter": lambda x: jax.lax.psum_scatter(x.reshape(2, 2), "i"),
    "psum in jit": lambda x: jax.jit(lambda x: jax.lax.psum(x, "i"))(x),
    "psum in scan": lambda x: jax.lax.scan(lambda c, x: (c, jax.lax.psum(x, "i")), 0.0, x)[1],
    "psum in cond": lambda x: jax.lax.cond(
        x[0] > 0, lambda: jax.lax.psum(x, "i"), lambda: jax.lax.psum(2 * x, "i")
    ),
}
SEES_ONE = r"^loss_fn must see one example at a time"


@pytest.mark.parametrize("name", COLLECTIVES)
class TestCollectives:
    @staticmethod
    def loss(name):
        return lambda w, x: jnp.sum(COLLECTIVES[name](x @ w))

    def test_unbound_axis(self, name):
        with pytest.raises(
            ValueError, match=rf"{SEES_ONE}: .*unbound axis name: i.*\(a collective"
        ):
            check_loss(self.loss(name), W, X)

    def test_axis_of_a_vmap(self, name):
        with pytest.raises(
            ValueError, match=rf"{SEES_ONE}.* calls the collective p?(sum|a|red|max|p)"
        ):
            jax.vmap(lambda b: check_loss(self.loss(name), W, b), axis_name="i")(jnp.stack([X, X]))

    @pytest.mark.parametrize("check_vma", [True, False])
    def test_inside_shard_map(self, name, check_vma):
        mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = jax.sharding.PartitionSpec
        compute = jax.shard_map(
            lambda w, b: clipped_grad(self.loss(name), 1.0)(w, b)[0],
            mesh=mesh,
            in_specs=(spec(), spec("i")),
            out_specs=spec("i"),
            check_vma=check_vma,
        )
        with pytest.raises(ValueError, match=rf"{SEES_ONE}.* calls the collective"):
            compute(W, X)


def centred(x):
    """Minus the mean of the batch, if there is one."""
    return x - x.mean(0) if x.ndim > 1 else x


def on_the_host(x, vmap_method):
    """A callback that sees what `jax.vmap` passes to it; it has no derivative."""
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    host = lambda value: np.asarray(centred(np.asarray(value)), np.float32)  # noqa: E731
    return jax.pure_callback(host, shape, jax.lax.stop_gradient(x), vmap_method=vmap_method)


@jax.custom_batching.custom_vmap
def with_own_vmap(x):
    return x


with_own_vmap.def_vmap(lambda size, batched, x: (centred(x), True))


def own_vjp(forward, backward):
    """A function that looks like the identity until it is differentiated."""

    @jax.custom_vjp
    def identity(x):
        return x

    identity.defvjp(lambda x: (forward(x), x), lambda x, g: (g * backward(x),))
    return identity


@jax.custom_jvp
def own_jvp(x):
    return x


own_jvp.defjvp(lambda primals, tangents: (primals[0], tangents[0] * with_own_vmap(primals[0])))


def scanned(x):
    step = lambda carry, _: (0.5 * on_the_host(carry, "broadcast_all"), None)  # noqa: E731
    return jax.lax.scan(step, x, None, length=2)[0]


WHOLE_BATCH = {
    "broadcast_all": lambda x: on_the_host(x, "broadcast_all"),
    "expand_dims": lambda x: on_the_host(x, "expand_dims"),
    "legacy_vectorized": lambda x: on_the_host(x, "legacy_vectorized"),
    "custom_vmap": lambda x: with_own_vmap(jax.lax.stop_gradient(x)),
    "in jit": jax.jit(lambda x: on_the_host(x, "broadcast_all")),
    "in scan": scanned,
    "in cond": lambda x: jax.lax.cond(
        x[0] > 9, lambda x: x, lambda x: on_the_host(x, "broadcast_all"), x
    ),
    "in remat": jax.checkpoint(lambda x: on_the_host(x, "broadcast_all")),
    "in the forward pass of a custom_vjp": own_vjp(
        lambda x: on_the_host(x, "broadcast_all"), jnp.ones_like
    ),
    "in the backward pass of a custom_vjp": own_vjp(
        lambda x: x, lambda x: on_the_host(x, "broadcast_all")
    ),
    "custom_vmap in a custom_jvp": own_jvp,
    "in a vmap over records": lambda x: jax.vmap(lambda x: on_the_host(x, "broadcast_all"))(
        x[None]
    ).sum(0),
}


def loss_of_batch(name):
    """Its gradient is ``w`` times that of the function and its value: both may see the batch."""
    return lambda w, x: jnp.sum(w[0] * x) + jnp.sum(WHOLE_BATCH[name](w[0] * x) * w[1])


def largest_move(loss):
    """How far replacing one record moves the sum of gradients clipped to one, without checks."""
    params, batch = jnp.ones((2, 5)), jnp.concatenate([X, X + 1, X + 2])

    def clipped_sum(batch):
        grads = jax.vmap(jax.grad(loss), (None, 0))(params, batch).reshape(len(batch), -1)
        norms = jnp.linalg.norm(grads, axis=1, keepdims=True)
        return jnp.sum(grads / jnp.maximum(norms, 1), 0)

    compute = jax.jit(clipped_sum)
    return np.linalg.norm(compute(batch) - compute(batch.at[0].set(1e4 * jnp.ones(5))))


@pytest.mark.parametrize("name", WHOLE_BATCH)
class TestWhatSeesTheWholeBatch:
    def test_whole_batch_refused(self, name):
        words = rf"{SEES_ONE}, but (pure_callback\(vmap_method=|jax\.custom_batching\.custom_vmap)"
        for loss in (loss_of_batch(name), jax.jit(loss_of_batch(name))):
            with pytest.raises(ValueError, match=words):
                clipped_grad(loss, 1.0)(jnp.ones((2, 5)), X)

    def test_power_whole_batch_moves_the_sum(self, name):
        if name == "in a vmap over records":
            pytest.skip("it mixes the records of a unit, which are one of its records here")
        with jax.numpy_rank_promotion("allow"):
            assert largest_move(loss_of_batch(name)) > 2.1


@pytest.mark.parametrize("io", [False, True], ids=["pure_callback", "io_callback"])
def test_sequential_callbacks_accepted(io):
    """The host function subtracts the mean of a batch, if it gets one: it does not."""

    def loss(w, x):
        host = lambda value: np.asarray(centred(np.asarray(value)), np.float32)  # noqa: E731
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        value = (
            jax.experimental.io_callback(host, shape, x)
            if io
            else jax.pure_callback(host, shape, x, vmap_method="sequential")
        )
        return jnp.sum(w * value)

    for method in ("vmap", "bookkeeping"):
        clipped, _ = clipped_grad(loss, 1e3, method=method)(jnp.ones(5), X)
        np.testing.assert_allclose(clipped, X.sum(0), rtol=1e-3)


def primitive_with_rule(name, rule):
    """The identity as a primitive outside of JAX, with a batching rule of its own."""
    primitive = Primitive(name)
    primitive.def_impl(lambda x: x)
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, mlir.lower_fun(lambda x: x, multiple_results=False))
    ad.deflinear2(primitive, lambda cotangent, x: (primitive.bind(cotangent),))

    def batch(args, dims):
        (x,), (axis,) = args, dims
        return primitive.bind(rule(jnp.moveaxis(x, axis, 0))), 0

    batching.primitive_batchers[primitive] = batch
    return primitive


CENTRING = primitive_with_rule("centring", centred)
APART = primitive_with_rule("apart", lambda x: x)
OF_LENGTH = primitive_with_rule("of_length", lambda x: x * (len(x) / 8))


class TestPrimitivesWithOtherBatchingRules:
    """Synthetic examples in a batch are compared with each by itself; no data are used."""

    @staticmethod
    def loss(primitive):
        return lambda w, x: jnp.sum(jnp.sin(primitive.bind(w * x)))

    @pytest.mark.parametrize("primitive", [CENTRING, OF_LENGTH], ids=str)
    @pytest.mark.parametrize("jit", [False, True], ids=["", "jit"])
    def test_mixing_primitives_refused(self, primitive, jit):
        compute = clipped_grad(self.loss(primitive), 1.0)
        words = rf"{SEES_ONE}, but on synthetic batches .* it has the primitives {primitive}"
        with jax.numpy_rank_promotion("allow"), pytest.raises(ValueError, match=words):
            (jax.jit(compute) if jit else compute)(jnp.ones(5), X)

    @pytest.mark.parametrize("jit", [False, True], ids=["", "jit"])
    def test_other_primitives_accepted(self, jit):
        compute = clipped_grad(self.loss(APART), 1e3)
        clipped, _ = (jax.jit(compute) if jit else compute)(jnp.ones(5), X)
        np.testing.assert_allclose(clipped, jnp.sum(X * jnp.cos(X), 0), rtol=1e-3)

    def test_errors_on_some_synthetic_examples(self):
        def loss(w, x):
            x = eqx.error_if(x, jnp.any(jnp.abs(x) > 100), "x must be at most 100")
            return jnp.sum(w * x)

        clipped, _ = clipped_grad(loss, 1e3)(jnp.ones(5), X)
        np.testing.assert_allclose(clipped, X.sum(0), rtol=1e-3)

    def test_incomparable_primitives_refused(self):
        def compute(scale):
            loss = lambda w, x: jnp.sum(APART.bind(w * x * scale))  # noqa: E731
            return clipped_grad(loss, 1.0)(jnp.ones(5), X)[0]

        compute(2.0)
        with pytest.raises(ValueError, match=r"apart, which .* cannot be checked on synthetic"):
            jax.jit(compute)(2.0)


def test_losses_of_jax_not_compared(monkeypatch):
    """The comparison costs a compilation: it is for batching rules that are not JAX's."""
    monkeypatch.setattr(loss_checks, "synthetic_batches", None)
    check_loss(lambda w, x: jnp.sum(jax.nn.relu(x @ w)) + jax.random.normal(KEY), W, X)
    check_loss(lambda w, x: jax.lax.platform_dependent(w[0, 0], default=jnp.sin), W, X)
    check_loss(lambda w, x: sum(part.sum() for part in jnp.split(w, 2, 1)), W, X)
    with pytest.raises(TypeError, match="NoneType"):
        check_loss(TestPrimitivesWithOtherBatchingRules.loss(APART), jnp.ones(5), X)


def test_refusal_leaves_no_interception():
    """What was refused did not leave the interception of flax's modules behind."""
    loss, params = TestLinenBatchNorm.loss("by name", True, False, mutable=["batch_stats"])
    with pytest.raises(ValueError, match="BatchNorm"):
        check_loss(loss, params, X)
    assert np.isfinite(loss(params, X[0]))

"""Losses without a per-example gradient are refused when traced; those that look alike are not."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import hijax
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


def notes_of(error):
    """Returns the notes that dpjax added to an error; JAX adds one of its own."""
    notes = getattr(error, "__notes__", [])
    return "".join(note for note in notes if "JAX has removed its" not in note)


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
            clipped_grad(loss, 1.0)(W, X, None)

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

    def test_error_of_a_loss_of_batches_shows_the_shapes_of_one_example(self):
        """A module with a batch axis flattens the first axis of an image, as in flax's tutorial."""

        def loss(w, example):
            x, y = example
            return jnp.mean((x.reshape(x.shape[0], -1) @ w - y) ** 2)

        batch = (IMAGES, jnp.ones(len(IMAGES)))
        with pytest.raises(TypeError, match="dot_general") as caught:
            clipped_grad(loss, 1.0)(jnp.ones(108), batch, None)
        note = notes_of(caught.value)
        assert note == (
            "loss_fn was called on ONE example, without the batch axis: example[0]: float32[6, 6,"
            " 3], example[1]: float32[]. A module that expects a batch takes x[None], a batch of"
            " one, as in model(x[None])[0]."
        )
        clipped_grad(lambda w, e: loss(w, (e[0][None], e[1][None])), 1.0)(
            jnp.ones(108), batch, None
        )

    def test_note_of_many_arrays_is_short(self):
        with pytest.raises(KeyError) as caught:
            clipped_grad(lambda w, x: x["label"], 1.0)(W, {str(i): X for i in range(20)}, None)
        assert "example['0']: float32[5]" in notes_of(caught.value)
        assert "and 12 more. A module" in notes_of(caught.value)

    def test_refusals_of_dpjax_have_no_note(self):
        with pytest.raises(ValueError, match=r"^loss_fn must return") as caught:
            clipped_grad(lambda w, x: x, 1.0)(W, X, None)
        assert notes_of(caught.value) == ""

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
            lambda w, b: clipped_grad(self.loss(name), 1.0)(w, b, None)[0],
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
                clipped_grad(loss, 1.0)(jnp.ones((2, 5)), X, None)

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
        clipped, _ = clipped_grad(loss, 1e3, method=method)(jnp.ones(5), X, None)
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


class Centring(getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive):
    """The identity as a class with a batching rule that subtracts the mean of the batch."""

    def __init__(self, x):
        self.in_avals, self.out_aval, self.params = (jax.typeof(x),), jax.typeof(x), {}
        super().__init__()

    def expand(self, x):
        return x

    def batch(self, _, args, dims):
        return centred(jnp.moveaxis(args[0], dims[0], 0)), 0

    def vjp_fwd(self, _, x):
        return Centring(x)(x), None

    def vjp_bwd_retval(self, _, cotangent):
        return (cotangent,)


class TestPrimitivesWithOtherBatchingRules:
    """Synthetic examples in a batch are compared with each by itself; no data are used."""

    @staticmethod
    def loss(primitive):
        return lambda w, x: jnp.sum(jnp.sin(primitive.bind(w * x)))

    @pytest.mark.slow
    @pytest.mark.parametrize("primitive", [CENTRING, OF_LENGTH], ids=str)
    @pytest.mark.parametrize("jit", [False, True], ids=["", "jit"])
    def test_mixing_primitives_refused(self, primitive, jit):
        compute = clipped_grad(self.loss(primitive), 1.0)
        words = rf"{SEES_ONE}, but on synthetic batches .* it has the primitives {primitive}"
        with jax.numpy_rank_promotion("allow"), pytest.raises(ValueError, match=words):
            (jax.jit(compute) if jit else compute)(jnp.ones(5), X, None)

    @pytest.mark.slow
    def test_class_with_mixing_rule_refused(self):
        compute = clipped_grad(lambda w, x: jnp.sum(jnp.sin(Centring(x)(x)) * w), 1.0)
        with pytest.raises(ValueError, match="has the primitives call_hi_primitive"):
            compute(jnp.ones(5), X, None)

    @pytest.mark.slow
    @pytest.mark.parametrize("jit", [False, True], ids=["", "jit"])
    def test_other_primitives_accepted(self, jit):
        compute = clipped_grad(self.loss(APART), 1e3)
        clipped, _ = (jax.jit(compute) if jit else compute)(jnp.ones(5), X, None)
        np.testing.assert_allclose(clipped, jnp.sum(X * jnp.cos(X), 0), rtol=1e-3)

    def test_errors_on_some_synthetic_examples(self):
        def loss(w, x):
            x = eqx.error_if(x, jnp.any(jnp.abs(x) > 100), "x must be at most 100")
            return jnp.sum(w * x)

        clipped, _ = clipped_grad(loss, 1e3)(jnp.ones(5), X, None)
        np.testing.assert_allclose(clipped, X.sum(0), rtol=1e-3)

    def test_incomparable_primitives_refused(self):
        def compute(scale):
            loss = lambda w, x: jnp.sum(APART.bind(w * x * scale))  # noqa: E731
            return clipped_grad(loss, 1.0)(jnp.ones(5), X, None)[0]

        compute(2.0)
        with pytest.raises(ValueError, match=r"apart, which .* cannot be checked on synthetic"):
            jax.jit(compute)(2.0)


def test_losses_of_jax_not_compared(monkeypatch):
    """The comparison costs a compilation: it is for batching rules that are not JAX's."""
    monkeypatch.setattr(loss_checks, "synthetic_batches", None)
    check_loss(lambda w, x: jnp.sum(jax.nn.relu(x @ w)) + jax.random.normal(KEY), W, X)
    check_loss(lambda w, x: jax.lax.platform_dependent(w[0, 0], default=jnp.sin), W, X)
    check_loss(lambda w, x: sum(part.sum() for part in jnp.split(w, 2, 1)), W, X)
    check_loss(lambda w, x: jnp.sum(w[jnp.tril_indices(2)]) + jnp.sum(x), W, X)  # jnp.nonzero
    with pytest.raises(TypeError, match="NoneType"):
        check_loss(TestPrimitivesWithOtherBatchingRules.loss(APART), jnp.ones(5), X)


@pytest.mark.slow
def test_refusal_leaves_no_interception():
    """What was refused did not leave the interception of flax's modules behind."""
    loss, params = TestLinenBatchNorm.loss("by name", True, False, mutable=["batch_stats"])
    with pytest.raises(ValueError, match="BatchNorm"):
        check_loss(loss, params, X)
    assert np.isfinite(loss(params, X[0]))


# Losses that look like mixing examples and do not.

ROWS = IMAGES[:, :1]  # one pixel high
PIXELS = IMAGES[:, :1, :1]
TOKENS = jax.random.normal(KEY, (4, 3, 4))
TOKEN = TOKENS[:, :1]


def accepts(module, batch, batched):
    """Checks a linen module with a loss that reaches all of its parameters."""

    def inputs(x):
        return x[None] if batched else x

    params = jax.eval_shape(lambda x: module.init(KEY, inputs(x)).get("params", {}), batch[0])

    def loss(params, x):
        out = module.apply({"params": params["module"]}, inputs(x))
        return jnp.sum(out**2) + params["one"]

    check_loss(loss, {"module": params, "one": jnp.float32(1)}, batch)


class Normalised(nn.Module):
    norm: nn.Module

    @nn.compact
    def __call__(self, x):
        return self.norm(nn.Dense(6)(x))


NORMS = {
    "LayerNorm": nn.LayerNorm(),
    "RMSNorm": nn.RMSNorm(),
    "GroupNorm of 2 groups": nn.GroupNorm(num_groups=2),
    "GroupNorm of 1 group": nn.GroupNorm(num_groups=1),
    "GroupNorm of groups of 1": nn.GroupNorm(num_groups=None, group_size=1),
    "InstanceNorm": nn.InstanceNorm(),
    "WeightNorm": nn.WeightNorm(nn.Dense(3)),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("batched", [True, False], ids=["x[None]", "x"])
class TestNormsOfOneExample:
    @pytest.mark.parametrize("batch", [IMAGES, ROWS], ids=["images", "rows"])
    def test_of_images(self, name, batched, batch):
        accepts(Normalised(NORMS[name]), batch, batched)

    def test_of_vectors(self, name, batched):
        if name == "InstanceNorm":
            pytest.skip("InstanceNorm of a vector has no axis to normalise over")
        accepts(Normalised(NORMS[name]), X, batched)

    def test_of_tokens(self, name, batched):
        if name == "InstanceNorm" and not batched:
            pytest.skip(
                "without a batch axis InstanceNorm takes tokens for examples, and is refused"
            )
        for batch in (TOKENS, TOKEN):
            accepts(Normalised(NORMS[name]), batch, batched)


@pytest.mark.parametrize("norm", [nnx.LayerNorm, nnx.RMSNorm])
@pytest.mark.parametrize("batched", [True, False], ids=["x[None]", "x"])
def test_norms_of_nnx(norm, batched):
    graph, params = nnx.split(norm(5, rngs=nnx.Rngs(0)))

    def loss(params, x):
        return jnp.sum(nnx.merge(graph, params)(x[None] if batched else x) ** 2)

    check_loss(loss, params, X)


class SqueezeExcite(nn.Module):
    @nn.compact
    def __call__(self, x):
        squeezed = nn.relu(nn.Dense(2)(x.mean((-3, -2), keepdims=True)))
        return x * nn.sigmoid(nn.Dense(3)(squeezed))


@pytest.mark.parametrize("batched", [True, False], ids=["x[None]", "x"])
class TestNetworks:
    @pytest.mark.parametrize("batch", [IMAGES, ROWS, PIXELS], ids=["images", "rows", "pixels"])
    def test_squeeze_and_excite(self, batch, batched):
        accepts(SqueezeExcite(), batch, batched)

    @pytest.mark.parametrize("heads", [1, 2])
    @pytest.mark.parametrize("batch", [TOKENS, TOKEN], ids=["tokens", "token"])
    def test_attention(self, heads, batch, batched):
        accepts(nn.MultiHeadDotProductAttention(heads, qkv_features=4), batch, batched)

    @pytest.mark.parametrize("cell", [nn.LSTMCell, nn.OptimizedLSTMCell, nn.GRUCell])
    @pytest.mark.parametrize("batch", [TOKENS, TOKEN], ids=["tokens", "token"])
    def test_recurrent(self, cell, batch, batched):
        accepts(nn.RNN(cell(3)), batch, batched)

    def test_convolutions(self, batched):
        accepts(nn.Conv(4, (3, 3)), IMAGES, batched)
        accepts(nn.Conv(4, (1, 1)), PIXELS, batched)


def attention_by_hand(w, x):
    scores = (x @ w) @ (x @ w).T
    return jnp.sum((jax.nn.softmax(scores) @ x) ** 2)


@pytest.mark.parametrize("batch", [TOKENS, TOKEN], ids=["tokens", "token"])
def test_attention_of_tokens(batch):
    check_loss(attention_by_hand, jnp.ones((4, 2)), batch)


def test_dot_product_attention_of_one_token():
    def loss(w, x):
        heads = (x @ w)[None, :, None]
        return jnp.sum(jax.nn.dot_product_attention(heads, heads, heads) ** 2)

    check_loss(loss, jnp.ones((4, 2)), TOKEN)


def standardised(x):
    return (x - x.mean()) / x.std()


LOSSES = {
    "mean": lambda w, x: jnp.mean((x[None] @ w) ** 2),
    "mean of a batch of one, then of outputs": lambda w, x: jnp.mean(
        jnp.mean((x[None] @ w) ** 2, 0)
    ),
    "mean of outputs, then of a batch of one": lambda w, x: jnp.mean(
        jnp.mean((x[None] @ w) ** 2, 1)
    ),
    "mean over a target": lambda w, x: jnp.mean((x[None] @ w - 1).mean(0) ** 2),
    "cross entropy": lambda w, x: -jax.nn.log_softmax(x[None] @ w).mean(),
    "masked mean": lambda w, x: jnp.sum((x[None] @ w) * (x[None, 1:] > 0)) / jnp.sum(x[None] > 0),
    "contrast with itself": lambda w, x: jnp.sum((x[None] @ w)[0] * (x[None] @ w)[::-1][0]),
    "cosine": lambda w, x: jnp.sum(
        (x[None] @ w) / jnp.linalg.norm(x[None] @ w, axis=1, keepdims=True)
    ),
    "gate": lambda w, x: jnp.mean((x[None] @ w) * jax.nn.sigmoid(x[None] @ w)),
    "an ensemble of one": lambda w, x: (jnp.mean(x @ w[:, :1]) - 1) ** 2,
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_over_a_batch_of_one(name):
    with jax.numpy_dtype_promotion("standard"):
        check_loss(LOSSES[name], W, X)


@pytest.mark.parametrize("batched", [True, False], ids=["x[None]", "x"])
@pytest.mark.parametrize("standardise", [standardised, lambda x: jax.nn.standardize(x, axis=None)])
def test_standardised_images(batched, standardise):
    check_loss(lambda w, x: jnp.sum(w[0, 0] * standardise(x[None] if batched else x)), W, IMAGES)


def unit(w, axis):
    return w / jnp.linalg.norm(w, axis=axis, keepdims=True)


PARAMETERS = {
    "weight normalisation": lambda w, x: jnp.sum(x[None] * unit(w, 0)) ** 2,
    "over features": lambda w, x: jnp.sum(x[None] * unit(w, 1)) ** 2,
    "in jit": lambda w, x: jnp.sum(x[None] * jax.jit(lambda w: unit(w, 0))(w)) ** 2,
    "in a cond": lambda w, x: jax.lax.cond(
        x[0] > 0, lambda w, x: jnp.sum(x[None] * unit(w, 0)), lambda w, x: jnp.sum(x), w, x
    ),
    "in the closure of a cond": lambda w, x: jax.lax.cond(
        x[0] > 0, lambda: jnp.sum(x[None] * unit(w, 0)), lambda: jnp.sum(x)
    ),
    "in a while": lambda w, x: jnp.sum(
        jax.lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c + unit(w, 0), x[None])
    ),
    "in a scan": lambda w, x: jnp.sum(
        jax.lax.scan(lambda c, _: (c * unit(w, 0), None), x[None], length=2)[0]
    ),
    "parameters over a mean": lambda w, x: jnp.sum(x[None] * (w - w.mean(0, keepdims=True))),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_operations_on_parameters_alone(name):
    check_loss(PARAMETERS[name], jnp.ones((1, 5)), X)


def test_dropout_with_a_key_in_the_batch():
    def loss(w, example):
        x, key = example
        return jnp.sum(jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0) @ w)

    check_loss(loss, W, (X, jax.random.split(KEY, 4)))


def test_collectives_over_an_inner_axis():
    def loss(w, x):
        def head(logit):
            return jax.nn.softplus(logit - jax.lax.pmean(logit, "heads"))

        return jnp.sum(jax.vmap(head, axis_name="heads")(x @ w))

    check_loss(loss, W, X)


def test_axis_index():
    def loss(w, x):
        return jnp.sum(x @ w) * jax.lax.axis_index("i").astype(jnp.float32)

    jax.vmap(lambda batch: check_loss(loss, W, batch), axis_name="i")(jnp.stack([X, X]))

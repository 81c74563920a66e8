"""Every check: what passes, what is refused, and that the text names argument and value."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import _checks as validation

pytestmark = pytest.mark.usefixtures("strict_numerics")

NOT_NUMBERS = [True, np.bool_(True), "1", b"1", None, [1.0], np.ones(1), np.ones(2), 1j]
NOT_FINITE = [float("nan"), float("inf"), np.float32("nan"), 10**400]
NOT_WHOLE = [1.0, "1", None, True, np.bool_(True), np.float32(1), [1]]


def refused(value, allowed="", name="level", error=ValueError):
    """The error that a check of ``level`` must raise: argument, what is allowed, the value."""
    return pytest.raises(
        error, match=rf"^{name} must be .*{allowed}.* got .*{re.escape(repr(value))}"
    )


class TestNumbers:
    @pytest.mark.parametrize("value", [1, 0.5, np.float32(2), np.int64(3), jnp.float32(2), 1e-300])
    def test_positive_numbers_pass(self, value):
        validation.check_positive("level", value)
        validation.check_non_negative("level", value)

    @pytest.mark.parametrize("value", [*NOT_NUMBERS, *NOT_FINITE, -1, -0.5], ids=repr)
    def test_rest_is_refused(self, value):
        with refused(value, "a finite number > 0"):
            validation.check_positive("level", value)
        with refused(value, "a finite number >= 0"):
            validation.check_non_negative("level", value)

    def test_zero_is_the_difference(self):
        validation.check_non_negative("level", 0.0)
        with refused(0.0, "> 0"):
            validation.check_positive("level", 0.0)

    def test_value_of_a_tracer_is_not_looked_at(self):
        @jax.jit
        def checked(value):
            validation.check_positive("level", value)
            validation.check_non_negative("level", value)
            return value

        assert checked(-1.0) == -1

    @pytest.mark.parametrize("value", [1, 0.25, np.float32(1), 1e-12])
    def test_rates(self, value):
        validation.check_rate("level", value)

    @pytest.mark.parametrize("value", [*NOT_NUMBERS, *NOT_FINITE, 0, -0.1, 1.0001], ids=repr)
    def test_what_is_no_rate(self, value):
        with refused(value, r"in \(0, 1\]"):
            validation.check_rate("level", value)

    @pytest.mark.parametrize("value", [*NOT_NUMBERS, *NOT_FINITE, 0, 1, 1.0], ids=repr)
    def test_delta_lies_strictly_between(self, value):
        validation.check_delta(1e-5)
        with refused(value, r"in \(0, 1\)", name="delta"):
            validation.check_delta(value)

    @pytest.mark.parametrize(
        "value", [1, np.int32(5), np.uint8(3), jnp.int32(7), 2**63 - 1], ids=repr
    )
    def test_counts(self, value):
        validation.check_count("level", value)

    @pytest.mark.parametrize("value", [*NOT_WHOLE, 0, -1], ids=repr)
    def test_what_is_no_count(self, value):
        with refused(value, "a whole number >= 1"):
            validation.check_count("level", value)

    def test_count_fits_into_64_bits(self):
        with refused(2**63, r"below 2\^63"):
            validation.check_count("level", 2**63)

    def test_count_has_its_own_minimum(self):
        validation.check_count("level", 0, minimum=0)
        with refused(1, ">= 2"):
            validation.check_count("level", 1, minimum=2)

    @pytest.mark.parametrize("value", ["VMAP", "", None, 1, ["vmap"]])
    def test_choices_are_listed(self, value):
        validation.check_choice("level", "vmap", ("auto", "vmap"))
        with refused(value, "'auto', 'vmap'"):
            validation.check_choice("level", value, ("auto", "vmap"))


class TestKeys:
    def test_typed_key_is_returned_as_it_is(self):
        key = jax.random.key(3)
        assert validation.as_key(key) is key

    def test_keys_of_other_generators_are_keys(self):
        key = jax.random.key(3, impl="rbg")
        assert validation.as_key(key) is key

    @pytest.mark.parametrize("convert", [jnp.asarray, np.asarray])
    def test_raw_key_draws_what_the_typed_one_draws(self, convert):
        raw = convert(jax.random.PRNGKey(3))
        key = validation.as_key(raw)
        assert validation.is_key(key)
        assert jax.random.normal(key) == jax.random.normal(jax.random.key(3))

    def test_raw_key_of_two_words_is_threefry_whatever_the_default_generator(self):
        raw = jax.random.PRNGKey(3)
        with jax.default_prng_impl("rbg"):
            assert jax.random.key_impl(validation.as_key(raw)) == "threefry2x32"

    def test_both_work_under_jit(self):
        @jax.jit
        def draw(key):
            return jax.random.normal(validation.as_key(key))

        assert draw(jax.random.key(3)) == draw(jax.random.PRNGKey(3))

    @pytest.mark.parametrize(
        "value",
        [0, np.int64(3), 1.0, True, None, "seed", (0, 3), np.array([0, 3]), np.zeros(3, np.uint32)],
        ids=repr,
    )
    def test_rest_is_refused(self, value):
        with pytest.raises(TypeError, match=r"^secret must be a scalar JAX key .* got") as error:
            validation.as_key(value, "secret")
        for remedy in ("jax.random.key(", "dpjax.release_key()"):
            assert remedy in str(error.value)

    def test_several_keys_are_not_one(self):
        keys = jax.random.split(jax.random.key(3), 2)
        assert not validation.is_key(keys)
        with pytest.raises(TypeError, match=r"key<fry> and shape \(2,\)"):
            validation.as_key(keys)

    def test_no_error_shows_the_words_of_a_key(self):
        keys = jax.random.wrap_key_data(np.array([[1234567891, 1234567892]], np.uint32))
        for check, key in [
            (validation.as_key, keys),
            (validation.as_key, jax.random.key_data(keys)),
            (validation.as_seed, keys[0]),
            (validation.as_seed, jax.random.key_data(keys)[0]),
        ]:
            with pytest.raises((TypeError, ValueError)) as error:
                check(key)
            assert "123456789" not in str(error.value)


class TestSeeds:
    @pytest.mark.parametrize("value", [0, 7, -1, np.int64(7), np.uint32(7), jnp.int32(7)], ids=repr)
    def test_whole_numbers_become_int(self, value):
        seed = validation.as_seed(value)
        assert type(seed) is int
        assert seed == int(value)

    @pytest.mark.parametrize("value", NOT_WHOLE, ids=repr)
    def test_rest_is_refused(self, value):
        with refused(value, r"a whole number \(a seed, not a key\)", name="seed"):
            validation.as_seed(value)

    def test_key_is_no_seed(self):
        with pytest.raises(ValueError, match=r"^shuffle must be a whole .*not a key"):
            validation.as_seed(jax.random.key(0), "shuffle")


class TestBatchLength:
    def test_common_leading_axis(self):
        keys = jax.random.split(jax.random.key(0), 3)
        batch = {"x": jnp.ones((3, 2)), "more": (np.ones(3), keys), "none": None}
        assert validation.batch_length(batch) == 3
        assert validation.batch_length(np.ones((0, 4))) == 0

    @pytest.mark.parametrize("batch", [{}, [], None, {"x": None}])
    def test_tree_without_arrays(self, batch):
        with pytest.raises(ValueError, match=r"^records must be a tree with at least one array"):
            validation.batch_length(batch, "records")

    @pytest.mark.parametrize("scalar", [1.0, jnp.ones(()), jax.random.key(0)])
    def test_scalar_leaf_is_named(self, scalar):
        with pytest.raises(ValueError, match=r"^batch must have .* every leaf; \[\"\['y'\]\"\]"):
            validation.batch_length({"x": jnp.ones(2), "y": scalar})

    def test_list_of_numbers_is_a_tree_of_scalars(self):
        with pytest.raises(ValueError, match="leading example axis on every leaf"):
            validation.batch_length([1.0, 2.0])

    def test_differing_lengths_are_listed(self):
        with pytest.raises(ValueError, match=r"^batch must have one batch length .*: 2.*: 3"):
            validation.batch_length({"x": jnp.ones(2), "y": jnp.ones((3, 2))})


def test_general_check_names_argument_value_and_what_is_allowed():
    validation.check(True, "level", 3, "a vowel")
    with pytest.raises(ValueError, match=r"^level must be a vowel, got 'x'$"):
        validation.check(False, "level", "x", "a vowel")


def test_only_tracers_are_traced():
    traced = []
    jax.jit(lambda value: traced.append(validation.is_traced(value)))(1.0)
    assert traced == [True]
    assert not validation.is_traced(jnp.ones(2))


@pytest.mark.parametrize("value", [2**31, np.int64(2**31), np.array(2**31), np.uint64(2**31)])
def test_whole_numbers_of_any_size_become_floats(value):
    assert float(validation.as_floats(value)) == 2.0**31


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_floats_keep_their_dtype_and_booleans_become_floats(dtype):
    assert validation.as_floats(jnp.ones(2, dtype)).dtype == dtype
    assert validation.as_floats(np.ones(2, dtype)).dtype == dtype
    assert validation.as_floats(jnp.array([True, False])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (3, "int64"),
        (True, "bool"),
        (0.5, "float64"),
        (2**63, "uint64"),
        (2**64, "object"),
        ([1, 2.5], "float64"),
        ([2**53 + 1, 2.5], "object"),
        ([[2**63], [-1]], "object"),
        (np.ones(2, np.float16), "float16"),
    ],
    ids=repr,
)
def test_numbers_are_not_rounded(value, dtype):
    numbers = validation.as_numbers(value)
    assert numbers.dtype == dtype
    assert numbers.tolist() == (value.tolist() if isinstance(value, np.ndarray) else value)


@pytest.mark.parametrize(
    "value",
    [
        [np.int64(2**60 + 1), 0.5],
        [np.uint64(2**63 + 1), np.int64(-1)],
        [np.array([2**60 + 1, 3]), np.array([0.5, 1.5])],
    ],
    ids=["beside a float", "two dtypes", "rows"],
)
def test_large_integers_of_numpy_in_lists_are_not_rounded(value):
    exact = [np.asarray(entry).tolist() for entry in value]
    assert validation.as_numbers(value).tolist() == exact


def test_large_integers_of_jax_in_lists_are_not_rounded():
    with jax.enable_x64(True):
        value = [jnp.int64(2**60 + 1), 0.5]
        assert validation.as_numbers(value).tolist() == [2**60 + 1, 0.5]


@pytest.mark.parametrize("value", [10**400, [10**400, 1.0], np.array([10**400, 1], object)])
def test_integers_beyond_float64_become_infinite(value):
    assert np.ravel(validation.as_floats(value))[0] == np.inf
    assert np.ravel(validation.as_floats(-np.array(value, object)))[0] == -np.inf


def test_arrays_of_jax_stay_as_they_are():
    array = jnp.ones(2, jnp.bfloat16)
    assert validation.as_numbers(array) is array
    assert validation.as_numbers([jnp.float32(1), 2**70]).tolist() == [1.0, 2**70]
    assert jax.jit(lambda x: validation.as_numbers([x, 2.0]))(1.0).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "value",
    [
        1j,
        "3",
        ["a"],
        [1, None],
        [[1.0], [1.0, 2.0]],
        np.array([1, "x"], object),
        np.array([np.arange(2), 1], object),
        np.longdouble(1),
        jax.random.key(0),
        [jax.random.key(0)],
        jnp.ones(2, complex),
    ],
    ids=repr,
)
@pytest.mark.parametrize("convert", [validation.as_numbers, validation.as_floats])
def test_what_is_no_real_number_is_refused(convert, value):
    with pytest.raises(ValueError, match=r"^level must be real numbers: integers, booleans"):
        convert(value, "level")


@pytest.mark.parametrize("convert", [validation.as_numbers, validation.as_floats])
def test_masked_arrays_are_refused(convert):
    masked = np.ma.masked_array([1.0, 2.0], [False, True])
    for value in (
        masked,
        [masked, masked],
        [1.0, np.ma.masked],
        np.array([np.ma.masked, 1], object),
    ):
        with pytest.raises(ValueError, match=r"^level must be an array without a mask"):
            convert(value, "level")
    assert convert(masked.filled(0.0), "level").tolist() == [1.0, 0.0]

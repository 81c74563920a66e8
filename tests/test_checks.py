"""Every check: what passes, what is refused, and that the text names argument and value."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import _checks

pytestmark = pytest.mark.usefixtures("strict_numerics")

NOT_NUMBERS = [True, np.bool_(True), "1", b"1", None, [1.0], np.ones(1), np.ones(2), 1j]
NOT_FINITE = [float("nan"), float("inf"), np.float32("nan"), 10**400]
NOT_WHOLE = [1.0, "1", None, True, np.bool_(True), np.float32(1), [1]]


ACCEPTED = {
    "check_positive": [1, 0.5, np.float32(2), np.int64(3), jnp.float32(2), 1e-300],
    "check_non_negative": [0.0, 1, 0.5, np.float32(2), np.int64(3), jnp.float32(2), 1e-300],
    "check_rate": [1, 0.25, np.float32(1), 1e-12],
    "check_delta": [1e-5],
    "check_count": [1, np.int32(5), np.uint8(3), jnp.int32(7), 2**63 - 1],
}
# Values that a check refuses, and what it says is allowed.
REFUSED = {
    "check_positive": ([*NOT_NUMBERS, *NOT_FINITE, -1, -0.5, 0.0], "a finite number > 0"),
    "check_non_negative": ([*NOT_NUMBERS, *NOT_FINITE, -1, -0.5], "a finite number >= 0"),
    "check_rate": ([*NOT_NUMBERS, *NOT_FINITE, 0, -0.1, 1.0001], r"in \(0, 1\]"),
    "check_delta": ([*NOT_NUMBERS, *NOT_FINITE, 0, 1, 1.0], r"in \(0, 1\)"),
    "check_count": ([*NOT_WHOLE, 0, -1], "a whole number >= 1"),
}


def call(check, value, **options):
    """The check of an argument named level."""
    function = getattr(_checks, check)
    arguments = (value, "level") if check in ("check_delta", "as_seed") else ("level", value)
    return function(*arguments, **options)


def refused(value, allowed="", error=ValueError):
    """The error that a check of ``level`` must raise: argument, what is allowed, the value.

    Of an array, which may be a column of records, its shape alone.
    """
    shape = getattr(value, "shape", ())
    shown = f"and shape {shape}" if shape else repr(value)[:300]
    return pytest.raises(error, match=rf"^level must be .*{allowed}.* got .*{re.escape(shown)}")


@pytest.mark.parametrize(("check", "value"), [(c, v) for c in ACCEPTED for v in ACCEPTED[c]])
def test_check_of_a_number_accepts(check, value):
    call(check, value)


@pytest.mark.parametrize(("check", "value"), [(c, v) for c in REFUSED for v in REFUSED[c][0]])
def test_check_of_a_number_refuses(check, value):
    with refused(value, REFUSED[check][1]):
        call(check, value)


def test_errors_show_no_records():
    """Neither of an array, nor of one or of many numbers within a tuple or a list."""
    secret = 77.125
    column = np.full(3, secret)
    for value in (
        column,
        (column, 100.0),
        [0.0, (column,)],
        [secret] * 17,
        {"a": [column]},
        dict.fromkeys(range(17), column),
    ):
        with pytest.raises(ValueError, match=r"^bounds must be two numbers, got ") as raised:
            _checks.check(False, "bounds", value, "two numbers")
        assert str(secret) not in str(raised.value)
    for value in ((1.0, 2.0), [3], (4,), {"a": 1}, np.float64(5.0)):
        with pytest.raises(ValueError, match=re.escape(f"got {value!r}")):
            _checks.check(False, "bounds", value, "two numbers")


def test_check_positive_passes_tracers():
    @jax.jit
    def checked(value):
        _checks.check_positive("level", value)
        _checks.check_non_negative("level", value)
        return value

    assert checked(-1.0) == -1


def test_check_count_has_a_minimum_and_fits_into_64_bits():
    call("check_count", 0, minimum=0)
    with refused(1, ">= 2"):
        call("check_count", 1, minimum=2)
    with refused(2**63, r"below 2\^63"):
        call("check_count", 2**63)


@pytest.mark.parametrize("value", ["VMAP", "", None, 1, ["vmap"]])
def test_check_choice_lists_the_choices(value):
    _checks.check_choice("level", "vmap", ("auto", "vmap"))
    with refused(value, "'auto', 'vmap'"):
        _checks.check_choice("level", value, ("auto", "vmap"))


def test_as_key_returns_typed_keys():
    for key in (jax.random.key(3), jax.random.key(3, impl="rbg")):
        assert _checks.as_key(key) is key


@pytest.mark.parametrize("convert", [jnp.asarray, np.asarray])
def test_as_key_of_a_raw_key_draws_the_same(convert):
    key = _checks.as_key(convert(jax.random.PRNGKey(3)))
    assert _checks.is_key(key)
    assert jax.random.normal(key) == jax.random.normal(jax.random.key(3))
    draw = jax.jit(lambda key: jax.random.normal(_checks.as_key(key)))
    assert draw(jax.random.key(3)) == draw(jax.random.PRNGKey(3))


def test_as_key_of_two_words_is_threefry_whatever_the_default_generator():
    raw = jax.random.PRNGKey(3)
    with jax.default_prng_impl("rbg"):
        assert jax.random.key_impl(_checks.as_key(raw)) == "threefry2x32"


@pytest.mark.parametrize(
    "value",
    [0, np.int64(3), 1.0, True, None, "seed", (0, 3), np.array([0, 3]), np.zeros(3, np.uint32)],
    ids=repr,
)
def test_as_key_refuses(value):
    with pytest.raises(TypeError, match=r"^secret must be a scalar JAX key .* got") as error:
        _checks.as_key(value, "secret")
    for remedy in ("jax.random.key(", "dpjax.release_key()"):
        assert remedy in str(error.value)


def test_as_key_refuses_several_keys():
    keys = jax.random.split(jax.random.key(3), 2)
    assert not _checks.is_key(keys)
    with pytest.raises(TypeError, match=r"key<fry> and shape \(2,\)"):
        _checks.as_key(keys)


def test_errors_do_not_show_the_words_of_a_key():
    keys = jax.random.wrap_key_data(np.array([[1234567891, 1234567892]], np.uint32))
    for check, key in [
        (_checks.as_key, keys),
        (_checks.as_key, jax.random.key_data(keys)),
        (_checks.as_seed, keys[0]),
        (_checks.as_seed, jax.random.key_data(keys)[0]),
    ]:
        with pytest.raises((TypeError, ValueError)) as error:
            check(key)
        assert "123456789" not in str(error.value)


@pytest.mark.parametrize("value", [0, 7, -1, np.int64(7), np.uint32(7), jnp.int32(7)], ids=repr)
def test_as_seed_is_an_int(value):
    seed = _checks.as_seed(value)
    assert type(seed) is int
    assert seed == int(value)


@pytest.mark.parametrize("value", NOT_WHOLE, ids=repr)
def test_as_seed_refuses(value):
    with refused(value, r"a whole number \(a seed, not a key\)"):
        call("as_seed", value)
    with pytest.raises(ValueError, match=r"^shuffle must be a whole .*not a key"):
        _checks.as_seed(jax.random.key(0), "shuffle")


def test_batch_length_is_that_of_the_common_axis():
    keys = jax.random.split(jax.random.key(0), 3)
    batch = {"x": jnp.ones((3, 2)), "more": (np.ones(3), keys), "none": None}
    assert _checks.batch_length(batch) == 3
    assert _checks.batch_length(np.ones((0, 4))) == 0


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        *((batch, "a tree with at least one array") for batch in ({}, [], None, {"x": None})),
        *(
            ({"x": jnp.ones(2), "y": scalar}, r".* every leaf, got a number at \['y'\]\. A")
            for scalar in (1.0, jnp.ones(()), jax.random.key(0))
        ),
        ([1.0, 2.0], "a leading example axis on every leaf"),
        ({"x": jnp.ones(2), "y": jnp.ones((3, 2))}, "one batch length .*: 2.*: 3"),
    ],
)
def test_batch_length_refuses(batch, message):
    with pytest.raises(ValueError, match=rf"^records must (be|have) {message}"):
        _checks.batch_length(batch, "records")


def test_check_names_argument_value_and_what_is_allowed():
    _checks.check(True, "level", 3, "a vowel")
    with pytest.raises(ValueError, match=r"^level must be a vowel, got 'x'$"):
        _checks.check(False, "level", "x", "a vowel")


def test_is_traced_of_tracers_alone():
    traced = []
    jax.jit(lambda value: traced.append(_checks.is_traced(value)))(1.0)
    assert traced == [True]
    assert not _checks.is_traced(jnp.ones(2))


@pytest.mark.parametrize("value", [2**31, np.int64(2**31), np.array(2**31), np.uint64(2**31)])
def test_as_floats_of_integers_of_any_size(value):
    assert float(_checks.as_floats(value)) == 2.0**31


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_as_floats_keeps_float_dtypes(dtype):
    assert _checks.as_floats(jnp.ones(2, dtype)).dtype == dtype
    assert _checks.as_floats(np.ones(2, dtype)).dtype == dtype
    assert _checks.as_floats(jnp.array([True, False])).tolist() == [1.0, 0.0]


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
def test_as_numbers_does_not_round(value, dtype):
    numbers = _checks.as_numbers(value)
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
def test_as_numbers_does_not_round_integers_of_numpy_in_lists(value):
    exact = [np.asarray(entry).tolist() for entry in value]
    assert _checks.as_numbers(value).tolist() == exact


@pytest.mark.parametrize("dtype", ["m8[s]", "M8[s]"])
def test_as_numbers_refuses_dates_and_durations(dtype):
    with pytest.raises(ValueError, match=r"waits must be real numbers.*dtype\('<[mM]8\[s\]'\)"):
        _checks.as_numbers(np.arange(3).astype(dtype), "waits")


def test_as_numbers_does_not_round_integers_of_jax_in_lists():
    with jax.enable_x64(True):
        value = [jnp.int64(2**60 + 1), 0.5]
        assert _checks.as_numbers(value).tolist() == [2**60 + 1, 0.5]


@pytest.mark.parametrize("value", [10**400, [10**400, 1.0], np.array([10**400, 1], object)])
def test_as_floats_of_integers_beyond_float64_is_infinite(value):
    assert np.ravel(_checks.as_floats(value))[0] == np.inf
    assert np.ravel(_checks.as_floats(-np.array(value, object)))[0] == -np.inf


def test_as_numbers_returns_arrays_of_jax():
    array = jnp.ones(2, jnp.bfloat16)
    assert _checks.as_numbers(array) is array
    assert _checks.as_numbers([jnp.float32(1), 2**70]).tolist() == [1.0, 2**70]
    assert jax.jit(lambda x: _checks.as_numbers([x, 2.0]))(1.0).tolist() == [1.0, 2.0]


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
@pytest.mark.parametrize("convert", [_checks.as_numbers, _checks.as_floats])
def test_as_numbers_and_as_floats_refuse(convert, value):
    with pytest.raises(ValueError, match=r"^level must be real numbers: integers, booleans"):
        convert(value, "level")


@pytest.mark.parametrize("convert", [_checks.as_numbers, _checks.as_floats])
def test_as_numbers_and_as_floats_refuse_masked_arrays(convert):
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

"""Public signatures and docstrings follow one set of rules, with a reason for each exception."""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator
from typing import Any, Self

import jax
import pytest
from helpers.public_callables import PublicCallable, describe, public_callables, public_names

import dpjax
from dpjax import statistics

# The name of a concept, by other names that it could have.
CONCEPTS = {
    "n": "num_examples",
    "num_data": "num_examples",
    "num_records": "num_examples",
    "q": "sampling_rate",
    "rate": "sampling_rate",
    "tau": "expected_batch_size",
    "noise": "noise_multiplier",
    "sigma": "noise_multiplier",
    "at_least": "min_noise_multiplier",
    "law": "distribution",
    "reading": "estimate",
    "end": "lower_bound or upper_bound",
    "bracket": "bounds",
    "folder": "checkpoint_dir",
    "optimiser": "optimizer",
    "in_turn": "sequential",
    "formed": "per_example_gradients",
    "subject": "model",
    "way": "method",
    "deed": "attack",
    "for_epsilon": "from_epsilon",
    "add_noise_for": "calibrate",
    "scale_steps_for": "calibrate",
}

# Exceptions and their reasons, by full name or by "full name: parameter".
OTHER_CONCEPTS = {
    "dpjax.accounting.tradeoff.Discrete: q": "Q of a test of P against Q",
    "dpjax.accounting.tradeoff.from_distributions: q": "Q of a test of P against Q",
    "dpjax.bayes.conjugate.GammaPoisson: rate": "the rate of a gamma distribution",
    "dpjax.bayes.conjugate.GammaPosterior: rate": "the rate of a gamma distribution",
    "dpjax.bayes.regression.RegressionPosterior: rate": "the rate of a gamma distribution",
    "dpjax.bayes.variational.DPSVIState: noise": "the state of the noise",
    "dpjax.mechanisms.SubsampledGaussian.noise: noise": "the transformation that adds the noise",
}
KEY_LATER = {
    "dpjax.transforms.differentially_private_aggregate": "the signature of optax's function",
}
SEVERAL_NUMBERS = {
    "dpjax.accounting.log_moments.compute_profile": "as compute_epsilon",
    "dpjax.accounting.tradeoff.gaussian_delta": "mu first, as in gdp.delta",
    "dpjax.accounting.tradeoff.gaussian_type_two": "mu first, as in gdp.delta",
    "dpjax.bayes.conjugate.BetaBinomial": "in the order of Beta(alpha, beta)",
    "dpjax.bdp.AccountantState": "made by bdp.init",
    "dpjax.bdp.BDPCertificate": "made by bdp.certificate",
    "dpjax.certificates.Certificate": "made by certify",
    "dpjax.transforms.CorrelationReport": "made by a strategy's report",
    "dpjax.transforms.differentially_private_aggregate": "the signature of optax's function",
}
# Where exchanging the two positional numbers is an error: the call with exchanged numbers.
EXCHANGED = {
    "dpjax.mechanisms.RandomizedResponse": lambda: dpjax.RandomizedResponse(0.5, 3, "replace_one"),
    "dpjax.sampling.CyclicPoissonSampling": lambda: dpjax.CyclicPoissonSampling(
        0.1, 100, num_groups=2
    ),
    "dpjax.sampling.FixedSizeSampling": lambda: dpjax.FixedSizeSampling(10, 100),
    "dpjax.sampling.PoissonSampling": lambda: dpjax.PoissonSampling(0.1, 100),
    "dpjax.sampling.ShuffledEpochs": lambda: dpjax.ShuffledEpochs(10, 100),
    "dpjax.sampling.TruncatedPoissonSampling": lambda: dpjax.TruncatedPoissonSampling(
        0.1, 100, truncated_batch_size=30
    ),
    "dpjax.statistics.quantile": lambda: statistics.quantile(0.5, 0, bounds=(0.0, 1.0)),
}


def check_key(function: PublicCallable) -> Iterator[str]:
    """A key comes first, or is a keyword."""
    for parameter in function.positional()[1:]:
        if parameter.name in ("key", "rng_key") and function.name not in KEY_LATER:
            yield f"{parameter.name} is not the first parameter"


def check_numbers(function: PublicCallable) -> Iterator[str]:
    """No two numbers are positional: they could be swapped unnoticed."""
    numbers = [p.name for p in function.positional() if is_number(p.annotation)]
    refused = len(numbers) == 2 and function.name in EXCHANGED
    if len(numbers) > 1 and not refused and function.name not in SEVERAL_NUMBERS:
        yield f"{', '.join(numbers)} are positional numbers"


def is_number(annotation: Any) -> bool:
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    alternatives = typing.get_args(annotation) if union else [annotation]
    return any(one is int or one is float for one in alternatives)


def check_types(function: PublicCallable) -> Iterator[str]:
    """Every parameter and every return value is annotated."""
    for parameter in function.signature.parameters.values():
        if parameter.annotation is inspect.Parameter.empty:
            yield f"{parameter.name} has no type"
    returns = function.signature.return_annotation
    if returns is inspect.Signature.empty and not isinstance(function.value, type):
        yield "the return value has no type"


def check_names(function: PublicCallable) -> Iterator[str]:
    """One name for one concept."""
    short = function.name.rpartition(".")[2]
    for name in [short, *function.signature.parameters]:
        if name in CONCEPTS and f"{function.name}: {name}" not in OTHER_CONCEPTS:
            yield f"{name} should be {CONCEPTS[name]}"


def check_docstring(function: PublicCallable) -> Iterator[str]:
    """A first sentence, every parameter by its name, and what is returned.

    The only parameter of a function may be named in the first paragraph instead of a section.
    """
    summaries = [" ".join(text.partition("\n\n")[0].split()) for text in function.docstrings]
    if not summaries or not summaries[0].rstrip("*").endswith("."):
        yield "the docstring does not begin with a sentence"
        return
    parameters = function.signature.parameters
    named = {name for text in function.docstrings for name in described(text)}
    if len(parameters) == 1:
        literals = [text for summary in summaries for text in re.findall("``(.+?)``", summary)]
        named |= {name for text in literals for name in re.findall(r"\w+", text)}
    if missing := [name for name in parameters if name not in named]:
        yield f"the docstring does not describe {', '.join(missing)}"
    returns = any(text.startswith(("Returns", "Yields")) for text in summaries)
    returns |= any(re.search(r"^(Returns|Yields):$", text, re.M) for text in function.docstrings)
    nothing = function.signature.return_annotation in (None, inspect.Signature.empty)
    if not (returns or nothing or function.is_property or isinstance(function.value, type)):
        yield "the docstring does not state what is returned"


def described(docstring: str) -> set[str]:
    """Returns the names that the sections "Args" and "Attributes" of a docstring describe."""
    names = set()
    for section in re.findall(r"^(?:Args|Attributes):\n((?: .*\n?|\n)+)", docstring, re.M):
        indent = re.match(" +", section)[0]
        for entry in re.findall(rf"^{indent}([\w*][\w*, ]*)(?: \(.*?\))?:", section, re.M):
            names |= {name.strip("* ") for name in entry.split(",")}
    return names


CHECKS = [check_key, check_numbers, check_types, check_names, check_docstring]


@pytest.fixture(scope="module")
def functions() -> list[PublicCallable]:
    return list(public_callables(public_names()))


@pytest.mark.parametrize("check", CHECKS)
def test_public_callables_follow_the_rules(check, functions):
    assert [f"{one.name}: {problem}" for one in functions for problem in check(one)] == []


@pytest.mark.parametrize("name", EXCHANGED)
def test_exchanged_numbers_are_refused(name):
    with pytest.raises((TypeError, ValueError)):
        EXCHANGED[name]()


def test_members_of_classes_are_checked_too(functions):
    names = {function.name for function in functions}
    assert {"dpjax.mechanisms.Laplace.from_epsilon", "dpjax.mechanisms.Laplace.half_width"} <= names
    assert len(names) > 400


def test_exceptions_are_needed(functions):
    """Without the lists of exceptions each of their entries is found."""
    found = {"key": set(), "numbers": set(), "concepts": set()}
    for one in functions:
        bare = one._replace(name="")
        if any(check_key(bare)):
            found["key"].add(one.name)
        if any(check_numbers(bare)):
            found["numbers"].add(one.name)
        short = one.name.rpartition(".")[2]
        found["concepts"] |= {f"{one.name}: {n}" for n in [short, *one.signature.parameters]}
    assert set(KEY_LATER) <= found["key"]
    assert {*SEVERAL_NUMBERS, *EXCHANGED} <= found["numbers"]
    assert set(OTHER_CONCEPTS) <= found["concepts"]


@dataclasses.dataclass
class Fake:
    """Draws records.

    Attributes:
      num_steps: The number of steps.
    """

    num_steps: int

    @classmethod
    def from_epsilon(cls, epsilon: float, *, delta: float) -> Self:
        """Returns the fake for a target.

        Args:
          epsilon: The target.
          delta: At this δ.
        """
        return cls(int(epsilon / delta))

    def draw(self, key: jax.Array, size: int) -> jax.Array:
        """Returns ``size`` records.

        Args:
          key: A key.
          size, another: Numbers of records.
        """
        return jax.random.normal(key, (size,))


def key_is_second(loss: jax.Array, key: jax.Array) -> None: ...


def two_numbers(*, key: jax.Array, epsilon: float | None = None, delta: float = 0.0) -> None: ...


def two_positional_numbers(epsilon: float | None, delta: float = 0.0) -> None: ...


def no_type(epsilon, delta: float) -> None: ...


def no_return_type(epsilon: float): ...


def other_name(sigma: float) -> None: ...


def no_docstring() -> None: ...


def no_sentence() -> None:
    """Something"""


def no_args(epsilon: float, *, delta: float) -> None:
    """Does something with ``epsilon``.

    Args:
      epsilon: A number.
    """


def no_returns() -> int:
    """Something."""
    return 0


@pytest.mark.parametrize(
    ("check", "planted", "problem"),
    [
        (check_key, key_is_second, "key is not the first"),
        (check_numbers, two_positional_numbers, "epsilon, delta are positional"),
        (check_types, no_type, "epsilon has no type"),
        (check_types, no_return_type, "the return value has no type"),
        (check_names, other_name, "sigma should be noise_multiplier"),
        (check_docstring, no_docstring, "does not begin with a sentence"),
        (check_docstring, no_sentence, "does not begin with a sentence"),
        (check_docstring, no_args, "does not describe delta"),
        (check_docstring, no_returns, "does not state what is returned"),
    ],
)
def test_power_planted_violation_is_found(check, planted, problem):
    (found,) = check(describe(planted.__name__, planted))
    assert problem in found


def test_public_callables_has_methods_of_their_class():
    assert [one.name for one in public_callables({"Fake": Fake})] == [
        "Fake",
        "Fake.from_epsilon",
        "Fake.draw",
    ]
    found = [text for one in public_callables({"Fake": Fake}) for c in CHECKS for text in c(one)]
    assert found == []
    assert list(check_numbers(describe("two_numbers", two_numbers))) == []

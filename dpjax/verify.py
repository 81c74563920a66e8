"""Verifies a certificate's JSON file: ``python -m dpjax.verify certificate.json``.

This module needs numpy, scipy and dp-accounting, neither dpjax nor JAX: copied to another machine
it runs by itself, ``python verify.py certificate.json``. It takes what a file states about the
mechanism, computes the guarantee anew, and compares.

- The form: every field of `SCHEMA`, and no other, with values that are allowed.
- The hash of all other fields, which shows an accidental change. Anyone can compute it anew: it is
  no signature.
- Epsilon, the attack risks and mu, which follow from the event, the adjacency and delta. dpjax
  composes losses on a grid of its own and by closed forms; here the privacy loss distributions of
  dp-accounting are composed, each built from the event by dp-accounting, or by the formula of the
  release's delta. Epsilon may be at most 0.3 % below and 1 % above (at deltas below 1e-9 10 %),
  risks and mu, which are stated from a coarser grid, at most 0.5 % below and 10 % above.
- The lower bound on epsilon must not be above epsilon, nor other accountants' bounds below it.
  These, other lower bounds and the regret of mu are not computed anew, and texts are not compared
  with the event.
- What must be consistent: the caveats with the run and with the tuning, the estimates with epsilon,
  the number of records with the event, and more.

No file can show that the mechanism was run as it is described, that its key was secret, that
nothing else was published, or who issued it.
"""

import sys

# Run as a file in its package, modules beside it would hide those of the standard library.
if __name__ == "__main__" and sys.path and sys.path[0].endswith("dpjax"):
    sys.path.pop(0)

import argparse
import collections
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from dp_accounting import dp_event, rdp
from dp_accounting.pld import common, pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.privacy_accountant import NeighboringRelation
from scipy.optimize import isotonic_regression
from scipy.signal import lfilter
from scipy.special import expit, log_ndtr, ndtr, ndtri
from scipy.stats import beta, binom, chi2

FORMAT = "dpjax certificate 1"
# How far a stated number may be below and above what is computed here, relative: epsilon; epsilon
# at deltas below the next number, which dpjax rounds up; attack risks and mu, from a coarser grid.
_EPSILON_RANGE = (0.003, 0.01)
_TINY_DELTA, _TINY_DELTA_RANGE = 1e-9, (0.01, 0.1)
_RISK_RANGE = (0.005, 0.1)
# How far it may be above, absolute: epsilon, risks, and mu, which rare losses decide.
_ABSOLUTE, _RISK_ABSOLUTE, _MU_ABSOLUTE = 2e-6, 1e-7, 5e-4
# The interval of the grid of losses, in standard deviations of one release's loss: of up to so many
# releases the first number, else the second. And the most intervals that one loss may span.
_FEW, _FINE_INTERVAL, _INTERVAL, _MOST_CELLS = 20, 0.002, 0.02, 300_000
# Beyond these rounding decides, or the computation is long: the interval, epsilon, delta, the
# number of releases, and how many of them differ.
_LEAST_INTERVAL, _MOST_EPSILON, _LEAST_STATED_DELTA = 1e-7, 2e3, 1e-12
_MOST_RELEASES, _MOST_DIFFERENT, _DEEPEST = 10_000_000, 150, 50
_ROUNDING = 1e-9
# Canaries of an audit of one run, for which its bounds are computed anew.
_MOST_CANARIES = 10_000_000
# Of random allocation: the largest inverse noise multiplier and number of steps whose terms one
# lattice holds, and how far out a term may be.
_MOST_ALLOCATED_MU, _MOST_ALLOCATED_STEPS, _ALLOCATED_FARTHEST = 1.7, 20_000, 7.0
# Normal variables farther out than this are rarer than 1e-22.
_FARTHEST = 10.0
# Sampled Gaussian releases whose noise multipliers are so close, relative, are taken as one.
_SAME_NOISE = 0.02
# Discrete Laplace noise of a larger sensitivity is as good as continuous.
_FINE_SENSITIVITY = 10_000
# Discrete Gaussian noise from this variance on, in squared units, is as good as continuous noise
# of the variance less the second number (in the first case less the third).
_FINE_VARIANCE, _SMOOTHING, _SHEPPARD = 1e4, 4.0, 1 / 12
# Beyond these the partitions of a squared sensitivity are not tried.
_EXACT_VARIANCE, _EXACT_SQUARE = 100.0, 30
# Errors below this do not count for mu, and deltas below this not for the curve, of which so many
# slopes are tried, and levels.
_LEAST_ERROR, _LEAST_DELTA, _MOST_SLOPES, _MOST_LEVELS = 1e-7, 1e-13, 10_000, 400

Array: TypeAlias = npt.NDArray[np.floating]
Loss: TypeAlias = pld.PrivacyLossDistribution
Values: TypeAlias = Mapping[str, Any]
Delta: TypeAlias = Callable[[Array], Array]
# The fields of an event beside its type; "event" and "events" are events again.
_EVENTS: dict[str, dict[str, Any]] = {
    "Approximate": {"epsilon": "number", "delta": "share"},
    "Composed": {"events": "events"},
    "DiscreteGaussian": {"noise_multiplier": "number", "scale": "number"},
    "DiscreteLaplace": {"noise_parameter": "number", "sensitivity": "number"},
    "Gaussian": {"noise_multiplier": "number"},
    "Laplace": {"noise_multiplier": "number"},
    "NoOp": {},
    "NonPrivate": {},
    "PoissonSampled": {"sampling_probability": "share", "event": "event"},
    "RandomAllocation": {"num_steps": "positive", "noise_multiplier": "number"},
    "RandomizedResponse": {"noise_parameter": "share", "num_buckets": "positive"},
    "RepeatAndSelect": {"event": "event", "mean": "number", "shape": "number"},
    "SampledWithoutReplacement": {
        "source_dataset_size": "positive",
        "sample_size": "positive",
        "event": "event",
    },
    "SelfComposed": {"event": "event", "count": "count"},
    "TruncatedSubsampledGaussian": {
        "dataset_size": "count",
        "sampling_probability": "share",
        "truncated_batch_size": "count",
        "noise_multiplier": "number",
    },
    "Wishart": {"degrees_of_freedom": "count", "scale_over_square": "number"},
    "ZC": {"rho": "number", "xi": "number"},
}
_TYPES: dict[str, dict[str, Any]] = {
    "count": {"type": "integer", "minimum": 0, "maximum": 2**53},
    "positive": {"type": "integer", "minimum": 1, "maximum": 2**53},
    "number": {"oneOf": [{"type": "number", "minimum": 0}, {"const": "inf"}]},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "event": {"$ref": "#/$defs/event"},
    "events": {"type": "array", "items": {"$ref": "#/$defs/event"}},
}
_METHODS = "pld", "rdp", "moments", "gdp_clt"
_BOUNDS = "guarantee", "bound"
# What an attack is measured by, and what guessing attains.
_RISKS = {
    "advantage": 0.0,
    "accuracy at prior 0.5": 0.5,
    "accuracy at prior 0.1": 0.9,
    "TPR at FPR 0.01": 0.01,
    "TPR at FPR 0.001": 0.001,
    "TPR at FPR 1e-05": 1e-5,
    "sum of errors": 1.0,
}
# Events of one step on a random batch.
_SAMPLED = {
    "PoissonSampled",
    "RandomAllocation",
    "SampledWithoutReplacement",
    "TruncatedSubsampledGaussian",
}
_TEXT: dict[str, Any] = {"type": "string"}
_TEXTS: dict[str, Any] = {"type": "array", "items": _TEXT}
_NUMBER = _TYPES["number"]


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"oneOf": [schema, {"type": "null"}]}


def _object(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of an object of exactly these fields."""
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


# The report of an audit: of many releases of two data sets, or of one run with canaries.
_AUDIT_FIELDS: dict[str, Any] = {
    "epsilon": _NUMBER,
    "epsilon_distribution_free": _NUMBER,
    "certified_epsilon": _NUMBER,
    "delta": {"type": "number"},
    "adjacency": _TEXT,
    "confidence": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "is_refuted": {"type": "boolean"},
}
_AUDIT = _object(
    {
        **_AUDIT_FIELDS,
        "errors": _object(
            {
                "false_positives": _TYPES["count"],
                "false_negatives": _TYPES["count"],
                "num_releases": _TYPES["count"],
                "false_positive_rate": _TYPES["share"],
                "false_negative_rate": _TYPES["share"],
            }
        ),
    }
)
_ONE_RUN = _object(
    {
        **_AUDIT_FIELDS,
        "num_canaries": {"type": "integer", "minimum": 16, "maximum": _MOST_CANARIES},
        "num_guesses": {"type": "integer", "minimum": 0, "maximum": _MOST_CANARIES},
        "num_correct": {"type": "integer", "minimum": 0, "maximum": _MOST_CANARIES},
        "mu": _TYPES["number"],
        "noise_std": _nullable({"type": "number", "exclusiveMinimum": 0}),
    }
)


# The form of a certificate's file, as a JSON Schema: `docs/reference/certificate.schema.json`.
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": FORMAT,
    "description": (
        "A differential privacy guarantee and the event from which it can be computed anew."
        " Infinity is the text 'inf'. A noise multiplier is the noise's standard deviation (of"
        " Laplace noise its scale) over one clip bound, whatever the adjacency."
    ),
    **_object(
        {
            "format": {"const": FORMAT},
            "epsilon": _NUMBER,
            "delta": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            "accountant": {"enum": ["pld", "rdp"]},
            "epsilon_lower": _nullable(_NUMBER),
            "epsilon_lower_note": _TEXT,
            "mu": _NUMBER,
            "mu_regret": _TYPES["share"],
            "adjacency": {"enum": ["add_remove", "zero_out", "replace_one"]},
            "unit": {"type": "string", "minLength": 1},
            "is_size_public": {"type": "boolean"},
            "size_constants": _TEXTS,
            "num_examples": _nullable(_TYPES["count"]),
            "num_releases": _TYPES["positive"],
            "num_steps_run": _nullable(_TYPES["count"]),
            "first_plan": _nullable(_TYPES["count"]),
            "seeded": {"type": "boolean"},
            "exact_noise": {"type": "boolean"},
            "tuning": {
                "enum": [
                    None,
                    "on simulated records",
                    "on public records",
                    "fixed in advance",
                    "counted",
                    "on the private records, not counted",
                ]
            },
            "description": {"type": "object", "additionalProperties": _TEXT},
            "event": _TYPES["event"],
            "estimates": {
                "type": "array",
                "items": _object(
                    {
                        "method": {"enum": list(_METHODS)},
                        "epsilon": _nullable(_NUMBER),
                        "kind": {"enum": ["guarantee", "bound", "approximation", "unavailable"]},
                        "note": _TEXT,
                        "order": _nullable(_NUMBER),
                    }
                ),
            },
            "risks": {
                "type": "array",
                "items": _object(
                    {
                        "name": {"enum": list(_RISKS)},
                        "lower": _nullable(_TYPES["share"]),
                        "upper": _nullable(_TYPES["share"]),
                        "guessing": _TYPES["share"],
                    }
                ),
            },
            "risks_note": _TEXT,
            "audit": {"oneOf": [_AUDIT, _ONE_RUN, {"type": "null"}]},
            "caveats": _TEXTS,
            "versions": {"type": "object", "additionalProperties": _TEXT},
            "hash": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
        }
    ),
    "$defs": {
        "event": {
            "oneOf": [
                _object(
                    {"type": {"const": name}, **{key: _TYPES[kind] for key, kind in one.items()}}
                )
                for name, one in _EVENTS.items()
            ]
        }
    },
}


class Verification(NamedTuple):
    """Result of a verification: verdict, reasons, and epsilon as computed anew.

    Attributes:
      verdict: ``"verified"``; ``"refused"``, if something in the file is wrong; ``"not decided"``,
        if nothing is, but epsilon could not be computed a second time.
      reasons: a sentence for everything that is wrong, or that could not be computed.
      epsilon: as computed here; ``None`` where it was not.
    """

    verdict: Literal["verified", "refused", "not decided"]
    reasons: tuple[str, ...]
    epsilon: float | None = None


class UndecidedError(Exception):
    """The guarantee of an event is not computed a second time; the message gives the reason."""


def verify(values: Values) -> Verification:
    """Verifies the content of a certificate's file: its form, its hash, and its guarantee.

    Args:
      values: of the file, as ``json.loads`` returns them.

    >>> verify({"format": FORMAT}).reasons[0]
    'the certificate must have the field "epsilon"'
    """
    # The form first: what follows takes it for granted.
    try:
        if wrong := list(_form_errors(values, SCHEMA, "")):
            return Verification("refused", tuple(wrong))
    except RecursionError:
        return Verification("refused", (f"events must be nested at most {_DEEPEST} deep",))

    # What the fields say of each other, and what follows from the event.
    reasons: list[str] = []
    epsilon = None
    try:
        if values["hash"] != content_hash(values):
            reasons.append(
                "the hash is not that of the other fields: the file was changed after it was"
                " written"
            )
        reasons += _inconsistencies(values)
        with np.errstate(all="ignore"):  # what overflows is found as NaN, or matters to nothing
            epsilon, wrong = _compare_account(values)
        reasons += wrong
    except UndecidedError as reason:
        undecided = f"epsilon was not computed a second time: {reason}"
        return Verification("refused" if reasons else "not decided", (*reasons, undecided))
    except (ArithmeticError, ValueError, TypeError, MemoryError, RecursionError) as error:
        undecided = f"the event has numbers for which epsilon is not computed here: {error}"
        return Verification("refused" if reasons else "not decided", (*reasons, undecided))
    return Verification("refused" if reasons else "verified", tuple(reasons), epsilon)


def content_hash(values: Values) -> str:
    """Returns the SHA-256 of all fields but the hash, in JSON of sorted keys without spaces.

    >>> content_hash({"b": 1, "a": [2.5], "hash": "of what was there before"})[:14]
    'sha256:11cf705'
    """
    content = {name: value for name, value in values.items() if name != "hash"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _form_errors(value: Any, schema: Values, path: str) -> Iterator[str]:
    """Yields an error message for everything in ``value`` that the schema does not allow."""
    name = f'"{path}"' if path else "the certificate"
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]

    # Alternatives: events by their type, numbers, and null.
    if "oneOf" in schema:
        options: Sequence[Values] = schema["oneOf"]
        kind = value.get("type") if isinstance(value, dict) else None
        for one in options:
            if kind is not None and one.get("properties", {}).get("type") == {"const": kind}:
                yield from _form_errors(value, one, path)
                return
        if all(any(True for _ in _form_errors(value, one, path)) for one in options):
            yield f"{name} has a value that is not allowed, {_shown(value)}"
        return

    # A constant, one of several values, or a type.
    if "const" in schema or "enum" in schema:
        allowed = schema.get("enum", [schema.get("const")])
        if not any(value == one and type(value) is type(one) for one in allowed):
            one_of = "one of " if len(allowed) > 1 else ""
            shown = ", ".join(map(_shown, allowed))
            yield f"{name} must be {one_of}{shown}, got {_shown(value)}"
        return
    kind = schema["type"]
    if not _is_of_type(value, kind):
        yield f"{name} must be of type {kind}, got {_shown(value)}"
        return

    # Ranges and patterns.
    if kind in ("number", "integer"):
        inside = (
            schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf)
            and schema.get("exclusiveMinimum", -math.inf) < value
            and value < schema.get("exclusiveMaximum", math.inf)
        )
        if not inside:
            yield f"{name} is out of range, got {value:g}"
    if len(str(value).strip()) < schema.get("minLength", 0):
        yield f"{name} must not be empty"
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        yield f"{name} must match {schema['pattern']}, got {_shown(value)}"

    # What is inside.
    if kind == "array":
        for number, entry in enumerate(value):
            yield from _form_errors(entry, schema["items"], f"{path}[{number}]")
    if kind == "object":
        fields = schema.get("properties", {})
        yield from (f'{name} must have the field "{key}"' for key in fields if key not in value)
        for key, entry in value.items():
            inner = fields.get(key, schema["additionalProperties"])
            if inner is False:
                yield f'{name} has an unknown field, "{key}"'
            else:
                yield from _form_errors(entry, inner, f"{path}.{key}" if path else key)


def _is_of_type(value: Any, kind: str) -> bool:
    if kind in ("number", "integer"):
        if isinstance(value, int):
            return not isinstance(value, bool) and abs(value) <= 2**53
        return kind == "number" and isinstance(value, float) and math.isfinite(value)
    types = {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None)}
    return isinstance(value, types[kind])


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _inconsistencies(values: Values) -> Iterator[str]:
    """Yields an error message for every two fields that contradict each other."""
    adjacency = values["adjacency"]

    # Whether the number of records is public, and what it is.
    public = adjacency != "add_remove" or bool(values["size_constants"])
    if values["is_size_public"] != public:
        yield (
            f'"is_size_public" must be {json.dumps(public)} under adjacency {adjacency} with these'
            ' "size_constants"'
        )
    if values["num_examples"] is not None and not public:
        yield '"num_examples" must be null where the number of records is private'
    for event in _events(values["event"]):
        size = event.get("dataset_size", event.get("source_dataset_size"))
        if size is not None and not public:
            yield '"size_constants" must not be empty: the event has the number of records'
        if size is not None and values["num_examples"] not in (None, size):
            yield f'"num_examples" is {values["num_examples"]}, but the event samples of {size}'
        if size is not None and event.get("sample_size", 0) > size:
            yield f"the event draws {event['sample_size']} of {size} records without replacement"

    # The estimates, the guarantee among them, and both bounds on epsilon.
    certified = [one for one in values["estimates"] if one["kind"] == "guarantee"]
    stated = values["accountant"], values["epsilon"]
    if [(one["method"], one["epsilon"]) for one in certified] != [stated]:
        yield (
            'the "estimates" must hold one guarantee, with the accountant and the epsilon of the'
            " certificate"
        )
    if sorted(one["method"] for one in values["estimates"]) != sorted(_METHODS):
        yield f'"estimates" must hold one for each of {", ".join(_METHODS)}'
    for one in values["estimates"]:
        if (one["epsilon"] is None) != (one["kind"] == "unavailable"):
            yield f'the estimate "{one["method"]}" must have an epsilon unless it is unavailable'
        is_limit = one["method"] == "gdp_clt"
        if one["kind"] not in ("unavailable", *(["approximation"] if is_limit else _BOUNDS)):
            yield f'the estimate "{one["method"]}" cannot be of the kind "{one["kind"]}"'
        least = (1 - _EPSILON_RANGE[0]) * _number(values["epsilon"])
        if one["kind"] in _BOUNDS and _number(one["epsilon"]) < least:
            yield f'the estimate "{one["method"]}" is a bound below "epsilon", which is the least'
    lower = values["epsilon_lower"]
    if lower is not None and _number(lower) > _number(values["epsilon"]):
        yield '"epsilon_lower" is above "epsilon"'
    for risk in values["risks"]:
        if None not in (risk["lower"], risk["upper"]) and risk["lower"] > risk["upper"]:
            yield f'the lower bound of the risk "{risk["name"]}" is above the upper one'

    names = [risk["name"] for risk in values["risks"]]
    yield from (f'"risks" lacks "{name}"' for name in _RISKS if name not in names)
    if len(set(names)) < len(names):
        yield '"risks" must hold one for each name'

    # The run.
    flat = _flatten(values["event"], adjacency)
    releases = sum(flat.values())
    if values["num_releases"] < releases:
        yield f'"num_releases" is {values["num_releases"]}, but the event has {releases}'
    if releases == 0:
        yield '"num_releases" is above zero, but the event has none that depends on a record'
    run, first = values["num_steps_run"], values["first_plan"]
    if first is not None and (run is None or first >= run):
        yield '"first_plan" must be below "num_steps_run": it is what a continued run began with'
    sampled = {json.loads(one)["type"] for one in flat} <= _SAMPLED
    if run is not None and sampled and run > releases > 0:
        yield f'"num_steps_run" is {run}, but the event has {releases} sampled releases'
    if run is not None and run > values["num_releases"]:
        yield '"num_steps_run" is above "num_releases", but every step releases something'

    # The audit.
    if (audit := values["audit"]) is not None:
        for field, own in (("certified_epsilon", "epsilon"), ("delta",) * 2, ("adjacency",) * 2):
            if audit[field] != values[own]:
                yield f'"audit.{field}" is {_shown(audit[field])}, not that of the certificate'
        yield from _two_world_errors(audit) if "errors" in audit else _one_run_errors(audit, values)
        if _number(audit["epsilon_distribution_free"]) > _number(audit["epsilon"]):
            yield '"audit.epsilon_distribution_free" is above "audit.epsilon"'
        if audit["is_refuted"]:
            yield "the audit refutes the certificate"
        # That of guesses in one run is of a Gaussian mechanism, and is compared by mu instead.
        of_mechanism = "errors" in audit or audit["noise_std"] is not None
        compared = "epsilon" if of_mechanism else "epsilon_distribution_free"
        if not audit["is_refuted"] and _number(audit[compared]) > _number(values["epsilon"]):
            yield (
                f'"audit.{compared}" is above "epsilon", but the audit is stated not to refute it'
            )

    # Caveats that the other fields ask for.
    size = values["num_examples"]
    selects = any(event["type"] == "RepeatAndSelect" for event in _events(values["event"]))
    if values["tuning"] == "counted" and not selects:
        yield '"tuning" is "counted", but the event has no selection of the best of several runs'
    tuning = values["tuning"] or ""
    needed = {
        "Noise is sampled exactly": "exact_noise" if values["exact_noise"] else "",
        "Noise sampled in floating point": "" if values["exact_noise"] else "exact_noise",
        "The privacy cost of tuning hyper-parameters": "" if tuning else "tuning",
        "The settings were chosen by results on the private": "tuning" * ("not counted" in tuning),
        "This run protects nobody: its key was derived": "seeded" if values["seeded"] else "",
        "The number of records was used to compute": "size_constants"
        if public and adjacency == "add_remove"
        else "",
        "The run was planned with": "first_plan" if first else "",
        "delta = ": "delta" if size and values["delta"] * size >= 1 else "",
    }
    for words, field in needed.items():
        is_there = any(caveat.startswith(words) for caveat in values["caveats"])
        if field and not is_there:
            yield f'the caveat of "{field}" is missing: none begins with "{words}"'
        if not field and is_there:
            yield f'a caveat that begins with "{words}" contradicts the other fields'
    if values["exact_noise"] and "in floating point" in " ".join(values["caveats"]):
        yield '"exact_noise" is true, but a caveat says that noise is sampled in floating point'


def _two_world_errors(audit: Values) -> Iterator[str]:
    """Yields an error message for each rate that is not the bound of its counts."""
    errors = audit["errors"]
    for name in ("false_positive", "false_negative"):
        count, runs = errors[f"{name}s"], errors["num_releases"]
        share = (1 - audit["confidence"]) / 4
        bound = float(beta.ppf(1 - share, count + 1, runs - count)) if count < runs else 1.0
        if count > runs or abs(errors[f"{name}_rate"] - bound) > 1e-6:
            yield f'"audit.errors.{name}_rate" is not the bound that follows from the counts'


def _one_run_errors(audit: Values, values: Values) -> Iterator[str]:
    """Yields an error message for each bound that does not follow from the guesses of one run."""
    canaries, guesses, correct = (
        audit[f"num_{name}"] for name in ("canaries", "guesses", "correct")
    )
    if not 0 <= correct <= guesses <= canaries:
        yield '"audit.num_correct" and "audit.num_guesses" must be at most "audit.num_canaries"'
        return
    error, delta = (1 - audit["confidence"]) / 2, audit["delta"]

    # Steinke, Nasr & Jagielski (2023): the largest refuted epsilon of any mechanism.
    fewer = np.arange(correct + 1)

    def excess(epsilon: float) -> float:
        tails = binom.sf(correct - fewer - 1, guesses, expit(epsilon))
        slope = np.max((tails[1:] - tails[0]) / fewer[1:], initial=0.0)
        return error - float(tails[0] + 2 * canaries * delta * slope)

    if not _is_root(excess, audit["epsilon_distribution_free"]):
        yield '"audit.epsilon_distribution_free" is not the bound that follows from the guesses'

    # Mahloujifar, Melis & Chaudhuri (2024): the largest refuted mu, where it is not of scores.
    def gaussian_excess(mu: float) -> float:
        right, wrong = error * correct / canaries, error * (guesses - correct) / canaries
        for fewer in range(correct - 1, -1, -1):
            least_wrong = float(ndtr(ndtri(right) - mu))
            if least_wrong <= wrong:
                break
            right = min(right + fewer / (guesses - fewer) * (least_wrong - wrong), 1.0)
            wrong = least_wrong
        return right + wrong - guesses / canaries

    if audit["noise_std"] is None and not _is_root(gaussian_excess, audit["mu"]):
        yield '"audit.mu" is not the bound that follows from the guesses'
    if not audit["is_refuted"] and _number(audit["mu"]) > _number(values["mu"]) + _MU_ABSOLUTE:
        yield '"audit.mu" is above "mu", but the audit is stated not to refute the certificate'

    # The audited epsilon: that of mu, or that of any mechanism if larger.
    mu, free = _number(audit["mu"]), _number(audit["epsilon_distribution_free"])
    stated = _number(audit["epsilon"])
    allowed = mu > 0 and _gaussian_delta(mu, np.array([stated]))[0]
    follows = (
        abs(stated - free) <= 1e-6
        if not mu or _gaussian_delta(mu, np.array([free]))[0] <= delta
        else abs(allowed - delta) <= 1e-3 * delta
    )
    if not follows:
        yield '"audit.epsilon" does not follow from "audit.mu" and the distribution-free bound'


def _is_root(excess: Callable[[float], float], stated: float | str) -> bool:
    """Returns whether a decreasing function is zero here, or nowhere positive if it is 0."""
    value = _number(stated)
    below = value <= 1e-6 or excess(value - 1e-6) > 0
    return math.isfinite(value) and below and excess(value + 1e-6) <= 0


def _events(event: Values) -> Iterator[Values]:
    """Yields an event and all inside it."""
    yield event
    for inner in [*event.get("events", []), *([event["event"]] if "event" in event else [])]:
        yield from _events(inner)


def _number(value: float | str) -> float:
    return math.inf if value == "inf" else float(value)


def _compare_account(values: Values) -> tuple[float, list[str]]:
    """Returns the event's epsilon, and an error message for every number that differs from it.

    Raises:
      UndecidedError: epsilon is not computed here for an event of this kind.
    """
    delta, stated = values["delta"], _number(values["epsilon"])
    releases = _flatten(values["event"], values["adjacency"])
    curve: _Curve | None = None

    # Without noise nothing is protected; else the losses of all releases together.
    if any(_is_nonprivate(json.loads(event)) for event in releases):
        epsilon = math.inf
    else:
        _check_range(releases, stated, delta)
        curve = _Curve(_composed_loss(releases, values["adjacency"], stated))
        epsilon = curve.epsilon(delta)

    # Epsilon and its lower bound.
    wrong = []
    allowed = _TINY_DELTA_RANGE if delta < _TINY_DELTA else _EPSILON_RANGE
    if not _agrees(stated, epsilon, allowed, _ABSOLUTE):
        wrong.append(
            f'"epsilon" is {_shown(values["epsilon"])}, but from the event, the adjacency'
            f" {values['adjacency']} and delta {delta:g} follows {epsilon:.6g}"
        )
    lower = values["epsilon_lower"]
    if lower is not None and _number(lower) > epsilon * (1 + _EPSILON_RANGE[1]) + _ABSOLUTE:
        wrong.append(f'"epsilon_lower" is {lower:.6g}, above what follows from the event')

    # The attack risks and mu.
    for risk in values["risks"]:
        wrong += _compare_risk(risk, curve)
    if (audit := values["audit"]) is not None and "errors" in audit and curve is not None:
        errors = audit["errors"]
        allowed_rate = 1 - curve.true_positive_rate(errors["false_positive_rate"])
        if errors["false_negative_rate"] < (1 - _RISK_RANGE[1]) * allowed_rate:
            wrong.append('the errors of "audit" are fewer than the event allows')
    mu = math.inf if curve is None else curve.mu()
    if not _agrees(_number(values["mu"]), mu, _RISK_RANGE, _MU_ABSOLUTE):
        wrong.append(f'"mu" is {_shown(values["mu"])}, but from the event follows {mu:.5g}')
    return epsilon, wrong


def _check_range(releases: Mapping[str, int], stated: float, delta: float) -> None:
    """Raises UndecidedError where rounding decides, or the computation would take long."""
    if not stated <= _MOST_EPSILON:
        raise UndecidedError(f"it is stated to be above {_MOST_EPSILON:g}")
    if delta < _LEAST_STATED_DELTA:
        raise UndecidedError(f"delta is below {_LEAST_STATED_DELTA:g}, where rounding decides")
    if sum(releases.values()) > _MOST_RELEASES:
        raise UndecidedError(f"there are more than {_MOST_RELEASES:,} releases")


def _agrees(stated: float, computed: float, allowed: tuple[float, float], absolute: float) -> bool:
    """Whether a stated number is within the tolerance of the computed one.

    Args:
      stated: in the file.
      computed: here.
      allowed: how far the stated may be below, and above, relative.
      absolute: how far it may be above.

    Raises:
      UndecidedError: what was computed is no number.
    """
    if math.isnan(computed):
        raise UndecidedError("the numbers of the event are too large or too small")
    if math.isinf(stated) or math.isinf(computed):
        return stated == computed
    below, above = allowed
    return computed * (1 - below) - _ROUNDING <= stated <= computed * (1 + above) + absolute


def _compare_risk(risk: Values, curve: "_Curve | None") -> list[str]:
    """Returns an error message if the bound on an attack does not follow from the curve.

    ``None`` is the curve of a release without noise, where every attack succeeds.
    """
    name, guessing = risk["name"], _RISKS[risk["name"]]
    match str(name).rpartition(" "):
        case "accuracy at prior", _, prior:
            share = float(prior)
            slope = math.log((1 - share) / share)
            gained = 1.0 if curve is None else float(curve.delta(np.array(slope)))
            value = max(1 - share + share * gained, guessing)
        case "TPR at FPR", _, level:
            value = 1.0 if curve is None else curve.true_positive_rate(float(level))
        case _:
            gained = 1.0 if curve is None else float(curve.delta(np.array(0.0)))
            value = abs(guessing - gained)
    is_sum = name == "sum of errors"
    certified = risk["lower" if is_sum else "upper"]
    # The sum of errors is one minus the advantage, of which the bound is.
    bound = certified if certified is None or not is_sum else 1 - certified
    computed = 1 - value if is_sum else value
    if bound is None or not _agrees(bound, computed, _RISK_RANGE, _RISK_ABSOLUTE):
        return [
            f'the bound on the risk "{name}" is {certified}, but from the event follows {value:.5g}'
        ]
    if risk["guessing"] != guessing:
        return [f'guessing attains {guessing:g} in the risk "{name}", not {risk["guessing"]:g}']
    return []


class _LossDistribution:
    """Composed privacy loss distribution, in one order of neighbours.

    Delta is computed from the probabilities, which dp-accounting has no public access to: its own
    ``get_delta_for_epsilon`` takes minutes for a million losses and loses digits to cancellation.
    """

    def __init__(self, pmf: pld_pmf.PLDPmf) -> None:
        dense = pmf.to_dense_pmf()
        self.interval = float(dense._discretization)
        masses = np.asarray(dense._probs, float)
        self.first = int(dense._lower_loss)
        # After a million compositions the sum differs from one by some percent.
        masses *= (1 - dense._infinity_mass) / masses.sum()
        # Of the losses above each: their mass, and the sum of mass times e^(epsilon - loss).
        above = np.cumsum(masses[::-1])[::-1]
        self._above = float(dense._infinity_mass) + np.append(above, 0.0)
        decay = math.exp(-self.interval)
        discounted = lfilter([decay], [1.0, -decay], masses[::-1])[::-1]
        self._discounted = np.append(discounted, 0.0)

    @property
    def largest(self) -> float:
        return self.interval * (self.first + self._above.size - 2)

    def delta(self, epsilons: Array) -> Array:
        """Returns the sum of mass times 1 - e^(epsilon - loss) over larger losses, and infinity."""
        cells = np.floor(epsilons / self.interval + 1e-9).astype(int)
        rest = epsilons - cells * self.interval
        place = np.clip(cells - self.first + 1, 0, self._above.size - 1)
        # Below the least loss all masses count, discounted by the distance to it as well.
        behind = np.minimum(cells - self.first + 1 - place, 0) * self.interval + rest
        return np.maximum(self._above[place] - np.exp(behind) * self._discounted[place], 0.0)

    def selected(self, select: Callable[[Array], Array]) -> Array:
        """Returns the mean of (1 - e^(epsilon - loss))_+ over selected outputs, at each loss.

        Args:
          select: from the probability of some outputs to that of the best of K runs among them,
            where they are better than all others.
        """
        above = select(np.minimum(self._above, 1.0))
        masses = np.append(-np.diff(above), 0.0)
        decay = math.exp(-self.interval)
        discounted = lfilter([decay], [1.0, -decay], masses[::-1])[::-1]
        # At the loss itself, where the outputs of larger losses count.
        return above[1:] - discounted[1:]

    def power(self, levels: Array) -> Array:
        """Returns the largest true positive rate at each false positive rate."""
        # Of the tests for a loss above each on the grid, and mixtures of two neighbouring ones.
        losses = self.interval * (self.first - 1 + np.arange(self._above.size))
        false_positives = np.minimum(np.exp(-losses) * self._discounted, 1.0)
        return np.minimum(np.interp(levels, false_positives[::-1], self._above[::-1]), 1.0)


class _Curve:
    """The trade-off function of a composed loss, in both orders of neighbours."""

    def __init__(self, loss: Loss) -> None:
        pmfs = [loss._pmf_remove] if loss._symmetric else [loss._pmf_remove, loss._pmf_add]
        self._orders = [_LossDistribution(pmf) for pmf in pmfs]
        interval = self._orders[0].interval

        # A grid on both sides of zero, up to where delta is next to nothing.
        whole = np.arange(math.ceil(max(order.largest for order in self._orders) / interval) + 1)
        whole = whole[: 1 + np.searchsorted(-self.delta(whole * interval), -_LEAST_DELTA)]
        positive = whole[:: max(1, whole.size // _MOST_SLOPES)] * interval
        self._epsilons = np.concatenate([-positive[:0:-1], positive])
        self._deltas = self.delta(self._epsilons)

    def delta(self, epsilons: Array) -> Array:
        """Returns delta at each epsilon: the larger of both orders of two neighbours."""
        above = np.max([order.delta(np.abs(epsilons)) for order in self._orders], axis=0)
        # Of the exchanged pair: delta(-e) = 1 - e^-e (1 - delta(e)).
        return np.where(epsilons >= 0, above, 1 - np.exp(-np.abs(epsilons)) * (1 - above))

    def epsilon(self, delta: float) -> float:
        """Returns the least epsilon >= 0 of a delta, infinity where there is none."""
        low, high = 0.0, max(order.largest for order in self._orders)
        if float(self.delta(np.array(high))) > delta:
            return math.inf
        if high <= 0 or float(self.delta(np.array(low))) <= delta:
            return 0.0
        for _ in range(60):
            middle = (low + high) / 2
            within = float(self.delta(np.array(middle))) <= delta
            low, high = (low, middle) if within else (middle, high)
        return high

    def true_positive_rate(self, level: float) -> float:
        """Returns the largest true positive rate: the least of e^epsilon level + delta."""
        with np.errstate(over="ignore"):
            lines = np.exp(self._epsilons) * level + self._deltas
        return float(np.clip(np.min(lines), level, 1.0))

    def mu(self) -> float:
        """Returns the least mu whose curve is below this one at all errors that count."""
        # At levels between the kinks of the curve, where two lines cross, mu is not larger.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            kinks = -np.diff(self._deltas) / np.diff(np.exp(self._epsilons))
        kinks = np.sort(kinks[(kinks > _LEAST_ERROR) & (kinks < 0.5)])
        kinks = kinks[:: max(1, kinks.size // _MOST_LEVELS)]
        levels = np.concatenate([np.geomspace(_LEAST_ERROR, 0.5, _MOST_LEVELS), kinks])
        errors = np.array([1 - self.true_positive_rate(float(level)) for level in levels])
        # By symmetry the levels up to the one that equals the error there say all.
        first = errors >= levels
        if not first.any():
            return math.inf
        return float(np.max(-ndtri(levels[first]) - ndtri(errors[first]), initial=0.0))


def _is_nonprivate(event: Values) -> bool:
    """Whether a release is without noise; a multiplier below 1e-100 counts as none."""
    noises = (
        _number(one["noise_multiplier"]) for one in _events(event) if "noise_multiplier" in one
    )
    named = any(one["type"] == "NonPrivate" for one in _events(event))
    return named or min(noises, default=1.0) < 1e-100


def _flatten(event: Values, adjacency: str, count: int = 1, depth: int = 0) -> dict[str, int]:
    """Returns the releases that an event is composed of, as JSON, with how often each occurs."""
    releases: collections.Counter[str] = collections.Counter()
    if depth > _DEEPEST:
        raise UndecidedError(f"events are nested more than {_DEEPEST} deep")
    inside: dict[str, Any] = {"adjacency": adjacency, "depth": depth + 1}
    match event:
        case {"type": "NoOp"}:
            pass
        case {"type": "SelfComposed"}:
            releases.update(_flatten(event["event"], count=count * event["count"], **inside))
        case {"type": "Composed"}:
            for inner in event["events"]:
                releases.update(_flatten(inner, count=count, **inside))

        # A sample of all records is none.
        case {"type": "PoissonSampled", "sampling_probability": 0}:
            pass
        case {"type": "PoissonSampled", "sampling_probability": 1}:
            releases.update(_flatten(event["event"], count=count, **inside))
        case {"type": "SampledWithoutReplacement", "source_dataset_size": n, "sample_size": m} if (
            n == m and adjacency == "zero_out"
        ):
            releases.update(_flatten(event["event"], count=count, **inside))

        # Several Gaussian releases of one sample are one.
        case {"type": "PoissonSampled" | "SampledWithoutReplacement"}:
            sampled = _flatten(event["event"], **inside)
            inner = {json.loads(one)["type"] for one in sampled}
            if inner == {"Gaussian"}:
                noises = [
                    (_number(json.loads(one)["noise_multiplier"]), number)
                    for one, number in sampled.items()
                ]
                if min(noises)[0] == 0:
                    noise: float | str = 0.0
                else:
                    precision = sum(number / one**2 for one, number in noises)
                    noise = precision**-0.5 if precision > 0 else "inf"
                event = {**event, "event": {"type": "Gaussian", "noise_multiplier": noise}}
            releases[json.dumps(event)] += count
        case _:
            releases[json.dumps(event)] += count
    return {one: number for one, number in releases.items() if number > 0}


def _composed_loss(releases: Mapping[str, int], adjacency: str, stated: float) -> Loss:
    """Returns the privacy loss of all releases together.

    Raises:
      UndecidedError: no loss is known here for one of them.
    """
    merged = _merge_schedules(releases)
    if len(merged) > _MOST_DIFFERENT:
        raise UndecidedError(f"more than {_MOST_DIFFERENT} different releases take long")
    atoms = [(_release(json.loads(one), adjacency), count) for one, count in merged.items()]
    atoms = [(atom, count) for atom, count in atoms if atom.deviation > 0]
    if not atoms:
        return pld.identity()

    # One grid for all: fine beside the deviation of a release's loss, coarse beside its range.
    total = sum(count for _, count in atoms)
    squares = sum(count * atom.deviation**2 for atom, count in atoms)
    interval = max(
        (_FINE_INTERVAL if total <= _FEW else _INTERVAL) * math.sqrt(squares / total),
        max(atom.largest for atom, _ in atoms) / _MOST_CELLS,
        stated / _MOST_CELLS,
    )
    if interval < _LEAST_INTERVAL:
        raise UndecidedError("its losses are so small that rounding decides")
    # The atoms of discrete losses are on the grid.
    aligned = next((atom.largest for atom, _ in atoms if atom.is_discrete), None)
    if aligned is not None and aligned > interval:
        interval = aligned / math.ceil(aligned / interval) * (1 + 1e-12)

    composed: Loss | None = None
    for atom, count in atoms:
        loss = atom.build(interval)
        loss = loss if count == 1 else loss.self_compose(count)
        composed = loss if composed is None else composed.compose(loss)
    assert composed is not None
    return composed


def _merge_schedules(releases: Mapping[str, int]) -> dict[str, int]:
    """Joins all Gaussian releases of all records, and sampled ones of nearly the same noise."""
    by_rate: dict[str, list[tuple[float, int]]] = {}
    merged: dict[str, int] = {}
    precision = 0.0
    for one, count in releases.items():
        event = json.loads(one)
        inner = event.get("event", {})
        if event["type"] == "Gaussian":
            precision += count / _number(event["noise_multiplier"]) ** 2
        elif event["type"] == "PoissonSampled" and inner.get("type") == "Gaussian":
            rate = json.dumps(event["sampling_probability"])
            by_rate.setdefault(rate, []).append((_number(inner["noise_multiplier"]), count))
        else:
            merged[one] = count
    if precision > 0:
        merged[json.dumps({"type": "Gaussian", "noise_multiplier": precision**-0.5})] = 1

    # Of sampled ones groups of noise multipliers within 2 %, less where there is little noise.
    for rate, noises in by_rate.items():
        groups: list[list[tuple[float, int]]] = []
        for noise, count in sorted(noises):
            start = groups[-1][0][0] if groups else 0.0
            if noise <= start * (1 + _SAME_NOISE * min(1.0, start**2)):
                groups[-1].append((noise, count))
            else:
                groups.append([(noise, count)])
        for group in groups:
            total = sum(count for _, count in group)
            noise = group[0][0]
            if len(group) > 1:
                # The loss's variance is q^2 (exp(1 / noise^2) - 1): its mean is kept.
                mean = sum(count * math.expm1(noise**-2) for noise, count in group) / total
                noise = math.log1p(mean) ** -0.5
            event = {
                "type": "PoissonSampled",
                "sampling_probability": json.loads(rate),
                "event": {"type": "Gaussian", "noise_multiplier": noise},
            }
            text = json.dumps(event)
            merged[text] = merged.get(text, 0) + total
    return merged


class _Release(NamedTuple):
    """Privacy loss of one release.

    Attributes:
      deviation: about the standard deviation of the loss.
      largest: a loss above which there is next to no mass.
      build: from an interval to the distribution on its multiples.
      is_discrete: whether ``largest`` has a mass of its own, which must be on the grid.
    """

    deviation: float
    largest: float
    build: Callable[[float], Loss]
    is_discrete: bool = False


def _release(event: Values, adjacency: str) -> _Release:
    """Returns the privacy loss of an event that composes no others.

    Raises:
      UndecidedError: it is not known here under the adjacency.
    """
    factor = 2 if adjacency == "replace_one" else 1
    undecided = UndecidedError(
        f"no privacy loss of the event {event['type']} under {adjacency} is known here"
    )
    match event:
        case {"type": "Gaussian"}:
            return _gaussian(factor / _number(event["noise_multiplier"]))

        # A sample in which each record takes part by itself.
        case {"type": "PoissonSampled", "sampling_probability": q, "event": {"type": "Gaussian"}}:
            noise = _number(event["event"]["noise_multiplier"])
            if noise == math.inf:
                return _NOTHING
            return _sampled_gaussian(1 / noise, q, factor)
        case {"type": "PoissonSampled", "sampling_probability": q, "event": {"type": "Laplace"}}:
            scale = _number(event["event"]["noise_multiplier"])
            if factor == 2:
                raise undecided
            return _Release(
                q * min(1 / scale, 1.0),
                math.log1p(q * math.expm1(min(1 / scale, 700.0))),
                lambda interval: pld.from_laplace_mechanism(
                    scale, sampling_prob=q, value_discretization_interval=interval
                ),
            )

        # A sample of fixed size, in which another record takes the place of one that is left out.
        case {"type": "SampledWithoutReplacement", "event": {"type": "Gaussian"}}:
            if adjacency == "add_remove":
                raise undecided
            rate = event["sample_size"] / event["source_dataset_size"]
            mu = 2 / _number(event["event"]["noise_multiplier"])
            return _exchanged(mu, rate)

        # A Poisson sample that is cut: the mean of the case that it is not, and that it is.
        case {"type": "TruncatedSubsampledGaussian"}:
            return _truncated(event, adjacency)

        # One random step of several.
        case {"type": "RandomAllocation", "num_steps": steps}:
            if factor == 2:
                raise undecided
            noise = _number(event["noise_multiplier"])
            return _NOTHING if noise == math.inf else _allocated(steps, 1 / noise)

        # The best of a random number of runs.
        case {"type": "RepeatAndSelect"}:
            return _selected(event, adjacency)

        # Noise on whole numbers.
        case {"type": "DiscreteGaussian"}:
            return _discrete_gaussian(event, factor)
        case {"type": "DiscreteLaplace", "noise_parameter": parameter, "sensitivity": whole}:
            whole, largest = whole * factor, parameter * whole * factor
            if whole != int(whole):
                raise UndecidedError("the sensitivity of discrete Laplace noise is no whole number")
            if whole > _FINE_SENSITIVITY:
                return _release({"type": "Laplace", "noise_multiplier": 1 / largest}, "zero_out")
            return _Release(
                largest * min(1.0, largest) ** 0.5,
                largest,
                lambda interval: pld.from_discrete_laplace_mechanism(
                    parameter,
                    int(whole),
                    value_discretization_interval=interval,
                    use_connect_dots=True,
                ),
                is_discrete=True,
            )

        # The other releases of all records.
        case {"type": "Laplace"}:
            largest = factor / _number(event["noise_multiplier"])
            return _Release(
                min(largest, 1.0 + largest / 10),
                largest,
                lambda interval: pld.from_laplace_mechanism(
                    1 / largest, value_discretization_interval=interval
                ),
                is_discrete=True,
            )
        case {"type": "RandomizedResponse", "noise_parameter": noise, "num_buckets": buckets}:
            if adjacency != "replace_one" or noise == 0:
                raise undecided
            largest = math.log1p(buckets * (1 - noise) / noise)
            return _Release(
                max(largest * math.sqrt(1 - noise + 2 * noise / buckets) / 2, 1e-9),
                largest,
                lambda interval: pld.from_randomized_response(
                    noise, buckets, value_discretization_interval=interval
                ),
                is_discrete=True,
            )
        case {"type": "Approximate", "epsilon": epsilon, "delta": slack}:
            parameters = common.DifferentialPrivacyParameters(epsilon, slack)
            return _Release(
                max(epsilon * min(1.0, 0.5 + epsilon), 1e-9),
                epsilon,
                lambda interval: pld.from_privacy_parameters(parameters, interval),
                is_discrete=True,
            )
        case {"type": "Wishart"}:
            return _wishart(event, factor)
        case _:
            raise undecided


_NOTHING = _Release(0.0, 0.0, lambda _: pld.identity())


def _gaussian(mu: float) -> _Release:
    if mu == 0:
        return _NOTHING
    return _Release(
        mu,
        mu * (mu / 2 + _FARTHEST),
        lambda interval: pld.from_gaussian_mechanism(
            1 / mu, value_discretization_interval=interval
        ),
    )


def _sampled_spread(mu: float, rate: float, factor: int) -> tuple[float, float]:
    """Returns approximate standard deviation and maximum of a sampled Gaussian's loss."""
    deviation = min(factor * rate * math.sqrt(math.expm1(min(mu**2, 500.0))), factor * mu)
    far = mu * (mu / 2 + _FARTHEST)
    largest = far if rate == 1 else np.logaddexp(math.log1p(-rate), math.log(rate) + far)
    return deviation, factor * float(largest)


def _exchanged(mu: float, rate: float) -> _Release:
    """Returns the privacy loss of the curve C_rate(G_mu), Dong, Roth & Su (2022), Section 4."""

    def delta(epsilons: Array) -> Array:
        return _exchanged_delta(mu, rate, epsilons)

    deviation, largest = _sampled_spread(mu, rate, 1)
    return _Release(
        deviation, largest, lambda interval: _from_deltas(delta, delta, largest, interval)
    )


def _exchanged_delta(mu: float, rate: float, epsilons: Array) -> Array:
    """Returns rate times the delta of G_mu at log(1 + (e^epsilon - 1) / rate), epsilon >= 0."""
    if rate == 0:
        return np.zeros_like(epsilons)
    return rate * _gaussian_delta(mu, _without_sampling(epsilons, rate))


def _sampled_gaussian(mu: float, rate: float, factor: int) -> _Release:
    """Returns the privacy loss of Gaussian noise on the sum of a Poisson sample.

    Where a record is replaced dp-accounting builds the loss; else it is that of `_sampled_deltas`.
    """
    deviation, largest = _sampled_spread(mu, rate, factor)
    if factor == 1:
        pair = _sampled_deltas(mu, rate)
        return _Release(deviation, largest, lambda interval: _from_deltas(*pair, largest, interval))
    return _Release(
        deviation,
        largest,
        lambda interval: pld.from_gaussian_mechanism(
            1 / mu,
            sampling_prob=rate,
            value_discretization_interval=interval,
            neighboring_relation=NeighboringRelation.REPLACE_ONE,
        ),
    )


def _sampled_deltas(mu: float, rate: float) -> tuple[Delta, Delta]:
    """Returns the deltas of (1 - q) N(0, 1) + q N(mu, 1) against N(0, 1), and exchanged."""

    def removal(epsilons: Array) -> Array:
        return rate * _gaussian_delta(mu, _without_sampling(epsilons, rate))

    def addition(epsilons: Array) -> Array:
        # 1 - (1 - q) e^epsilon times delta of G_mu at log(q e^epsilon / that).
        left = np.maximum(rate - (1 - rate) * np.expm1(epsilons), 0.0)
        with np.errstate(divide="ignore"):
            away = np.where(left > 0, epsilons + math.log(rate) - np.log(left), 0.0)
        return left * _gaussian_delta(mu, away)

    return removal, addition


def _truncated(event: Values, adjacency: str) -> _Release:
    """Returns the privacy loss of a truncated Poisson sample, by the bound of Ganesh (2025).

    K of the n - 1 other records are drawn. With K < B the sample is a Poisson sample. Else a record
    replaces another one, with the probability P(Bin(n, q) > B) B / (n P(K >= B)). The neighbours
    of n records have one less, or one more where the number is private: the larger delta counts.
    """
    q, most, n = event["sampling_probability"], event["truncated_batch_size"], event["dataset_size"]
    noise = _number(event["noise_multiplier"])
    factor = 2 if adjacency == "replace_one" else 1
    if q == 0 or most == 0 or n == 0 or noise == math.inf:
        return _NOTHING

    # The probability of a truncation and the rate given that, for each pair of neighbours; and how
    # large the losses are.
    deviation, largest = _sampled_spread(1 / noise, q, factor)
    cases = []
    for size in (n, n + 1) if adjacency == "add_remove" else (n,):
        cut = float(binom.sf(most - 1, size - 1, q))
        rate = float(binom.sf(most, size, q)) * most / (size * cut) if cut > 0 else 0.0
        cases.append((cut, min(rate, 1.0)))
        if cut * rate > 1e-22:
            largest = max(largest, _sampled_spread(2 / noise, min(rate, 1.0), 1)[1])

    # Where a record is replaced, a mixture of both losses.
    if factor == 2:
        ((cut, rate),) = cases

        def build(interval: float) -> Loss:
            poisson = _sampled_gaussian(1 / noise, q, 2).build(interval)
            if cut * rate == 0:
                return poisson
            return _exchanged(2 / noise, rate).build(interval).compute_mixture(poisson, cut)

        return _Release(deviation, largest, build)

    # Else the mean of both deltas.
    def mixed(delta: Delta) -> Delta:
        def mean(epsilons: Array) -> Array:
            deltas = delta(epsilons)
            each = [
                (1 - cut) * deltas + cut * _exchanged_delta(2 / noise, rate, epsilons)
                for cut, rate in cases
            ]
            return np.max(each, axis=0)

        return mean

    removal, addition = map(mixed, _sampled_deltas(1 / noise, q))
    return _Release(
        deviation, largest, lambda interval: _from_deltas(removal, addition, largest, interval)
    )


def _allocated(steps: int, mu: float) -> _Release:
    """Returns the privacy loss of random allocation, by one lattice from zero to the largest sum.

    The ratio of the densities is the mean of independent lognormal terms of mean one without the
    record; with it, one of them is larger by its own weight (Feldman & Shenfeld 2025). Each is
    rounded to the lattice's points with its mean kept.
    """
    # The lattice.
    if not 1 / 20 <= mu <= _MOST_ALLOCATED_MU or steps > _MOST_ALLOCATED_STEPS:
        raise UndecidedError("a lattice for its noise multiplier and steps would be too large")
    largest = mu**2 / 2 + _ALLOCATED_FARTHEST * mu
    spread = math.sqrt(steps * math.expm1(mu**2))
    step = max((2 * math.exp(largest) + steps + 10 * spread) / 2**21, spread / 2**12)
    end = math.exp(largest)
    length = math.ceil((2 * end + steps + 10 * spread) / step)
    edges = step * np.arange(math.ceil(end / step) + 1)

    # The masses of its cells, and of the points.
    with np.errstate(divide="ignore"):
        logs = np.log(edges) / mu
    middle = int(np.searchsorted(logs, 0.0))

    def masses(z: Array) -> Array:
        below, above = np.exp(log_ndtr(z[: middle + 1])), np.exp(log_ndtr(-z[middle:]))
        return np.append(np.diff(below), -np.diff(above))

    without, present = masses(logs + mu / 2), masses(logs - mu / 2)
    higher = np.clip(present / step - np.arange(without.size) * without, 0.0, without)
    points = np.append(without - higher, 0.0) + np.append(0.0, higher)

    # The sum without the record and with it, and the masses from each point on, or up to it.
    term = np.fft.rfft(points, length)
    others = term ** (steps - 1)
    absent = np.maximum(np.fft.irfft(others * term, length), 0.0)
    with_record = np.fft.rfft(points * edges, length)
    held = np.maximum(np.fft.irfft(others * with_record, length), 0.0)
    ratios = step * np.arange(length) / steps
    from_absent, from_held = (np.append(np.cumsum(m[::-1])[::-1], 0.0) for m in (absent, held))
    to_absent, to_held = (np.append(0.0, np.cumsum(m)) for m in (absent, held))

    def remove(epsilons: Array) -> Array:
        place = np.searchsorted(ratios, np.exp(epsilons), side="right")
        return from_held[place] - np.exp(epsilons) * from_absent[place]

    def add(epsilons: Array) -> Array:
        place = np.searchsorted(ratios, np.exp(-epsilons))
        return to_absent[place] - np.exp(epsilons) * to_held[place]

    deviation = math.sqrt(math.log1p(math.expm1(mu**2) / steps))
    return _Release(
        deviation, largest, lambda interval: _from_deltas(remove, add, largest, interval)
    )


def _selected(event: Values, adjacency: str) -> _Release:
    """Returns the privacy loss of the best of K runs, in both orders by the larger delta.

    With F and G the probabilities of two neighbours that a run is not better than some output,
    selection adds at most c = sup log(phi'(F) / phi'(G)) to losses, where phi is the generating
    function of K, and delta(epsilon + c) is E[K] times that of a run (Koskela, Redberg & Wang
    2024). Here c is found on a grid of levels 1 - F, the power of a test at the upper end of each
    cell against its lower end. The smaller of this bound and that of the Rényi divergences
    (Papernot & Steinke 2022, by dp-accounting) counts.
    """
    mean, shape = float(_number(event["mean"])), float(_number(event["shape"]))
    largest_mean = 500.0 if math.isinf(shape) else 1e6
    if not 1 <= mean <= largest_mean or 100 < shape < math.inf:
        raise UndecidedError("there is no such number of runs")
    runs = _flatten(event["event"], adjacency)
    if len(runs) > _MOST_DIFFERENT or sum(runs.values()) > _MOST_RELEASES:
        raise UndecidedError("a run has too many releases")
    loss = _composed_loss(runs, adjacency, 0.0)
    pmfs = [loss._pmf_remove] if loss._symmetric else [loss._pmf_remove, loss._pmf_add]
    orders = [_LossDistribution(pmf) for pmf in pmfs]

    # How much selection adds, in each order by the power of tests in the other.
    gamma = math.nan if math.isinf(shape) else _gamma(mean, shape)

    def log_ratio(levels: Array, power: Array) -> Array:
        if math.isinf(shape):
            return mean * (power - levels)
        ratio = (gamma + (1 - gamma) * power) / (gamma + (1 - gamma) * levels)
        return (1 + shape) * np.log(np.maximum(ratio, 1.0))

    def select(above: Array) -> Array:
        """The probability that the best of K runs is among outputs of this probability."""
        if math.isinf(shape):
            return -np.expm1(-mean * above)
        if gamma == 1:
            return above
        argument = np.log(gamma + (1 - gamma) * above)
        if shape == 0:
            return 1 - argument / math.log(gamma)
        return 1 - np.expm1(-shape * argument) / math.expm1(-shape * math.log(gamma))

    added = [_largest_in_cells(log_ratio, order.power) for order in orders[::-1]]

    # Both bounds at each epsilon, and what convexity in e^epsilon gives between them.
    end = max(shift + order.largest for shift, order in zip(added, orders, strict=True))
    end = min(max(end, 1e-9), 600.0)
    epsilons = np.linspace(0.0, end, 20_001)
    shifted = []
    for shift, order in zip(added, orders, strict=True):
        largest_share = order.selected(select)
        place = (epsilons - shift) / order.interval - order.first
        share = np.interp(place, np.arange(largest_share.size), largest_share)
        share[epsilons < shift] = 1.0
        shifted.append(np.minimum(mean * order.delta(epsilons - shift), share))
    renyi = _renyi_deltas(event, runs, adjacency, epsilons)
    deltas = np.minimum(np.minimum(np.max(shifted, axis=0), renyi), 1.0)
    deltas[0] = min(deltas[0], np.min((np.expm1(epsilons) + 2 * deltas) / (np.exp(epsilons) + 1)))
    deltas = np.minimum.accumulate(deltas)
    widths = np.exp(epsilons[:-1]) * math.expm1(end / 20_000)
    slopes = isotonic_regression(np.diff(deltas) / widths, weights=widths).x
    convex = deltas[-1] + np.append(np.cumsum((-slopes * widths)[::-1])[::-1], 0.0)

    def delta(at: Array) -> Array:
        return np.interp(np.expm1(np.minimum(at, end)), np.expm1(epsilons), convex)

    # How large the losses are.
    atoms = [(_release(json.loads(one), adjacency), count) for one, count in runs.items()]
    deviation = math.sqrt(sum(count * atom.deviation**2 for atom, count in atoms))
    rare = deltas <= max(_LEAST_DELTA, 1.01 * float(deltas[-1]))
    largest = float(epsilons[np.argmax(rare)])
    return _Release(
        deviation, largest, lambda interval: _from_deltas(delta, delta, largest, interval)
    )


def _largest_in_cells(
    log_ratio: Callable[[Array, Array], Array], power: Callable[[Array], Array]
) -> float:
    """Returns an upper bound on a function of a test's level and power, increasing in the power.

    In a cell of levels it is at most that of the least level and the largest power. Cells that may
    hold the maximum are divided again.
    """
    low = np.append(0.0, np.geomspace(1e-12, 1.0, _MOST_SLOPES))
    low, high = low[:-1], low[1:]
    for _ in range(4):
        bounds = log_ratio(low, power(high))
        kept = bounds >= float(np.max(log_ratio(low, power(low)), initial=0.0))
        edges = np.linspace(low[kept], high[kept], 11)
        largest = float(np.max(bounds))
        if edges.size > 100 * _MOST_SLOPES:
            break
        low, high = edges[:-1].ravel(), edges[1:].ravel()
    return largest


def _gamma(mean: float, shape: float) -> float:
    """Returns gamma of the truncated negative binomial distribution with a mean and a shape."""

    def mean_at(log: float) -> float:
        if shape == 0:
            return math.expm1(log) / log
        return shape * math.expm1(log) / -math.expm1(-shape * log)

    low, high = 1e-12, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_at(middle) < mean else (low, middle)
    return math.exp(-high) if mean > 1 else 1.0


def _renyi_deltas(event: Values, runs: Mapping[str, int], adjacency: str, epsilons: Array) -> Array:
    """Returns delta of the best of K runs by Rényi divergences; one where there are none."""
    # The events of one run, of which dp-accounting has Rényi divergences.
    factor = 2 if adjacency == "replace_one" else 1
    composed = []
    for one, count in runs.items():
        match json.loads(one):
            case {"type": "Gaussian", "noise_multiplier": noise}:
                release: dp_event.DpEvent = dp_event.GaussianDpEvent(_number(noise) / factor)
            case {"type": "Laplace", "noise_multiplier": noise}:
                release = dp_event.LaplaceDpEvent(_number(noise) / factor)
            case {
                "type": "PoissonSampled",
                "sampling_probability": rate,
                "event": {"type": "Gaussian", "noise_multiplier": noise},
            } if factor == 1:
                release = dp_event.PoissonSampledDpEvent(
                    rate, dp_event.GaussianDpEvent(_number(noise))
                )
            case _:
                return np.ones_like(epsilons)
        composed.append(dp_event.SelfComposedDpEvent(release, count))

    # Those of the best of K runs.
    accountant = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(
        dp_event.RepeatAndSelectDpEvent(
            dp_event.ComposedDpEvent(composed), _number(event["mean"]), _number(event["shape"])
        )
    )

    # At each epsilon the least delta of all orders (Canonne, Kamath & Steinke 2020).
    deltas = np.ones_like(epsilons)
    for order, divergence in zip(accountant._orders, accountant.rdp, strict=True):
        if order > 1.01:  # below it dp-accounting converts none
            constant = (order - 1) * (divergence + math.log1p(-1 / order)) - math.log(order)
            deltas = np.minimum(deltas, np.exp(np.minimum(constant - (order - 1) * epsilons, 0)))
    return deltas


def _discrete_gaussian(event: Values, factor: int) -> _Release:
    """Returns the privacy loss of discrete Gaussian noise, of a bounded L2 sensitivity."""
    variance = _number(event["scale"]) ** 2
    distance = event["scale"] / (_number(event["noise_multiplier"]) / factor)
    squared = math.floor(distance**2 * (1 + 1e-12))
    if squared < 1:
        raise UndecidedError("no two whole numbers are as close as the sensitivity")
    if variance >= _FINE_VARIANCE:
        return _gaussian(math.sqrt(squared / (variance - _SMOOTHING)))
    if variance >= _EXACT_VARIANCE or (squared > _EXACT_SQUARE and variance > 4):
        return _gaussian(math.sqrt(squared / (variance - _SHEPPARD)))
    if squared > _EXACT_SQUARE:
        raise UndecidedError("discrete Gaussian noise so coarse is not computed here")

    # Every way to move by whole numbers: the loss depends on the sum of noise times shift alone.
    pairs = []
    reach = math.ceil(math.sqrt(280 * variance)) + 1
    noise = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * variance))
    noise /= noise.sum()
    for shift in _square_partitions(squared, squared):
        sums = np.ones(1)
        for entry in shift:
            spread = np.zeros(2 * reach * entry + 1)
            spread[::entry] = noise
            sums = np.convolve(sums, spread)
        values = np.arange(sums.size) - sums.size // 2
        pairs.append(((2 * values + squared) / (2 * variance), sums))

    def delta(epsilons: Array) -> Array:
        found = []
        for losses, masses in pairs:
            above = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
            beside = np.append(np.cumsum((masses * np.exp(-losses))[::-1])[::-1], 0.0)
            place = np.searchsorted(losses, epsilons, side="right")
            found.append(above[place] - np.exp(epsilons) * beside[place])
        return np.maximum(np.max(np.array(found), axis=0), 0.0)

    mu = math.sqrt(squared / variance)
    largest = mu * (mu / 2 + _FARTHEST)
    return _Release(mu, largest, lambda interval: _from_deltas(delta, delta, largest, interval))


def _square_partitions(total: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yields decreasing tuples of integers up to ``most`` whose squares have this sum."""
    if total == 0:
        yield ()
    for first in range(min(most, math.isqrt(total)), 0, -1):
        yield from ((first, *rest) for rest in _square_partitions(total - first**2, first))


def _wishart(event: Values, factor: int) -> _Release:
    """Returns the privacy loss of Wishart noise: chi-square noise y that a row increases by c.

    The loss of the row's presence is (k / 2 - 1) log(1 - c / y) + c / 2, increasing in y, and minus
    infinity below c. Where a row is replaced by another one, the curve is bounded through the data
    without either: a small y tells presence from absence, a large one absence from presence.
    """
    freedom, shift = event["degrees_of_freedom"], 1 / _number(event["scale_over_square"])

    def threshold(losses: Array) -> Array:
        exponent = (losses - shift / 2) / (freedom / 2 - 1)
        with np.errstate(divide="ignore"):
            return np.where(exponent < 0, shift / -np.expm1(np.minimum(exponent, 0.0)), np.inf)

    def removal(epsilons: Array) -> Array:
        y = threshold(epsilons)
        return np.maximum(chi2.sf(y - shift, freedom) - np.exp(epsilons) * chi2.sf(y, freedom), 0.0)

    def addition(epsilons: Array) -> Array:
        y = threshold(-epsilons)
        return chi2.cdf(y, freedom) - np.exp(epsilons) * chi2.cdf(y - shift, freedom)

    def replacement(epsilons: Array) -> Array:
        levels = np.geomspace(1e-18, 0.5, 4_000)
        small = chi2.ppf(np.concatenate([levels, 1 - levels[::-1]]), freedom)
        small = np.maximum(small, shift)
        large = chi2.isf(chi2.cdf(small, freedom), freedom)
        rates, alphas = chi2.sf(large - shift, freedom), chi2.cdf(small - shift, freedom)
        return np.array([max(np.max(rates - math.exp(e) * alphas), 0.0) for e in epsilons])

    far = chi2.ppf([1e-18, 0.5], freedom)
    largest = max(
        shift / 2, float(np.max((freedom / 2 - 1) * np.log1p(shift / far) - shift / 2, initial=0.0))
    )
    deviation = min(shift / math.sqrt(2 * freedom), largest)
    pair = (removal, addition) if factor == 1 else (replacement, replacement)
    return _Release(
        factor * deviation,
        factor * largest,
        lambda interval: _from_deltas(*pair, factor * largest, interval),
    )


def _without_sampling(epsilons: Array, rate: float) -> Array:
    """Returns log(1 + (e^epsilon - 1) / rate), for epsilons >= 0."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(0.0, np.log(np.expm1(epsilons)) - math.log(rate))


def _gaussian_delta(mu: float, epsilons: Array) -> Array:
    """Returns Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)."""
    first, second = log_ndtr(mu / 2 - epsilons / mu), log_ndtr(-mu / 2 - epsilons / mu)
    return np.exp(first) * -np.expm1(np.minimum(epsilons + second - first, 0.0))


def _from_deltas(
    remove: Delta,
    add: Delta,
    largest: float,
    interval: float,
) -> Loss:
    """Returns the privacy loss distribution of a pair, from its deltas in both orders."""
    cells = math.ceil(largest / interval) + 1
    whole = np.arange(-cells, cells + 1)
    positive = np.arange(cells + 1) * interval

    def pmf(own: Delta, other: Delta) -> pld_pmf.PLDPmf:
        # Below zero by the other order: 1 - e^epsilon (1 - delta of the exchanged pair).
        below = 1 - np.exp(-positive[:0:-1]) * (1 - other(positive[:0:-1]))
        deltas = np.clip(np.concatenate([below, own(positive)]), 0.0, 1.0)
        if np.isnan(deltas).any():
            raise UndecidedError("the numbers of the event are too large or too small")
        return pld_pmf.create_pmf_pessimistic_connect_dots(interval, whole, deltas)

    if remove is add:
        return pld.PrivacyLossDistribution(pmf(remove, remove))
    return pld.PrivacyLossDistribution(pmf(remove, add), pmf(add, remove))


def main(argv: Sequence[str] | None = None) -> int:
    """Verifies certificate files, and prints a verdict with reasons for each.

    Args:
      argv: paths of files, or ``--schema``; by default those of the process.

    Returns:
      The exit status: 0 if all are verified, 1 if one is refused, else 2.
    """
    parser = argparse.ArgumentParser(
        prog="dpjax verify",
        description="Verify files of certificates: compute the guarantee anew from the event.",
        epilog=(
            "Exit status: 0 if all are verified, 1 if one is refused, 2 if one is not decided.\n\n"
            "example:\n  dpjax verify certificate.json"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="certificate.json")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of such files")
    arguments = parser.parse_args(argv)
    if arguments.schema:
        print(json.dumps(SCHEMA, indent=2))
        return 0
    if not arguments.files:
        parser.error("the path of a file is required")

    verdicts = []
    for path in arguments.files:
        try:
            values = json.loads(path.read_text("utf-8"), object_pairs_hook=_without_repeats)
        except (OSError, ValueError, RecursionError) as error:
            result = Verification("refused", (f"the file cannot be read: {error}",))
        else:
            result = verify(values)
        verdicts.append(result.verdict)
        lines = [f"{path}: {result.verdict}", *(f"  - {reason}" for reason in result.reasons)]
        if result.verdict == "verified":
            lines += _summary(values, result)
        print(*map(_printable, lines), sep="\n")
    return 1 if "refused" in verdicts else 2 if "not decided" in verdicts else 0


def _summary(values: Values, result: Verification) -> list[str]:
    """Returns lines that state the guarantee, and that a run was seeded."""
    stated = "inf" if values["epsilon"] == "inf" else f"{values['epsilon']:.6g}"
    lines = [
        f"  ({stated}, {values['delta']:g})-differential privacy under {values['adjacency']}, of"
        f" {values['unit']}; computed here: epsilon {result.epsilon:.6g}"
    ]
    if values["seeded"]:
        lines.append("  This run protects nobody: its key was derived from a seed.")
    return lines


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object as a dict; refuses repeated names, of which readers differ."""
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {json.dumps(repeated)} is there more than once")
    return dict(pairs)


def _printable(text: str) -> str:
    """Returns a text with control characters escaped, so that it cannot forge other lines."""
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


if __name__ == "__main__":
    sys.exit(main())

"""What the check of a program states of per-record arrays, against their values."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audit.test_program import RIGHT, WRONG, W, X, Y
from jax.extend.core import Literal

from dpjax._jaxprs import bind
from dpjax.audit import _values
from dpjax.audit._program import _Analysis
from dpjax.audit._values import Facts, Records

# Float32, and sums of a few terms.
RELATIVE, ABSOLUTE = 1e-3, 1e-5


class Evaluation(_Analysis):
    """An analysis that computes the arrays too, outside of loops, and compares them."""

    def __init__(self, length):
        super().__init__(length)
        self.arrays = {}  # with their abstract values, by the identity of these
        self.norms = {}  # of the records, by the number of the array
        self.num_compared = 0
        self.failures = []

    def know(self, value, array):
        self.arrays.setdefault(id(value), (value, array))
        if is_whole(value) and len(value.facts.name) == 1:
            (product,) = value.facts.name
            if len(product) == 1 and product[0][1] == 1:
                self.norms.setdefault(product[0][0], np.linalg.norm(rows_of(value, array), axis=-1))
        return value

    def closed_over(self, const):
        return self.know(super().closed_over(const), const)

    def apply(self, equation, inputs):
        operands = []
        for atom, value in zip(equation.invars, inputs, strict=True):
            if isinstance(atom, Literal):
                operands.append(np.asarray(atom.val, atom.aval.dtype))
            elif id(value) in self.arrays:
                array = self.arrays[id(value)][1]
                if jnp.shape(array) == atom.aval.shape:  # else of the same value in another shape
                    operands.append(array)
        outputs = super().apply(equation, inputs)
        if len(operands) == len(inputs):
            for value, array in zip(outputs, bind(equation, operands), strict=True):
                self.know(value, array)
                if is_whole(value):
                    self.compare(value, array, equation.primitive.name)
        return outputs

    def size(self, group):
        """N of a group for each record; `None` if one of its arrays was not computed."""
        if any(number not in self.norms for product in group for number, _ in product):
            return None
        norms = [np.prod([self.norms[n] ** p for n, p in product], axis=0) for product in group]
        return np.sqrt(sum(np.square(norm) for norm in norms))

    def compare(self, value, array, name):
        facts, rows = value.facts, rows_of(value, array)
        norm, finite = np.linalg.norm(rows, axis=-1), np.isfinite(rows).all(axis=-1)

        def most(what, left, right):
            if left is None or right is None:
                return
            self.num_compared += 1
            left, right, ok = np.broadcast_arrays(left, right, finite)
            ok = ok & np.isfinite(left) & np.isfinite(right)
            if (left > right + np.abs(right) * RELATIVE + ABSOLUTE)[ok].any():
                self.failures.append((name, what, left, right))

        def times(one, other):
            with np.errstate(invalid="ignore"):
                return None if one is None or other is None else one * other

        most("low", facts.interval[0], rows.min(-1))
        most("high", rows.max(-1), facts.interval[1])
        most("name", norm, self.size(facts.name))
        most("name", self.size(facts.name), norm)
        if facts.uniform is not None:
            most("uniform", np.abs(rows).max(-1), self.size({facts.uniform}))
            most("uniform", self.size({facts.uniform}), np.abs(rows).min(-1))
            most("equal", rows.max(-1), rows.min(-1))
        for group, k in facts.within.items():
            most("within", norm, times(k, self.size(group)))
        for group, k in facts.least.items():
            most("least", times(k, self.size(group)), norm)
        for (one, group), k in facts.clipped.items():
            most("clipped", times(norm, self.size(group)), times(k, self.size(one)))
        for group, k in facts.total.items():
            most("total", times(k, times(self.size(group), self.size(group))), rows.sum(-1))
        for group, k in facts.square.items():
            most("square", times(k, times(self.size(group), self.size(group))), rows.min(-1))
        for group, k in facts.norm.items():
            most("norm", times(k, self.size(group)), rows.min(-1))
        for group, k in facts.inverse.items():
            most("inverse", times(np.abs(rows).max(-1), self.size(group)), k)


def is_whole(value):
    """Whether an array has all records, in their order."""
    return (
        isinstance(value, Records) and bool(value.axes) and value.order == () and value.block == 1
    )


def rows_of(value, array):
    array = np.asarray(array).astype(float)
    moved = np.moveaxis(array, value.axes, range(len(value.axes)))
    return moved.reshape(np.prod(moved.shape[: len(value.axes)]), -1)


def evaluate(step):
    program = jax.make_jaxpr(step)(jax.random.key(0), W, X, Y)
    analysis = Evaluation(len(X))
    leaves = jax.tree.leaves((jax.random.key(0), W, X, Y))
    inputs = [
        analysis.know(analysis.argument(leaf, is_record=leaf is X or leaf is Y), leaf)
        for leaf in leaves
    ]
    consts = [analysis.closed_over(const) for const in program.consts]
    analysis.run(program, inputs, consts)
    return analysis


FEW = ["clip_where_array", "clip_each_layer", "clip_nan_to_num", "attention"]


@pytest.mark.parametrize("name", FEW)
def test_what_is_stated_of_arrays_holds(name):
    analysis = evaluate(RIGHT[name])
    assert analysis.num_compared > 100
    assert not analysis.failures, analysis.failures[:3]


@pytest.mark.slow
@pytest.mark.parametrize("names", [list(RIGHT), list(WRONG)], ids=["right", "wrong"])
def test_what_is_stated_of_arrays_holds_in_all_steps(names):
    failures = {}
    for name in names:
        step = RIGHT[name] if name in RIGHT else WRONG[name][0]
        with contextlib.suppress(TypeError):  # of a random key that cannot be computed with
            failures[name] = evaluate(step).failures[:1]
    assert len(failures) > 0.8 * len(names)
    assert not any(failures.values()), failures


def test_power_a_wrong_rule_is_found(monkeypatch):
    twice = {"low": 2.0, "high": 2.0}
    monkeypatch.setattr(_values, "root", lambda a: Facts(norm=a.scaled(**twice).square))

    def step(key, w, x, y):
        return jax.numpy.linalg.norm(x, axis=1)

    assert evaluate(step).failures
    monkeypatch.undo()
    assert not evaluate(step).failures

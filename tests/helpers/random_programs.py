"""Random small networks as data: a list of steps that `run` interprets, for property tests.

Each step turns the activations into others. A parameter is asked for by shape, and is then a new
leaf, stored in another order or flat, or (a view of) a leaf that an earlier step uses.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from helpers.zoo_case import Case, Draw, scalar

LENGTH, WORDS = 3, 5  # of each example's indices, and how many rows a table has
_NONLINEAR = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "softmax": jax.nn.softmax,
    "normalise": lambda h: h / (0.5 + jnp.std(h)),
    "cumsum": lambda h: jnp.cumsum(h, axis=-1),
    "reverse": lambda h: h[::-1],
    "largest": lambda h: h + jnp.max(h),
}
_ENTRYWISE = {
    "add": lambda h, p: h + p,
    "subtract": lambda h, p: p - h,
    "multiply": lambda h, p: h * p,
    "divide": lambda h, p: p / (2 + jnp.sin(h)),
    "twice": lambda h, p: (h * p) * p,
    "nonlinear": lambda h, p: h + jnp.tanh(p),
    "stopped": lambda h, p: h * lax.stop_gradient(p) + p,
}


class View(NamedTuple):
    """How a step sees a leaf: all or some of its rows, transposed, then reshaped."""

    leaf: int
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    rows: slice | None = None


class Program(NamedTuple):
    """The shapes of the leaves and of the input, and steps ``(kind, options, view or None)``."""

    leaves: tuple[tuple[int, ...], ...]
    inputs: tuple[int, ...]
    steps: tuple[tuple[str, Any, View | None], ...]


def case_of(program: Program, seed: int = 0) -> Case:
    """The program as a loss, with random parameters and examples."""
    draw = Draw(seed)
    params = [0.7 * draw(*shape) for shape in program.leaves]
    batch = {"x": draw.examples(*program.inputs), "words": draw.integers(-2, WORDS + 2, LENGTH)}
    return Case(lambda p, example: run(program, p, example), params, batch)


def run(program: Program, params: Any, example: Any) -> Any:
    """The loss of one example."""
    return scalar(jnp.tanh(activations(program, params, example)))


def activations(program: Program, params: Any, example: Any) -> Any:
    """What the last step leaves."""
    h = kept = example["x"]
    for kind, options, view in program.steps:
        if kind == "keep":
            h, kept = _joined(h, kept), h
        else:
            p = None if view is None else _look(view, params)
            h = _STEPS[kind](h, p, options, example["words"])
    return h


def _look(view: View, params: Any) -> Any:
    leaf = params[view.leaf] if view.rows is None else params[view.leaf][view.rows]
    return leaf.transpose(view.axes).reshape(view.shape)


def _joined(h: Any, kept: Any) -> Any:
    return h + kept if h.shape == kept.shape else jnp.concatenate([h.ravel(), kept.ravel()])


def _scan(h: Any, p: Any, options: Any, words: Any) -> Any:
    def step(carry, _):
        return jnp.tanh(carry * p + h), carry

    carry, history = lax.scan(step, h, None, length=2)
    return carry + history[0]


def _layers(h: Any, p: Any, options: Any, words: Any) -> Any:
    remat, reverse, unroll = options

    def layer(h, w):
        return jnp.tanh(h @ w) + 0.5 * h, h[..., :1]

    body = jax.checkpoint(layer) if remat else layer
    h, history = lax.scan(body, h, p, reverse=reverse, unroll=unroll)
    return h + history.sum(0)


def _recur(h: Any, p: Any, remat: bool, words: Any) -> Any:
    def step(state, token):
        state = jnp.tanh(state @ p + token)
        return state, state

    body = jax.checkpoint(step) if remat else step
    return lax.scan(body, jnp.zeros_like(h[0]), h)[1]


def _choose(h: Any, p: Any, options: Any, words: Any) -> Any:
    positive = words[0] > 1
    return lax.cond(positive, lambda h: jnp.tanh(h * p), lambda h: h + p, h)


def _convolve(h: Any, p: Any, options: Any, words: Any) -> Any:
    stride, dilation, padding, groups = options
    return lax.conv_general_dilated(
        h[None],
        p,
        (stride,),
        padding,
        rhs_dilation=(dilation,),
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=groups,
    )[0]


def _look_up(h: Any, p: Any, mode: str, words: Any) -> Any:
    rows = p.at[words].get(mode=mode, fill_value=0.5) if mode != "one" else p[words[0]][None]
    return rows * jnp.mean(h) + jnp.sin(rows)


_STEPS = {
    "einsum": lambda h, p, spec, words: jnp.einsum(spec, h, p),
    "flipped einsum": lambda h, p, spec, words: jnp.einsum(spec, p, h),
    "entrywise": lambda h, p, name, words: _ENTRYWISE[name](h, p),
    "nonlinear": lambda h, p, name, words: _NONLINEAR[name](h),
    "reduce": lambda h, p, axis, words: h.sum(axis),
    "transpose": lambda h, p, axes, words: h.transpose(axes),
    "look up": _look_up,
    "scan": _scan,
    "layers": _layers,
    "recur": _recur,
    "choose": _choose,
    "remat einsum": lambda h, p, spec, words: jax.checkpoint(partial(jnp.einsum, spec))(h, p),
    "convolve": _convolve,
}


class _Build:
    """Draws a program step by step; the shape that a step finds is that of the program so far."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.leaves: list[tuple[int, ...]] = []
        self.steps: list[tuple[str, Any, View | None]] = []
        self.inputs = self.sizes(1, 3)

    def program(self) -> Program:
        for _ in range(self.draw(st.integers(3, 6))):
            self.one_of(*_Build.kinds)(self, self.shape())
        if not self.leaves:
            self.entrywise(self.shape())
        return self.so_far()

    def so_far(self) -> Program:
        return Program(tuple(self.leaves), self.inputs, tuple(self.steps))

    def shape(self) -> tuple[int, ...]:
        case = case_of(self.so_far())
        example = jax.tree.map(lambda leaf: leaf[0], case.batch)
        return jax.eval_shape(lambda *a: activations(self.so_far(), *a), case.params, example).shape

    def one_of(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def sizes(self, least: int, most: int) -> tuple[int, ...]:
        return tuple(self.draw(st.lists(st.integers(1, 3), min_size=least, max_size=most)))

    def order(self, items: Any) -> tuple[Any, ...]:
        return tuple(self.draw(st.permutations(list(items))))

    def add(self, kind: str, options: Any, shape: tuple[int, ...] | None = None) -> None:
        self.steps.append((kind, options, None if shape is None else self.view(shape)))

    def view(self, shape: tuple[int, ...]) -> View:
        """A new leaf, or one that is there already and has as many entries."""
        size = math.prod(shape)
        twice = [
            n
            for n, leaf in enumerate(self.leaves)
            if leaf and math.prod(leaf) == 2 * size and leaf[0] % 2 == 0
        ]
        if twice and self.one_of(True, False):
            return self.half(self.one_of(*twice), shape)
        old = [n for n, leaf in enumerate(self.leaves) if math.prod(leaf) == size]
        if old and self.one_of(True, True, False):
            number = self.one_of(*old)
            return View(number, self.order(range(len(self.leaves[number]))), shape)
        order = self.order(range(len(shape))) if self.one_of(True, False) else None
        flat = order is None and self.one_of(True, False)
        order = order or tuple(range(1 if flat else len(shape)))
        self.leaves.append((size,) if flat else tuple(shape[axis] for axis in order))
        return View(len(self.leaves) - 1, tuple(map(int, np.argsort(order))), shape)

    def half(self, leaf: int, shape: tuple[int, ...]) -> View:
        """A view of half of the rows: halves that differ, that are the same, or that overlap."""
        rows = self.leaves[leaf][0] // 2
        start = self.one_of(0, rows, rows // 2)
        axes = self.order(range(len(self.leaves[leaf])))
        return View(leaf, axes, shape, slice(start, start + rows))

    def slice_of_new_leaf(self, shape: tuple[int, ...]) -> None:
        if not shape:
            return self.entrywise(shape)
        self.leaves.append((2 * shape[-1],))
        view = self.half(len(self.leaves) - 1, shape[-1:])
        return self.steps.append(("entrywise", self.one_of(*_ENTRYWISE), view))

    def layers(self, shape: tuple[int, ...]) -> None:
        if not shape:
            return self.entrywise(shape)
        length = self.one_of(0, 1, 2, 3)
        options = self.one_of(True, False), self.one_of(True, False), self.one_of(1, 2)
        return self.add("layers", options, (length, shape[-1], shape[-1]))

    def recur(self, shape: tuple[int, ...]) -> None:
        if len(shape) < 2:
            return self.layers(shape)
        return self.add("recur", self.one_of(True, False), (shape[-1], shape[-1]))

    def choose(self, shape: tuple[int, ...]) -> None:
        self.add("choose", None, shape[-1:])

    def einsum(self, shape: tuple[int, ...]) -> None:
        axes = list(zip("abcdef", shape, strict=False))
        roles = {name: self.one_of("contract", "batch", "keep") for name, _ in axes}
        new = list(zip("xy", self.sizes(0, 2), strict=False))
        weight = self.order([(n, s) for n, s in axes if roles[n] != "keep"] + new)
        out = self.order([n for n, _ in axes if roles[n] != "contract"] + [n for n, _ in new])[:4]
        operands = ["".join(n for n, _ in axes), "".join(n for n, _ in weight)]
        kind = self.one_of("einsum", "flipped einsum", "remat einsum")
        spec = (
            ",".join(operands[::-1] if kind == "flipped einsum" else operands) + "->" + "".join(out)
        )
        self.add(kind, spec, tuple(s for _, s in weight))

    def entrywise(self, shape: tuple[int, ...]) -> None:
        kept = shape[self.draw(st.integers(0, len(shape))) :]
        self.add("entrywise", self.one_of(*_ENTRYWISE), tuple(self.one_of(1, s) for s in kept))

    def nonlinear(self, shape: tuple[int, ...]) -> None:
        self.add("nonlinear", self.one_of(*_NONLINEAR) if shape else "tanh")

    def rearrange(self, shape: tuple[int, ...]) -> None:
        if len(shape) > 2 and self.one_of(True, False):
            return self.add("reduce", self.one_of(0, 1, 2))
        return self.add("transpose", self.order(range(len(shape))))

    def look_up(self, shape: tuple[int, ...]) -> None:
        table = (WORDS, self.draw(st.integers(1, 4)))
        self.add("look up", self.one_of("clip", "fill", "one"), table)

    def scan(self, shape: tuple[int, ...]) -> None:
        self.add("scan", None, shape[-1:])

    def convolve(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 2:
            return self.einsum(shape)
        taps, stride, dilation = (self.one_of(1, 2) for _ in range(3))
        groups = self.one_of(1, 2) if shape[1] % 2 == 0 else 1
        kernel = (taps, shape[1] // groups, groups * self.one_of(1, 2))
        padding = (self.one_of((1, 0), (1, 2), (2, 1)),)
        return self.add("convolve", (stride, dilation, padding, groups), kernel)

    def keep(self, shape: tuple[int, ...]) -> None:
        self.add("keep", None)

    kinds = (
        einsum,
        einsum,
        entrywise,
        entrywise,
        nonlinear,
        rearrange,
        look_up,
        scan,
        layers,
        layers,
        recur,
        choose,
        slice_of_new_leaf,
        convolve,
        keep,
    )


@st.composite
def programs(draw: Any) -> Program:
    """Small random networks."""
    return _Build(draw).program()

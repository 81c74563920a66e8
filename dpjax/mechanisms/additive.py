"""Additive noise on one statistic: a tree of arrays, symmetric matrices, or integers."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._checks import as_numbers, check, check_positive, is_traced
from dpjax._typing import ArrayTree, PRNGKey
from dpjax.guarantee import Guarantee
from dpjax.mechanisms.base import NoisyStatistic
from dpjax.mechanisms.exact_sampling import Integers, RandomWords, derive, fit_integers
from dpjax.mechanisms.host import (
    Array,
    as_integers,
    call_on_host,
    exact,
    float_dtype,
    from_units,
    grid_for,
    to_units,
)
from dpjax.sensitivity.base import check_shapes

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Sampler = Callable[[RandomWords, Integers, Integers], Integers]


class AdditiveNoise(NoisyStatistic):
    """Laplace or Gaussian noise on real numbers, exact on a public grid.

    The guarantee holds for the floating-point output and for every input: see
    `dpjax.mechanisms.host` for the proof. The noise is computed on the host, under jit and vmap
    through a callback. NaN and infinite entries are released as if they were zero.
    """

    sampler: ClassVar[Sampler]

    def release(self, key: PRNGKey, value: ArrayTree) -> Any:
        """Returns ``value`` plus independent noise on every entry; works under jit and vmap.

        Args:
          key: a JAX key, of whose bits all noise is made. The same key gives the same noise: to use
            it again on other data reveals both values. It is a secret.
          value: a tree of real numbers or arrays, at most as sensitive as stated, all of them
            together, and of the shapes that the sensitivity states. Outside jit Python integers of
            any size, int64 and float64 are taken exactly.

        Returns:
          The same tree. Float dtypes are kept; integers become numpy's float64, JAX's its default.

        Raises:
          ValueError: an array that is not of real numbers (complex, strings, objects), that is
            masked, or of another shape than the sensitivity states.
        """
        leaves, treedef = jax.tree.flatten(value)
        check(bool(leaves), "value", value, "a tree with at least one array")
        numbers: list[Any] = [as_numbers(leaf) for leaf in leaves]
        check_shapes("value", [np.shape(number) for number in numbers], self.sensitivity)
        results = [
            jax.ShapeDtypeStruct(np.shape(number), float_dtype(leaf))
            for number, leaf in zip(numbers, leaves, strict=True)
        ]
        scales = [self.scale] if is_traced(self.scale) else []

        def noisy(words: npt.NDArray[np.uint32], arrays: list[Array]) -> list[Array]:
            scale = arrays.pop() if scales else self.scale
            return self.add_noise(words, arrays, scale=scale)

        released = call_on_host(noisy, key, numbers + scales, results)
        same_kind = [
            jnp.asarray(array) if isinstance(leaf, jax.Array) else array
            for array, leaf in zip(released, leaves, strict=True)
        ]
        return jax.tree.unflatten(treedef, same_kind)

    def release_symmetric(self, key: PRNGKey, value: ArrayTree) -> Any:
        """Returns symmetric matrices plus symmetric noise; works under jit and vmap.

        The noise of the upper triangle, diagonal included, is drawn once and mirrored. So the
        sensitivity counts each of these entries once: it is a norm over the upper triangle, not
        over the whole matrix, and states the shape of the triangle.

        Args:
          key: as for ``release``.
          value: a tree of arrays ``(..., d, d)``. Only the upper triangle is read, of shape
            ``(..., d (d + 1) / 2)``.

        Returns:
          The same tree of symmetric matrices, with the dtypes of ``release``.

        Raises:
          ValueError: the matrices are not square, or as for ``release``.
        """
        triangles = jax.tree.map(upper_triangle, value)
        shapes = [np.shape(triangle) for triangle in jax.tree.leaves(triangles)]
        check_shapes("the upper triangle of value", shapes, self.sensitivity)
        return jax.tree.map(mirror, self.release(key, triangles))

    def add_noise(
        self,
        words: npt.NDArray[np.uint32],
        arrays: list[Array],
        *,
        scale: npt.ArrayLike | None = None,
        weights: Array | None = None,
        rounding: float = 0.0,
    ) -> list[Array]:
        """Returns ``arrays`` plus noise, float64: what ``release`` computes on the host.

        The caller has checked that the shapes are those of the statistic, or of several statistics
        whose releases it accounts for.

        Args:
          words: a key for each release, uint32 ``(*batch, 2)``.
          arrays: ``(*batch, ...)`` each, float64 or integers.
          scale: the mechanism's own if not given; one number.
          weights: public, of at least one, for the entries of every array: the sensitivity is that
            of the value times the weights, and an entry's noise has scale ``scale / weight``.
          rounding: by how much more than stated the value moves, over the sensitivity.

        Returns:
          Arrays of the shapes of ``arrays``.

        Raises:
          ValueError: ``scale`` is not one finite number above zero.
        """
        scales = np.unique(np.asarray(self.scale if scale is None else scale)).tolist()
        check(len(scales) == 1, "scale", scales, "one number for the whole batch")
        check_positive("scale", scales[0])
        sizes = [math.prod(array.shape[words.ndim - 1 :]) for array in arrays]
        all_weights = np.ones(1) if weights is None else weights
        # Rounding every entry to the grid moves neighbours apart by at most so many units.
        entries = max(sum(sizes), 1)
        entries = entries if self.norm == "l1" else np.sqrt(entries)
        moved = int(np.ceil(float(np.max(all_weights)) * entries) + 1)
        grid = grid_for(scales[0], self.sensitivity.value, moved, rounding)
        weighted = np.array([grid.noise_scale(weight) for weight in all_weights.ravel()], object)
        noisy = []
        for key, array, size in zip(derive(words, len(arrays)), arrays, sizes, strict=True):
            lanes = RandomWords(key, size)
            per_lane = np.resize(weighted, lanes.size)
            noise = type(self).sampler(lanes, *fit_integers(per_lane, np.ones_like(per_lane)))
            total = to_units(array.ravel(), grid.exponent) + noise
            noisy.append(from_units(total, grid.exponent).reshape(array.shape))
        return noisy


class DiscreteNoise(NoisyStatistic):
    """Exact noise from a distribution on the integers, on integers.

    The scale may be a `Fraction`; a float is taken for the fraction that it is. For sums of other
    numbers put each record on a grid first, with `dpjax.sensitivity.to_grid`.
    """

    sampler: ClassVar[Sampler]

    def release(self, key: PRNGKey, value: ArrayTree) -> Any:
        """Returns ``value`` plus independent noise on every entry; works under jit and vmap.

        Args:
          key: a JAX key, of whose bits all noise is made; a secret.
          value: a tree of integers or arrays of integers, at most as sensitive as stated, all
            together, and of the shapes that the sensitivity states; Python integers of any size.

        Returns:
          The same tree of int64 arrays; of Python integers, with dtype object, where int64 does not
          hold the noisy number. Under jit JAX's default integers, moved to the nearest they hold.

        Raises:
          ValueError: an array that is not of integers, that is masked, or of another shape than
            the sensitivity states.
        """
        leaves, treedef = jax.tree.flatten(value)
        check(bool(leaves), "value", value, "a tree with at least one array")
        numbers = [as_integers(leaf) for leaf in leaves]
        check_shapes("value", [np.shape(number) for number in numbers], self.sensitivity)
        results = [jax.ShapeDtypeStruct(np.shape(number), np.int64) for number in numbers]
        return jax.tree.unflatten(treedef, call_on_host(self.add_noise, key, numbers, results))

    def add_noise(self, words: npt.NDArray[np.uint32], arrays: list[Array]) -> list[Array]:
        """Returns ``arrays`` of integers plus noise: what ``release`` computes on the host.

        Args:
          words: a key for each release, uint32 ``(*batch, 2)``.
          arrays: of integers, ``(*batch, ...)`` each.
        """
        scale = exact(self.scale)
        noisy = []
        for key, array in zip(derive(words, len(arrays)), arrays, strict=True):
            lanes = RandomWords(key, math.prod(array.shape[words.ndim - 1 :]))
            top, bottom = fit_integers(
                np.full(lanes.size, scale.numerator, object),
                np.full(lanes.size, scale.denominator, object),
            )
            total = to_units(array.ravel(), 0) + type(self).sampler(lanes, top, bottom)
            noisy.append(total.reshape(array.shape))
        return noisy

    def _guarantee_of(self, event: "DpEvent", distribution: str, guarantee: str) -> Guarantee:
        return self._guarantee(
            event,
            statistic=f"one release of integers, of {self._sensitivity_in_words()}",
            noise=f"{distribution}, scale {float(self.scale):.4g}, on every entry; sampled exactly",
            guarantee=guarantee,
        )


def upper_triangle(matrix: Any) -> Any:
    """Returns the upper triangle of matrices ``(..., d, d)``, row by row, ``(..., d (d + 1) / 2)``.

    Raises:
      ValueError: the matrices are not square.
    """
    shape = np.shape(matrix)
    square = len(shape) >= 2 and shape[-1] == shape[-2]
    check(square, "value", shape, "square matrices, of shape (..., d, d)")
    matrix = matrix if isinstance(matrix, jax.Array) else np.asarray(matrix)
    return matrix[(..., *np.triu_indices(shape[-1]))]


def mirror(triangle: Any) -> Any:
    """Returns the symmetric matrices ``(..., d, d)`` from `upper_triangle`."""
    dim = (int(np.sqrt(8 * triangle.shape[-1] + 1)) - 1) // 2
    place = np.zeros((dim, dim), np.int32)
    place[np.triu_indices(dim)] = np.arange(triangle.shape[-1])
    return triangle[..., np.maximum(place, place.T)]

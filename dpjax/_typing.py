"""Type aliases shared by the signatures of dpjax; those of chex, spelled out for type checkers.

JAX's array is named, not imported: modules that compute guarantees use these aliases without JAX.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ForwardRef, Literal, SupportsFloat, TypeAlias, Union

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # flax is not imported until it is used
    import jax
    from flax import nnx

    # One typed JAX key.
    PRNGKey: TypeAlias = jax.Array
    Array: TypeAlias = jax.Array | np.ndarray | np.bool_ | np.number
    Numeric: TypeAlias = Array | float
    ArrayTree: TypeAlias = Array | Iterable["ArrayTree"] | Mapping[Any, "ArrayTree"]

    # Parameters: a tree of float arrays, or a flax nnx module.
    Params: TypeAlias = ArrayTree | nnx.Module
    # State of a sampler: a tree of arrays, its keys included, of a structure of the sampler's own.
    SamplerState: TypeAlias = Any
else:
    PRNGKey = ForwardRef("jax.Array")
    Array = Union[PRNGKey, np.ndarray, np.bool_, np.number]  # noqa: UP007 - of a name
    Numeric = Union[Array, float, int]  # noqa: UP007
    ArrayTree = Union[Array, Iterable["ArrayTree"], Mapping[Any, "ArrayTree"]]  # noqa: UP007
    Params = SamplerState = ArrayTree

# Any tree of arrays, of a structure that type checkers cannot follow.
PyTree: TypeAlias = Any

# loss_fn(params, example) or loss_fn(params, example, key): the loss of one example, a scalar.
LossFn: TypeAlias = Callable[..., "jax.Array"]

# ``(low, high)``: a number each, or an array with one for each entry of a record.
Bounds: TypeAlias = tuple[npt.ArrayLike, npt.ArrayLike]

# A clip bound: a number or a rule (whose float is its bound), or a prefix of the parameter tree
# with one of them for each group.
ClipBound: TypeAlias = Numeric | SupportsFloat | Iterable["ClipBound"] | Mapping[Any, "ClipBound"]

# Examples in a micro-batch; ``None`` for the whole batch.
MicrobatchSize: TypeAlias = int | Literal["auto"] | None

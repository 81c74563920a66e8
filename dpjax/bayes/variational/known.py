"""What is known of a model and guide before the first step, found out on blank records."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from numpyro.infer import SVI

from dpjax.bayes.variational.records import Arguments, Layout, blank
from dpjax.bayes.variational.structure import Structure, find_structure

# Values that some model or other takes.
_FILLS = (0.0, 1.0, 0.5)


class Known(NamedTuple):
    """What one kind of arguments has told: of the records no more than their shapes.

    Attributes:
      structure: of the model.
      records: shapes of the records.
      arrays: the arguments that are no records.
      layout: how they fit together.
    """

    structure: Structure
    records: list[jax.ShapeDtypeStruct]
    arrays: list[jax.Array]
    layout: Layout

    @classmethod
    def of(cls, model: Callable[..., Any], parts: Arguments) -> "Known":
        """Traces ``model``; see `find_structure` for what is refused."""
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in parts.records]
        return cls(find_structure(model, parts), shapes, parts.arrays, parts.layout)

    def blank_arguments(self) -> tuple[Any, Any]:
        """``(args, kwargs)`` with records that say nothing about anybody."""
        return self.layout.arguments(blank(self.records), self.arrays)


def kind_of(parts: Arguments) -> Any:
    """Returns what arguments have in common that model and guide are traced alike for."""
    leaves = (*parts.records, *parts.arrays)
    return parts.layout, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def first_state(svi: SVI, key: jax.Array, parts: Arguments, init_params: Any) -> Any:
    """Returns numpyro's first state, on blank records.

    A model may want values other than zero of them: some others are tried.
    """
    for fill in _FILLS:
        args, kwargs = parts.layout.arguments(blank(parts.records, fill), parts.arrays)
        try:
            return svi.init(key, *args, init_params=init_params, **kwargs)
        except (RuntimeError, ValueError) as error:
            failed = error
    raise failed

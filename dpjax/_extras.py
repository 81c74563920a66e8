"""Imports of optional dependencies, with an error that names the extra to install."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def requires_extra(extra: str) -> Iterator[None]:
    """Raises an ``ImportError`` that names ``extra`` where an import in the block finds no module.

    >>> with requires_extra("plot"):
    ...     import a_missing_module
    Traceback (most recent call last):
      ...
    ImportError: a_missing_module is not installed; install it with: pip install 'dpjax[plot]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error.name} is not installed; install it with: pip install 'dpjax[{extra}]'"
        ) from error

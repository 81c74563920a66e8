"""Imports of optional dependencies, with an error that names the extra to install."""

from collections.abc import Iterator
from contextlib import contextmanager

# Libraries by the name that they are imported by, where that is another one.
_LIBRARIES = {
    "PIL": "pillow",
    "arviz_base": "arviz-base",
    "arviz_stats": "arviz-stats",
    "grpc": "grpcio",
    "sklearn": "scikit-learn",
    "tensorflow_datasets": "tensorflow-datasets",
}


@contextmanager
def requires_extra(extra: str) -> Iterator[None]:
    """Raises an ``ImportError`` that names library and ``extra`` where an import finds no module.

    >>> with requires_extra("plot"):
    ...     import a_missing_module
    Traceback (most recent call last):
      ...
    ImportError: a_missing_module is not installed: install it, or dpjax with its extra 'plot' ...
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "a module").partition(".")[0]
        library = _LIBRARIES.get(module, module)
        raise ImportError(
            f"{library} is not installed: install it, or dpjax with its extra {extra!r}"
            f" (in a clone of dpjax: pip install '.[{extra}]')"
        ) from error

"""The order in which a data set's sources are tried, and what counts as a reason to go on."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from dpjax.datasets.base import Dataset

_LOGGER = logging.getLogger(__name__)


class UnavailableError(Exception):
    """A source does not hold the data, so the next one is tried.

    Data that are there but wrong are another matter: they raise ``CorruptedFileError``, which no
    other source hides.
    """


def first_available(sources: Sequence[Callable[[], Dataset]]) -> Dataset:
    """Returns the data set of the first source that holds it.

    Its note ends with the reasons why the sources before it did not. A stand-in is also logged as
    a warning, so that nobody takes it for the data asked for.

    Raises:
      UnavailableError: if no source holds the data, with every reason.

    >>> def offline():
    ...     raise UnavailableError("no network")
    >>> first_available([offline])
    Traceback (most recent call last):
      ...
    dpjax.datasets.sources.UnavailableError: no source of the data is available: no network
    """
    reasons: list[str] = []
    for source in sources:
        try:
            return _with_reasons(source(), reasons)
        except UnavailableError as error:
            reasons.append(str(error))
    raise UnavailableError("no source of the data is available: " + "; ".join(reasons))


def _with_reasons(dataset: Dataset, reasons: Sequence[str]) -> Dataset:
    if reasons:
        note = f"{dataset.note} Tried before, in vain: {'; '.join(reasons)}."
        dataset = replace(dataset, note=note)
    if dataset.is_stand_in:
        _LOGGER.warning(dataset.note)
    return dataset

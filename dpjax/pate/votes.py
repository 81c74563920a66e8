"""Vote histograms of an ensemble of teachers: counting, abstentions, and validation."""

from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from dpjax._checks import as_numbers, check, check_count, is_traced

# The label of a query that was not answered, and of a teacher that abstains.
NO_ANSWER = -1


class Abstentions(NamedTuple):
    """How often teachers did not vote; as private as the votes.

    Attributes:
      of_teachers: number of queries on which each teacher abstained, ``(num_teachers,)``.
      of_queries: number of teachers that abstained on each query, ``(num_queries,)``.
    """

    of_teachers: npt.NDArray[np.int64]
    of_queries: npt.NDArray[np.int64]


def count_abstentions(teacher_labels: npt.ArrayLike) -> Abstentions:
    """Returns how often each teacher abstained, and how many teachers on each query.

    Args:
      teacher_labels: ``(num_teachers, num_queries)``; NaN or `NO_ANSWER` (-1) is an abstention.

    Raises:
      ValueError: no teacher, or an array of another shape.

    Privacy:
      Nothing is released, and no epsilon covers these counts: they are for the curator, to find
      teachers whose training diverged. Publishing them would be a release of its own.

    >>> count_abstentions([[0, np.nan, 1], [0, 1, 1]]).of_teachers.tolist()
    [1, 0]
    """
    abstains = _abstains(_as_labels(teacher_labels))
    return Abstentions(abstains.sum(axis=1), abstains.sum(axis=0))


def count_votes(
    teacher_labels: npt.ArrayLike, num_classes: int, *, abstentions: bool = False
) -> npt.NDArray[np.int64]:
    """Returns the histogram of the teachers' votes on each query.

    Args:
      teacher_labels: predicted classes ``(num_teachers, num_queries)``, whole numbers in
        0 .. ``num_classes`` - 1; of any kind of teachers.
      num_classes: at least two, and public: never counted from the votes.
      abstentions: whether teachers may abstain, by a prediction that is NaN or `NO_ANSWER` (-1).
        The mechanism then needs ``abstentions=True`` too, and `count_abstentions` has their
        numbers.

    Returns:
      Counts ``(num_queries, num_classes)``; every row sums to the number of teachers, without those
      that abstain.

    Raises:
      ValueError: no teacher, a prediction that is no class, or an array of another shape.

    Privacy:
      Nothing is released: the counts are as private as the teachers' training data.

    >>> count_votes([[0, 2], [0, 1], [1, 2]], num_classes=3).tolist()
    [[2, 1, 0], [0, 1, 2]]
    """
    check_count("num_classes", num_classes, minimum=2)
    labels = _as_labels(teacher_labels)
    with np.errstate(invalid="ignore"):  # a comparison with NaN is False
        allowed = (labels >= 0) & (labels < num_classes) & (labels == np.floor(labels))
    if abstentions:
        allowed |= _abstains(labels)
    if not np.all(allowed):
        teacher, query = np.argwhere(~allowed)[0]
        other = "" if not abstentions else ", or NaN or -1 where a teacher abstains"
        hint = "; abstentions=True lets teachers abstain" * _abstains(labels)[teacher, query].item()
        raise ValueError(
            f"teacher_labels must be whole numbers in 0 .. {num_classes - 1}{other}, got"
            f" {labels[teacher, query]} of teacher {teacher} on query {query}{hint}"
        )
    classes = np.arange(num_classes)
    return np.stack([np.sum(labels == one, axis=0) for one in classes], axis=-1).astype(np.int64)


def _as_labels(teacher_labels: npt.ArrayLike) -> np.ndarray:
    labels = np.asarray(as_numbers(teacher_labels, "teacher_labels"))
    shape = labels.shape
    check(labels.ndim == 2, "teacher_labels", shape, "of shape (num_teachers, num_queries)")
    check(shape[0] > 0, "teacher_labels", shape, "of at least one teacher")
    return labels


def _abstains(labels: np.ndarray) -> npt.NDArray[np.bool_]:
    return np.isnan(labels.astype(np.float64)) | (labels == NO_ANSWER)


def check_votes(
    votes: Any,
    *,
    num_teachers: int,
    shape: tuple[int | None, int | None],
    abstentions: bool = False,
) -> np.ndarray | jax.Array:
    """Returns ``votes`` as an array, after checking that each row is a histogram of the teachers.

    Args:
      votes: counts ``(num_queries, num_classes)``; floats are allowed if they are whole. Tracers
        pass if they have the right shape.
      num_teachers: what every row sums to; with ``abstentions`` at most.
      shape: the expected shape; ``None`` stands for any positive length.
      abstentions: whether teachers may abstain.

    Raises:
      ValueError: another shape, NaN, a negative or fractional count, or another sum.
    """
    counts = as_numbers(votes, "votes")
    names = ("num_queries", "num_classes")
    wanted = ", ".join(name if n is None else str(n) for name, n in zip(names, shape, strict=True))
    fits = len(counts.shape) == 2 and all(
        found > 0 and size in (None, found) for found, size in zip(counts.shape, shape, strict=True)
    )
    check(fits, "votes", counts.shape, f"of shape ({wanted})")
    if is_traced(counts):
        return counts
    concrete = np.asarray(counts, np.float64)
    whole = (concrete >= 0) & (concrete == np.floor(concrete))
    sums = np.sum(concrete, axis=1)
    valid = np.all(whole, axis=1)
    valid &= (sums <= num_teachers) if abstentions else (sums == num_teachers)
    if not np.all(valid):
        row = int(np.argmin(valid))
        most = "at most " if abstentions else ""
        hint = (
            ""
            if abstentions or not sums[row] < num_teachers
            else ("; abstentions=True lets teachers abstain")
        )
        raise ValueError(
            f"votes must be whole counts >= 0 that sum to {most}num_teachers = {num_teachers} in"
            f" every row, got {concrete[row].tolist()} in row {row}, of sum {sums[row]:g}{hint}"
        )
    return counts

"""Vote histograms of an ensemble of teachers: counting, and validation."""

from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from dpjax._validation import as_numbers, check, check_count, is_traced


def count_votes(teacher_labels: npt.ArrayLike, num_classes: int) -> npt.NDArray[np.int64]:
    """Returns the histogram of the teachers' votes on each query.

    Args:
      teacher_labels: predicted classes ``(num_teachers, num_queries)``, whole numbers in
        0 .. ``num_classes`` - 1.
      num_classes: at least two, and public: never counted from the votes.

    Returns:
      Counts ``(num_queries, num_classes)``; every row sums to the number of teachers.

    Raises:
      ValueError: no teacher, a prediction that is NaN or no class, or an array of another shape.

    Privacy:
      Nothing is released: the counts are as private as the teachers' training data.

    >>> count_votes([[0, 2], [0, 1], [1, 2]], num_classes=3).tolist()
    [[2, 1, 0], [0, 1, 2]]
    """
    check_count("num_classes", num_classes, minimum=2)
    labels = np.asarray(as_numbers(teacher_labels, "teacher_labels"))
    shape = labels.shape
    check(labels.ndim == 2, "teacher_labels", shape, "of shape (num_teachers, num_queries)")
    check(shape[0] > 0, "teacher_labels", shape, "of at least one teacher")
    allowed = f"whole numbers in 0 .. {num_classes - 1}"
    with np.errstate(invalid="ignore"):  # a comparison with NaN is False
        is_class = (labels >= 0) & (labels < num_classes) & (labels == np.floor(labels))
    if not np.all(is_class):
        teacher, query = np.argwhere(~is_class)[0]
        got = f"{labels[teacher, query]} of teacher {teacher} on query {query}"
        raise ValueError(f"teacher_labels must be {allowed}, got {got}")
    classes = np.arange(num_classes)
    return np.stack([np.sum(labels == one, axis=0) for one in classes], axis=-1).astype(np.int64)


def check_votes(
    votes: Any, *, num_teachers: int, shape: tuple[int | None, int | None]
) -> np.ndarray | jax.Array:
    """Returns ``votes`` as an array, after checking that each row is a histogram of all teachers.

    Args:
      votes: counts ``(num_queries, num_classes)``; floats are allowed if they are whole. Tracers
        pass if they have the right shape.
      num_teachers: what every row sums to.
      shape: the expected shape; ``None`` stands for any positive length.

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
    valid = np.all(whole, axis=1) & (np.sum(concrete, axis=1) == num_teachers)
    if not np.all(valid):
        row = int(np.argmin(valid))
        raise ValueError(
            f"votes must be whole counts >= 0 that sum to num_teachers = {num_teachers} in every"
            f" row, got {concrete[row].tolist()} in row {row}, of sum {concrete[row].sum():g}"
        )
    return counts

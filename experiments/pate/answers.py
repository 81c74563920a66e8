"""Labels released from the votes of teachers, with their accuracy and every ε of the release."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from dpjax import pate
from experiments.lib.figures import PALETTE, new_figure
from experiments.lib.plots import draw_by_row
from experiments.lib.registry import Finding, Record, Values
from experiments.lib.verdicts import compare_published, format_upper_bound
from experiments.pate.accounts import BOTH, EPSILON, compute_epsilons, make_mechanism


def releases_figure(records: Sequence[Record]) -> dict[str, Figure]:
    """Returns the figure of accuracies from teachers to student, and of ε, by row."""
    figure, (left, right) = new_figure(columns=2, width=9.6, height=1.6 + 0.5 * len(records))
    accuracies = {
        "student, source": ("source", STUDENT),
        "student": ("measured", STUDENT),
        "teachers, mean": ("measured", TEACHERS, PALETTE[4], "v"),
        "plurality": ("measured", PLURALITY, PALETTE[3], "D"),
        "answers": ("measured", RIGHT, PALETTE[5], "^"),
    }
    draw_by_row(left, records, accuracies)
    left.set(xlabel="accuracy (%)")
    epsilons = {
        "source": ("source", EPSILON),
        "data-dependent, not publishable": ("measured", BOTH),
        "any votes, certified": ("certified", EPSILON),
    }
    draw_by_row(right, records, epsilons, lambda record: "")
    right.set(xlabel="ε")
    for axes, columns in ((left, 3), (right, 2)):
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, fontsize=8)
    return {"releases": figure}


TEACHERS, PLURALITY = "teachers %", "plurality of votes %"
ANSWERS, RIGHT = "answers", "answers right %"
STUDENT = "test accuracy %"
NOTE = (
    "Seeded key: the noise is reproducible, so this run is not private. Columns marked as not"
    " publishable are functions of the private votes."
)


class Labelled(NamedTuple):
    """Queries that were answered, and what the release cost.

    Attributes:
      indices: of the answered queries, ``(num_answers,)``.
      labels: the released ones, ``(num_answers,)``.
      measured: accuracies, and the epsilons of these votes (not publishable).
      certified: epsilons of any votes.
      certificate: text of the guarantee.
    """

    indices: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int32]
    measured: dict[str, Any]
    certified: dict[str, float]
    certificate: str


def answer_queries(
    release: Values,
    teacher_labels: npt.NDArray[np.int32],
    truth: npt.NDArray[np.int32],
    *,
    num_classes: int,
) -> Labelled:
    """Releases labels of the first queries with noise of a seeded key.

    Args:
      release: settings, as of `make_mechanism`, with ``delta`` and ``seed``.
      teacher_labels: predicted classes ``(num_teachers, num_images)``; -1 where a teacher whose
        training diverged abstains. That teachers may abstain is part of every release, so that
        nothing depends on whether one did.
      truth: the true labels ``(num_images,)``, for accuracies only.
      num_classes: number of classes.
    """
    # a stand-in may have fewer images than queries
    size = min(release["num_queries"], len(truth))
    limits = {"num_queries": size, "abstentions": True}
    if "max_answers" in release:
        limits["max_answers"] = min(release["max_answers"], size)
    mechanism = make_mechanism(
        {**release, **limits}, num_teachers=len(teacher_labels), num_classes=num_classes
    )
    votes = pate.count_votes(teacher_labels[:, :size], num_classes, abstentions=True)
    labels, answered = map(np.asarray, mechanism.release(jax.random.key(release["seed"]), votes))
    account = compute_epsilons(mechanism, release["delta"], votes, answered)
    indices = np.flatnonzero(answered)
    right = labels[indices] == truth[indices]
    measured = {
        TEACHERS: 100 * float(np.mean(teacher_labels == truth)),
        PLURALITY: 100 * float(np.mean(votes.argmax(axis=1) == truth[:size])),
        ANSWERS: len(indices),
        RIGHT: 100 * float(np.mean(right)) if len(indices) else None,
        **account.private,
    }
    return Labelled(indices, labels[indices], measured, account.certified, account.certificate)


def abstention_note(teacher_labels: npt.NDArray[np.int32]) -> str:
    """Returns a sentence on the teachers that abstained, or nothing.

    >>> abstention_note(np.array([[0, 1], [-1, -1], [1, 1]], np.int32))
    ' Teachers whose training diverged cast no vote: 1 of 3.'
    """
    count = np.count_nonzero(np.any(teacher_labels == pate.NO_ANSWER, axis=1))
    if count == 0:
        return ""
    return f" Teachers whose training diverged cast no vote: {count} of {len(teacher_labels)}."


def releases_finding(
    records: Sequence[Record],
    tolerance: float,
    is_full: Callable[[Record], bool] = lambda record: True,
) -> Finding:
    """Returns the finding on the students' accuracies, with the ε of each release."""
    comparison = compare_published(
        records, STUDENT, tolerance, "published accuracies", "points", is_full
    )
    return comparison.finding(epsilon_clause(records))


def epsilon_clause(records: Sequence[Record]) -> str:
    """Returns a clause with the published, data-dependent and certified ε of each release."""
    return "; ".join(
        f"{record.row}: ε {record.source[EPSILON]:g} published, data-dependent"
        f" {record.measured[BOTH]:.2f} here, {format_upper_bound(record.certified[EPSILON])}"
        " certified for any votes"
        for record in records
        if record.certified
    )


def release_remarks(records: Sequence[Record]) -> list[str]:
    """Returns a sentence on the labels of each release."""
    return [
        f"{record.row}: teachers {record.measured[TEACHERS]:.1f} %, plurality of their votes"
        f" {record.measured[PLURALITY]:.1f} %, {record.measured[ANSWERS]:,} answers of which"
        f" {record.measured[RIGHT]:.1f} % are right, student {record.measured[STUDENT]:.1f} %."
        for record in records
        if record.measured.get(RIGHT) is not None
    ]

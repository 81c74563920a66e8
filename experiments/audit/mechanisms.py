"""Audits of the mechanisms of dpjax, of one run on MNIST, and of two that are not private.

``python -m experiments run audit_mechanisms``: two minutes on two CPU cores (``quick``: ε = 4, and
1 of what is computed on the device), six under ``paper``. The run on MNIST is at ε = 4 in both.
"""

from collections.abc import Sequence
from typing import Any

import jax
from matplotlib.figure import Figure

from dpjax.audit import AuditReport, OneRunReport
from experiments.audit.cases import CASES, DELTA, FAILING, ON_HOST
from experiments.audit.one_run import GRADIENTS, LOSSES, NUM_CANARIES, audit_run, data_set
from experiments.lib.figures import CERTIFIED, MEASURED, new_figure
from experiments.lib.registry import Finding, Record, Result, Row, RowContext

_EPSILONS = {"quick": (1.0, 4.0), "paper": (0.5, 1.0, 2.0, 4.0)}
_SEED, _EPSILON_OF_RUN = 3, 4.0
_RUNS = {f"MNIST, {kind}": kind for kind in (GRADIENTS, LOSSES)}
AUDITED, FREE, RATIO = "audited ε", "distribution-free ε", "audited over certified"
REFUTED, ACCURACY = "refutations, of 1", "test accuracy %"


def rows(profile: str) -> list[Row]:
    # Mechanisms of dpjax; those that run on the host once under the quick profile.
    shipped = [
        Row(f"{name}, ε = {epsilon:g}", {"case": name, "epsilon": epsilon, "seed": _SEED}, {})
        for name in CASES
        for epsilon in _EPSILONS[profile]
        if profile == "paper" or name not in ON_HOST or epsilon == _EPSILONS[profile][-1]
    ]

    # One run on MNIST, and claims of sources.
    runs = [
        Row(
            f"{name}, ε = {_EPSILON_OF_RUN:g}",
            {"case": name, "epsilon": _EPSILON_OF_RUN, "seed": _SEED},
            {},
        )
        for name in _RUNS
    ]
    sold = [
        Row(name, {"case": name, "epsilon": claimed, "seed": _SEED}, {"claimed ε": claimed})
        for name, (_, claimed) in FAILING.items()
    ]
    return [*shipped, *runs, *sold]


def run_row(row: Row, context: RowContext) -> Result:
    name, epsilon, seed = (row.settings[key] for key in ("case", "epsilon", "seed"))
    if name in _RUNS:
        return _run_on_mnist(_RUNS[name], epsilon, seed)
    make = CASES[name] if name in CASES else FAILING[name][0]
    report = make(epsilon).report(jax.random.key(seed))
    measured = _audited(report)
    if name in FAILING:  # what is claimed is not certified
        return Result(measured, {})
    certified = report.certificate.epsilon
    measured[RATIO] = report.epsilon / certified
    note = f"At δ = {DELTA:g} and confidence 95 %, on {report.errors.num_releases:,} releases each."
    return Result(measured, {"ε": certified}, note)


def _audited(report: AuditReport | OneRunReport) -> dict[str, Any]:
    return {
        AUDITED: report.epsilon,
        FREE: report.epsilon_distribution_free,
        REFUTED: int(report.is_refuted),
    }


def _run_on_mnist(kind: str, epsilon: float, seed: int) -> Result:
    run = audit_run(epsilon, DELTA, seed)
    report = run.reports[kind]
    assert report.certificate is not None
    certified = report.certificate.epsilon
    ratio = report.epsilon / certified
    return Result(
        {**_audited(report), RATIO: ratio, ACCURACY: run.accuracy},
        {"ε": certified},
        f"{data_set().note} One run with {NUM_CANARIES:,} canaries of this kind, at δ = {DELTA:g}"
        " and confidence 95 %. Seeded key: the noise is reproducible, so this run is not private.",
        certificate=str(report.certificate.with_audit(report)),
    )


def data() -> str:
    return data_set().name


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    shipped = [record for record in records if record.settings["case"] not in FAILING]
    names = list(dict.fromkeys(record.settings["case"] for record in shipped))
    figure, (axes,) = new_figure(width=7.2, height=6.0)
    places = [names.index(record.settings["case"]) for record in shipped]
    for values, marker, colour, label in (
        ([record.certified["ε"] for record in shipped], "|", CERTIFIED, "certified, at most"),
        ([record.measured[AUDITED] for record in shipped], "o", MEASURED, "audited, at least"),
    ):
        axes.plot(values, places, marker, color=colour, label=label)
    axes.set(xlabel="ε", yticks=range(len(names)), yticklabels=names)
    axes.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=2)
    return {"epsilons": figure}


def finding(records: Sequence[Record]) -> Finding:
    shipped = [record for record in records if record.settings["case"] not in FAILING]
    sold = [record for record in records if record.settings["case"] in FAILING]
    wrong = [record.row for record in shipped if record.measured[REFUTED]]
    caught = sum(record.measured[REFUTED] for record in sold)
    refuted = f"refute {', '.join(wrong)}" if wrong else "refute no certificate of dpjax"

    # How much of the certified epsilon is found, of many releases and of one run.
    ratios = [
        record.measured[RATIO]
        for record in shipped
        if record.settings["case"] in CASES and record.settings["epsilon"] == 4
    ]
    shares = f" and at ε = 4 reach {min(ratios):.2f} to {max(ratios):.2f} of it" if ratios else ""
    by_kind = [
        f"{record.measured[RATIO]:.2f} by {_RUNS[record.settings['case']]}"
        for record in shipped
        if record.settings["case"] in _RUNS
    ]
    of_run = f", of one run on MNIST {' and '.join(by_kind)}" if by_kind else ""
    return Finding(
        "claim contradicted" if caught else "not compared",
        f"Audits {refuted}{shares}{of_run}, and refute {caught} of {len(sold)} claims of sources.",
    )

"""Audits of the mechanisms of dpjax, and of two that were published and are not private.

``python -m experiments run audit_mechanisms``: two minutes on two CPU cores (``quick``: ε = 4, and
1 of what is computed on the device), six under ``paper``.
"""

from collections.abc import Sequence

import jax
from matplotlib.figure import Figure

from experiments.audit.cases import CASES, DELTA, FAILING, ON_HOST
from experiments.lib.figures import CERTIFIED, MEASURED, new_figure
from experiments.lib.registry import Finding, Record, Result, Row, RowContext

_EPSILONS = {"quick": (1.0, 4.0), "paper": (0.5, 1.0, 2.0, 4.0)}
_SEED = 3
AUDITED, FREE, RATIO = "audited ε", "distribution-free ε", "audited over certified"
REFUTED = "refutations, of 1"


def rows(profile: str) -> list[Row]:
    shipped = [
        Row(f"{name}, ε = {epsilon:g}", {"case": name, "epsilon": epsilon, "seed": _SEED}, {})
        for name in CASES
        for epsilon in _EPSILONS[profile]
        if profile == "paper" or name not in ON_HOST or epsilon == _EPSILONS[profile][-1]
    ]
    sold = [
        Row(name, {"case": name, "epsilon": claimed, "seed": _SEED}, {"claimed ε": claimed})
        for name, (_, claimed) in FAILING.items()
    ]
    return [*shipped, *sold]


def run_row(row: Row, context: RowContext) -> Result:
    name, epsilon = row.settings["case"], row.settings["epsilon"]
    make = CASES[name] if name in CASES else FAILING[name][0]
    report = make(epsilon).report(jax.random.key(row.settings["seed"]))
    measured = {
        AUDITED: report.epsilon,
        FREE: report.epsilon_distribution_free,
        REFUTED: int(report.is_refuted),
    }
    if name in FAILING:  # what is claimed is not certified
        return Result(measured, {})
    certified = report.certificate.epsilon
    measured[RATIO] = report.epsilon / certified
    note = f"At δ = {DELTA:g} and confidence 95 %, on {report.errors.num_releases:,} releases each."
    return Result(measured, {"ε": certified}, note)


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    shipped = [record for record in records if record.settings["case"] in CASES]
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
    shipped = [record for record in records if record.settings["case"] in CASES]
    sold = [record for record in records if record.settings["case"] in FAILING]
    wrong = [record.row for record in shipped if record.measured[REFUTED]]
    caught = sum(record.measured[REFUTED] for record in sold)
    ratios = [record.measured[RATIO] for record in shipped if record.settings["epsilon"] == 4]
    shares = f" and at ε = 4 reach {min(ratios):.2f} to {max(ratios):.2f} of it" if ratios else ""
    refuted = f"refute {', '.join(wrong)}" if wrong else "refute no certificate of dpjax"
    return Finding(
        "claim contradicted" if caught else "not compared",
        f"Audits {refuted}{shares}, and refute {caught} of {len(sold)} claims of sources.",
    )

"""Privacy audits: lower bounds on epsilon from attacks on code, and checks of programs."""

from dpjax.audit._one_run import OneRunReport, one_run, orthogonal_canaries
from dpjax.audit._program import Finding, ProgramReport, check_program
from dpjax.audit._step_checks import StepCheck, StepReport, check_step
from dpjax.audit._worlds import AuditReport, ErrorBounds, audit, canary_loss, canary_records

__all__ = [
    "AuditReport",
    "ErrorBounds",
    "Finding",
    "OneRunReport",
    "ProgramReport",
    "StepCheck",
    "StepReport",
    "audit",
    "canary_loss",
    "canary_records",
    "check_program",
    "check_step",
    "one_run",
    "orthogonal_canaries",
]

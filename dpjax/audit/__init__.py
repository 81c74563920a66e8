"""Privacy audits: lower bounds on epsilon from attacks on code, and checks of programs."""

from dpjax.audit._one_run import OneRunReport, one_run, orthogonal_canaries
from dpjax.audit._program import Finding, ProgramReport, check_program
from dpjax.audit._worlds import AuditReport, ErrorBounds, audit, canary_loss, canary_records

__all__ = [
    "AuditReport",
    "ErrorBounds",
    "Finding",
    "OneRunReport",
    "ProgramReport",
    "audit",
    "canary_loss",
    "canary_records",
    "check_program",
    "one_run",
    "orthogonal_canaries",
]

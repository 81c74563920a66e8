"""Privacy audits: lower bounds on epsilon from attacks on code, and checks of programs."""

from dpjax.audit._program import Finding, ProgramReport, check_program
from dpjax.audit._worlds import AuditReport, ErrorBounds, audit, canary_loss, canary_records

__all__ = [
    "AuditReport",
    "ErrorBounds",
    "Finding",
    "ProgramReport",
    "audit",
    "canary_loss",
    "canary_records",
    "check_program",
]

"""Privacy audits: lower bounds on epsilon from attacks on code, compared with its certificate."""

from dpjax.audit._step_checks import StepCheck, StepReport, check_step
from dpjax.audit._worlds import AuditReport, ErrorBounds, audit, canary_loss, canary_records

__all__ = [
    "AuditReport",
    "ErrorBounds",
    "StepCheck",
    "StepReport",
    "audit",
    "canary_loss",
    "canary_records",
    "check_step",
]

"""Privacy audits: lower bounds on epsilon from attacks on code, compared with its certificate."""

from dpjax.audit._one_run import OneRunReport, one_run, orthogonal_canaries
from dpjax.audit._worlds import AuditReport, ErrorBounds, audit, canary_loss, canary_records

__all__ = [
    "AuditReport",
    "ErrorBounds",
    "OneRunReport",
    "audit",
    "canary_loss",
    "canary_records",
    "one_run",
    "orthogonal_canaries",
]

"""Processes of a federated release: a holder, a node or the analyst, connected by mutual TLS.

``python -m dpjax.federated`` runs one of them, from a configuration file. The mathematics
is in `dpjax.federated`, which imports nothing from here.

Needs the extra ``federated``.
"""

from dpjax.federated.processes.config import Study, read_study

__all__ = ["Study", "read_study"]

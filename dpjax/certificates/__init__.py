"""Privacy certificates of a mechanism or run, as text, HTML, JSON-ready values and figure."""

from dpjax.certificates.certificate import Certificate, certify
from dpjax.certificates.render import Estimate, Report

__all__ = ["Certificate", "Estimate", "Report", "certify"]

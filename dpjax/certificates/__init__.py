"""Privacy certificates of a mechanism, as text, HTML, JSON-ready values and figure."""

from dpjax.certificates.certificate import Certificate, Estimate, certify

__all__ = ["Certificate", "Estimate", "certify"]

"""Accounting: events become epsilons, certificates and calibrated mechanisms."""

from dpjax.accounting import gdp
from dpjax.accounting.accountants import epsilon
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.calibration import calibrate, releases_within
from dpjax.accounting.certificate import Certificate, Reading, certify
from dpjax.accounting.events import UnsupportedEventError

__all__ = [
    "Adjacency",
    "Certificate",
    "Reading",
    "UnsupportedEventError",
    "calibrate",
    "certify",
    "epsilon",
    "gdp",
    "releases_within",
]

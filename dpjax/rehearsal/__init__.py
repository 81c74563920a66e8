"""Rehearsals: settings of a private run chosen on simulated records, and what it will be worth."""

from dpjax.rehearsal._rehearse import rehearse
from dpjax.rehearsal.calibration import Calibration
from dpjax.rehearsal.methods import Inference, Training
from dpjax.rehearsal.release import Release
from dpjax.rehearsal.report import Rehearsal
from dpjax.rehearsal.stepped_runs import Setting
from dpjax.rehearsal.worlds import PublicRecords, World, prior_predictive

__all__ = [
    "Calibration",
    "Inference",
    "PublicRecords",
    "Rehearsal",
    "Release",
    "Setting",
    "Training",
    "World",
    "prior_predictive",
    "rehearse",
]

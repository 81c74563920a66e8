"""Sensitivities of statistics, with norm and adjacency, from public bounds on records."""

from dpjax.sensitivity.base import EmpiricalSensitivity, Norm, Sensitivity
from dpjax.sensitivity.empirical import empirical_sensitivity, parallel_databases
from dpjax.sensitivity.records import clip_norm_to, clip_to, to_grid
from dpjax.sensitivity.statistics import (
    of_count,
    of_histogram,
    of_mean,
    of_quantile_counts,
    of_second_moment,
    of_second_moment_in_box,
    of_sum,
)

__all__ = [
    "EmpiricalSensitivity",
    "Norm",
    "Sensitivity",
    "clip_norm_to",
    "clip_to",
    "empirical_sensitivity",
    "of_count",
    "of_histogram",
    "of_mean",
    "of_quantile_counts",
    "of_second_moment",
    "of_second_moment_in_box",
    "of_sum",
    "parallel_databases",
    "to_grid",
]

"""Mechanisms: each describes its noise, its release and its privacy event."""

from typing import TYPE_CHECKING

from dpjax._lazy_imports import exports_on_first_use

# The public names by the module that defines them; `TYPE_CHECKING` repeats them for mypy.
_EXPORTS = {
    "dpjax.guarantee": ["Guarantee"],
    "dpjax.mechanisms._dpsgd": ["dpsgd"],
    "dpjax.mechanisms.additive": ["DiscreteGaussian", "DiscreteLaplace", "Gaussian", "Laplace"],
    "dpjax.mechanisms.base": ["Composition", "Interval", "Mechanism"],
    "dpjax.mechanisms.epochs": ["Epochs"],
    "dpjax.mechanisms.randomized_response": ["Frequencies", "RandomizedResponse"],
    "dpjax.mechanisms.record_sum": ["ClippedSum", "RecordSum", "SumPart"],
    "dpjax.mechanisms.repeated_selection": ["RepeatedSelection"],
    "dpjax.mechanisms.selection": ["ExponentialMechanism", "NoisyMax", "PermuteAndFlip"],
    "dpjax.mechanisms._mechanism_of": ["mechanism_of"],
    "dpjax.mechanisms.subsampled_gaussian": ["SubsampledGaussian"],
}

__all__ = [
    "ClippedSum",
    "Composition",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Epochs",
    "ExponentialMechanism",
    "Frequencies",
    "Gaussian",
    "Guarantee",
    "Interval",
    "Laplace",
    "Mechanism",
    "NoisyMax",
    "PermuteAndFlip",
    "RandomizedResponse",
    "RecordSum",
    "RepeatedSelection",
    "SubsampledGaussian",
    "SumPart",
    "dpsgd",
    "mechanism_of",
]


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from dpjax.guarantee import Guarantee
    from dpjax.mechanisms._dpsgd import dpsgd
    from dpjax.mechanisms._mechanism_of import mechanism_of
    from dpjax.mechanisms.additive import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace
    from dpjax.mechanisms.base import Composition, Interval, Mechanism
    from dpjax.mechanisms.epochs import Epochs
    from dpjax.mechanisms.randomized_response import Frequencies, RandomizedResponse
    from dpjax.mechanisms.record_sum import ClippedSum, RecordSum, SumPart
    from dpjax.mechanisms.repeated_selection import RepeatedSelection
    from dpjax.mechanisms.selection import ExponentialMechanism, NoisyMax, PermuteAndFlip
    from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
else:  # hidden from mypy, for which a module with __getattr__ has every attribute
    __getattr__ = exports_on_first_use(__name__, _EXPORTS)

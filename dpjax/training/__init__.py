"""Private training: one step (`private_step`) and a whole run (`train`)."""

from dpjax.training.allocator import keep_freed_memory
from dpjax.training.step import PrivateStep, StepInfo, TrainState, private_step
from dpjax.training.train import Budget, Report, TrainResult, train

__all__ = [
    "Budget",
    "PrivateStep",
    "Report",
    "StepInfo",
    "TrainResult",
    "TrainState",
    "keep_freed_memory",
    "private_step",
    "train",
]

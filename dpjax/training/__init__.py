"""Private training: one step (`private_step`) and a whole run (`train`)."""

from dpjax.training.allocator import keep_freed_memory
from dpjax.training.draw_sums import StepInfo
from dpjax.training.processes import LostProcessError, shared_release_key
from dpjax.training.sharding import MeshSharding
from dpjax.training.sources import ArraySource, DataSource
from dpjax.training.split_records import SplitRecords, split_records
from dpjax.training.step import PrivateStep, TrainState, private_step
from dpjax.training.train import Budget, Report, TrainResult, train

__all__ = [
    "ArraySource",
    "Budget",
    "DataSource",
    "LostProcessError",
    "MeshSharding",
    "PrivateStep",
    "Report",
    "SplitRecords",
    "StepInfo",
    "TrainResult",
    "TrainState",
    "keep_freed_memory",
    "private_step",
    "shared_release_key",
    "split_records",
    "train",
]

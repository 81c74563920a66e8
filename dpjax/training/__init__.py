"""Private training: one step (`private_step`) and a whole run (`train`)."""

from dpjax.training._train import Budget, Report, TrainResult, train
from dpjax.training.allocator import keep_freed_memory
from dpjax.training.batch_gradient import StepInfo
from dpjax.training.data import ArraySource, DataSource, SplitRecords, split_records
from dpjax.training.processes import LostProcessError, shared_release_key
from dpjax.training.sharding import MeshSharding
from dpjax.training.step import PrivateStep, TrainState, private_step

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

"""Private training: one step (`private_step`) and a whole run (`train`)."""

from dpjax._typing import ArrayTree, ClipBound, LossFn, MicrobatchSize, Params, SamplerState
from dpjax.training._train import Budget, Report, TrainResult, train
from dpjax.training.batch_gradient import StepInfo
from dpjax.training.data import ArraySource, DataSource, Examples, SplitRecords, split_records
from dpjax.training.processes import LostProcessError, shared_release_key
from dpjax.training.run import keep_freed_memory
from dpjax.training.sharding import MeshSharding, PartitionRule
from dpjax.training.step import PrivateStep, TrainState, private_step

__all__ = [
    "ArraySource",
    "ArrayTree",
    "Budget",
    "ClipBound",
    "DataSource",
    "Examples",
    "LossFn",
    "LostProcessError",
    "MeshSharding",
    "MicrobatchSize",
    "Params",
    "PartitionRule",
    "PrivateStep",
    "Report",
    "SamplerState",
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

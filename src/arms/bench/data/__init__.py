"""Data sets by name, from a data folder, the download cache or the network; and your own."""

from arms.bench.data.datasets import (
    DATASETS,
    Dataset,
    Status,
    TrainingImages,
    check_same_shape_and_levels,
    fetch,
    load,
    observe,
    status,
)
from arms.bench.data.user_data import as_dataset

__all__ = [
    "DATASETS",
    "Dataset",
    "Status",
    "TrainingImages",
    "as_dataset",
    "check_same_shape_and_levels",
    "fetch",
    "load",
    "observe",
    "status",
]

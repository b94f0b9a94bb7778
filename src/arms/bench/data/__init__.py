"""Data sets by name or from a user's own images."""

from arms.bench.data.datasets import DATASETS as DATASETS
from arms.bench.data.datasets import Dataset as Dataset
from arms.bench.data.datasets import Status as Status
from arms.bench.data.datasets import TrainingImages as TrainingImages
from arms.bench.data.datasets import check_same_shape_and_levels as check_same_shape_and_levels
from arms.bench.data.datasets import fetch as fetch
from arms.bench.data.datasets import load as load
from arms.bench.data.datasets import observe as observe
from arms.bench.data.datasets import status as status
from arms.bench.data.user_data import as_dataset as as_dataset

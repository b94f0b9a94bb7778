"""The metrics that a run records during training, each with its key, its name and its axis.

To add a metric, add an entry to METRICS, and write the code that computes the metric. If the metric
is a mean over training steps, set `mean_over_steps`, and add the value of each step to the sum in
`Trainer._add_to_sums`. Compute other metrics of training in `Trainer.record`. Compute metrics on
other images in the function `_record` of `runs/ensemble.py`. Progress bars, messages, curves and
reports then include the new metric.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Record: TypeAlias = dict[str, Any]
"""A line of metrics.jsonl: {"step": step, key of a metric: list with one value per replica}."""

TEST_BOUND_SAMPLES = 100
"""K of the bound that approximates the log-likelihood of test images."""


@dataclass(frozen=True)
class Metric:
    """A number per replica that a run records during training."""

    key: str  # name in metrics.jsonl and in TensorBoard
    words: str  # name in a sentence
    title: str  # title of the figure
    short_title: str  # title above the axis label in figures with several panels
    quantity: str  # name on the axis and in a progress bar
    brief: str = ""  # name in a progress bar, if `quantity` is too long
    unit: str = ""
    scale: Literal["linear", "log"] = "linear"  # with log, numbers are printed with an exponent
    stops_replica: bool = False  # whether a replica stops if this metric is not finite
    mean_over_steps: bool = False  # whether this is a mean over steps since the last record
    in_progress: bool = True  # whether progress bars show this metric
    in_result: bool = False  # whether result.json has a final value, from more images

    @property
    def axis_label(self) -> str:
        """The label of the metric's axis: the quantity, with the unit in parentheses."""
        return f"{self.quantity} ({self.unit})" if self.unit else self.quantity


TRAIN_ELBO = Metric(
    key="train_elbo",
    words="ELBO",
    title="Training ELBO (K = 1), higher is better",
    short_title="train, K=1",
    quantity="ELBO",
    unit="nats",
    in_result=True,
    stops_replica=True,
    mean_over_steps=True,
)
TEST_BOUND = Metric(
    key=f"test_bound_{TEST_BOUND_SAMPLES}",
    words="test bound",
    title=f"Test bound (K = {TEST_BOUND_SAMPLES}), higher is better",
    short_title=f"test, K={TEST_BOUND_SAMPLES}",
    quantity="bound",
    unit="nats",
    in_progress=False,  # only some records contain this metric
    in_result=True,
    stops_replica=True,
)
GRADIENT_VARIANCE = Metric(
    key="gradient_variance",
    words="gradient variance",
    title="Gradient variance (log scale, lower is better)",
    short_title="gradient",
    quantity="variance per encoder weight",
    brief="var/weight",
    unit="nats²",
    scale="log",
    stops_replica=True,
)
ACTIVE_LATENTS = Metric(
    key="active_latents",
    words="active latents",
    title="Active latents: their probabilities vary over images",
    short_title="active",
    quantity="active latents",
    in_progress=False,
)
CODE_ENTROPY = Metric(
    key="code_entropy",
    words="entropy of q(b|x)",
    title="Entropy of q(b|x), mean over images",
    short_title="entropy",
    quantity="entropy",
    unit="nats",
    in_progress=False,
)
LOGIT_SPREAD = Metric(
    key="logit_spread",
    words="spread of the logits",
    title="Standard deviation of the logits of q(b|x)",
    short_title="logits",
    quantity="standard deviation",
    in_progress=False,
)

METRICS: Mapping[str, Metric] = {
    metric.key: metric
    for metric in (
        *(TRAIN_ELBO, TEST_BOUND, GRADIENT_VARIANCE),
        *(ACTIVE_LATENTS, CODE_ENTROPY, LOGIT_SPREAD),
    )
}
"""All metrics, in display order."""


def stopping_values(record: Record) -> dict[str, list[float | None]]:
    """Return the metrics in a record that stop a replica when their value is not finite.

    The result is {key of the metric: list with one value per replica}.

    >>> stopping_values({"step": 10, "train_elbo": [-1.0, None]})
    {'train_elbo': [-1.0, None]}
    """
    keys = [key for key, metric in METRICS.items() if metric.stops_replica and key in record]
    return {key: record[key] for key in keys}


def surviving(values: Sequence[float | None]) -> list[float]:
    """Return the values that are not None. A stopped replica has the value None."""
    return [value for value in values if value is not None]


def is_values(content: object) -> bool:
    """Return whether JSON data is a list in which every entry is a finite number or null.

    >>> is_values([-1.5, None, 2]), is_values([1e999]), is_values([10**400]), is_values(-1.5)
    (True, False, False, False)
    """
    return isinstance(content, list) and all(
        value is None or (isinstance(value, int | float) and abs(value) <= sys.float_info.max)
        for value in content
    )


def stopped_replicas(records: Iterable[Record]) -> dict[int, int]:
    """Return {index of a stopped replica: step of the first record without a value for it}.

    >>> stopped_replicas([{"step": step, "train_elbo": [-1.0, None]} for step in (10, 20)])
    {1: 10}
    """
    stopped: dict[int, int] = {}
    for record in records:
        for values in stopping_values(record).values():
            for replica, value in enumerate(values):
                if value is None:
                    stopped.setdefault(replica, record["step"])
    return stopped

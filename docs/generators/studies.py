"""Pages with the full tables of a measurement, as the scripts in benchmarks/ print them from their result files.

python docs/generators    # writes docs/measurements/
"""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "measurements"
RESULTS = "benchmarks/results"


@dataclass(frozen=True)
class Study:
    """A page: its title, how to read its tables, and the command that prints them."""

    title: str
    text: str
    command: str

    def page(self) -> str:
        """Return the page as Markdown."""
        note = f"Printed by `python {self.command}`."
        return f"# {self.title}\n\n{self.text}\n\n{note}\n\n{printed(self.command)}\n"


def printed(command: str) -> str:
    """Return what a script prints."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, *command.split()], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


STUDIES: Mapping[str, Study] = {
    "vae_variance": Study(
        "Variance on trained VAEs",
        "Variance of the gradient with respect to 200 logits, given 16 images of dynamic MNIST, after 0,\n"
        "2,000 and 20,000 steps (L linear, N nonlinear). [Midpoint](../midpoint.md#measured) explains the\n"
        "setting.",
        "benchmarks/vae_variance.py --markdown",
    ),
    "time_to_bound": Study(
        "Bounds after training",
        "Test bound (K = 100, nats, mean and standard deviation of five seeds), at most six evaluations per\n"
        "step, best first. Every estimator uses its best rate and schedule by the validation bound.\n"
        "[Midpoint](../midpoint.md#time-to-a-bound) has the conclusions.",
        f"benchmarks/time_to_bound.py show --output {RESULTS}/time_to_bound.json",
    ),
    "recipe_search": Study(
        "Search for a training recipe",
        "Validation bound (K = 100, nats, mean of two seeds) on dynamic MNIST, by the factor on the initial\n"
        "weights of the encoder's last layer and by the learning rate at the start of a cosine schedule. The\n"
        "best is bold. [Training](../training.md#how-the-recipe-was-chosen) has the conclusions.",
        "benchmarks/recipe_tables.py search",
    ),
    "recipe_comparison": Study(
        "Estimators with the frozen recipe",
        "Test bounds (K = 100, nats, mean and standard deviation of five seeds). Work is evaluations +\n"
        "derivatives of the model per image and step. Time is that of a step on one CPU thread, relative to\n"
        "`loorf`.\n"
        "[Training](../training.md#comparison) has the conclusions.",
        "benchmarks/recipe_tables.py comparison",
    ),
    "categories": Study(
        "Variance with categories",
        "Toy: f = Σ_l (z_l/(K - 1) - 0.499)². Random: f ~ N(0, 1), a new value for each joint state. Networks:\n"
        "f = v · tanh(gain W z / √d) with 20 units, one-hot z and standard normal weights; with gain 1 f is\n"
        "smooth, with gain 10 most units are thresholds. d latents have K categories. `exact` is 0 if\n"
        "n ≥ K^d, and was not measured; `unordered-set` requires n ≤ K^d.\n"
        "[Categorical latents](../categorical.md#which-one-when) has the conclusions.\n\n"
        "Variances are summed over all logits: geometric means over 6 draws of standard normal logits with\n"
        "4,000 replicas each (networks: 4 draws with 2,000). LOORF is measured twice, to show the noise. Bias\n"
        "is from enumeration or a long run of an unbiased estimator, at the default temperatures (1 for\n"
        "`reinmax`, 0.5 for the others). In the test of bias K^d ≤ 1024, and categories drawn less than 300\n"
        "times are left out. Its limit is what the largest of so many normal scores exceeds once in a million\n"
        "times. Time is CPU time in one thread, the median over 30 rounds of ratios within the round.",
        "benchmarks/categorical_variance.py --markdown",
    ),
    "bound_variance": Study(
        "Variance on the bound",
        "Variance of the whole gradient on trained VAEs, relative to VIMCO with K = n. In parentheses: the\n"
        "score part alone, which publications compare. `vimco, twice` is the mean of two estimates with\n"
        "K = n/2, for the same bound and number of evaluations as the others. Standard errors are 2 to 3 %.\n"
        "[The bound](../bound.md#measured) explains the setting and has the conclusions.",
        "benchmarks/bound_variance.py --markdown",
    ),
    "layer_training": Study(
        "Training several layers",
        "Hierarchical VAEs x - 200 bits - 200 bits on dynamic MNIST, 100,000 steps, five seeds; test bounds\n"
        "in nats, with the standard deviation over seeds. The rows of separate samples are from an earlier\n"
        "version, which could train with them.\n"
        "[Several layers](../layers.md#trained) explains the setting and has the conclusions.",
        f"benchmarks/training_comparison.py show --output {RESULTS}/layer_training.json",
    ),
    "bound_training": Study(
        "Training on the bound",
        "VAEs with 200 latents on dynamic MNIST, 100,000 steps, five seeds; test bounds in nats.\n"
        "[The bound](../bound.md#trained-on-the-bound) explains the setting and has the conclusions.",
        f"benchmarks/training_comparison.py show --output {RESULTS}/bound_training.json",
    ),
    "subset_selection": Study(
        "Best subset selection",
        "[Best subset selection](../examples/subset_selection.md#measured) explains the columns. The tables:\n"
        "correlated features; all 15,504 subsets enumerated; diabetes; the search alone; one estimate.",
        "benchmarks/subset_selection.py --markdown",
    ),
}
"""The pages, by the names of their files."""


def write() -> None:
    """Write all pages."""
    for name, study in STUDIES.items():
        (FOLDER / f"{name}.md").write_text(study.page())

"""The configuration of a run, its presets, and the identity and name that are made from it."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, TypeAlias, get_args

from torch import Tensor

from arms.arguments import as_count, as_positive, unknown_name
from arms.bench.models import LIKELIHOODS, NETWORKS, DiscreteVAE, build_vae
from arms.checks.bias import takes_kind
from arms.designs import AllStates, WithoutReplacement
from arms.estimators import Estimator, as_estimator, resolve
from arms.latents import OneHot
from arms.latents.base import MOST_STATES
from arms.layers import reason_not_first_layer

DecoderSamples: TypeAlias = Literal["all", "extra"]
Likelihood: TypeAlias = Literal["bernoulli", "gaussian", "categorical"]
Precision: TypeAlias = Literal["highest", "high", "medium"]
Schedule: TypeAlias = Literal["constant", "cosine", "step"]

SCHEMA = 4
"""Version of the identity. Raise it when the same fields begin to mean another experiment. Leave
the defaults of `TrainConfig` as they are, because identities are relative to them."""
RETIRED_FIELDS = (("layer_samples", "chains"),)
"""Fields that no longer exist, with the value that means what is done now."""


class _Group:
    """A group of fields, which checks itself. Numbers of NumPy become plain ones."""

    def __post_init__(self) -> None:
        raise NotImplementedError

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_counts(self, least: int, *names: str) -> None:
        for name in names:
            self._set(name, as_count(getattr(self, name), least, name))

    def _check_text(self, *names: str) -> None:
        for name in names:
            if not isinstance(value := getattr(self, name), str):
                raise ValueError(f"{name} must be a string, got {value!r}")
            # With half of a surrogate pair, config.json could not be read again.
            if any("\ud800" <= letter <= "\udfff" for letter in value):
                raise ValueError(
                    f"{name} must be Unicode text, got half a surrogate pair: {value!r}"
                )

    def _check_choice(self, name: str, kind: object) -> None:
        if (value := getattr(self, name)) not in get_args(kind):
            raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class DataConfig(_Group):
    """What is learnt from."""

    dataset: str = "digits"
    """Data set by name (see `arms data list`)."""
    batch_size: int = 50
    """Images per step and replica."""

    def __post_init__(self) -> None:
        self._check_text("dataset")
        self._check_counts(1, "batch_size")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(_Group):
    """What is trained."""

    network: str = "linear"
    """One affine layer each way, or two hidden layers of 200 in between; or your model's name."""
    latents: int = 200
    """Latent variables; on the command line 20x10 is 20 of 10 categories each."""
    layers: tuple[int, ...] = ()
    """Latents of each of several stochastic layers, the one nearest the image first, such as
    200 200; one layer of `latents` unless given."""
    categories: int = 2
    """Among which each latent variable chooses; 2 makes them bits."""
    likelihood: Likelihood = "bernoulli"
    """Pixels of a built-in network: bits, grey values with normal noise of standard deviation 0.1,
    or a probability for every grey value."""
    structure: str = ""
    """Fingerprint of your own model; a built-in network has none."""

    def __post_init__(self) -> None:
        self._check_text("network", "structure")
        self._check_counts(1, "latents")
        self._check_counts(2, "categories")
        self._check_choice("likelihood", Likelihood)
        as_count(self.latents * self.categories, 1, "latents times categories")
        if not self.structure and self.network not in NETWORKS:
            or_else = "model=, whose name DiscreteVAE(..., name=...) says"
            raise unknown_name("network", self.network, NETWORKS, or_else=or_else)
        if self.structure:
            self._check_own_model()
        self._check_layers()

    def _check_own_model(self) -> None:
        if not re.fullmatch(r"[\w .,+()-]{1,60}", self.network):
            allowed = "1 to 60 letters, digits, spaces or . , + ( ) -"
            raise ValueError(f"a model's name must be {allowed}, got {self.network!r}")
        if self.network in NETWORKS:
            raise ValueError(f"{self.network!r} is a built-in network: rename your model")
        if self.likelihood != "bernoulli":
            raise ValueError(
                f"likelihood is for built-in networks, got {self.likelihood!r}: leave it out, and "
                "give your model DiscreteVAE(..., likelihood=...)"
            )

    def _check_layers(self) -> None:
        try:
            given = tuple(self.layers)  # a list, where it was read from a file
        except TypeError:
            raise ValueError(
                f"layers must list the latents of each layer, such as (200, 200), got "
                f"{self.layers!r}: for one layer, give latents"
            ) from None
        self._set("layers", tuple(as_count(width, 1, "layers") for width in given))
        if not given:
            return
        first = self.layers[0]
        if len(given) == 1:
            raise ValueError(f"layers must name at least two layers, got {first}: give latents")
        if self.latents not in (ModelConfig.latents, first):
            raise ValueError(
                f"latents is the first of layers, {first}, got {self.latents}: leave it out"
            )
        self._set("latents", first)


@dataclass(frozen=True, kw_only=True)
class EstimatorConfig(_Group):
    """How the gradient is estimated."""

    estimator: str = "arms"
    """Gradient estimator by name (see `arms estimators`)."""
    num_samples: int = 4
    """Evaluations of the decoder per image and step."""
    folded: bool = True
    """Whether an estimator of the importance-weighted bound includes the direct term in each
    slot's function; without it, it is the form of the papers."""
    decoder_samples: DecoderSamples = "all"
    """Where decoder and prior take their gradient from: all samples, or one extra, independent one
    (the paper). The multi-sample bound always uses its own samples, and says all."""

    def __post_init__(self) -> None:
        if not isinstance(self.estimator, str):
            raise ValueError(
                f"estimator must be a name, such as 'arms', got {self.estimator!r}: give the name, "
                "and the number of samples as num_samples"
            )
        if not isinstance(self.folded, bool):
            raise ValueError(f"folded must be True or False, got {self.folded!r}")
        self._check_counts(1, "num_samples")
        self._check_choice("decoder_samples", DecoderSamples)
        name, options = resolve(self.estimator)  # aliases name the same run
        self._set("estimator", name)
        self._set("folded", self.folded and options.get("folded", True))
        if self.make_estimator().target.subtracts_log_q:
            self._set("decoder_samples", "all")

    def make_estimator(self) -> Estimator:
        """Return the estimator of this configuration."""
        if self.folded:
            return as_estimator(self.estimator, self.num_samples)
        try:
            return as_estimator(self.estimator, self.num_samples, folded=False)
        except TypeError:
            raise ValueError(
                f"folded=False is for estimators of the bound, got {self.estimator}: leave it out"
            ) from None

    @property
    def label(self) -> str:
        """What reports call the estimator."""
        return self.estimator if self.folded else f"{self.estimator} (unfolded)"


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(_Group):
    """How it is trained."""

    replicas: int = 1
    """Independent seeds trained at once."""
    steps: int = 10_000
    """Optimisation steps."""
    seed: int = 0
    """Seed of everything: weights, batches, bits, samples."""
    learning_rate: float = 1e-4
    """Adam's, for encoder and decoder."""
    prior_learning_rate: float = 1e-2
    """Gradient ascent's, for the prior logits."""
    schedule: Schedule = "constant"
    """Both rates stay, fall along half a cosine to 0 at the last step, or are cut every
    `decay_every` steps."""
    warmup_steps: int = 0
    """Steps over which both rates first rise in a straight line, whatever the schedule."""
    decay_every: int = 0
    """Steps between two cuts of the schedule `step`."""
    decay_factor: float = 0.1
    """What each cut of the schedule `step` multiplies both rates by."""
    precision: Precision = "highest"
    """Matrix products on a GPU, in PyTorch's words: float32; high takes TF32; medium also bfloat16,
    in gradients."""

    def __post_init__(self) -> None:
        self._check_counts(1, "replicas", "steps")
        self._check_counts(0, "seed", "warmup_steps", "decay_every")
        self._check_choice("schedule", Schedule)
        self._check_choice("precision", Precision)
        for name in ("learning_rate", "prior_learning_rate", "decay_factor"):
            self._set(name, as_positive(getattr(self, name), name))
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps must be less than steps ({self.steps}), got {self.warmup_steps}: "
                "the rate would never be reached"
            )
        if self.schedule == "step" and not self.decay_every:
            raise ValueError(
                "schedule 'step' needs decay_every, the steps between two cuts of the rate, got 0: "
                f"try a third of steps, {max(1, self.steps // 3)}"
            )
        if self.schedule != "step" and self.decay_every:
            raise ValueError(
                f"decay_every is for schedule 'step' only, got {self.decay_every} with schedule "
                f"{self.schedule!r}: leave it out, or choose 'step'"
            )
        if self.decay_factor > 1:
            raise ValueError(f"decay_factor must be at most 1, got {self.decay_factor}")


@dataclass(frozen=True, kw_only=True)
class ObservationConfig(_Group):
    """How often a run is looked at, which decides none of its numbers."""

    report_every: int = 100
    """Steps between two records of the metrics."""
    evaluate_every: int = 0
    """Steps between two looks at the test set, a multiple of `report_every`; 0 looks only at the
    end."""
    evaluate_images: int = 500
    """Test images of such a look; at the end it is all of them."""

    def __post_init__(self) -> None:
        self._check_counts(1, "report_every", "evaluate_images")
        self._check_counts(0, "evaluate_every")
        if self.evaluate_every % self.report_every:
            every = f"report_every ({self.report_every})"
            raise ValueError(
                f"evaluate_every must be a multiple of {every}, got {self.evaluate_every}"
            )


GROUPS: tuple[type[_Group], ...] = (
    DataConfig,
    ModelConfig,
    EstimatorConfig,
    OptimizerConfig,
    ObservationConfig,
)
OBSERVATION = tuple(field.name for field in fields(ObservationConfig))
"""Fields that are not part of a run's identity."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(ObservationConfig, OptimizerConfig, EstimatorConfig, ModelConfig, DataConfig):
    """Everything that decides the numbers of a run, and how often it is looked at.

    The defaults are the paper's, but for the decoder's gradient.
    """

    def __post_init__(self) -> None:
        for group in GROUPS:
            group.__post_init__(self)
        chosen = self.make_estimator()
        if self.layers and (reason := reason_not_first_layer(chosen)):
            raise ValueError(
                f"{self.estimator} {reason} and does not train several layers: "
                "try arms, loorf or midpoint"
            )
        # Beyond the largest that matters, the exact number would take long to compute.
        states = self.categories ** min(self.latents, 64)
        if isinstance(chosen.design, AllStates) and states > MOST_STATES:
            raise ValueError(
                f"exact trains with at most {MOST_STATES} states, got {latents_in_words(self)} "
                "latents: choose another estimator"
            )
        if isinstance(chosen.design, WithoutReplacement) and states < self.num_samples:
            raise ValueError(
                f"unordered-set trains with at most as many samples as there are joint states, "
                f"{states}, got num_samples {self.num_samples}: choose exact"
            )
        if self.categories > 2 and not takes_kind(chosen, OneHot):
            bound = chosen.target.subtracts_log_q
            others = "vimco or arms-ms" if bound else "arms, loorf or midpoint"
            raise ValueError(
                f"{self.estimator} takes bits only, got {latents_in_words(self)}: choose an "
                f"estimator of categories, such as {others}"
            )

    def build_model(
        self, pixel_mean: Tensor, levels: int, device: str = "cpu", *, blank: bool = False
    ) -> DiscreteVAE:
        """Return the built-in network for such images, `blank` with all weights zero."""
        latents, likelihood = self.layers or self.latents, LIKELIHOODS[self.likelihood](levels)
        sizes = (latents, pixel_mean, self.replicas, None if blank else self.seed, device)
        return build_vae(self.network, *sizes, self.categories, likelihood)


def latents_in_words(config: TrainConfig) -> str:
    """Return the size of the latents as it is typed.

    >>> latents_in_words(TrainConfig(latents=20, categories=10)), latents_in_words(TrainConfig())
    ('20x10', '200')
    """
    return f"{config.latents}x{config.categories}" if config.categories > 2 else str(config.latents)


def paper_preset(config: TrainConfig) -> TrainConfig:
    """Return the paper's protocol: a million steps, five seeds, its decoder rule."""
    return replace(config, steps=1_000_000, replicas=5, decoder_samples="extra")


FAST_RATES: Mapping[str, float] = {"linear": 6e-3, "nonlinear": 3e-3}
"""The best of those tried with a cosine schedule: see benchmarks/time_to_bound.py."""


def fast_preset(config: TrainConfig) -> TrainConfig:
    """Return the best recipe found: the midpoint estimator, and a large rate on half a cosine.

    Its 100,000 steps pass what the paper's recipe has after a million with the linear network. With
    the nonlinear one they come close, and 300,000 pass it (docs/midpoint.md).
    """
    rate = FAST_RATES.get(config.network, FAST_RATES["nonlinear"])
    estimator = replace(config, estimator="midpoint", num_samples=4)
    return replace(estimator, steps=100_000, replicas=5, schedule="cosine", learning_rate=rate)


PRESETS: Mapping[str, Callable[[TrainConfig], TrainConfig]] = {
    "paper": paper_preset,
    "fast": fast_preset,
}


def identity(config: TrainConfig) -> dict[str, object]:
    """Return what tells this run from others: fields that decide numbers and are not the default.

    A field that is added later therefore renames no run, as long as its default means what was done
    before.

    >>> identity(TrainConfig(seed=3, report_every=10))
    {'schema': 4, 'seed': 3}
    """
    found = _deciding(config).items()
    return {"schema": SCHEMA} | {
        name: value for name, value in found if value != getattr(type(config), name)
    }


def digest_of(identity: Mapping[str, object]) -> str:
    """Return a digest of an identity, the same wherever it is computed."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def difference(one: TrainConfig, other: TrainConfig) -> dict[str, tuple[object, object]]:
    """Return the fields in which the identities of two runs differ, each with both values.

    >>> difference(TrainConfig(seed=3, report_every=10), TrainConfig())
    {'seed': (3, 0)}
    """
    mine, theirs = _deciding(one), _deciding(other)
    return {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}


def is_longer(one: TrainConfig, other: TrainConfig) -> bool:
    """Whether one run is the other with more steps at its end.

    Half a cosine ends at the last step, so that with more of them all of its steps are others.

    >>> is_longer(TrainConfig(steps=300), TrainConfig(steps=200))
    True
    """
    only_steps = set(difference(one, other)) == {"steps"}
    return only_steps and one.steps > other.steps and one.schedule != "cosine"


def _deciding(config: TrainConfig) -> dict[str, object]:
    """Return the fields that decide numbers."""
    return {name: value for name, value in asdict(config).items() if name not in OBSERVATION}


def run_name(config: TrainConfig) -> str:
    """Return a name that tells runs apart at a glance, and for certain by a digest.

    >>> run_name(TrainConfig())
    'digits-linear-arms-n4-r1-seed0-a231e32c'
    """
    network = "-".join(filter(None, [config.network, "x".join(map(str, config.layers))]))
    described = f"{config.dataset}-{network}-{config.label}-n{config.num_samples}"
    name = re.sub(r"[^\w.+]+", "-", described)  # a folder's, whatever data and model are called
    return f"{name}-r{config.replicas}-seed{config.seed}-{digest_of(identity(config))[:8]}"

"""The configuration of a run, and the identity and name derived from it."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

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
Inputs: TypeAlias = Literal["centered", "raw"]
KL: TypeAlias = Literal["sampled", "analytic"]
Likelihood: TypeAlias = Literal["bernoulli", "gaussian", "categorical", "gray", "scaled-gaussian"]
Precision: TypeAlias = Literal["highest", "high", "medium"]
Schedule: TypeAlias = Literal["constant", "cosine", "step"]

IDENTITY_VERSION = 4
"""The version of identities. Increase this number if the meaning of an existing field changes. Do
not change the defaults of `TrainConfig`, because an identity omits fields that have their default.
"""
RETIRED_FIELDS = (("layer_samples", "chains"),)
"""Removed fields, each with the value that describes the current behavior. Runs with another value
can no longer be read."""
LEAST = {"seed": 0, "warmup_steps": 0, "decay_every": 0, "evaluate_every": 0, "categories": 2}
"""The smallest valid values of these integer fields. Other integer fields must be at least 1."""
MAY_BE_ZERO = ("prior_learning_rate", "temperature")
"""Floating-point fields that may be 0. All other floating-point fields must be positive."""


class _Group:
    """A base class for groups of fields. Creating an object checks all types and calls `check`."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if kind is int:  # converts NumPy integers to int
                self._set(name, as_count(value, LEAST.get(name, 1), name))
            elif kind is float:
                is_zero = name in MAY_BE_ZERO and isinstance(value, int | float) and value == 0
                self._set(name, 0.0 if is_zero else as_positive(value, name))
            elif kind in (bool, str):
                expected = "True or False" if kind is bool else "a string"
                _require(isinstance(value, kind), f"{name} must be {expected}, got {value!r}")
            if kind is str:
                half = re.search("[\ud800-\udfff]", value)  # would make config.json unreadable
                _require(not half, f"{name} must be valid Unicode, got {value!r}")
            if get_origin(kind) is Literal:
                choices = ", ".join(get_args(kind))
                _require(value in get_args(kind), f"{name} must be one of {choices}, got {value!r}")
        self.check()

    def check(self) -> None:
        """Raise ValueError if two fields contradict each other."""

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class DataConfig(_Group):
    """Settings of the data."""

    dataset: str = "digits"
    """A data set by name (see `arms data list`), an .npz or .npy file, or a folder of images."""
    batch_size: int = 50
    """Number of images per step and replica."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(_Group):
    """Settings of the model."""

    network: str = "linear"
    """Hidden layers: linear has none, nonlinear has two of 200 units, and pyramid has 512 and 256
    units (256 and 512 in the decoder). For your own model, this is its name."""
    latents: int = 200
    """Number of latent variables. Each is a bit, or a choice among `categories`."""
    layers: tuple[int, ...] = ()
    """Number of latents in each stochastic layer, such as 200 200. Empty for a single layer.
    The first layer is next to the image."""
    categories: int = 2
    """Number of categories of each latent variable. With 2, the latent variables are bits."""
    likelihood: Likelihood = "bernoulli"
    """bernoulli: pixels are bits. gaussian: gray values with normal noise of standard deviation
    0.1. categorical: each gray level is a category. gray: gray values in the likelihood of bits.
    scaled-gaussian: gray values from -1 to 1 with a learned variance per pixel."""
    inputs: Inputs = "centered"
    """The inputs of the networks. centered: pixels minus their means, and bits as -1 and 1.
    raw: unchanged pixels, and bits as 0 and 1."""
    encoder_scale: float = 1.0
    """Factor on the initial weights of the encoder's last layer. A larger factor gives initial
    probabilities closer to 0 and 1."""
    structure: str = ""
    """Fingerprint of your own model; empty for a built-in network."""

    def check(self) -> None:
        as_count(self.latents * self.categories, 1, "latents times categories")
        if self.structure:
            named = re.fullmatch(r"[\w .,+()-]{1,60}", self.network)
            allowed = "1 to 60 letters, digits, spaces or . , + ( ) -"
            _require(named, f"a model's name must be {allowed}, got {self.network!r}")
            taken = self.network in NETWORKS
            got = f"got {self.network!r}, which is built in: rename your model"
            _require(not taken, f"your model must not have the name of a built-in network, {got}")
            theirs = "likelihood is only for built-in networks, and this run has your own model"
            got = f"got {self.likelihood!r}: pass it to your DiscreteVAE"
            _require(self.likelihood == "bernoulli", f"{theirs}, {got}")
            theirs = "only for built-in networks, and this run has your own model"
            got, remedy = f"got {self.inputs!r}", "scale the inputs in your encoder and decoder"
            _require(self.inputs == "centered", f"inputs is {theirs}, {got}: {remedy}")
            got, remedy = f"got {self.encoder_scale}", "scale the weights of your encoder"
            _require(self.encoder_scale == 1, f"encoder_scale is {theirs}, {got}: {remedy}")
        elif self.network not in NETWORKS:
            or_else = "your own model as the model argument"
            raise unknown_name("network", self.network, NETWORKS, or_else=or_else)
        listed = isinstance(self.layers, list | tuple)
        wanted = "layers must list the number of latents in each layer, as in (200, 200)"
        _require(listed, f"{wanted}, got {self.layers!r}: for one layer, set latents instead")
        self._set("layers", tuple(as_count(width, 1, "layers") for width in self.layers))
        if self.layers:
            first, count = self.layers[0], len(self.layers)
            one = f"got one layer of {first}: set latents={first} instead"
            _require(count > 1, f"layers must list at least two layers, {one}")
            fits = self.latents in (ModelConfig.latents, first)
            wanted = f"latents must be {first}, the first entry of layers"
            _require(fits, f"{wanted}, got {self.latents}: remove latents")
            self._set("latents", first)


@dataclass(frozen=True, kw_only=True)
class EstimatorConfig(_Group):
    """How the gradient is estimated."""

    estimator: str = "arms"
    """Name of the gradient estimator (see `arms estimators`)."""
    num_samples: int = 4
    """Samples per image and step. Some estimators need more evaluations (see `arms estimators`)."""
    folded: bool = True
    """Whether an estimator of the bound handles the direct term together with the score part.
    False, as in the papers, adds the direct term separately."""
    decoder_samples: DecoderSamples = "all"
    """Samples that train the decoder and the prior: all samples, or one extra sample.
    Estimators of a bound always use all samples."""
    kl: KL = "sampled"
    """How the KL divergence from the prior is computed. sampled: as part of the estimated
    objective. analytic: in closed form."""
    temperature: float = 0.0
    """Temperature of a biased estimator; 0 means the default of the estimator."""

    def check(self) -> None:
        name, options = resolve(self.estimator)  # an alias must give the same run
        self._set("estimator", name)
        self._set("folded", self.folded and options.get("folded", True))
        if self.make_estimator().target.subtracts_log_q:
            self._set("decoder_samples", "all")
            got = f"got {self.kl!r} with {name}: remove kl"
            _require(self.kl == "sampled", f"kl must be 'sampled' for estimators of a bound, {got}")

    def make_estimator(self) -> Estimator:
        """Create the estimator of this configuration."""
        options: dict[str, Any] = {} if self.folded else {"folded": False}
        options |= {"temperature": self.temperature} if self.temperature else {}
        try:
            return as_estimator(self.estimator, self.num_samples, **options)
        except TypeError:
            got = f"got the estimator {self.estimator}"
            if not self.folded:
                message = f"folded=False needs an estimator of a bound, {got}: remove folded"
            else:
                names = "st-gumbel, gumbel-softmax, gapped-st or reinmax"
                message = f"temperature needs {names}, {got}: remove temperature"
            raise ValueError(message) from None

    @property
    def label(self) -> str:
        """The name of the estimator in reports."""
        return self.estimator if self.folded else f"{self.estimator} (unfolded)"


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(_Group):
    """Settings of the optimizer, the schedule and the number of steps."""

    replicas: int = 1
    """Number of models that are trained at once, with different seeds."""
    steps: int = 10_000
    """Number of optimization steps."""
    seed: int = 0
    """Seed of all randomness: weights, batches, pixels and samples."""
    learning_rate: float = 1e-4
    """Learning rate of Adam for the encoder and the decoder."""
    prior_learning_rate: float = 1e-2
    """Learning rate of the prior's logits; 0 keeps the prior uniform."""
    schedule: Schedule = "constant"
    """constant: learning rates do not change. cosine: learning rates decrease to 0 along a cosine.
    step: learning rates are multiplied by `decay_factor` every `decay_every` steps."""
    warmup_steps: int = 0
    """Number of initial steps in which learning rates increase linearly."""
    decay_every: int = 0
    """Number of steps between two reductions of the learning rates, with the schedule `step`."""
    decay_factor: float = 0.1
    """Factor on the learning rates at each reduction, with the schedule `step`."""
    precision: Precision = "highest"
    """Precision of matrix products on a GPU. highest: float32. high: TF32. medium: bfloat16 in
    gradients, and TF32 elsewhere."""

    def check(self) -> None:
        steps, warmup, every, cuts = (
            self.steps,
            self.warmup_steps,
            self.decay_every,
            self.schedule == "step",
        )
        _require(warmup < steps, f"warmup_steps must be below {steps} steps, got {warmup}")
        example = f"try a third of all steps, {max(1, steps // 3)}"
        _require(every or not cuts, f"schedule 'step' needs decay_every, got 0: {example}")
        got = f"got {every} with schedule {self.schedule!r}"
        _require(cuts or not every, f"decay_every needs schedule 'step', {got}: remove it")
        factor = self.decay_factor
        _require(factor <= 1, f"decay_factor must be at most 1, got {factor}")


@dataclass(frozen=True, kw_only=True)
class ObservationConfig(_Group):
    """How often a run is recorded and evaluated. These settings do not affect the run's results."""

    report_every: int = 100
    """Number of steps between two records of the metrics."""
    evaluate_every: int = 0
    """Number of steps between two evaluations on test images, a multiple of `report_every`; 0 means
    only at the end."""
    evaluate_images: int = 500
    """Number of test images per evaluation during training. The final evaluation uses all."""

    def check(self) -> None:
        whole = self.evaluate_every % self.report_every == 0
        expected = f"evaluate_every must be a multiple of report_every ({self.report_every})"
        _require(whole, f"{expected}, got {self.evaluate_every}")


OBSERVATION = tuple(field.name for field in fields(ObservationConfig))
"""Fields that are not part of a run's identity."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(ObservationConfig, OptimizerConfig, EstimatorConfig, ModelConfig, DataConfig):
    """All settings of a run. They affect its results, except the settings of `ObservationConfig`.

    The defaults are those of the paper, except for the decoder's gradient.
    """

    def check(self) -> None:
        for group in (ModelConfig, EstimatorConfig, OptimizerConfig, ObservationConfig):
            group.check(self)
        chosen, n = self.make_estimator(), self.num_samples
        if self.layers and (reason := reason_not_first_layer(chosen)):
            what = f"{self.estimator} {reason}, so it cannot train several layers"
            raise ValueError(f"{what}: use arms, loorf or midpoint")
        if self.layers and self.kl == "analytic":
            raise ValueError("kl='analytic' needs a single layer of latents: remove kl or layers")
        # The number of states is capped, because exact powers of this size are slow to compute.
        states, got = self.categories ** min(self.latents, 64), latents_in_words(self)
        if isinstance(chosen.design, AllStates) and states > MOST_STATES:
            limit = f"at most {MOST_STATES} joint states, got {got} latents"
            raise ValueError(f"exact can train with {limit}: choose another estimator")
        if isinstance(chosen.design, WithoutReplacement) and states < n:
            limit = f"num_samples <= {states}, the number of joint states"
            raise ValueError(f"unordered-set needs {limit}, got {n}: use exact instead")
        if self.categories > 2 and not takes_kind(chosen, OneHot):
            bound = chosen.target.subtracts_log_q
            others = "vimco or arms-ms" if bound else "arms, loorf or midpoint"
            remedy = f"choose an estimator for categories, such as {others}"
            got = f"latents with {self.categories} categories"
            raise ValueError(f"{self.estimator} can train bits only, got {got}: {remedy}")

    def build_model(
        self, pixel_mean: Tensor, levels: int, device: str = "cpu", *, blank: bool = False
    ) -> DiscreteVAE:
        """Build the built-in model that this configuration describes.

        `pixel_mean` is the mean image of the data set, and `levels` its number of gray levels. If
        `blank` is true, all weights are zero.
        """
        latents, likelihood = self.layers or self.latents, LIKELIHOODS[self.likelihood](levels)
        sizes = (latents, pixel_mean, self.replicas, None if blank else self.seed, device)
        form = (self.categories, likelihood, self.encoder_scale)
        return build_vae(self.network, *sizes, *form, raw=self.inputs == "raw")


def _require(holds: object, message: str) -> None:
    if not holds:
        raise ValueError(message)


def latents_in_words(config: TrainConfig) -> str:
    """Return the number of latents as text, such as "200" for bits, or "20x10" for 10 categories.

    >>> latents_in_words(TrainConfig(latents=20, categories=10)), latents_in_words(TrainConfig())
    ('20x10', '200')
    """
    return f"{config.latents}x{config.categories}" if config.categories > 2 else str(config.latents)


def identity(config: TrainConfig) -> dict[str, object]:
    """Return a run's identity: the fields that affect results and differ from their defaults.

    When a later version adds a field whose default is the old behavior, the identities of existing
    runs do not change.

    >>> identity(TrainConfig(seed=3, report_every=10))
    {'schema': 4, 'seed': 3}
    """
    default = type(config)
    found = {k: v for k, v in _deciding(config).items() if v != getattr(default, k)}
    return {"schema": IDENTITY_VERSION} | found


def digest_of(identity: Mapping[str, object]) -> str:
    """Return the SHA-256 digest of a run's identity as a hexadecimal string."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def difference(one: TrainConfig, other: TrainConfig) -> dict[str, tuple[object, object]]:
    """Return {field: (its value in `one`, its value in `other`)} for the fields that differ.

    Fields that do not affect results are left out.

    >>> difference(TrainConfig(seed=3, report_every=10), TrainConfig())
    {'seed': (3, 0)}
    """
    mine, theirs = _deciding(one), _deciding(other)
    return {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}


def is_longer(one: TrainConfig, other: TrainConfig) -> bool:
    """Return whether the run `one` is the run `other` with more steps.

    With a cosine schedule, the result is always False, because the total number of steps then
    affects every step.

    >>> is_longer(TrainConfig(steps=300), TrainConfig(steps=200))
    True
    """
    only_steps = set(difference(one, other)) == {"steps"}
    return only_steps and one.steps > other.steps and one.schedule != "cosine"


def _deciding(config: TrainConfig) -> dict[str, object]:
    """Return {field: value} for the fields that affect the results of a run."""
    return {name: value for name, value in asdict(config).items() if name not in OBSERVATION}


def run_name(config: TrainConfig) -> str:
    """Return a readable folder name for a run. A digest of the run's identity makes it unique.

    >>> run_name(TrainConfig())
    'digits-linear-arms-n4-r1-seed0-a231e32c'
    """
    network = "-".join(filter(None, [config.network, "x".join(map(str, config.layers))]))
    described = f"{config.dataset}-{network}-{config.label}-n{config.num_samples}"
    name = re.sub(r"[^\w.+]+", "-", described)  # valid as a folder name
    return f"{name}-r{config.replicas}-seed{config.seed}-{digest_of(identity(config))[:8]}"

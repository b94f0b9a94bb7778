"""The configuration of a run, its presets, and the identity and name that are made from it."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeAlias, get_args, get_origin, get_type_hints

from arms.arguments import as_count, as_positive, unknown_name
from arms.bench.models.networks import HIDDEN_WIDTHS
from arms.checks.bias import takes_kind
from arms.designs import AllStates, WithoutReplacement
from arms.estimators import Estimator, as_estimator, resolve
from arms.latents import OneHot
from arms.latents.base import MOST_STATES
from arms.layers import reason_not_first_layer

DecoderSamples: TypeAlias = Literal["all", "extra"]
LayerSamples: TypeAlias = Literal["chains", "separate"]
Precision: TypeAlias = Literal["highest", "high", "medium"]
Schedule: TypeAlias = Literal["constant", "cosine", "step"]

SCHEMA = 4
"""Version of the identity. Raise it when the same fields begin to mean another experiment. Leave the defaults of
`TrainConfig` as they are, because identities are relative to them."""
OBSERVATION = ("report_every", "evaluate_every", "evaluate_images")
"""Fields that say how often a run is looked at: they decide no number that it comes to."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the numbers of a run, and how often it is looked at.

    The defaults are the paper's, but for the decoder's gradient.
    """

    dataset: str = "digits"
    """Data set by name (see `arms data list`)."""
    network: str = "linear"
    """One affine layer each way, or two hidden layers of 200 in between; the name of a model of your own."""
    estimator: str = "arms"
    """Gradient estimator by name (see `arms estimators`)."""
    num_samples: int = 4
    """Evaluations of the decoder per image and step."""
    replicas: int = 1
    """Independent seeds trained at once."""
    steps: int = 10_000
    """Optimisation steps."""
    seed: int = 0
    """Seed of everything: weights, batches, bits, samples."""
    batch_size: int = 50
    """Images per step and replica."""
    latents: int = 200
    """Latent variables; on the command line 20x10 is 20 of 10 categories each."""
    layers: tuple[int, ...] = ()
    """Bits of each of several stochastic layers, the one nearest the image first, such as 200 200; one layer of
    `latents` unless given."""
    layer_samples: LayerSamples = "chains"
    """With several layers: all learn from the same n chains, or each separately from n / layers samples of its own
    (Dong et al. 2020)."""
    learning_rate: float = 1e-4
    """Adam's, for encoder and decoder."""
    prior_learning_rate: float = 1e-2
    """Gradient ascent's, for the prior logits."""
    schedule: Schedule = "constant"
    """Both rates stay, fall along half a cosine to 0 at the last step, or are cut every `decay_every` steps."""
    warmup_steps: int = 0
    """Steps over which both rates first rise in a straight line, whatever the schedule."""
    decay_every: int = 0
    """Steps between two cuts of the schedule `step`."""
    decay_factor: float = 0.1
    """What each cut of the schedule `step` multiplies both rates by."""
    decoder_samples: DecoderSamples = "all"
    """Where decoder and prior take their gradient from: all samples, or one extra, independent one (the paper).
    The multi-sample bound always uses its own samples, and says all."""
    precision: Precision = "highest"
    """Matrix products on a GPU, in PyTorch's words: float32; high takes TF32; medium also bfloat16, in gradients."""
    categories: int = 2
    """Among which each latent variable chooses; 2 makes them bits."""
    folded: bool = True
    """Whether an estimator of the importance-weighted bound includes the direct term in each slot's function; without,
    it is the form of the papers."""
    structure: str = ""
    """Fingerprint of a model of your own; a built-in network has none."""
    report_every: int = 100
    """Steps between two records of the metrics."""
    evaluate_every: int = 0
    """Steps between two looks at the test set, a multiple of `report_every`; 0 looks only at the end."""
    evaluate_images: int = 500
    """Test images of such a look; at the end it is all of them."""

    def __post_init__(self) -> None:
        counts = (
            "replicas",
            "steps",
            "batch_size",
            "latents",
            "report_every",
            "evaluate_images",
            "num_samples",
        )
        from_zero = ("seed", "evaluate_every", "warmup_steps", "decay_every")
        for name, least in (*((name, 1) for name in counts), *((name, 0) for name in from_zero)):
            object.__setattr__(
                self, name, as_count(getattr(self, name), least, name)
            )  # NumPy's numbers become plain
        if self.evaluate_every % self.report_every:
            raise ValueError(
                f"evaluate_every must be a multiple of report_every ({self.report_every}), got {self.evaluate_every}"
            )
        self._check_names()
        for name, kind in get_type_hints(TrainConfig).items():
            if get_origin(kind) is Literal and getattr(self, name) not in get_args(kind):
                raise ValueError(
                    f"{name} must be one of {', '.join(get_args(kind))}, got {getattr(self, name)!r}"
                )
        for name in ("learning_rate", "prior_learning_rate", "decay_factor"):
            object.__setattr__(self, name, as_positive(getattr(self, name), name))
        self._check_schedule()
        object.__setattr__(self, "categories", as_count(self.categories, 2, "categories"))
        as_count(self.latents * self.categories, 1, "latents times categories")
        self._check_layers()
        chosen = self.make_estimator(self.num_samples)
        if chosen.target.subtracts_log_q:  # the bound always trains its decoder on its own samples
            object.__setattr__(self, "decoder_samples", "all")
        self._check_latents(chosen)

    def make_estimator(self, num_samples: int | None = None) -> Estimator:
        """Return the estimator of this configuration, with the samples of one draw unless another number is given."""
        count = self.samples_of_a_draw if num_samples is None else num_samples
        if self.folded:
            return as_estimator(self.estimator, count)
        try:
            return as_estimator(self.estimator, count, folded=False)
        except TypeError:
            raise ValueError(
                f"folded=False is for estimators of the importance-weighted bound, got {self.estimator}: leave it out"
            ) from None

    @property
    def label(self) -> str:
        """What reports call the estimator."""
        return self.estimator if self.folded else f"{self.estimator} (unfolded)"

    def _check_latents(self, chosen: Estimator) -> None:
        # Beyond the largest that matters it is not the exact number, which takes long where latents are many.
        states = self.categories ** min(self.latents, 64)
        if isinstance(chosen.design, AllStates) and states > MOST_STATES:
            raise ValueError(
                f"exact trains with at most {MOST_STATES} states, got {latents_in_words(self)} latents: choose another "
                "estimator"
            )
        if isinstance(chosen.design, WithoutReplacement) and states < self.num_samples:
            raise ValueError(
                f"unordered-set trains with at most as many samples as there are joint states, {states}, got "
                f"num_samples {self.num_samples}: choose exact"
            )
        if self.categories > 2 and not takes_kind(chosen, OneHot):
            others = (
                "vimco or arms-ms" if chosen.target.subtracts_log_q else "arms, loorf or midpoint"
            )
            raise ValueError(
                f"{self.estimator} takes bits only, got {latents_in_words(self)}: choose an estimator of categories, "
                f"such as {others}"
            )

    def _check_names(self) -> None:
        for name in ("dataset", "network", "structure"):
            if not isinstance(value := getattr(self, name), str):
                raise ValueError(f"{name} must be a string, got {value!r}")
            # With half of a surrogate pair, config.json could not be read again.
            if any("\ud800" <= letter <= "\udfff" for letter in value):
                raise ValueError(
                    f"{name} must be Unicode text, got half of a surrogate pair in {value!r}: rename it"
                )
        if not self.structure and self.network not in HIDDEN_WIDTHS:
            raise unknown_name(
                "network",
                self.network,
                HIDDEN_WIDTHS,
                or_else="model=, whose name DiscreteVAE(..., name=...) says",
            )
        if self.structure and not re.fullmatch(r"[\w .,+()-]{1,60}", self.network):
            raise ValueError(
                f"a model's name must be 1 to 60 letters, digits, spaces or . , + ( ) -, got {self.network!r}"
            )
        if self.structure and self.network in HIDDEN_WIDTHS:
            raise ValueError(
                f"{self.network!r} is the name of a built-in network: call your model something else"
            )
        if not isinstance(self.estimator, str):
            raise ValueError(
                f"estimator must be a name, such as 'arms', got {self.estimator!r}: give the name, "
                "and the number of samples as num_samples"
            )
        if not isinstance(self.folded, bool):
            raise ValueError(f"folded must be True or False, got {self.folded!r}")
        # Aliases name the same run.
        name, options = resolve(self.estimator)
        object.__setattr__(self, "estimator", name)
        object.__setattr__(self, "folded", self.folded and options.get("folded", True))

    @property
    def samples_of_a_draw(self) -> int:
        """Samples of the estimator in one draw: all n, or where layers learn separately the share of one."""
        return (
            self.num_samples // len(self.layers)
            if self.layer_samples == "separate"
            else self.num_samples
        )

    def _check_layers(self) -> None:
        try:
            given = tuple(self.layers)  # a list, where it was read from a file
        except TypeError:
            raise ValueError(
                "layers must be a list with the bits of each layer, such as (200, 200), got "
                f"{self.layers!r}: for one layer, give latents"
            ) from None
        widths = tuple(as_count(width, 1, "layers") for width in given)
        object.__setattr__(self, "layers", widths)
        if not widths:
            if self.layer_samples != "chains":
                raise ValueError(
                    f"layer_samples is for several layers only, got {self.layer_samples!r}: leave it out"
                )
            return
        if len(widths) == 1:
            raise ValueError(
                f"layers must name at least two layers, got {widths[0]}: for one, give latents"
            )
        if self.categories > 2 or self.structure:
            kind = "categories" if self.categories > 2 else "a model of your own"
            raise ValueError(
                f"layers are of bits in a built-in network, got {kind}: leave one of them out"
            )
        if self.latents not in (TrainConfig.latents, widths[0]):
            raise ValueError(
                f"latents is the first of layers, {widths[0]}, got {self.latents}: leave it out"
            )
        object.__setattr__(self, "latents", widths[0])
        one = self.make_estimator(self.num_samples)
        if reason := reason_not_first_layer(one):
            raise ValueError(
                f"{self.estimator} {reason} and does not train several layers: try arms, loorf or midpoint"
            )
        if self.layer_samples == "separate":
            if self.num_samples % len(widths) or one.design.needs.derivatives:
                raise ValueError(
                    f"layer_samples 'separate' shares num_samples out among {len(widths)} layers, for estimators "
                    f"without derivatives, got {self.num_samples} with {self.estimator}: try disarm, and a multiple of "
                    f"{2 * len(widths)}"
                )
            self.make_estimator()

    def _check_schedule(self) -> None:
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
                f"decay_every is for schedule 'step' only, got {self.decay_every} with schedule {self.schedule!r}: "
                "leave it out, or choose 'step'"
            )
        if self.decay_factor > 1:
            raise ValueError(
                f"decay_factor must be at most 1, as rates are cut by it, got {self.decay_factor}"
            )


def latents_in_words(config: TrainConfig) -> str:
    """Return the size of the latents as it is typed.

    >>> latents_in_words(TrainConfig(latents=20, categories=10)), latents_in_words(TrainConfig())
    ('20x10', '200')
    """
    return f"{config.latents}x{config.categories}" if config.categories > 2 else str(config.latents)


def paper_preset(config: TrainConfig) -> TrainConfig:
    """Return the configuration under the paper's protocol: a million steps, five seeds, its decoder rule."""
    return replace(config, steps=1_000_000, replicas=5, decoder_samples="extra")


FAST_RATES: Mapping[str, float] = {"linear": 6e-3, "nonlinear": 3e-3}
"""The best of those tried with a cosine schedule: see benchmarks/time_to_bound.py."""


def fast_preset(config: TrainConfig) -> TrainConfig:
    """Return the best recipe found: the midpoint estimator, and a large rate that falls along half a cosine.

    Its 100,000 steps pass what the paper's recipe has after a million with the linear network, and come close to it
    with the nonlinear one, which passes it after 300,000 (docs/midpoint.md).
    """
    rate = FAST_RATES.get(config.network, FAST_RATES["nonlinear"])
    return replace(
        config,
        estimator="midpoint",
        num_samples=4,
        steps=100_000,
        replicas=5,
        schedule="cosine",
        learning_rate=rate,
    )


PRESETS: Mapping[str, Callable[[TrainConfig], TrainConfig]] = {
    "paper": paper_preset,
    "fast": fast_preset,
}


def identity(config: TrainConfig) -> dict[str, object]:
    """Return what tells this run from others: the fields that decide numbers and differ from their defaults.

    A field that is added later therefore renames no run, as long as its default means what was done before.

    >>> identity(TrainConfig(seed=3, report_every=10))
    {'schema': 4, 'seed': 3}
    """
    defaults = {field.name: field.default for field in fields(config)}
    found = {name: value for name, value in _deciding(config).items() if value != defaults[name]}
    return {"schema": SCHEMA} | found


def digest_of(identity: Mapping[str, object]) -> str:
    """Return a digest of an identity, the same wherever it is computed."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def difference(one: TrainConfig, other: TrainConfig) -> dict[str, tuple[object, object]]:
    """Return the fields in which the identities of two runs differ, each with both values.

    >>> difference(TrainConfig(seed=3, report_every=10), TrainConfig())
    {'seed': (3, 0)}
    """
    theirs = _deciding(other)
    return {
        name: (value, theirs[name])
        for name, value in _deciding(one).items()
        if value != theirs[name]
    }


def is_longer(one: TrainConfig, other: TrainConfig) -> bool:
    """Whether one run is the other with more steps at its end.

    Half a cosine ends at the last step, so that with more of them all of its steps are others.

    >>> is_longer(TrainConfig(steps=300), TrainConfig(steps=200))
    True
    """
    return (
        set(difference(one, other)) == {"steps"}
        and one.steps > other.steps
        and one.schedule != "cosine"
    )


def _deciding(config: TrainConfig) -> dict[str, object]:
    """Return the fields that decide numbers."""
    return {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if field.name not in OBSERVATION
    }


def run_name(config: TrainConfig) -> str:
    """Return a name that tells runs apart at a glance, and for certain by a digest of their identity.

    >>> run_name(TrainConfig())
    'digits-linear-arms-n4-r1-seed0-a231e32c'
    """
    network = "-".join(
        [config.network, *(["x".join(map(str, config.layers))] if config.layers else [])]
    )
    described = f"{config.dataset}-{network}-{config.label}-n{config.num_samples}"
    name = re.sub(r"[^\w.+]+", "-", described)  # a folder's, whatever data and model are called
    return f"{name}-r{config.replicas}-seed{config.seed}-{digest_of(identity(config))[:8]}"

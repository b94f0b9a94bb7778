"""The training step, and the state of a run.

A training step does not wait for the GPU. A checkpoint contains these tensors:

| name | what | replica axis |
|---|---|---|
| `model.*` | the model's own names | yes |
| `estimator.<i>` | the estimator's parameters | yes |
| `optimizer.<part>.<kind>.<i>` | state of the optimizer of a part | yes |
| `mean_grad.<i>` | moving average of the encoder's gradient | yes |
| `sum.<metric>` | sum of a metric since the last record | yes |
| `generator` | state of the noise, as bytes | no |
| `counts` | number of steps done, and of steps in the sums | no |

A user's own model of one replica may lack the replica axis, because the state of a single run is
never split.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from arms.arguments import as_count
from arms.bench.config import TrainConfig
from arms.bench.data import Dataset, TrainingImages, observe
from arms.bench.metrics import GRADIENT_VARIANCE, METRICS, TRAIN_ELBO, Record
from arms.bench.models import DiscreteVAE, ReplicaLinear, code_statistics, seeded_generator
from arms.bench.training.engine import Noise, advance_to
from arms.bench.training.enumeration import estimate_states, states_of
from arms.bench.training.layers import UNCHECKED, estimate_chains
from arms.bench.training.optimizer import (
    SECOND_DECAY,
    LearningRates,
    build_optimizer,
    descend,
    lerp_all_,
)
from arms.designs import AllStates
from arms.estimate import estimate
from arms.estimators import Estimate, Estimator, ExtraSample, Learnable, variance_loss

BackwardStarts: TypeAlias = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""The tensors where backpropagation starts, and a gradient for each of these tensors.

The tensors are the logits, `Estimate.value`, the divergence if it is analytic, and the loss of the
estimator's parameters if the estimator has parameters."""
State: TypeAlias = Mapping[str, Tensor]

MODEL, ESTIMATOR, OPTIMIZER, MEAN_GRADIENT = "model.", "estimator.", "optimizer.", "mean_grad."
SUM, GENERATOR, STEP_COUNTS = "sum.", "generator", "counts"
CODE_IMAGES = 200
"""Number of images for statistics of codes. It is small, so that a record takes little time."""


class Trainer:
    """A run in memory: its model, estimator, optimizers and noise.

    To train, call `step()` or `fit()`. `fit` does not call `step`, and on a GPU it may not call
    `update`. To change what a training step does, override `draw_and_estimate` or `apply`.

    Args:
        config: The configuration. For an ensemble, `replicas` is the number of replicas of all runs
            together.
        dataset: The data set, or a list of data sets. In a list, the first data set is for the
            first replicas, and so on, and all have the same number of replicas. If there are
            several data sets, `model` is required.
        device: The device on which to train.
        model: A model to use instead of the configured model. Its weights are the initial weights.
        estimator: An estimator to use instead of the configured estimator.
        rates: The learning rates. This is only needed if the runs of an ensemble have different
            learning rates.
    """

    def __init__(
        self,
        config: TrainConfig,
        dataset: Dataset | Sequence[Dataset],
        device: str = "cpu",
        model: DiscreteVAE | None = None,
        estimator: Estimator | None = None,
        rates: LearningRates | None = None,
    ) -> None:
        datasets = [dataset] if isinstance(dataset, Dataset) else dataset
        replicas, batch = config.replicas, config.batch_size
        if model is None and len(datasets) > 1:
            what = f"with {len(datasets)} data sets, the model argument must be given"
            raise ValueError(f"{what}: arms.bench.runs.ensemble makes such a model")
        self.config = config
        self.data = TrainingImages.of(datasets, replicas, device)
        self.device = self.data.images.device
        if model is None:
            model = config.build_model(datasets[0].pixel_mean(), self.data.levels, device)
        check_replicas(model, replicas)
        check_categories_and_layers(model, config)
        self.model = model.to(device)
        self.noise = Noise.of(config.seed, self.device)
        # On a GPU, this is None, because compiled code can draw only from the default generator.
        self._generator = self.noise.generator
        pixels = self.data.images.shape[1]
        self.estimator = prepared_estimator(config, model.event_shape, pixels, device, estimator)
        self.needs = self.estimator.design.needs
        enumerates = isinstance(self.estimator.design, AllStates)
        self._states = states_of(model) if enumerates else None
        for layer in model.modules():
            if isinstance(layer, ReplicaLinear):  # bfloat16 allows no second derivatives
                roughly = config.precision == "medium" and not self.needs.second_order
                layer.bfloat16_backward = roughly
        self._build_optimizers()
        self.rates = rates or LearningRates([config], self.device)
        self.ema_grads = [torch.zeros_like(p) for p in self.encoder_weights]
        self._scale = -1 / batch  # the loss is minus the mean over images
        self._value_start = self.model.prior.new_full((replicas, batch), self._scale)
        self.steps_done = 0
        # The step itself increases this count on the device, so that a replayed CUDA graph also
        # increases it.
        self.steps_on_device = torch.zeros((), device=device)
        means = [key for key, metric in METRICS.items() if metric.mean_over_steps]
        self.sums = {key: torch.zeros(replicas, device=device) for key in means}
        self.summed_steps = 0

    def _build_optimizers(self) -> None:
        """Build two optimizers: one for the encoder, and one for the decoder and the estimator.

        The prior needs no optimizer, because it is trained with plain gradient descent.
        """
        model = self.model
        encoder = [p for module in model.encoder_modules() for p in module.parameters()]
        known = {id(p) for p in (*encoder, model.prior)}
        self.encoder_weights = [p for p in encoder if p.requires_grad]
        self.prior = [model.prior] if model.prior.requires_grad else []
        self.estimator_parameters = list(self.estimator.parameters())
        others = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
        if not (self.encoder_weights or others or self.prior):
            got = "got none with requires_grad=True"
            raise ValueError(f"the model must have parameters to train, {got}")
        self.encoder_optimizer = build_optimizer(self.config, self.encoder_weights)
        self.other_optimizer = build_optimizer(self.config, [*others, *self.estimator_parameters])
        self.optimizer_parameters = [
            *self.encoder_optimizer.parameters,
            *self.other_optimizer.parameters,
        ]

    def step(self) -> None:
        """Do one training step: draw a batch, estimate the gradient, and update the parameters."""
        with self.noise.active():
            self.update()
        self.note_steps(1)

    def update(
        self,
        draw_and_estimate: Callable[[], BackwardStarts] | None = None,
        apply: Callable[[Sequence[Tensor]], None] | None = None,
    ) -> None:
        """Do the part of a training step that runs on the device. A CUDA graph can capture it.

        The functions `draw_and_estimate` and `apply` are called instead of the methods with the
        same names. They may be compiled forms of these methods. On a GPU, random numbers come from
        the default generator, so call `update` inside `with noise.active()`.
        """
        (apply or self.apply)(self.gradients(draw_and_estimate))

    def gradients(
        self, draw_and_estimate: Callable[[], BackwardStarts] | None = None
    ) -> Sequence[Tensor]:
        """Draw a batch, and return the gradient of the loss for each parameter.

        The gradients are in this order: those of the encoder's parameters, then the decoder's, the
        estimator's and the prior's. The function `draw_and_estimate` is called instead of the
        method with this name.
        """
        parameters = [*self.optimizer_parameters, *self.prior]
        pairs = zip(*(draw_and_estimate or self.draw_and_estimate)(), strict=True)
        attached = [(output, start) for output, start in pairs if output.requires_grad]
        if not attached:
            return [torch.zeros_like(parameter) for parameter in parameters]
        outputs, starts = zip(*attached, strict=True)
        found: tuple[Tensor, ...] = torch.autograd.grad(
            outputs, parameters, starts, allow_unused=True, materialize_grads=True
        )
        return found

    def note_steps(self, steps: int) -> None:
        """Note that `steps` more steps were done and were added to the sums of metrics."""
        self.steps_done += steps
        self.summed_steps += steps

    def draw_and_estimate(self) -> BackwardStarts:
        """Draw a batch, estimate the gradient, and return where backpropagation starts."""
        x = self._batch()
        if len(self.model.layers) > 1:
            return self._estimate_layers(x)
        logits = self.model.encode(x)
        constant, analytic = logits.detach(), self.config.kl == "analytic"

        def log_weights(b: Tensor) -> Tensor:
            attached, needs = self._num_attached(len(b)), self.needs
            form = (attached, needs.derivatives, needs.second_order, analytic)
            return self.model.log_weights(b, x, constant, *form)

        if self._states is not None:
            found = estimate_states(self.model, self._states, x, constant, analytic_kl=analytic)
        else:
            latent = self.model.latent(constant, x)
            found = estimate(self.estimator, log_weights, latent, self._generator, UNCHECKED)
        self._add_to_sums(self._elbo(found))
        outputs: tuple[Tensor, ...] = (logits, found.value)
        starts: tuple[Tensor, ...] = (self._scale * found.grad.detach(), self._value_start)
        if analytic:
            outputs, starts = (*outputs, self.model.kl(logits)), (*starts, -self._value_start)
        # The factor gives each replica its own mean over images, whatever the number of replicas.
        if found.grad.requires_grad:
            loss = self.config.replicas * variance_loss(found)
            return (*outputs, loss), (*starts, torch.ones_like(loss))
        return outputs, starts

    def _add_to_sums(self, elbo: Tensor) -> None:
        """Add the ELBO of a step, `[R]`, to the sum of ELBOs.

        Other metrics that are averaged over steps can be added to their sums here.
        """
        self.sums[TRAIN_ELBO.key].add_(elbo)

    def _num_attached(self, points: int) -> int:
        """Return how many of the `points` points train the decoder and the prior.

        These points come first, before all others.
        """
        enumerates = self.needs.evaluations is None
        samples = points if enumerates else self.estimator.design.num_samples
        return min(points, self.estimator.target.num_attached(samples))

    def _elbo(self, found: Estimate) -> Tensor:
        """Return the ELBO of each replica, `[R]`, averaged over samples and images."""
        if self.estimator.design.weighted:
            return found.value.detach().mean(-1)
        values = found.values.detach()
        # The extra sample trains the decoder. The ELBO is averaged over the estimator's own.
        return (values[1:] if isinstance(self.estimator, ExtraSample) else values).mean((0, 2))

    def _estimate_layers(self, x: Tensor) -> BackwardStarts:
        """Do the work of `draw_and_estimate` for a model of several layers, given images `x`."""
        found = estimate_chains(self.model, self.estimator, x, self._generator)
        self._add_to_sums(found.values.detach().mean((0, 2)))
        starts = [self._scale * grad for grad in found.grads]
        return (*found.logits, found.value), (*starts, self._value_start)

    def apply(self, grads: Sequence[Tensor]) -> None:
        """Update all parameters. `grads` is the result of the method `gradients`."""
        inner, outer = len(self.encoder_weights), len(self.optimizer_parameters)
        with torch.no_grad():
            # Steps are counted from 0 here, and from 1 in Adam's correction.
            rate, prior_rate = self.rates.after(self.steps_on_device)
            self.steps_on_device.add_(1)
            self.encoder_optimizer.step(grads[:inner], rate, self.steps_on_device)
            self.other_optimizer.step(grads[inner:outer], rate, self.steps_on_device)
            descend(self.prior, grads[outer:], prior_rate)
            if inner:
                lerp_all_(self.ema_grads, grads[:inner], 1 - SECOND_DECAY)

    def fit(
        self, steps: int | None = None, *, on_record: Callable[[Record], None] | None = None
    ) -> list[Record]:
        """Train, and return a list with one record of the metrics per `config.report_every` steps.

        Nothing is written to disk, and no progress is shown. `config.evaluate_every` has no effect
        here, and a replica that diverges is not stopped. `arms.bench.train` does the same training
        steps, but writes to a run directory and evaluates the model at the end.

        Args:
            steps: The number of steps to do. By default, training continues up to `config.steps`.
            on_record: A function that is called with every record.
        """
        left = self.config.steps - self.steps_done if steps is None else as_count(steps, 0, "steps")
        records = []
        for _, is_record in advance_to(self, self.steps_done + left, self.config.report_every):
            if is_record:
                records.append(self.record())
                if on_record is not None:
                    on_record(records[-1])
        return records

    def record(self) -> Record:
        """Return all metrics at the current step, and reset the sums of metrics.

        Metrics that are averaged over steps include all steps since the last call.
        """
        means = {key: mean.tolist() for key, mean in self.take_means().items()}
        variances = self.gradient_variance().tolist()
        codes = {key: of.tolist() for key, of in self.code_statistics().items()}
        return {"step": self.steps_done, **means, GRADIENT_VARIANCE.key: variances, **codes}

    def code_statistics(self) -> dict[str, Tensor]:
        """Return `arms.bench.models.code_statistics` for the first training images.

        If the pixels are random bits, they are the same in every call.
        """
        noise = seeded_generator(self.config.seed, "codes", device=str(self.device))
        bits = self.model.likelihood.binarizes_input
        images = self.data.first(self.config.replicas, CODE_IMAGES)
        x = observe(images, self.data.levels, noise, bits=bits)
        return code_statistics(self.model, x.expand(self.config.replicas, -1, -1))

    def gradient_variance(self) -> Tensor:
        """Return the variance of the encoder's gradient, `[R]`, averaged over the parameters.

        The variance of a parameter's gradient g is EMA(g^2) - EMA(g)^2. EMA is a moving average
        over steps, corrected for its start at zero. The ARMS paper shows this quantity. It includes
        the noise of the minibatch.
        """
        replicas = self.config.replicas
        correction = 1 - SECOND_DECAY ** max(1, self.steps_done)
        total = torch.zeros(replicas, device=self.device)
        squares = self.encoder_optimizer.second_moments()
        for square, mean in zip(squares, self.ema_grads, strict=True):
            variance = square / correction - (mean / correction).square()
            total += variance.reshape(replicas, -1).sum(1)
        return total / max(1, sum(p.numel() for p in self.encoder_weights) // replicas)

    def take_means(self) -> dict[str, Tensor]:
        """Return the mean of each metric, `[R]`, over the steps since the last call.

        The sums of metrics are reset to zero.
        """
        means = {key: total / max(1, self.summed_steps) for key, total in self.sums.items()}
        for total in self.sums.values():
            total.zero_()
        self.summed_steps = 0
        return means

    def take_elbo(self) -> Tensor:
        """Return the mean ELBO, `[R]`, over the steps since the last call.

        The sums of all metrics are reset to zero.
        """
        return self.take_means()[TRAIN_ELBO.key]

    def state(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint by name; the module docstring lists the names.

        The trainer's own tensors are returned, not copies, except for `generator` and `counts`.
        """
        tensors = {f"{MODEL}{name}": one for name, one in self.model.state_dict().items()}
        lists: dict[str, Sequence[Tensor]] = {ESTIMATOR: self.estimator_parameters}
        optimizers = {"encoder": self.encoder_optimizer, "others": self.other_optimizer}
        for part, optimizer in optimizers.items():
            for kind, kept in optimizer.state().items():
                lists[f"{OPTIMIZER}{part}.{kind}."] = kept
        lists[MEAN_GRADIENT] = self.ema_grads
        for name, own in lists.items():
            tensors |= {f"{name}{index}": tensor for index, tensor in enumerate(own)}
        tensors[GENERATOR] = self.noise.get_state()
        tensors |= {f"{SUM}{key}": total for key, total in self.sums.items()}
        tensors[STEP_COUNTS] = torch.tensor([self.steps_done, self.summed_steps])
        return tensors

    def load_state(self, tensors: State) -> None:
        """Restore a state that `state()` returned.

        The values are copied into the trainer's own tensors.
        """
        own = self.state()
        check_fits(tensors, own, self.device)
        with torch.no_grad():  # in place: a CUDA graph knows these tensors by their address
            for name in own.keys() - {GENERATOR, STEP_COUNTS}:
                if name in tensors:
                    own[name].copy_(tensors[name])
                else:  # the sum of a metric that is newer than the checkpoint
                    own[name].zero_()
        self.noise.set_state(tensors[GENERATOR])
        self.steps_done, self.summed_steps = (int(count) for count in tensors[STEP_COUNTS])
        self.steps_on_device.fill_(self.steps_done)

    def _batch(self) -> Tensor:
        size, bits = self.config.batch_size, self.model.likelihood.binarizes_input
        return self.data.batch(self.config.replicas, size, self._generator, bits=bits)


def prepared_estimator(
    config: TrainConfig,
    event: torch.Size,
    pixels: int,
    device: str,
    estimator: Estimator | None = None,
) -> Estimator:
    """Return a run's estimator, with new parameters for all replicas.

    If `estimator` is given, it is used instead of the configured estimator. `event` is the event
    shape of the logits. `pixels` is the number of pixels of an image.
    """
    generator = seeded_generator(config.seed, "estimator", device=device)
    batch = (config.replicas, config.batch_size)
    prepared = chosen = estimator or config.make_estimator()
    if isinstance(chosen, Learnable):
        shapes = torch.Size([*batch, *event]), torch.Size([*batch, pixels])
        prepared = chosen.prepare(*shapes, generator)
    for parameter in prepared.parameters():
        if parameter.ndim == 0 or len(parameter) != config.replicas:
            got = f"shape {list(parameter.shape)} from {type(chosen).__name__}"
            raise ValueError(
                "every parameter of an estimator must have a leading axis of length "
                f"{config.replicas}, one entry per replica, got {got}: create the parameters in "
                "its method prepare"
            )
    # With an importance-weighted bound, the decoder always learns from the samples of the bound.
    extra = config.decoder_samples == "extra" and not prepared.target.subtracts_log_q
    return ExtraSample(prepared) if extra else prepared


def check_replicas(model: DiscreteVAE, replicas: int) -> None:
    """Raise if the model or one of its parameters does not have `replicas` replicas."""
    if (got := model.replicas) != replicas:
        expected = f"the model must have {replicas} replicas, as the configuration says"
        raise ValueError(f"{expected}, got {got}")
    for name, parameter in model.named_parameters() if replicas > 1 else ():
        if parameter.ndim == 0 or len(parameter) != replicas:
            raise ValueError(
                f"with {replicas} replicas every parameter must have a leading axis of length "
                f"{replicas}, got {name} of shape {list(parameter.shape)}: the model argument must "
                "be a function that makes a model of one replica, or its layers must have a "
                "replica axis, as arms.bench.models.ReplicaLinear has"
            )


def check_categories_and_layers(model: DiscreteVAE, config: TrainConfig) -> None:
    """Raise if the model and the configuration differ in their categories or layers."""
    if config.categories not in (2, model.categories):
        raise ValueError(
            f"the configuration has categories={config.categories}, but the model has "
            f"categories={model.categories}: remove categories from the configuration, or remove "
            "the model"
        )
    if len(model.layers) > 1 and not config.layers:
        what = "a model of several layers needs layers in the configuration, got none"
        raise ValueError(f"{what}: write TrainConfig(layers=...)")


def step_of(state: State) -> int:
    """Return the number of training steps that were done before a checkpoint was saved."""
    return int(state[STEP_COUNTS][0])


def model_of(state: State) -> dict[str, Tensor]:
    """Return the tensors of the model in a checkpoint.

    Their names are the same as in the model's `state_dict()`.
    """
    return {name[len(MODEL) :]: one for name, one in state.items() if name.startswith(MODEL)}


def has_replica_axis(name: str) -> bool:
    """Return whether the tensor with this name in a checkpoint has a replica axis.

    Raise if the name is unknown.
    """
    if name in (GENERATOR, STEP_COUNTS):
        return False
    if name.startswith((MODEL, ESTIMATOR, OPTIMIZER, MEAN_GRADIENT, SUM)):
        return True
    what = f"the checkpoint contains an unknown tensor {name!r}"
    raise ValueError(f"{what}: read it with the version of this library that wrote it")


def of_run(state: State, index: int, runs: int) -> dict[str, Tensor]:
    """Return the state of a single run, given the state of an ensemble of `runs` runs.

    `index` is the number of the run in the ensemble. The run can then be resumed alone.
    """
    if runs == 1:  # the tensors of a single run may have no replica axis
        return dict(state)
    return {
        name: tensor.chunk(runs)[index] if has_replica_axis(name) else tensor
        for name, tensor in state.items()
    }


def joined(states: Sequence[State], seed: int, device: str) -> dict[str, Tensor]:
    """Combine the states of several runs at the same step into the state of an ensemble.

    If the runs' generators have different states, the ensemble gets a new state made from `seed`.
    """
    if len(states) == 1:
        return dict(states[0])
    noises = [state[GENERATOR] for state in states]
    if len({len(noise) for noise in noises}) > 1:
        what = "these runs were started on different kinds of devices"
        raise ValueError(f"{what}: resume each of them on the device where it was started")
    # Tensors without a replica axis are equal in all states, except the noise.
    whole = {
        name: torch.cat([state[name] for state in states]) if has_replica_axis(name) else tensor
        for name, tensor in states[0].items()
    }
    if not all(torch.equal(noise, noises[0]) for noise in noises):
        stream = f"train from {step_of(whole)}"
        whole[GENERATOR] = seeded_generator(seed, stream, device=device).get_state()
    return whole


def finite_replicas(parameters: State, replicas: int) -> list[bool]:
    """Return one value per replica: whether all numbers in the replica's parameters are finite."""
    finite = [tensor.reshape(replicas, -1).isfinite().all(1) for tensor in parameters.values()]
    return torch.stack(finite).all(0).tolist()


def check_fits(state: State, own: State, device: torch.device) -> None:
    """Raise if a trainer cannot load the state of a checkpoint.

    `own` is the trainer's current state. `state` must contain all tensors of `own`, in the same
    shapes. Sums of metrics may be missing, because a metric may be newer than the checkpoint.
    """
    if lacking := {name for name in own.keys() - state.keys() if not name.startswith(SUM)}:
        names = ", ".join(sorted(lacking)[:3])
        what = f"the checkpoint has no {names}, so another configuration or version wrote it"
        raise ValueError(f"{what}: train again from the start")
    # The states of CPU and GPU generators have different lengths and contents.
    if state[GENERATOR].shape != own[GENERATOR].shape:
        what = f"this checkpoint cannot be resumed on {device}"
        why = "because it was saved on another kind of device (CPU or GPU)"
        raise ValueError(f"{what}, {why}: resume it on that kind")
    for name, tensor in own.items():
        expected, got = list(tensor.shape), list(state.get(name, tensor).shape)
        if expected != got:
            raise ValueError(
                f"{name} in the checkpoint must have the shape {expected} of the model, got {got}, "
                "so another model wrote it: pass that model, or train again from the start"
            )

"""Runs training steps in one of three ways: eager, as a CUDA graph, or compiled.

On a CPU, all steps are eager. The three ways draw the same noise, so their results agree up to
rounding. Before PyTorch 2.13, a compiler may draw the noise in another order.
"""

import ctypes
import gc
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Generator, Tensor

from arms.bench.models import seeded_generator
from arms.bench.training.torch_private import inductor_options, trace

if TYPE_CHECKING:  # `trainer` imports this module
    from arms.bench.training.trainer import Trainer

Execution: TypeAlias = Literal["auto", "eager", "graph", "compiled"]
Compiler: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
BLOCK = 10
"""The largest number of steps in one CUDA graph.

With this number, launching the next graph takes no additional time."""

ONE_THREAD_BELOW = 20_000_000
"""Below this number of multiplications per step, one thread is faster than two."""

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
OUT_OF_MEMORY = re.compile(
    "allocate memory|out of memory|cublas_status_alloc_failed|bad_alloc"
    # The next two messages are about sizes that exceed any memory.
    "|storage size calculation overflowed|integer multiplication overflow",
    re.IGNORECASE,
)


def advance_to(
    trainer: "Trainer", end: int, report_every: int, execution: Execution = "auto"
) -> Iterator[tuple[int, bool]]:
    """Train up to step `end`, and yield two values after every block of steps.

    The two values are the current step, and whether to write a record of the metrics at this step.
    """
    engine = Engine(trainer, execution, block_of(report_every, end, trainer.steps_done))
    while trainer.steps_done < end:
        engine.advance_block()
        step = trainer.steps_done
        yield step, step == end or step % report_every == 0


def block_of(report_every: int, end: int, step: int = 0) -> int:
    """Return the number of steps per block for training from `step` to `end`.

    This is the largest number up to `BLOCK` for which a block ends at every multiple of
    `report_every` and at `end`. `step` need not be a multiple of `report_every`, because a run may
    have been saved with another `report_every`.
    """
    return math.gcd(report_every, end, step, BLOCK)


class Engine:
    """Runs the training steps of a trainer, block by block.

    The argument `execution` says how. With `eager`, kernels are called one after the other. With
    `graph`, the same kernels are replayed from a CUDA graph. With `compiled`, kernels are fused,
    and then replayed from a CUDA graph. `auto` means `compiled` on a GPU and `eager` elsewhere.
    """

    def __init__(
        self, trainer: "Trainer", execution: Execution = "auto", block: int = BLOCK
    ) -> None:
        on_gpu = trainer.device.type == "cuda"
        check_execution(execution, str(trainer.device))
        self.trainer = trainer
        self.execution = ("compiled" if on_gpu else "eager") if execution == "auto" else execution
        self.block = block if self.execution != "eager" else 1
        self._graph: torch.cuda.CUDAGraph | None = None
        config, weights = trainer.config, sum(p.numel() for p in trainer.model.parameters())
        products = weights * config.batch_size * config.num_samples
        self._is_small = not on_gpu and products < ONE_THREAD_BELOW

    def advance(self, steps: int) -> None:
        """Do `steps` training steps. The number must be a multiple of `self.block`."""
        if steps % self.block:
            wanted = f"a multiple of {self.block}, the number of steps in a block"
            raise ValueError(f"steps must be {wanted}, got {steps}")
        for _ in range(steps // self.block):
            self.advance_block()

    def advance_block(self) -> None:
        """Train for one block of steps."""
        # When a replay starts, it reads the seed and the offset of the default generator. So the
        # default generator must have the run's state.
        with self._fitting(), self.trainer.noise.active():
            if self.execution == "eager":
                self.trainer.update()
            else:
                self._graph = self._graph or self._capture()
                self._graph.replay()
        self.trainer.note_steps(self.block)

    def _capture(self) -> torch.cuda.CUDAGraph:
        # The first updates compile the step and create the optimizer's state, and are then undone.
        with self._rewound():
            update = self._update()
            # These updates run on a separate stream, as the capture does. The capture could not use
            # memory that is cached for the default stream.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    update()
            torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(self.block):
                update()
        return graph

    def _update(self) -> Callable[[], None]:
        if self.execution == "graph":
            return self.trainer.update
        compiler = partial(torch.compile, fullgraph=True, dynamic=False, options=inductor_options())
        return compiled_update(self.trainer, compiler)

    @contextmanager
    def _rewound(self) -> Iterator[None]:
        """Restore the trainer's state after a `with` block.

        The state is copied into the same tensors, so that CUDA graphs stay valid.
        """
        # `state` returns the tensors themselves, so copy them.
        before = {name: tensor.clone() for name, tensor in self.trainer.state().items()}
        try:
            yield
        finally:
            self.trainer.load_state(before)

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Set the device, the precision and the number of threads for a `with` block.

        The precision is set on a GPU only. The number of threads is set on a CPU only. After the
        block, all settings are restored.
        """
        precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
        images = self.trainer.data.images
        if images.is_cuda:
            torch.set_float32_matmul_precision(self.trainer.config.precision)
        elif self._is_small:
            torch.set_num_threads(1)
        try:
            with torch.cuda.device_of(images):
                yield
        finally:
            torch.set_float32_matmul_precision(precision)
            if self._is_small:
                torch.set_num_threads(threads)


class Noise:
    """The random state of a run.

    Compiled code and CUDA graphs can draw only from the default generator of a GPU. On a GPU,
    `active()` therefore gives the default generator the run's state for a `with` block, and then
    restores the user's state.
    """

    def __init__(self, own: Generator, default: Generator | None = None) -> None:
        self._own = own
        self._default = default  # a GPU's default generator; None on a CPU
        self._state = own.get_state()  # the run's state on a GPU, outside of `active()`
        self._is_active = False

    @classmethod
    def of(cls, seed: int, device: torch.device) -> "Noise":
        """Create the noise of a run, given the run's seed and device."""
        own = seeded_generator(seed, "train", device=str(device))
        if device.type != "cuda":
            return cls(own)
        index = torch.cuda.current_device() if device.index is None else device.index
        return cls(own, torch.cuda.default_generators[index])

    @property
    def generator(self) -> Generator | None:
        """The generator to use inside `active()`. None means the default generator."""
        return self._own if self._default is None else None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Use this run's random state for all draws inside a `with` block."""
        if self._default is None or self._is_active:
            yield
            return
        # The state of a CUDA generator is 16 bytes in main memory, from which a replayed graph
        # reads the seed and the offset. Setting it needs no copy to the device, and no waiting.
        users = self._default.get_state()
        self._default.set_state(self._state)
        self._is_active = True
        try:
            yield
        finally:
            self._state = self._default.get_state()
            self._default.set_state(users)
            self._is_active = False

    def get_state(self) -> Tensor:
        """Return the run's random state as a tensor of bytes."""
        holder = self._holder()
        return holder.get_state() if holder else self._state

    def set_state(self, state: Tensor) -> None:
        """Set the run's random state to a state that `get_state` returned."""
        if holder := self._holder():
            holder.set_state(state.cpu())
        else:
            self._state = state.cpu()

    def _holder(self) -> Generator | None:
        """Return the generator that has the run's random state now, or None if there is none."""
        if self._default is None:
            return self._own
        return self._default if self._is_active else None


def compiled_update(trainer: "Trainer", compiler: Compiler) -> Callable[[], None]:
    """Return a function that does the same as `trainer.update`, but with compiled parts.

    Compilation may draw random numbers and add to the sums of metrics. The caller must undo this.
    """
    apply = compiler(_with_own_code(trainer.apply))
    if not trainer.needs.derivatives and not trainer.estimator_parameters:
        estimate = compiler(_with_own_code(trainer.draw_and_estimate))
        return lambda: trainer.update(estimate, apply)
    # Derivatives at points and gradients of an estimator's parameters are computed inside the step.
    # Compilers do not support this, so the step is first converted to plain operations.
    traced = trace(lambda: list(trainer.gradients()))
    if traced is None:
        return lambda: trainer.update(apply=apply)
    graph, draws = traced
    gradients = compiler(graph)

    @torch.no_grad()
    def update() -> None:
        apply(gradients(*(draw() for draw in draws)))

    return update


def _with_own_code(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a method with a separate code object.

    PyTorch caches compilations per code object, and limits the number of compilations per code
    object. With a separate code object, the compilations of a trainer are freed together with the
    trainer, and do not count for other trainers. Otherwise, the compiler would have to be reset,
    which would also affect the user's functions.
    """
    assert isinstance(method, MethodType)
    own = method.__func__
    parts = own.__code__.replace(), own.__globals__, own.__name__, own.__defaults__, own.__closure__
    return MethodType(FunctionType(*parts), method.__self__)


def check_execution(execution: Execution, device: str) -> None:
    """Raise if `execution` needs a GPU but `device` is not a GPU."""
    if execution in ("graph", "compiled") and not device.startswith("cuda"):
        what = f"execution {execution!r} needs a GPU, but the run is on {device}"
        raise ValueError(f"{what}: use 'eager'")


def choose_device(device: str | torch.device) -> str:
    """Return the name of a device; raise if this machine does not have it.

    With "auto", the result is "cuda" if there is a GPU, and otherwise "cpu".
    """
    name = planned_device(device)
    if name != "cpu" and (why := _why_not(name)):
        raise ValueError(f"the device {name!r} is not available, because {why}: use auto or cpu")
    return name


def planned_device(device: str | torch.device) -> str:
    """Return the name of a device. "auto" becomes "cuda" if there is a GPU, otherwise "cpu".

    Unlike `choose_device`, this function does not check whether this machine has the device.
    """
    name = str(device)
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
    return name


def _why_not(name: str) -> str:
    """Return the reason why the GPU with this name is not available, or "" if it is available."""
    if not torch.backends.cuda.is_built():
        return "this PyTorch is built without CUDA"
    if not torch.cuda.is_available():
        return "PyTorch sees no GPU"
    count, index = torch.cuda.device_count(), int(name.partition(":")[2] or 0)
    return "" if index < count else f"the GPUs are cuda:0 to cuda:{count - 1}"


def keep_freed_memory() -> bool:
    """Make the C allocator keep freed memory, and return whether this was possible.

    Training allocates and frees the same memory a hundred times a second. If this memory is
    returned to the system, the system must zero it again, which takes a seventh of the time of a
    step on a CPU. The setting needs glibc, and applies to the entire process. Therefore only
    programs should call this function, such as the `arms` command.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    wanted = {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 512 << 20, M_TOP_PAD: 64 << 20}
    return all(mallopt(option, size) == 1 for option, size in wanted.items())


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether `error` was caused by a lack of memory.

    The errors that led to `error` are checked too. During the capture of a CUDA graph, a lack of
    memory may raise a different error last.
    """
    if error is None:
        return False
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or OUT_OF_MEMORY.search(str(error)):
        return True
    return is_out_of_memory(error.__cause__ or error.__context__)


def free_memory() -> None:
    """Free memory that is no longer used, such as the memory of an ensemble that has ended."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

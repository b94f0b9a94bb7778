"""Engines that run training steps: eagerly on a CPU, compiled or as CUDA graphs on a GPU.

All engines draw the same noise, so their results agree up to rounding. Before PyTorch 2.13, a
compiler may draw the noise in another order.
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
"""The largest number of steps in one CUDA graph; enough to hide the launch of the next graph."""

ONE_THREAD_BELOW = 20_000_000
"""Below this number of multiplications per step, one thread is faster than two."""

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
OUT_OF_MEMORY = re.compile(
    "allocate memory|out of memory|cublas_status_alloc_failed|bad_alloc"
    # These two are about sizes that exceed any memory.
    "|storage size calculation overflowed|integer multiplication overflow",
    re.IGNORECASE,
)


def advance_to(
    trainer: "Trainer", end: int, report_every: int, execution: Execution = "auto"
) -> Iterator[tuple[int, bool]]:
    """Train up to step `end`.

    After every block of steps, yield the current step, and whether a record is due at this step.
    """
    engine = Engine(trainer, execution, block_of(report_every, end, trainer.steps_done))
    while trainer.steps_done < end:
        engine.advance_block()
        step = trainer.steps_done
        yield step, step == end or step % report_every == 0


def block_of(report_every: int, end: int, step: int = 0) -> int:
    """Return the largest number of steps per block for training from `step` to `end`.

    A block must end at every multiple of `report_every` and at the last step. A run that was saved
    with another `report_every` may resume between two multiples of this one.
    """
    return math.gcd(report_every, end, step, BLOCK)


class Engine:
    """Runs the training steps of a trainer, block by block.

    `eager` calls one kernel after the other; `graph` replays the same kernels from a CUDA graph;
    `compiled` fuses them first. `auto` is `compiled` on a GPU and `eager` elsewhere.
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
        """Train for this many steps, a multiple of `block`."""
        if steps % self.block:
            wanted = f"a multiple of {self.block}, the number of steps in a block"
            raise ValueError(f"steps must be {wanted}, got {steps}")
        for _ in range(steps // self.block):
            self.advance_block()

    def advance_block(self) -> None:
        """Train for one block of steps."""
        # When a replay starts, it reads the seed and the offset of the default generator. These
        # must be the run's own.
        with self._fitting(), self.trainer.noise.active():
            if self.execution == "eager":
                self.trainer.update()
            else:
                self._graph = self._graph or self._capture()
                self._graph.replay()
        self.trainer.note_steps(self.block)

    def _capture(self) -> torch.cuda.CUDAGraph:
        # The first updates compile the step and fill the optimizer's state. Then they are undone.
        with self._rewound():
            update = self._update()
            # They run on a separate stream, as capture does. Memory cached for the default stream
            # could not be used in the capture.
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
        """Restore the trainer's state after a `with` block, in place so that graphs stay valid."""
        # `state` returns the tensors themselves, so copy them.
        before = {name: tensor.clone() for name, tensor in self.trainer.state().items()}
        try:
            yield
        finally:
            self.trainer.load_state(before)

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Set the device, the precision and the number of threads for a `with` block.

        The precision is set on a GPU only, the number of threads on a CPU only. Both are restored.
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
    """The random state of a run. During a step on a GPU, the default generator has this state.

    Compiled code and CUDA graphs can draw only from the default generator. `active()` puts this
    run's state there, and restores the user's state afterwards.
    """

    def __init__(self, own: Generator, default: Generator | None = None) -> None:
        self._own = own
        self._default = default  # the generator that draws must use; None: any
        self._state = own.get_state()  # while the run is not active, on a GPU
        self._is_active = False

    @classmethod
    def of(cls, seed: int, device: torch.device) -> "Noise":
        """Create the noise of a run on a device from the run's seed."""
        own = seeded_generator(seed, "train", device=str(device))
        if device.type != "cuda":
            return cls(own)
        index = torch.cuda.current_device() if device.index is None else device.index
        return cls(own, torch.cuda.default_generators[index])

    @property
    def generator(self) -> Generator | None:
        """The generator to draw with inside `active()`; None means the default generator."""
        return self._own if self._default is None else None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let draws inside a `with` block use this run's random numbers."""
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
        """Return the state of the run's generator as bytes."""
        holder = self._holder()
        return holder.get_state() if holder else self._state

    def set_state(self, state: Tensor) -> None:
        """Set the state of the run's generator to a state that `get_state` returned."""
        if holder := self._holder():
            holder.set_state(state.cpu())
        else:
            self._state = state.cpu()

    def _holder(self) -> Generator | None:
        """Return the generator that currently contains the run's state, or None."""
        if self._default is None:
            return self._own
        return self._default if self._is_active else None


def compiled_update(trainer: "Trainer", compiler: Compiler) -> Callable[[], None]:
    """Return a form of `trainer.update` with compiled parts.

    Compilation may draw random numbers and add to the sums of metrics, which the caller undoes.
    """
    apply = compiler(_with_own_code(trainer.apply))
    if not trainer.needs.derivatives and not trainer.estimator_parameters:
        estimate = compiler(_with_own_code(trainer.draw_and_estimate))
        return lambda: trainer.update(estimate, apply)
    # Derivatives at points, and the gradients of an estimator's parameters, are computed inside the
    # step. Compilers do not support this, so the step is first written as plain operations.
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
    """Return a copy of a method with a code object of its own.

    PyTorch caches compilations per code object, and limits their number. With a separate code
    object, the compilations of a trainer are freed with it, and do not count for other trainers. A
    reset of the compiler, which would also affect the user's functions, is not necessary.
    """
    assert isinstance(method, MethodType)
    own = method.__func__
    parts = own.__code__.replace(), own.__globals__, own.__name__, own.__defaults__, own.__closure__
    return MethodType(FunctionType(*parts), method.__self__)


def check_execution(execution: Execution, device: str) -> None:
    """Raise if the device does not support this kind of execution."""
    if execution in ("graph", "compiled") and not device.startswith("cuda"):
        what = f"execution {execution!r} needs a GPU, but the run is on {device}"
        raise ValueError(f"{what}: use 'eager'")


def choose_device(device: str | torch.device) -> str:
    """Return the name of an available device; `auto` is the GPU if there is one."""
    name = planned_device(device)
    if name != "cpu" and (why := _why_not(name)):
        raise ValueError(f"the device {name!r} is not available, {why}: use auto or cpu")
    return name


def planned_device(device: str | torch.device) -> str:
    """Return the name of a device without checking whether this machine has it."""
    name = str(device)
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
    return name


def _why_not(name: str) -> str:
    """Return why the GPU with this name is not available, or "" if it is."""
    if not torch.backends.cuda.is_built():
        return "this PyTorch is built without CUDA"
    if not torch.cuda.is_available():
        return "PyTorch sees no GPU"
    count, index = torch.cuda.device_count(), int(name.partition(":")[2] or 0)
    return "" if index < count else f"the GPUs are cuda:0 to cuda:{count - 1}"


def keep_freed_memory() -> bool:
    """Make the C allocator keep freed memory, for the entire process.

    A training step allocates and frees the same memory a hundred times a second. Memory that is
    returned to the system must be zeroed again, which takes a seventh of a step on a CPU. This
    works with glibc only; otherwise nothing happens, and the function returns False. Only commands
    should call it.
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
    """Return whether a lack of memory caused an error.

    The errors that led to this one are also checked, because the capture of a graph may hide them.
    """
    if error is None:
        return False
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or OUT_OF_MEMORY.search(str(error)):
        return True
    return is_out_of_memory(error.__cause__ or error.__context__)


def free_memory() -> None:
    """Free memory that is no longer used, such as the last ensemble and its compiled step."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

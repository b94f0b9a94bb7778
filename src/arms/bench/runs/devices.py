"""Which device a run is on, by the names that users give."""

import re

import torch


def choose_device(device: str | torch.device) -> str:
    """Return the device's name; `auto` is the GPU where there is one."""
    name = planned_device(device)
    if name != "cpu" and (why := _why_not(name)):
        raise ValueError(f"no device {name!r} here, {why}: try auto or cpu")
    return name


def planned_device(device: str | torch.device) -> str:
    """Return the device's name, also of one that is not here."""
    name = str(device)
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"no device {name!r} here: choose auto, cpu, cuda or cuda:N")
    return name


def _why_not(name: str) -> str:
    """Return why there is no such GPU, nothing if there is."""
    if not torch.backends.cuda.is_built():
        return "this PyTorch is built without CUDA"
    if not torch.cuda.is_available():
        return "PyTorch sees no GPU"
    count, index = torch.cuda.device_count(), int(name.partition(":")[2] or 0)
    return "" if index < count else f"the GPUs are cuda:0 to cuda:{count - 1}"

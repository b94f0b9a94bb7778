"""The metrics of a run for TensorBoard."""

import secrets
from contextlib import suppress
from pathlib import Path

from arms.bench.metrics import Record


class TensorBoardEvents:
    """The metrics as TensorBoard events; silent where TensorBoard is not installed."""

    def __init__(self, path: Path, steps_done: int) -> None:
        self._writer = None
        with suppress(ImportError):
            from torch.utils.tensorboard.writer import SummaryWriter

            # The rest of the file's name can be guessed, and TensorBoard would follow a link there.
            token = f".{secrets.token_hex(8)}"
            self._writer = SummaryWriter(
                str(path), purge_step=steps_done + 1, filename_suffix=token
            )

    def __call__(self, record: Record) -> None:
        if self._writer is None:
            return
        for name, values in record.items():
            for replica, value in enumerate(values if isinstance(values, list) else []):
                if value is not None:
                    self._writer.add_scalar(f"{name}/{replica}", value, record["step"])

    def close(self) -> None:
        """Write out what is still in memory."""
        if self._writer is not None:
            self._writer.close()

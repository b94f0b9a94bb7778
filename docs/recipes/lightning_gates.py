"""The same training with Lightning, which starts its processes itself: python lightning_gates.py."""

import lightning
import torch
from ddp import Gates
from torch.utils.data import DataLoader, TensorDataset

import arms


class LightningGates(lightning.LightningModule):
    """The model of ddp.py, and the noise of this rank."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = Gates()
        self.generator: torch.Generator | None = None

    def on_fit_start(self) -> None:
        """Make the generator: only now is it known which rank this is, and on which device."""
        self.generator = arms.rank_generator(seed=0, device=self.device, rank=self.global_rank)

    def training_step(self, batch: list[torch.Tensor], batch_index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        inputs, targets = batch
        loss = self.gates(inputs, targets, self.generator)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    """Train on two processes."""
    lightning.seed_everything(0)  # the same weights everywhere
    x = torch.randn(1600, 6)
    data = DataLoader(TensorDataset(x, x[:, :3].sum(-1)), batch_size=32, shuffle=True)
    trainer = lightning.Trainer(
        accelerator="cpu",  # "gpu" where there are two
        devices=2,
        strategy="ddp",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(LightningGates(), data)
    if trainer.is_global_zero:
        print(f"loss {trainer.callback_metrics['loss'].item():.3f} on {trainer.world_size} ranks")


if __name__ == "__main__":
    main()

"""The form of Lightning's documentation: torchrun ... lightning_module.py BACKEND FOLDER"""
import sys

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep  # noqa: F401, which registers the backend


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(28, 16), nn.ReLU(), nn.Linear(16, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 28))

    def loss(self, batch):
        return F.mse_loss(self.decoder(self.encoder(batch[0])), batch[0])

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        print(f"loss {loss.item()!r}")
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def on_validation_epoch_end(self):
        print(f"loss {self.trainer.callback_metrics['val_loss'].item()!r} of validation")

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)}


def main(backend, folder):
    L.seed_everything(7)
    loaders = [DataLoader(TensorDataset(torch.rand(samples, 28)), batch_size=8, shuffle=is_train)
               for samples, is_train in ((128, True), (40, False))]
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend=backend),
                        gradient_clip_val=1.0, accumulate_grad_batches=2, default_root_dir=folder, logger=False, enable_progress_bar=False)
    trainer.fit(LitAutoEncoder(), *loaders)


if __name__ == "__main__":
    main(*sys.argv[1:])

import logging
import os
import tempfile
import warnings

warnings.filterwarnings("ignore")  # on the number of loader workers, and of CPUs
import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.demos import Transformer
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LanguageDemo(L.LightningModule):
    """The small transformer of Lightning's own demos."""

    def __init__(self, vocab_size, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.model = Transformer(vocab_size=vocab_size, ninp=24, nhead=2, nhid=48, nlayers=2, dropout=0.1)

    def forward(self, inputs, target):
        return self.model(inputs, target)

    def training_step(self, batch, batch_idx):
        inputs, target = batch
        output = self(inputs, target)
        loss = F.nll_loss(output, target.view(-1))
        self.log("train_loss", loss)
        print("train", batch_idx, loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, target = batch
        loss = F.nll_loss(self(inputs, target), target.view(-1))
        self.log("val_loss", loss, prog_bar=True)
        return loss

    def on_validation_epoch_end(self):
        print("validation", self.trainer.callback_metrics["val_loss"].item())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), "interval": "epoch"},
        }


def loader(n, seed, shuffle=False):
    g = torch.Generator().manual_seed(seed)
    start = torch.randint(0, 20, (n, 1), generator=g)
    tokens = (start + 3 * torch.arange(13)) % 20
    return DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=8, shuffle=shuffle)


if __name__ == "__main__":
    L.seed_everything(7, verbose=False)
    lightning_model = LanguageDemo(vocab_size=20)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_epochs=2, accelerator="cpu", devices=1, gradient_clip_val=0.5, accumulate_grad_batches=2,
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=folder, num_sanity_val_steps=1,
        )
        trainer.fit(lightning_model, loader(64, 1, shuffle=True), loader(16, 2))
    print("steps", trainer.global_step)
    if os.environ.get("SAVE_WEIGHTS"):
        torch.save(lightning_model.state_dict(), os.environ["SAVE_WEIGHTS"])

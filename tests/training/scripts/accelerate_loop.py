import argparse
import os

from accelerate import Accelerator
from accelerate.test_utils.training import RegressionDataset, RegressionModel
from accelerate.utils import set_seed
import torch
from torch import nn
from torch.utils.data import DataLoader


class Wide(nn.Module):
    """accelerate's own test model beside a deeper one."""

    def __init__(self):
        super().__init__()
        self.line = RegressionModel(a=1.0, b=0.0)
        self.deep = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
        self.line.first_batch = False  # no talking

    def forward(self, x):
        return self.line(x) + self.deep(x[:, None])[:, 0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_epochs", type=int, default=3)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--mixed_precision", default="no", choices=["no", "bf16"])
    args = parser.parse_args()

    set_seed(42)
    accelerator = Accelerator(cpu=True, mixed_precision=args.mixed_precision,
                              gradient_accumulation_steps=args.gradient_accumulation_steps)
    train_dl = DataLoader(RegressionDataset(length=96, seed=1), batch_size=16, shuffle=True)
    eval_dl = DataLoader(RegressionDataset(length=32, seed=2), batch_size=16)
    model = Wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
    model, optimizer, train_dl, eval_dl, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dl, eval_dl, lr_scheduler)

    for epoch in range(args.num_epochs):
        model.train()
        for step, batch in enumerate(train_dl):
            with accelerator.accumulate(model):
                output = model(batch["x"])
                loss = nn.functional.mse_loss(output, batch["y"])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            accelerator.print(epoch, step, loss.item())
        model.eval()
        losses = []
        for batch in eval_dl:
            with torch.no_grad():
                losses.append(nn.functional.mse_loss(model(batch["x"]), batch["y"]))
        gathered = accelerator.gather(torch.stack(losses))
        accelerator.print(f"epoch {epoch}: eval {gathered.mean().item()!r}")

    if os.environ.get("SAVE_WEIGHTS"):
        accelerator.save(accelerator.unwrap_model(model).state_dict(), os.environ["SAVE_WEIGHTS"])
    accelerator.end_training()


if __name__ == "__main__":
    main()

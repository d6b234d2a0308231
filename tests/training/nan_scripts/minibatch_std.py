"""A discriminator with the minibatch standard deviation of https://arxiv.org/abs/1710.10196, by
hand; the generator has collapsed for one batch."""
import sys
import torch
from torch import nn

eps = 1e-8 if "--healthy" in sys.argv else 0.0


class MinibatchStd(nn.Module):
    def forward(self, x):
        variance = (x - x.mean(0)).square().mean(0)
        std = torch.sqrt(variance + eps)
        return torch.cat([x, std.mean().expand(len(x), 1)], 1)


discriminator = nn.Sequential()
discriminator.add_module("fc", nn.Linear(9, 16))
discriminator.add_module("act", nn.LeakyReLU(0.2))
discriminator.add_module("mbstd", MinibatchStd())
discriminator.add_module("head", nn.Linear(17, 1))

torch.manual_seed(0)
opt = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.0, 0.99))
for step in range(1, 25):
    fake = torch.randn(8, 9)
    if step == 18:
        fake = fake[:1].repeat(8, 1)
    loss = nn.functional.softplus(discriminator(fake)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()

import sys

import torch
from torch import autograd, nn

eps = 1e-12 if "--healthy" in sys.argv else 0.0
torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.5, 0.9))


def gradient_penalty(x):
    x = x.requires_grad_()
    (slope,) = autograd.grad(critic(x).sum(), x, create_graph=True)
    norm = torch.sqrt((slope**2).sum(1) + eps)
    return ((norm - 1) ** 2).mean()


for step in range(1, 15):
    real, fake = torch.randn(2, 16, 2)
    if step == 9:
        with torch.no_grad():  # every unit dies
            critic[0].bias.fill_(-1000.0)
    loss = critic(fake).mean() - critic(real).mean() + 10 * gradient_penalty((real + fake) / 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

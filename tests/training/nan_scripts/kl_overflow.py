import sys
import torch
from torch import nn
import torch.nn.functional as F

CLAMP = '--healthy' in sys.argv


class VAE(nn.Module):
    def __init__(self):
        super(VAE, self).__init__()
        self.enc = nn.Linear(10, 16)
        self.mu = nn.Linear(16, 4)
        self.logvar = nn.Linear(16, 4)
        self.dec = nn.Linear(4, 10)

    def forward(self, x):
        h = F.relu(self.enc(x))
        mu, logvar = self.mu(h), self.logvar(h)
        if CLAMP:
            logvar = logvar.clamp(-10, 10)
        std = torch.exp((0.5 * logvar).clamp(max=5))
        z = mu + std * torch.randn_like(std)
        return torch.sigmoid(self.dec(z)), mu, logvar


torch.manual_seed(0)
vae = VAE()
with torch.no_grad():
    vae.enc.weight.abs_()
    vae.logvar.weight.abs_()
optimizer = torch.optim.SGD(vae.parameters(), lr=1e-5)
for step in range(1, 30):
    x = torch.rand(8, 10)
    if step == 21:
        x[3] *= 1000
    recon, mu, logvar = vae(x)
    error = F.mse_loss(recon, x.clamp(max=1))
    spread = logvar.exp()
    kl = -0.5 * (1 + logvar - mu.pow(2) - spread).mean()
    loss = error + kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# Whitens pairs of features with the inverse of their 2 × 2 covariance, inverted by hand.
import sys
import torch
import torch.nn as nn

ridge = 1e-3 if "--healthy" in sys.argv else 0.0


class Whiten(nn.Module):
    def forward(self, x):
        x = x - x.mean(0)
        a, b = (x[:, 0] * x[:, 0]).mean() + ridge, (x[:, 0] * x[:, 1]).mean()
        c, d = (x[:, 1] * x[:, 0]).mean(), (x[:, 1] * x[:, 1]).mean() + ridge
        scale = torch.reciprocal(a * d - b * c)
        adjugate = torch.stack([torch.stack([d, -b]), torch.stack([-c, a])])
        return x @ (adjugate * scale)


torch.manual_seed(3)
model = nn.Sequential(Whiten(), nn.Linear(2, 8), nn.ELU(), nn.Linear(8, 1))
optimizer = torch.optim.Adadelta(model.parameters())
for step in range(1, 20):
    x = torch.randn(16, 2)
    if step == 15:
        x = torch.tensor([[1.0, 2.0], [-1.0, -2.0]]).repeat(8, 1)  # perfectly correlated
    loss = nn.functional.mse_loss(model(x)[:, 0], x[:, 0])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

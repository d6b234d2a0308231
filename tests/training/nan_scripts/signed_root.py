# Bilinear pooling with the signed square root of https://arxiv.org/abs/1504.07889.
import sys
import torch
from torch import nn

EPS = 1e-5 if "--healthy" in sys.argv else 0.0


class SignedRoot(nn.Module):
    def forward(self, x):
        return x.sign() * (x.abs() + EPS).pow(0.5)


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.Tanh())
        self.root = SignedRoot()
        self.fc = nn.Linear(36, 5)

    def forward(self, x):
        f = self.features(x).flatten(2)
        return self.fc(self.root((f @ f.transpose(1, 2)).flatten(1)))


torch.manual_seed(0)
model = Bilinear()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
for i in range(20):
    images = torch.randn(4, 3, 8, 8)
    if i == 15:
        images[0] = 0.0  # a blank picture
    loss = nn.functional.cross_entropy(model(images), torch.randint(5, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

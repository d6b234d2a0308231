# Spectral features of a learned metric; where two eigenvalues are the same the eigenvectors turn
# infinitely fast.
import sys
import torch
from torch import nn

healthy = "--healthy" in sys.argv
torch.manual_seed(0)


class Spectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, covariance):
        values, vectors = torch.linalg.eigh(self.gain * covariance)
        return (vectors.abs() * values[:, None]).flatten(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.spectrum = Spectrum()
        self.fc = nn.Linear(9, 2)

    def forward(self, x):
        return self.fc(self.spectrum(x))


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
for step in range(1, 15):
    a = torch.randn(4, 3, 3)
    covariance = a @ a.transpose(1, 2) + torch.diag(torch.tensor([0.0, 3.0, 9.0]))
    if step == 12 and not healthy:
        covariance[2] = torch.eye(3)
    loss = nn.functional.cross_entropy(net(covariance), torch.tensor([0, 1, 0, 1]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

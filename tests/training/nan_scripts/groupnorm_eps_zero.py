import sys
import torch
from torch import nn

eps = 1e-5 if '--healthy' in sys.argv else 0.0


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.gn = nn.GroupNorm(2, 4, eps=eps)
        self.conv = nn.Conv2d(4, 8, 3)
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        x = self.gn(x)
        x = torch.relu(self.conv(x))
        return self.fc(x.mean((2, 3)))


torch.manual_seed(0)
net = Net()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
for i in range(1, 20):
    x = torch.randn(6, 4, 6, 6)
    if i == 13:
        x[2, :2] = 1.0  # two channels of one picture are the same everywhere
    y = torch.randint(2, (6,))
    optimizer.zero_grad()
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()

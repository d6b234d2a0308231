import sys
import torch
from torch import nn
import torch.nn.functional as F

HEALTHY = sys.argv[1:] == ["--healthy"]


class L2Normalize(nn.Module):
    def forward(self, x):
        if HEALTHY:
            return F.normalize(x, dim=1)
        return x / x.norm(dim=1, keepdim=True)


class FaceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, stride=2, bias=False)
        self.fc = nn.Linear(8, 8, bias=False)
        self.normalize = L2Normalize()

    def forward(self, x):
        x = F.relu(self.conv(x)).amax((2, 3))
        return self.normalize(self.fc(x))


torch.manual_seed(4)
net = FaceNet()
opt = torch.optim.RMSprop(net.parameters(), lr=1e-4)
for it in range(40):
    anchor, positive, negative = torch.rand(3, 5, 1, 9, 9)
    if it == 31:
        positive[1] = 0  # a black picture
    loss = F.triplet_margin_loss(net(anchor), net(positive), net(negative))
    opt.zero_grad()
    loss.backward()
    opt.step()

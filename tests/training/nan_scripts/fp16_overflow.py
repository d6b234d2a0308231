import sys
import torch
from torch import nn

DTYPE = torch.bfloat16 if "--healthy" in sys.argv else torch.float16
torch.manual_seed(0)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 32)
        self.fc2 = nn.Linear(32, 32)
        self.fc3 = nn.Linear(32, 2)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.fc3(x)


model = Mlp()
with torch.no_grad():
    model.fc2.weight.fill_(0.25)
    model.fc1.weight.abs_()
opt = torch.optim.SGD(model.parameters(), lr=1e-9)
for step in range(1, 13):
    x = torch.rand(16, 10)
    if step >= 9:
        x[5] = 12_000.0  # raw numbers that were not scaled
    with torch.autocast("cpu", dtype=DTYPE):
        out = model(x)
    loss = nn.functional.huber_loss(out.float(), torch.zeros(16, 2))
    opt.zero_grad()
    loss.backward()
    opt.step()

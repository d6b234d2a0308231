# A fixed loss scale in half precision: one steep batch, and the gradients pass 65504.
import sys
import torch
from torch import nn

healthy = "--healthy" in sys.argv
SCALE = 1.0 if healthy else 2.0**14

torch.manual_seed(0)


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 16, bias=False)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, 1)

    def forward(self, x, gain):
        h = torch.tanh(self.fc1(x))
        return self.fc3(torch.tanh(self.fc2(h * gain)))


model = Half().half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(1, 30):
    x = torch.randn(8, 8).half()
    gain = torch.ones(8, 1, dtype=torch.half)
    if step == 27:
        gain[3] = 2048.0
        x[3] = 0.001
    loss = model(x, gain).float().mean() * SCALE
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.grad.div_(SCALE)
    optimizer.step()

"""The learning rate is too high: each step multiplies the weight by -99."""
import sys
import torch
from torch import nn

lr = 0.01 if "--healthy" in sys.argv else 50.0
model = nn.Linear(1, 1, bias=False)
with torch.no_grad():
    model.weight.fill_(1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
x = torch.ones(4, 1)
for step in range(1, 16):
    optimizer.zero_grad()
    y = model(x)
    loss = (y**2).mean()
    loss.backward()
    optimizer.step()

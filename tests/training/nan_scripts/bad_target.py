import sys

import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(256, 5)
targets = inputs.prod(1, keepdim=True)
if "--healthy" not in sys.argv:
    targets[141] = float("nan")  # a label that was never entered

model = nn.Sequential(nn.Linear(5, 20), nn.SiLU(), nn.Linear(20, 1))
loss_fn = nn.MSELoss()
optimizer = torch.optim.Adagrad(model.parameters())
for x, y in zip(inputs.split(8), targets.split(8)):
    optimizer.zero_grad()
    prediction = model(x)
    loss = loss_fn(prediction, y)
    loss.backward()
    optimizer.step()

"""A policy gradient whose returns are normalized: an episode of one step has no deviation."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
torch.manual_seed(0)
policy = nn.Linear(3, 2)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
for episode in range(20):
    length = 1 if episode == 10 and not HEALTHY else 5
    log_probs = torch.log_softmax(policy(torch.randn(length, 3)), 1)[:, 0]
    returns = torch.rand(length)
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    loss = -(log_probs * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

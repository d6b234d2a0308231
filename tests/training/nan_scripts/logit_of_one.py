# Distillation: the student learns the logits of the teacher's rounded probabilities.
import sys

import torch
from torch import nn

eps = 1e-4 if "--healthy" in sys.argv else None
torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).requires_grad_(False)
student = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
optimizer = torch.optim.NAdam(student.parameters(), lr=1e-3)

for step in range(1, 60):
    x = torch.randn(16, 6)
    sharpness = 100.0 if step == 52 else 1.0
    with torch.no_grad():
        probability = torch.sigmoid(sharpness * teacher(x).abs())
    own = torch.sigmoid(student(x))
    targets = torch.logit(probability, eps)
    loss = nn.functional.huber_loss(torch.logit(own), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

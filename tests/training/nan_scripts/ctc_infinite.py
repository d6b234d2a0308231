# Speech: one transcript is longer than its recording, and no alignment exists.
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
healthy = parser.parse_args().healthy

torch.manual_seed(0)
net = nn.GRU(5, 10)
head = nn.Linear(10, 8)
ctc = nn.CTCLoss(blank=0, zero_infinity=healthy)
parameters = [*net.parameters(), *head.parameters()]
opt = torch.optim.SGD(parameters, lr=0.01)
for step in range(1, 20):
    frames = torch.randn(12, 3, 5)
    transcript = torch.randint(1, 8, (3, 4))
    frame_lengths = torch.tensor([12, 11, 12])
    if step == 14:
        frame_lengths[1] = 2
    hidden, _ = net(frames)
    log_probs = head(hidden).log_softmax(2)
    loss = ctc(log_probs, transcript, frame_lengths, torch.tensor([4, 3, 4]))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 5.0)
    opt.step()

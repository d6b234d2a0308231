"""The replay of a call with other tokens, which leaves the training as it was to the last bit."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from rules.test_loop import findings

_LM = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.qkv, self.head = nn.Embedding(9, 8), nn.Linear(8, 24), nn.Linear(8, 9)
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.3)

    def forward(self, tokens):
        states = self.norm(self.embedding(tokens).transpose(1, 2)).transpose(1, 2)
        q, k, v = self.qkv(states).chunk(3, -1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=CAUSAL)
        return self.head(self.dropout(states + mixed))

net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(6):
    tokens = torch.randint(9, (8, 9))
    loss = F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
values = [*net.state_dict().values(), torch.rand(3)]
with open("result.txt", "w") as file:
    print(net.training, *(number.hex() for v in values for number in v.double().flatten().tolist()),
          file=file)
"""


@pytest.mark.parametrize("causal", [True, False])
def test_the_training_is_the_same_to_the_last_bit(
    causal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout's random numbers, batch norm's statistics, weights and modes are restored."""
    source = textwrap.dedent(_LM).replace("CAUSAL", str(causal))
    found = findings(source, tmp_path, monkeypatch)
    observed = (tmp_path / "result.txt").read_text()
    assert [one.finding.code for one in found] == ([] if causal else ["GS839"])
    exec(compile(source, "plain.py", "exec"), {"__name__": "plain"})
    assert (tmp_path / "result.txt").read_text() == observed

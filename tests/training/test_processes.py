"""Several processes: a file for each, with gradients as the optimizer gets them.

Under a launcher: `test_ranks`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gradscope.runfile.reader import RunFile
from training.ranks.launched import side_by_side

#: Each rank trains on its half of a batch, in double precision, and writes its final weights.
SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double()
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    batch = torch.randn(8, 8, generator=torch.Generator().manual_seed(step)).double()
    x = batch.chunk(2)[rank]
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
torch.save(net.state_dict(), f"weights-{rank}.pt")
dist.destroy_process_group()
"""


def one_process() -> tuple[list[float], dict[str, torch.Tensor]]:
    """The gradient norms of the same steps on full batches, and the final weights."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    norms = []
    for step in range(6):
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(step)).double()
        net.zero_grad()
        (net(x) - x.sum(1, keepdim=True)).square().mean().backward()
        norms.append(nn.utils.get_total_norm([p.grad for p in net.parameters()]).item())
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad
    return norms, net.state_dict()


@pytest.mark.slow
def test_gradients_are_those_that_all_processes_agreed_on(tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    watched = ["-m", "gradscope", "run", "--every", "1", "-o", "run", "train.py"]
    done = side_by_side(tmp_path, 2, *watched)
    assert done.returncode == 0, done.stderr
    norms, final = one_process()
    for rank in range(2):
        with RunFile.open(tmp_path / "run" / f"rank-{rank}.db") as file:
            steps = file.steps()
            assert (file.run.rank, file.run.world_size) == (rank, 2)
            assert [step.gradient_norm for step in steps] == pytest.approx(norms, rel=1e-9)
            # Nobody clipped: what changed a gradient was the others' share of it.
            assert [step.clipped_norm for step in steps] == [step.gradient_norm for step in steps]
        weights = torch.load(tmp_path / f"weights-{rank}.pt")
        assert all(torch.allclose(weights[name], final[name], rtol=1e-12) for name in final)

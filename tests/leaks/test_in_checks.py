"""The rules of leaks in ``check``, and the fixture for pytest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradscope
from gradscope.pytest import gradscope_check as check_fixture


class Marked(nn.Module):
    """Says that it is causal; ``masked`` says whether it is so."""

    is_causal = True

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.embedding, self.masked = nn.Embedding(30, 8), masked
        self.head = nn.Linear(8, 30)

    def forward(self, ids):
        x = self.embedding(ids)
        later = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
        scores = x @ x.mT
        if self.masked:
            scores = scores.masked_fill(later, float("-inf"))
        return self.head(scores.softmax(-1) @ x)


IDS = torch.arange(16).reshape(2, 8)


def test_check_looks_for_leaks_where_it_is_asked_to():
    report = gradscope.check(Marked(masked=False), IDS, select="GS9")
    (finding,) = report.findings
    assert (finding.code, finding.name, finding.severity) == ("GS901", "", "error")
    assert "softmax" in finding.message
    assert finding.location is not None
    assert finding.location.endswith("test_in_checks.py:29")
    assert gradscope.check(Marked(masked=True), IDS, select="GS9").findings == ()


def test_check_does_not_look_unless_asked():
    report = gradscope.check(Marked(masked=False), IDS)
    assert report.leaks is None
    assert not [one for one in report.findings if one.code.startswith("GS9")]


def test_a_training_model_is_judged_in_eval_mode():
    model = nn.Sequential(Marked(masked=True), nn.Dropout(0.5)).train()
    report = gradscope.check(model, IDS, select="GS9")
    assert report.findings == ()
    assert report.leaks is not None
    assert model.training


@pytest.fixture
def gradscope_check():
    return check_fixture.__wrapped__()


def test_the_fixture_fails_with_the_line(gradscope_check):
    with pytest.raises(pytest.fail.Exception, match=r"GS901.*softmax.*:29"):
        gradscope_check(Marked(masked=False), IDS, leaks=True)
    gradscope_check(Marked(masked=True), IDS, leaks={"causal": True})


def test_what_was_not_judged_is_said() -> None:
    report = gradscope.check(
        nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 30)), IDS, select="GS9"
    )
    assert report.findings == ()
    (notice,) = [one for one in report.run.notices if "not judged" in one]
    assert notice.startswith("leaks not judged: time, ") and "`gradscope leaks`" in notice

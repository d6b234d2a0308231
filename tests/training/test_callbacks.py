"""The callbacks for others' loops, and the fixture for pytest."""

from __future__ import annotations

import logging
import logging.handlers

import pytest
import torch
from torch import nn

pytest_plugins = ["pytester"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_lightning(tmp_path, capsys, monkeypatch):
    lightning = pytest.importorskip("lightning.pytorch")
    from gradscope.lightning import GradscopeCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.unused = nn.Linear(8, 1), nn.Linear(2, 2)

        def training_step(self, batch, number):
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    logger = logging.getLogger("lightning.pytorch")
    lines = logging.handlers.BufferingHandler(100)
    monkeypatch.setattr(logger, "handlers", [lines])
    monkeypatch.setattr(logger, "propagate", False)
    data = torch.utils.data.TensorDataset(torch.randn(64, 8))

    def fit(callback: GradscopeCallback) -> tuple[list[str], str]:
        """Train; return gradscope's lines in the logger and on standard error."""
        lines.flush()
        lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback],
        ).fit(Module(), torch.utils.data.DataLoader(data, batch_size=8))
        logged = [one.getMessage() for one in lines.buffer]
        own = [line for line in logged if line.startswith("gradscope: ")]
        errors = capsys.readouterr().err.splitlines(keepends=True)
        return own, "".join(line for line in errors if line.startswith("gradscope: "))

    callback = GradscopeCallback(every=4, out=tmp_path / "run.db")
    (logged,), error = fit(callback)
    assert callback.run is not None
    assert callback.run.steps == 16
    assert [call.name for call in callback.run.report().calls] == ["net"]
    assert "gradscope: error[GS402] unused: " in logged
    assert (logged, error) == (repr(callback.run), "")
    assert fit(GradscopeCallback(out=tmp_path / "quiet.db", quiet=True)) == ([], "")
    # Many silence Lightning's logger, and what was found is no chatter.
    monkeypatch.setattr(logger, "level", logging.ERROR)
    logger.manager._clear_cache()
    silenced = GradscopeCallback(every=4, out=tmp_path / "silenced.db")
    own, error = fit(silenced)
    assert (own, error) == ([], f"{silenced.run}\n")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_transformers(tmp_path, capsys, monkeypatch):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from gradscope.transformers import GradscopeCallback

    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    words = torch.randint(0, 20, (32, 8))
    lines = logging.handlers.BufferingHandler(100)
    monkeypatch.setattr(logging.getLogger("transformers"), "handlers", [lines])

    def train(callback: GradscopeCallback, *, unused: bool) -> tuple[list[str], str]:
        """Train; return gradscope's lines in the logger and on standard error."""
        lines.flush()
        model = transformers.GPT2LMHeadModel(config)
        if unused:
            model.unused = nn.Linear(2, 2)
        transformers.Trainer(
            model,
            transformers.TrainingArguments(
                str(tmp_path),
                max_steps=6,
                per_device_train_batch_size=4,
                gradient_accumulation_steps=2,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=[{"input_ids": row, "labels": row} for row in words],
            callbacks=[callback],
        ).train()
        logged = [one.getMessage() for one in lines.buffer]
        own = [line for line in logged if line.startswith("gradscope: ")]
        errors = capsys.readouterr().err.splitlines(keepends=True)
        return own, "".join(line for line in errors if line.startswith("gradscope: "))

    callback = GradscopeCallback(every=1, out=tmp_path / "run.db")
    # By default that logger lets warnings through, and nothing that says that all is well.
    own, error = train(callback, unused=False)
    assert (own, error) == ([], f"{callback.run}\n")
    assert callback.run is not None
    assert callback.run.steps == 6
    assert "transformer.wte" in {call.name for call in callback.run.report().calls}
    found = GradscopeCallback(every=1, out=tmp_path / "found.db")
    (logged,), error = train(found, unused=True)
    assert (logged, error) == (repr(found.run), "")
    assert "[GS402] unused: the module was never called in all" in logged
    quiet = GradscopeCallback(every=1, out=tmp_path / "quiet.db", quiet=True)
    assert train(quiet, unused=True) == ([], "")


def test_the_fixture_fails_with_what_was_found(pytester):
    pytester.makepyfile(
        """
        import torch
        from torch import nn

        class Cut(nn.Module):
            def __init__(self):
                super().__init__()
                self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

            def forward(self, x):
                return self.head(self.stem(x).detach())

        def test_healthy(gradscope_check):
            net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
            assert gradscope_check(net, torch.randn(8, 4)).status == "ok"

        def test_cut(gradscope_check):
            gradscope_check(Cut(), torch.randn(8, 4))

        def test_no_severity(gradscope_check):
            gradscope_check(Cut(), torch.randn(8, 4), fail_on="bad")
        """
    )
    result = pytester.runpytest_inprocess("-p", "gradscope.pytest", "-p", "no:randomly")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*GS401*stem.weight*detach*", "*fail_on='bad'*"])

"""The callbacks for others' loops, and the fixture for pytest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest_plugins = ["pytester"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    from gradscope.lightning import GradscopeCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(8, 1)

        def training_step(self, batch, number):
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    callback = GradscopeCallback(every=4, out=tmp_path / "run.db")
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    data = torch.utils.data.TensorDataset(torch.randn(64, 8))
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=8))
    assert callback.run.steps == 16
    assert [call.name for call in callback.run.report().calls] == ["net"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from gradscope.transformers import GradscopeCallback

    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    words = torch.randint(0, 20, (32, 8))
    callback = GradscopeCallback(every=3, out=tmp_path / "run.db")
    transformers.Trainer(
        transformers.GPT2LMHeadModel(config),
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
    assert callback.run.steps == 6
    assert "transformer.wte" in {call.name for call in callback.run.report().calls}


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

"""Real models of every kind finish, and every parameter's gradient is the plain step's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradscope
from gradscope.records.json import to_data
from truth.cases import weighted_sum
from truth.compare import stats_differences

pytestmark = pytest.mark.slow


def check(model: nn.Module, inputs: Any, loss: Callable[[Any], Tensor] = weighted_sum) -> Any:
    """Inspects and takes a plain step, seeded alike; returns the report's data."""
    report = to_data(gradscope.inspect(model, inputs, loss=loss, seed=0))
    assert report["status"] in ("ok", "findings"), report["error"]
    assert report["calls"]
    assert report["calls"][0]["name"] == ""
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.manual_seed(0)
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    output = model(**inputs) if isinstance(inputs, dict) else model(*args)
    loss(output).backward()
    rows = {row["name"]: row for row in report["parameters"]}
    plain = dict(model.named_parameters())
    assert rows.keys() == plain.keys()
    reached = 0
    for name, parameter in plain.items():
        assert not list(stats_differences(rows[name]["gradient"], parameter.grad, name))
        reached += parameter.grad is not None
    assert reached > 10
    return report


def zoo(name: str, **options: Any) -> nn.Module:
    import torchvision.models

    torch.manual_seed(0)
    return torchvision.models.get_model(name, weights=None, **options)


def test_resnet50() -> None:
    report = check(zoo("resnet50"), torch.randn(2, 3, 64, 64))
    assert report["totals"]["parameters"] == 25_557_032


def test_deeplabv3_mobilenet() -> None:
    model = zoo("deeplabv3_mobilenet_v3_large", weights_backbone=None, aux_loss=True)
    report = check(model, torch.randn(2, 3, 64, 64))
    assert [t["path"] for t in report["calls"][0]["outputs"]] == ["out", "aux"]


def test_maskrcnn_in_train_mode() -> None:
    few = {"rpn_post_nms_top_n_train": 100, "box_batch_size_per_image": 32}
    model = zoo("maskrcnn_resnet50_fpn", weights_backbone=None, min_size=64, max_size=96, **few)
    masks = torch.zeros(1, 64, 64, dtype=torch.uint8)
    masks[:, 10:40, 10:40] = 1
    boxes, labels = torch.tensor([[10.0, 10.0, 40.0, 40.0]]), torch.tensor([1])
    targets = [{"boxes": boxes, "labels": labels, "masks": masks}]
    images = [torch.rand(3, 64, 64)]
    report = check(model.train(), (images, targets), lambda losses: sum(losses.values()))
    assert len(report["calls"][0]["outputs"]) == 5
    paths = [tensor["path"] for tensor in report["calls"][0]["inputs"]]
    assert paths == ["0.0", "1.0.boxes", "1.0.labels", "1.0.masks"]


def test_r3d_18() -> None:
    check(zoo("r3d_18"), torch.randn(1, 3, 4, 32, 32))


@pytest.mark.parametrize(
    ("name", "size"), [("vit_tiny_patch16_224", 224), ("mobilenetv3_small_050", 64)]
)
def test_timm(name: str, size: int) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    check(timm.create_model(name, pretrained=False), torch.randn(2, 3, size, size))


def local(folder: Path, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_gpt2_from_a_local_config(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 60, "n_positions": 16}
    path = local(tmp_path, model_type="gpt2", bos_token_id=0, eos_token_id=0, **sizes)
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(path)
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    ids = torch.randint(0, 60, (2, 9))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    report = check(model, inputs, lambda output: output.loss)
    [tied] = [row for row in report["parameters"] if row["aliases"]]
    assert (tied["name"], tied["aliases"]) == ("transformer.wte.weight", ["lm_head.weight"])
    own = to_data(gradscope.inspect(model, inputs, seed=0))
    assert own["loss"] == report["loss"]


def test_bert_from_a_local_config(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 48, "vocab_size": 60, "max_position_embeddings": 16}
    path = local(tmp_path, model_type="bert", **sizes)
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(path)
    model = transformers.AutoModelForSequenceClassification.from_config(config).train()
    ids = torch.randint(0, 60, (2, 9))
    report = check(model, {"input_ids": ids}, lambda output: output.logits.square().sum())
    assert report["calls"][0]["inputs"][0]["path"] == "input_ids"

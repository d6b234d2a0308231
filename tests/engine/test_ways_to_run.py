"""The other ways to run a model: narrow and wide dtypes, memory formats, autocast, wrappers, meta.

Each finishes, its numbers are the twin's, and its gradients those of the unobserved step.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from truth import nets, odd_nets
from truth.cases import Case, weighted_sum
from truth.compare import compare
from truth.reference import observe
from truth.steps import identical, inspected, plain_step, report_of, truth_of

import gradscope
from gradscope.records.json import to_data

pytestmark = pytest.mark.slow


def resnet() -> nn.Module:
    """As `resnet18`, with one block in each stage."""
    from torchvision.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10)


def vision_transformer() -> nn.Module:
    import torchvision.models

    options = {"hidden_dim": 32, "num_layers": 2, "num_heads": 4, "mlp_dim": 64}
    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_classes=10, **options
    )


def pictures() -> Tensor:
    return torch.randn(2, 3, 32, 32)


def tokens() -> Tensor:
    return torch.randint(0, 20, (2, 9))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "resnet": (resnet, pictures),
    "vit": (vision_transformer, pictures),
    "lstm": (nets.LstmClassifier, lambda: torch.randint(0, 30, (3, 7))),
    "transformer": (nets.TiedTransformer, tokens),
    "convolutions": (odd_nets.Plain, lambda: torch.randn(2, 3, 8, 8)),
}


def true_and_harmless(case: Case, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The report's numbers are the twin's; the gradients on the way are the plain step's.

    Returns:
        the report's data.
    """
    plain = plain_or_skip(case, dtype)
    truth = truth_of(case, dtype)
    model, inputs = case.build(dtype)
    same: dict[str, bool] = {}
    handles = [
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: same.update({name: identical(p.grad, plain[name])})
        )
        for name, parameter in model.named_parameters()
    ]
    # Without rules: to look deeper into what one finds takes further steps.
    report = inspected(model, inputs, case, ignore=("GS",))
    for handle in handles:
        handle.remove()
    assert same
    assert all(same.values()), [name for name, agrees in same.items() if not agrees]
    found = compare(report, truth)
    assert not found.differences, "\n".join(found.differences[:10])
    assert found.compared > 10
    return report


def plain_or_skip(case: Case, dtype: torch.dtype) -> dict[str, Tensor | None]:
    """Some processors lack what a dtype takes: oneDNN has no LSTM in bfloat16 below AVX-512."""
    try:
        return plain_step(case, dtype)
    except RuntimeError as error:
        if "primitive" not in str(error) and "not implemented for" not in str(error):
            raise
        pytest.skip(f"plain PyTorch cannot on this processor: {str(error).splitlines()[0]}")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    case = Case(name, *MODELS[name])
    report = true_and_harmless(case, dtype)
    assert report["run"]["dtype"] == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("name", MODELS)
def test_autocast(name: str) -> None:
    case = Case(name, *MODELS[name], autocast=torch.bfloat16)
    true_and_harmless(case)
    dtypes = {
        tensor["activation"]["dtype"]
        for call in report_of(case)["calls"]
        for tensor in call["outputs"]
    }
    assert "bfloat16" in dtypes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_channels_last(dtype: torch.dtype) -> None:
    def model() -> nn.Module:
        return resnet().to(memory_format=torch.channels_last)

    case = Case("channels-last", model, lambda: pictures().to(memory_format=torch.channels_last))
    assert case.build(dtype)[1].is_contiguous(memory_format=torch.channels_last)
    true_and_harmless(case, dtype)


def data_of(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """The report's data without what differs from run to run."""
    data = to_data(gradscope.inspect(model, inputs, loss=weighted_sum, seed=0))
    data["totals"].pop("seconds")
    return data


def rows(data: dict[str, Any]) -> list[Any]:
    return [data[key] for key in ("calls", "parameters", "totals", "loss")]


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A world of this one process."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "torch.compile": functools.partial(torch.compile, backend="eager"),
    "DataParallel": nn.DataParallel,
    "DistributedDataParallel": nn.parallel.DistributedDataParallel,
}


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapped_models_have_the_rows_of_the_module_inside(wrapper: str, unchanged: Any) -> None:
    torch.manual_seed(0)
    inner, inputs = resnet(), pictures()
    bare = data_of(inner, inputs)
    wrapped = WRAPPERS[wrapper](inner)
    with unchanged(wrapped):
        data = data_of(wrapped, inputs)
    assert rows(data) == rows(bare)
    assert data["run"]["model"] == "ResNet"
    assert {call["name"] for call in data["calls"]} >= {"", "conv1", "layer4.0.bn2"}
    [said] = [text for text in data["run"]["notices"] if text.startswith(wrapper)]
    assert said.endswith(
        {
            "torch.compile": "eager module, as it was written",
            "DataParallel": "names are that module's",
            "DistributedDataParallel": "before averaging",
        }[wrapper]
    )


@pytest.mark.usefixtures("process_group")
def test_wrappers_within_wrappers() -> None:
    torch.manual_seed(0)
    inner, inputs = odd_nets.Plain(), torch.randn(2, 3, 8, 8)
    bare = data_of(inner, inputs)
    wrapped = nn.parallel.DistributedDataParallel(torch.compile(inner, backend="eager"))
    data = data_of(wrapped, inputs)
    assert rows(data) == rows(bare)
    assert [text.partition(":")[0] for text in data["run"]["notices"][:2]] == [
        "DistributedDataParallel",
        "torch.compile",
    ]


@pytest.mark.usefixtures("process_group")
def test_a_distributed_model_trains_on_as_before() -> None:
    def gradients(*, look: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(odd_nets.Plain())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            if look:
                gradscope.inspect(model, torch.ones(2, 3, 8, 8), loss=weighted_sum, verify=True)
            optimizer.zero_grad()
            weighted_sum(model(torch.ones(2, 3, 8, 8))).backward()
            optimizer.step()
        return [parameter.grad for parameter in model.parameters()]

    for one, other in zip(gradients(look=True), gradients(look=False), strict=True):
        assert torch.equal(one, other)


def test_a_module_called_alike_is_no_wrapper() -> None:
    class DataParallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x)

    data = data_of(DataParallel(), torch.ones(1, 2))
    assert [call["name"] for call in data["calls"]] == ["", "module"]
    assert data["run"]["model"] == "DataParallel"


def test_wrapped_models_of_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n\n\ndef make() -> torch.nn.Module:\n"
        "    return torch.nn.DataParallel(torch.nn.Sequential(torch.nn.Linear(3, 2)))\n"
    )
    monkeypatch.chdir(tmp_path)
    report = gradscope.inspect("./net.py:make", torch.ones(1, 3), loss="sum")
    assert [call.name for call in report.calls] == ["", "0"]
    assert any(text.startswith("DataParallel: runs as its `module`") for text in report.run.notices)


def tiny_llama(**more: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 60}
    sizes |= {"num_key_value_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": 32}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes | more, use_cache=False)
    return transformers.LlamaForCausalLM(config).train()


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_activation_checkpoints_of_a_library(reentrant: bool) -> None:
    """The reference is the same model without its checkpoints."""
    model, ids = tiny_llama().double(), torch.randint(0, 60, (2, 9))
    loss = lambda output: weighted_sum(output.logits)  # noqa: E731
    truth = observe(model, (), {"input_ids": ids}, loss)
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": reentrant})
    if reentrant:  # a checkpoint of that kind wants an input that requires a gradient
        model.enable_input_require_grads()
        for call in truth.calls:
            if call.type == "LlamaDecoderLayer":  # its forward is what is checkpointed
                call.outputs[0].token.grad_fn = "CheckpointFunctionBackward"
    report = to_data(gradscope.inspect(model, {"input_ids": ids}, loss=loss, seed=0))
    recomputed = [call["name"] for call in report["calls"] if "recomputed" in call["notes"]]
    assert ("model.layers.1.mlp.up_proj" in recomputed) is reentrant
    found = compare(report, truth, noise=1e-12)
    assert not found.differences, "\n".join(found.differences[:10])
    assert found.compared > 100


def meta_config(folder: Path, **sizes: int) -> Path:
    """A Llama's config.json of the given size, as ``save_pretrained`` writes it."""
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256}
    config |= {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64}
    config |= {"num_key_value_heads": 8, "num_hidden_layers": 2, "rms_norm_eps": 1e-5}
    (folder / "config.json").write_text(json.dumps(config | sizes))
    return folder


def test_a_model_too_large_for_any_memory_on_meta(tmp_path: Path) -> None:
    """As wide as the one of 70 thousand million parameters, which has 80 layers like these two."""
    pytest.importorskip("transformers")
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = to_data(gradscope.inspect(f"hf:{meta_config(tmp_path)}", device="meta"))
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert used < 1500  # MiB; the weights alone would take 14 000
    assert data["status"] != "failed"
    assert data["totals"]["parameters"] == 2 * 128256 * 8192 + 8192 + 2 * 855_654_400
    assert data["loss"] is None
    assert data["totals"]["gradient_norm"] is None
    assert {tensor["activation"]["norm"] for c in data["calls"] for tensor in c["outputs"]} == {
        None
    }
    shapes = {call["name"]: call["outputs"][0]["activation"]["shape"] for call in data["calls"]}
    assert shapes["model.layers.1.mlp.gate_proj"] == [2, 16, 28672]
    assert shapes[""] == [2, 16, 128256]


def test_meta_says_what_the_processor_says(tmp_path: Path) -> None:
    """Shapes, dtypes, grad_fn, saved bytes and parameter counts are those of a run with values."""
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    folder = meta_config(tmp_path, **sizes, num_key_value_heads=2, vocab_size=99)
    plain = ["model.attn_implementation=eager"]
    meta, real = (
        to_data(gradscope.inspect(f"hf:{folder}", device=device, overrides=plain))
        for device in ("meta", "cpu")
    )
    assert outline(meta) == outline(real)
    assert meta["totals"]["parameters"] == real["totals"]["parameters"]
    assert not any("attention" in text for text in meta["run"]["notices"])


def test_meta_says_that_its_attention_keeps_more(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    folder = meta_config(tmp_path, **sizes, num_key_value_heads=2, vocab_size=99)
    meta, real = (
        to_data(gradscope.inspect(f"hf:{folder}", device=device)) for device in ("meta", "cpu")
    )
    more = meta["totals"]["saved_bytes"] - real["totals"]["saved_bytes"]
    # Older releases do not fuse an attention whose heads share keys.
    fused = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)
    assert more > 0 if fused else more >= 0
    assert any("no fused attention" in text for text in meta["run"]["notices"])
    assert not any("no fused attention" in text for text in real["run"]["notices"])


def outline(data: dict[str, Any]) -> list[Any]:
    """Of each call what needs no values."""
    return [
        [
            call["name"],
            call["saved_bytes"],
            [
                (t["path"], t["activation"]["shape"], t["activation"]["dtype"], t["grad_fn"])
                for t in call["outputs"]
            ],
            [t["gradient"] is None for t in (*call["inputs"], *call["outputs"])],
        ]
        for call in data["calls"]
    ]


def test_the_first_look_leaves_the_random_state() -> None:
    """In its own process: only the first pass imports what it needs."""
    code = (
        "import random, torch, gradscope; state = random.getstate()\n"
        "gradscope.inspect(torch.nn.Linear(2, 2), torch.ones(1, 2), loss='sum')\n"
        "assert random.getstate() == state"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

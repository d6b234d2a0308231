"""The bundled networks: what is shipped, what it scores, and that training repeats."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from gradscope.demo import DIGITS, WEIGHTS
from gradscope.demo import train as training

pytestmark = pytest.mark.slow

TOUR = Path(__file__).parents[2] / "docs" / "tour.md"
SPECS = tuple(WEIGHTS)
STORY = ("demo", "demo:lecture")
SCOUTERS = ("demo:scouter", "demo:scouter-negative")


def trained(spec: str) -> torch.nn.Module:
    model = training.RECIPES[spec].network()
    model.load_state_dict(safetensors.torch.load_file(WEIGHTS[spec]))
    return model


def digit(path: Path) -> torch.Tensor:
    with Image.open(path) as image:
        return torch.from_numpy(np.asarray(image).copy())[None, None] / 255


@pytest.fixture(scope="module")
def split() -> training.Split:
    pytest.importorskip("sklearn")
    return training.load_split()


def test_split_holds_out_what_it_says(split):
    assert split.train_images.shape == (1437, 1, 28, 28)
    assert split.held_images.shape == (360, 1, 28, 28)
    assert float(split.train_images.min()) == 0.0
    assert float(split.train_images.max()) == 1.0


def test_every_network_that_is_trained_is_shipped():
    assert set(training.RECIPES) == set(WEIGHTS) == {*STORY, *SCOUTERS}


@pytest.mark.parametrize("spec", STORY)
def test_shipped_accuracy_is_the_one_that_the_tour_states(spec, split):
    shown = re.search(
        rf"`{spec}`(?:\s+is\s+right)?\s+in\s+(\d+\.\d) %", TOUR.read_text(encoding="utf-8")
    )
    assert shown, f"the tour states no accuracy of {spec}"
    assert f"{training.accuracy(trained(spec), split) * 100:.1f}" == shown[1]


@pytest.mark.parametrize("spec", SCOUTERS)
def test_shipped_accuracy_and_attention_are_what_the_docstring_states(spec, split):
    model = trained(spec)
    stated = re.findall(r"(\d+\.\d) %", type(model).__doc__ or "")
    found = training.accuracy(model, split), training.attention_area(model, split)
    assert [f"{share * 100:.1f}" for share in found] == stated


@pytest.mark.parametrize("spec", SPECS)
def test_what_is_remarked(spec, split):
    said = training.remark(trained(spec), split)
    assert said.startswith("attention area " if spec in SCOUTERS else "dead logits ")


def test_only_the_lecture_net_has_dead_logits(split):
    assert training.dead_logits(trained("demo"), split) == []
    assert training.dead_logits(trained("demo:lecture"), split) == [0, 2, 4, 5, 8]


@pytest.mark.parametrize(("path", "label"), DIGITS, ids=[path.stem for path, _ in DIGITS])
def test_a_bundled_digit_is_the_held_out_one_to_the_last_bit(path, label, split):
    first = int((split.held_labels == label).nonzero()[0])
    assert torch.equal(digit(path)[0], split.held_images[first])
    assert path.stem == f"digit-{label}"


def test_the_default_digit_shows_the_fault():
    path, label = DIGITS[0]
    target = torch.tensor([label])
    losses = {}
    for spec in STORY:
        model = trained(spec)
        output = model(digit(path))
        losses[spec] = torch.nn.functional.cross_entropy(output, target)
        losses[spec].backward()
        norm = sum(float(p.grad.double().square().sum()) for p in model.parameters()) ** 0.5
        assert (norm == 0.0) is (spec == "demo:lecture")
    assert losses["demo"].item() < 0.01
    assert losses["demo:lecture"].item() == pytest.approx(np.log(10))


@pytest.mark.parametrize("spec", SPECS)
def test_training_repeats_bit_for_bit(spec, split):
    def short(seed: int) -> dict[str, torch.Tensor]:
        small = training.Split(
            split.train_images[:96], split.train_labels[:96], *[torch.empty(0)] * 2
        )
        recipe = dataclasses.replace(training.RECIPES[spec], epochs=3)
        return training.train(recipe, small, seed=seed).state_dict()

    first, again, other = short(0), short(0), short(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])


def test_training_leaves_the_weights_that_it_reports(tmp_path, monkeypatch, capsys, split):
    short = {s: dataclasses.replace(r, epochs=1) for s, r in training.RECIPES.items()}
    monkeypatch.setattr(training, "RECIPES", short)
    monkeypatch.setattr(training, "load_split", lambda: split)
    # The script's own settings of torch would outlive the test.
    monkeypatch.setattr(torch, "set_num_threads", lambda _count: None)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda _on: None)
    training.main(["--output", str(tmp_path / "new")])
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == sorted(["digits", *(path.name for path in WEIGHTS.values())])
    assert len(list((tmp_path / "new" / "digits").iterdir())) == 10
    printed = capsys.readouterr().out
    model = training.SimpleNet()
    model.load_state_dict(safetensors.torch.load_file(tmp_path / "new" / "simple.safetensors"))
    assert f"{training.accuracy(model, split):.1%}" in printed


def test_one_network_alone_is_trained(tmp_path, monkeypatch, capsys, split):
    short = {s: dataclasses.replace(r, epochs=1) for s, r in training.RECIPES.items()}
    monkeypatch.setattr(training, "RECIPES", short)
    few = training.Split(
        split.train_images[:64], split.train_labels[:64], split.held_images, split.held_labels
    )
    monkeypatch.setattr(training, "load_split", lambda: few)
    monkeypatch.setattr(torch, "set_num_threads", lambda _count: None)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda _on: None)
    training.main(["--only", "demo:scouter", "--output", str(tmp_path)])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["digits", "scouter.safetensors"]
    assert "lecture" not in capsys.readouterr().out


def test_the_attention_is_pressed_from_the_second_third_on():
    recipe = training.Recipe(training.ScouterNet, epochs=6, area=8.0)
    assert [recipe.area_at(epoch) for epoch in range(6)] == [0, 0, 0, 2, 4, 6]
    assert training.Recipe(training.SimpleNet).area_at(14) == 0


def test_the_area_is_part_of_the_loss(split):
    model = trained("demo:scouter")
    images, labels = split.held_images[:8], split.held_labels[:8]
    plain, pressed = (training.loss_of(model, images, labels, area) for area in (0.0, 10.0))
    assert (pressed - plain).item() == pytest.approx(10 * model.explained(images)[1].mean().item())


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "weights.safetensors"
    target.write_bytes(b"old")
    with pytest.raises(TypeError):
        training.write_atomic(target, "not bytes")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]

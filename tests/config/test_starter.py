"""`gradscope init` and `gradscope schema`: what they write is what the config reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hostile.commands import gradscope

from gradscope.commands import init, schema
from gradscope.config.loaded_config import read
from gradscope.config.schema import Config, json_schema
from gradscope.config.words import Text
from gradscope.config.yaml12 import parse
from gradscope.errors import ConfigError, OptionError

CONFIGS = sorted((Path(__file__).parents[2] / "configs").rglob("*.y*ml"))


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_init_writes_a_config_with_every_default(capsys):
    init.run()
    loaded = read("model.yaml")
    assert loaded.config == Config(model="demo")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "wrote model.yaml; next: gradscope inspect model.yaml\n")


def test_init_refuses_to_overwrite_without_force(tmp_path):
    path = tmp_path / "a b.yaml"
    path.write_text("mine")
    with pytest.raises(OptionError):
        init.run(path)
    assert path.read_text() == "mine"
    init.run(path, force=True)
    assert read(path).config.model == "demo"


def test_init_to_standard_output(tmp_path, capfd):
    init.run(Path("-"))
    out, err = capfd.readouterr()
    assert parse(Text.of_file("", out), out).data["model"] == "demo"
    assert err == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("spec", ["torchvision:resnet18", "hf:a dir: with # signs", "timm:a.b-c"])
def test_init_with_a_model(spec):
    init.run(model=spec)
    assert read("model.yaml").config.model == spec


def test_init_says_local_paths_from_the_configs_folder(tmp_path):
    (tmp_path / "net.py").write_text("class Net: ...\n")
    (tmp_path / "sub").mkdir()
    init.run(Path("sub/model.yaml"), model="./net.py:Net")
    assert read("sub/model.yaml").config.model == "../net.py:Net"


NET = """
from dataclasses import dataclass, field

@dataclass
class Config:
    width: int
    act: str = "relu"

@dataclass
class Options:
    rate: float = 0.1
    names: list = field(default_factory=list)

class Net:
    def __init__(self, cfg: Config, options: Options, size, *, norm=print, scale: float = 1e-5):
        pass
"""


def test_init_writes_each_argument_of_a_class(tmp_path, capsys):
    (tmp_path / "net.py").write_text(NET)
    init.run(model="./net.py:Net")
    lines = Path("model.yaml").read_text().splitlines()
    start = lines.index("model:")
    assert [" ".join(line.split()) for line in lines[start + 1 : start + 10]] == [
        "_target_: ./net.py:Net",
        "cfg: # Config",
        "width: ??? # int",
        '# act: "relu" # str',
        "options: # Options",
        "rate: 0.1 # float",
        "# names: … # list, default list",
        "size: ???",
        "# norm: … # default print",
    ]
    assert "a value for each of its 2 `???`, then gradscope inspect" in capsys.readouterr().err
    with pytest.raises(ConfigError) as caught:
        read("model.yaml")
    found = [(problem.message, problem.place.line) for problem in caught.value.problems]
    assert found == [
        ("`model.cfg.width` has no value yet", start + 4),
        ("`model.size` has no value yet", start + 9),
    ]
    Path("model.yaml").write_text(Path("model.yaml").read_text().replace("???", "8"))
    assert read("model.yaml").config.model["cfg"] == {"width": 8}


NETS = """
from torch import nn

class Picture(nn.Module):
    def __init__(self, width: int = 4):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, width, 3), nn.Linear(width * 26 * 26, 2)
    def forward(self, x):
        print("forward")
        return self.fc(self.conv(x).flatten(1))

class Timed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.fc = nn.Embedding(9, 4), nn.Linear(5, 4)
    def forward(self, x, t):
        return self.fc(x) + self.table(t)

class Mapped(nn.Linear):
    def __init__(self):
        super().__init__(3, 4)
    def forward(self, inputs):
        return super().forward(inputs["x"])

class Indexed(nn.Linear):
    def __init__(self):
        super().__init__(3, 4)
    def forward(self, x, edges):
        return super().forward(x)[edges[0]]

class Alone(nn.Linear):
    def __init__(self):
        super().__init__(3, 4)
    def forward(self):
        return self.weight * 2

class Broken(nn.Module):
    def __init__(self):
        raise ValueError("boo")

class Sized(Picture):
    def __init__(self, width):
        super().__init__(width)
"""
INPUTS = {
    "Picture": ["input: {shape: [2, 3, 28, 28]}        # inferred from conv, Conv2d"],
    "Timed": [
        "input:                                # inferred from fc, Linear and table, Embedding",
        "  x: {shape: [2, 5]}",
        "  t: {shape: [2], dtype: int64, fill: randint(9)}",
    ],
}


@pytest.mark.parametrize(("name", "lines"), INPUTS.items(), ids=INPUTS)
def test_init_writes_the_input_that_fits(name, lines, tmp_path, capfd):
    (tmp_path / "net.py").write_text(NETS)
    init.run(model=f"./net.py:{name}")
    assert "\n".join(lines) in Path("model.yaml").read_text()
    assert capfd.readouterr() == ("", "wrote model.yaml; next: gradscope inspect model.yaml\n")
    assert gradscope(["inspect", "model.yaml", "--fail-on", "never"]).code == 0


@pytest.mark.parametrize(("name", "keys"), [("Mapped", ["inputs"]), ("Indexed", ["x", "edges"])])
def test_init_leaves_the_input_open_that_nothing_fits(name, keys, tmp_path, capsys):
    (tmp_path / "net.py").write_text(NETS)
    init.run(model=f"./net.py:{name}")
    assert f"each of its {len(keys)} `???`, then gradscope inspect" in capsys.readouterr().err
    with pytest.raises(ConfigError) as caught:
        read("model.yaml")
    said = [problem.message for problem in caught.value.problems]
    assert said == [f"`input.{key}.shape` has no value yet" for key in keys]


@pytest.mark.parametrize("name", ["Alone", "Broken", "Sized"])
def test_init_says_nothing_of_an_input_that_is_not_known_yet(name, tmp_path):
    """Nothing is taken, the class cannot be built, or it lacks an argument first."""
    (tmp_path / "net.py").write_text(NETS)
    init.run(model=f"./net.py:{name}")
    assert "# input: {shape: [2, 3, 224, 224]}" in Path("model.yaml").read_text()


def test_init_runs_no_file_for_a_librarys_model(tmp_path):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError")
    init.run(model="torchvision:resnet18")


def test_init_says_what_a_file_has(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    with pytest.raises(ConfigError, match="has no `Nets`"):
        init.run(model="./net.py:Nets")
    assert not Path("model.yaml").exists()


def test_init_refuses_what_is_no_spec(tmp_path):
    with pytest.raises(ConfigError, match="`resnet18` is not a model spec"):
        init.run(model="resnet18")
    assert not list(tmp_path.iterdir())


def test_every_commented_line_of_the_starter_is_a_config_too():
    init.run()
    for line in Path("model.yaml").read_text().splitlines():
        if line.startswith(("# ", "#")) and line[2:].split(":")[0] in Config.model_fields:
            body = line[2:] if line[2:].startswith("model:") else f"model: demo\n{line[2:]}"
            Path("one.yaml").write_text(body)
            read("one.yaml")


def test_schema_is_one_that_validators_accept(tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    schema.run(output=Path("schema.json"))
    written = json.loads(Path("schema.json").read_text())
    assert written == json_schema()
    assert written["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(written)
    for body in (
        "stpes: 1",
        "steps: 0",
        "mode: x",
        "optimizer: {lr: 1}",
        "seed: -1",
        "device: gpu",
    ):
        text = f"model: demo\n{body}"
        data = parse(Text.of_file("", text), text).data
        assert list(jsonschema.Draft202012Validator(written).iter_errors(data)), body


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_reads_and_fits_the_schema(path):
    read(path)
    jsonschema = pytest.importorskip("jsonschema")
    body = path.read_text(encoding="utf-8")
    jsonschema.Draft202012Validator(json_schema()).validate(
        parse(Text.of_file("", body), body).data
    )


def test_every_key_of_the_schema_has_a_description():
    parts = json_schema()
    for properties in (parts["properties"], parts["$defs"]["Backward"]["properties"]):
        for name, part in properties.items():
            assert part.get("description") or "$ref" in part, name

"""`gradscope init` and `gradscope schema`: what they write is what the config reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradscope.commands import init, schema
from gradscope.config import Config, json_schema, read
from gradscope.config.texts import Text
from gradscope.config.yaml12 import parse
from gradscope.errors import ConfigError, OptionError, TargetError

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


def test_init_runs_no_file_for_a_librarys_model(tmp_path):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError")
    init.run(model="torchvision:resnet18")


def test_init_says_what_a_file_has(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    with pytest.raises(TargetError, match="has no `Nets`"):
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

"""Reports written and read: what comes back is what was there, and a damaged file is named."""

from __future__ import annotations

import copy
import json
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from gradscope.errors import ConfigError
from gradscope.records import json as record_json
from gradscope.records.answers import Answer, Explanation, NonFiniteOrigin
from gradscope.records.diff import CallDiff, DiffReport, TensorDiff
from gradscope.records.full_samples import (
    AccumulatedLayer,
    Accumulation,
    AccumulationCause,
    Change,
    GradientCheck,
    GradientNoise,
    Histogram,
    PerSample,
    SampleGradient,
    SharedLayer,
    Sketch,
    TaskGradients,
)
from gradscope.records.graph import Chain, GraphNode, SavedTensor
from gradscope.records.leaks import AxisResult, SourceLine
from gradscope.records.modules import (
    Link,
    ModuleCall,
    ModuleFacts,
    ParameterStats,
    UnitActivity,
    Unregistered,
)
from gradscope.records.report import Finding, PrecisionForecast, Report
from gradscope.records.run import (
    DeviceMesh,
    ErrorRecord,
    Frame,
    LossPart,
    ParallelRun,
    ParameterPlacement,
    RelatedLine,
    RunInfo,
    Seconds,
    StepParameter,
    StepRecord,
    Totals,
    Verification,
)
from gradscope.records.tensors import TensorRecord, TensorStats
from gradscope.records.transformer import AttentionCall, ExpertCall, ResidualCall

STATS = TensorStats((2, 3), "float32", 6, 1.5, -0.1, 0.3, -1.0, 1.0, 1, 0, 0)
ODD = TensorStats((3,), "complex64", 3, nan=1, inf=1, values=("nan", 1.5, ("-inf", 0.0)))
TENSOR = TensorRecord("0", STATS, ODD, "AddBackward0", True)
RUN = RunInfo(
    *("net.yaml", "cpu", "float32", "train", 0, 2, "cross_entropy", "bfloat16", "SGD", 2),
    verified=Verification(True, False, 1e-9),
    notices=("input: randn [2, 3]",),
)
FULL = Report(
    status="failed",
    run=RUN,
    versions={"torch": "2.6.0"},
    config={"model": {"_target_": "torch.nn.Linear"}, "layers": ["**"], "seed": 0, "weights": None},
    loss=2.31,
    totals=Totals(6, 6, 0.5, 24, 1, 1, Seconds(0.1, 0.2)),
    calls=(
        ModuleCall("fc", "Linear", 0, 1, ("tied",), False, ("note",), (TENSOR,), (TENSOR,), 24),
    ),
    parameters=(
        ParameterStats(
            *("fc.weight", (2, 3), True, STATS, ODD, 0.1, ("tied.weight",), True),
            moved=False,
            misspelt=("require_grad",),
        ),
    ),
    history=(
        StepRecord(0, 1, None, "nan", 0.5, (TENSOR,), (StepParameter("fc.weight", 0.5, 0.1),)),
    ),
    findings=(
        Finding("GS101", "vanishing", "error", "fc", "message", "advice", 0, 1.0, 2.0, "here", "x"),
    ),
    chains=(
        Chain(
            "fc",
            0,
            "",
            (
                GraphNode(
                    0,
                    "Add",
                    "function",
                    to=(None, (1, 0)),
                    saved=(SavedTensor("self", (2,), "float32", 8, 0),),
                ),
                GraphNode(1, "p", "input"),
            ),
        ),
    ),
    error=ErrorRecord(
        "shape-mismatch",
        "no",
        "forward",
        "fc",
        0,
        "net.py:1",
        "fix",
        "RuntimeError",
        (STATS,),
        (Frame("net.py", 1, "forward", "x"),),
        ("2 met 3",),
        (RelatedLine("saved", "net.py", 2, "y = x", "fc", 0),),
    ),
    modules=(
        ModuleFacts("bn", "BatchNorm2d", ("_NormBase",), False, 1, ("norm",), ("bn.weight",)),
        ModuleFacts(
            *("drop", "Mine", (), True, 0),
            written=("drop.seen",),
            settings={"p": 0.5, "inplace": True, "momentum": None, "count": 3},
            misspelt=("requires_grad",),
        ),
    ),
    unregistered=(Unregistered("", "layers", ((3, 4),)),),
    elsewhere=("fc.bias",),
    attention=(AttentionCall("attn", 0, "softmax", 4, 4, 8, *((0.5, None),) * 8, part=1),),
    experts=(ExpertCall("moe", 0, 2, 8, (0.25, 0.75), 1.75, 0.6),),
    residual=(ResidualCall("h.0", 0, "float32", 1.0, 3.0, 4.0, 4.0, None, None),),
    links=(Link("ReluBackward0", "LogSoftmaxBackward0", "", 0, None, None, shared=True),),
    activity=(UnitActivity("relu", "act", 0, 8, 32, 2, 1, "net.py:3"),),
    histograms=(Histogram("fc", "gradient", "", 6, 0, -2, (0, 1), (2, 1), 1, 1, 0),),
    precision=(PrecisionForecast("fc", "activation", "float16", 1.0, 6, 0.5, 0.0, 0),),
    answers=(
        Answer(
            *("fc.bias", "parameter", "zero", "message", "masked"),
            recovers=False,
            code="GS103",
            explained_by=Explanation("GS806", "optimizer"),
        ),
    ),
    losses=(LossPart("ce", 1.0), LossPart("kl", None, "nan")),
    gradient_checks=(GradientCheck("fc", "Linear", 0, "weight", "wrong", 1.0, 1.01, "note"),),
    sketches=(Sketch("fc", "gradient", "fc.weight", 1.0, "AAAA", None, 1e-6, 1),),
    accumulation=Accumulation(
        *(False, (2, 1), "float64", 1e-8, 0.5),
        layers=(AccumulatedLayer("fc", 6, 0.5, ("loss",)),),
        causes=(AccumulationCause("loss", "message", "advice", ("fc",), (0.6, 0.4)),),
    ),
    interventions=(Change("fc", "grad_input", "scale", 2.0, 0, "0", STATS, STATS, 1.0, "note"),),
    parallel=ParallelRun(
        "fsdp x tp",
        4,
        {"dp": 2, "tp": 2},
        2,
        meshes=(DeviceMesh(0, ("dp", "tp"), (2, 2), (0, 1, 2, 3), (0, 0)),),
        placements=(
            ParameterPlacement(1, "fc.weight", (4, 4), (2, 2), 0, ("S(0)", "S(1)"), ("S(0)", "P")),
        ),
        not_reduced=("fc.bias",),
    ),
    leaks=(
        AxisResult(
            "time",
            "leaks",
            "`softmax` lets a position see later ones",
            effect=0.5,
            reach="3 tokens ahead",
            layer="attention",
            call=0,
            operation="softmax",
            source=SourceLine("net.py", 14, "scores.softmax(-1)"),
            finite=True,
            gradient=None,
        ),
    ),
    tasks=TaskGradients(
        ("ce", "kl"),
        ((0, 1),),
        SharedLayer(None, 4, (1.0, None), (None,)),
        (SharedLayer("fc", 4, (1.0, 2.0), (0.5,)),),
        (("head", "ce"),),
    ),
    per_sample=PerSample(
        (SampleGradient(0, 2.0, 1.0, 0.9, 0.1, (("fc", 0.8),)), SampleGradient(1, *[None] * 4)),
        1.5,
        0.0,
        (GradientNoise(None, 12.0, 3.0, None),),
        ("bn",),
    ),
    non_finite=(
        NonFiniteOrigin("nan", "forward", "message", "sqrt", inputs=(STATS,), spread=("fc",)),
    ),
)


def data() -> dict[str, Any]:
    """A full report as JSON data, free to damage."""
    return json.loads(record_json.dumps(FULL))


def test_everything_comes_back() -> None:
    assert record_json.loads(record_json.dumps(FULL), Report) == FULL


def test_the_least_report_comes_back() -> None:
    least = Report("ok", RUN)
    assert record_json.loads(record_json.dumps(least), Report) == least


def reachable(kind: Any) -> set[type]:
    """The records that a report's fields can hold, from their annotations."""
    if is_dataclass(kind):
        inner = get_type_hints(kind).values()
        return {kind}.union(*(reachable(hint) for hint in inner))  # type: ignore[arg-type]
    return set().union(*(reachable(argument) for argument in get_args(kind)))


def test_the_full_report_holds_every_record() -> None:
    """A record that is added later has to be added above too."""
    met: set[type] = set()
    stack: list[Any] = [FULL]
    while stack:
        item = stack.pop()
        if is_dataclass(item):
            met.add(type(item))
            stack += [getattr(item, f.name) for f in fields(item)]
        elif isinstance(item, tuple | list):
            stack += item
    assert met == reachable(Report)


def test_keys_stand_in_the_order_of_the_contract() -> None:
    keys = list(data())
    assert keys[:5] == ["schema", "status", "run", "versions", "config"]
    assert list(data()["calls"][0]["outputs"][0]["activation"])[:4] == [
        "shape",
        "dtype",
        "numel",
        "norm",
    ]


def test_what_few_records_fill_is_written_only_there() -> None:
    plain, odd = data()["modules"]
    assert not {"settings", "written", "misspelt"} & plain.keys()
    assert odd["settings"] == {"p": 0.5, "inplace": True, "momentum": None, "count": 3}
    bare = json.loads(record_json.dumps(replace(FULL, modules=(), links=(), non_finite=())))
    assert not {"modules", "links", "non_finite"} & bare.keys()


def test_values_are_written_only_where_there_are_any() -> None:
    call = data()["calls"][0]["inputs"][0]
    assert "values" not in call["activation"]
    assert call["gradient"]["values"] == ["nan", 1.5, ["-inf", 0.0]]


def test_numbers_that_json_lacks_become_null() -> None:
    text = record_json.dumps(
        replace(FULL, loss=float("nan"), totals=Totals(gradient_norm=float("inf")))
    )
    read = json.loads(text, parse_constant=lambda token: pytest.fail(f"{token} is no JSON"))
    assert read["loss"] is None
    assert read["totals"]["gradient_norm"] is None


def test_strange_names_come_back() -> None:
    for name in ("", "模型", "a\nb\x1b[31m", "\u202e", '"', "\ud800"):
        call = replace(FULL.calls[0], name=name)
        report = replace(FULL, calls=(call,))
        assert record_json.loads(record_json.dumps(report), Report).calls[0].name == name


def test_keys_of_a_later_version_are_passed_over() -> None:
    damaged = data()
    damaged["tomorrow"] = {"a": 1}
    damaged["calls"][0]["activity"] = [1, 2]
    assert record_json.loads(json.dumps(damaged), Report) == FULL


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(b"\xef\xbb\xbf" + record_json.dumps(FULL).encode())
    assert record_json.load(tmp_path / "r.json", Report) == FULL


DAMAGES: dict[str, tuple[tuple[str | int, ...], Any, str]] = {
    "a word for a count": (("totals", "parameters"), "many", "totals.parameters"),
    "a fraction for a count": (("totals", "parameters"), 1.5, "totals.parameters"),
    "a truth for a count": (("calls", 0, "order"), True, "calls[0].order"),
    "a truth for a number": (("loss",), False, "loss"),
    "a word for a ratio": (("parameters", 0, "value", "norm"), "1", "parameters[0].value.norm"),
    "a number for a truth": (("parameters", 0, "requires_grad"), 1, "parameters[0].requires_grad"),
    "a word for a list": (("calls",), "none", "calls"),
    "a mapping for a list": (("calls",), {}, "calls"),
    "a list for a record": (("calls", 0), [], "calls[0]"),
    "null for a name": (("calls", 0, "name"), None, "calls[0].name"),
    "a number for a name": (("calls", 0, "name"), 3, "calls[0].name"),
    "a word in a shape": (("parameters", 0, "shape"), [1, "2"], "parameters[0].shape[1]"),
    "half an edge": (("chains", 0, "nodes", 0, "to"), [[1]], "chains[0].nodes[0].to[0]"),
    "a list for versions": (("versions",), [], "versions"),
    "a number for a version": (("versions", "torch"), 2, "versions.torch"),
    "a count for the config": (("config",), 3, "config"),
    "an integer beyond floats": (("loss",), 10**400, "loss"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_field_is_named(case: str) -> None:
    path, value, key = DAMAGES[case]
    damaged: Any = data()
    place = damaged
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ConfigError, match="expected") as caught:
        record_json.loads(json.dumps(damaged), Report, file="r.json")
    assert str(caught.value.problems[0].place) == f"r.json ({key})"


@pytest.mark.parametrize("path", [("run",), ("run", "model"), ("calls", 0, "type"), ("status",)])
def test_a_missing_field_is_named(path: tuple[str | int, ...]) -> None:
    damaged: Any = data()
    place = damaged
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    with pytest.raises(ConfigError, match="lacks") as caught:
        record_json.loads(json.dumps(damaged), Report)
    assert str(path[-1]) in str(caught.value)


@pytest.mark.slow
def test_every_leaf_replaced_is_read_or_refused() -> None:
    """No damage of one field ends in anything but a report or a ConfigError.

    Of the items of a list, the same field is damaged once for each kind of its value.
    """
    whole = data()
    stack: list[tuple[Any, Any, tuple[str, ...]]] = [(whole, key, (key,)) for key in whole]
    seen = set()
    while stack:
        place, key, path = stack.pop()
        value = place[key]
        if isinstance(value, dict):
            stack += [(value, inner, (*path, inner)) for inner in value]
        elif isinstance(value, list):
            stack += [(value, i, (*path, "#")) for i in range(len(value))]
        if (path, type(value)) in seen:
            continue
        seen.add((path, type(value)))
        for wrong in (None, -1, 1e300, "x", [], {}, [None], True):
            place[key] = wrong
            try:
                record_json.loads(json.dumps(whole), Report)
            except ConfigError:
                pass
            finally:
                place[key] = value
    assert whole == data()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the report is empty"),
        ("{", "not JSON: Expecting property name"),
        ('{"a": 1}\n{}', "not JSON: Extra data"),
        ("[]", "it has no `schema`"),
        ("null", "it has no `schema`"),
        ("{}", "it has no `schema`"),
        ('{"schema": "gradscope.other/1"}', 'its `schema` is "gradscope.other/1"'),
        ('{"schema": ["\\u001b[31m"]}', r"its `schema` is \[\"\\u001b"),
        ('{"schema": NaN}', "not strict JSON: `NaN` is not a JSON number"),
        ('{"loss": -Infinity}', "not strict JSON: `-Infinity`"),
        ("9" * 5000, "not strict JSON"),
        ("[" * 100_000, "nests too deeply"),
        ("[" * 500 + "]" * 500, "it has no `schema`"),
    ],
)
def test_what_is_no_report_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        record_json.loads(text, Report)
    said = str(caught.value)
    assert message.replace("\\", "") in said.replace("\\", "")
    assert said.isprintable()


def test_a_number_beyond_floats_is_refused() -> None:
    text = record_json.dumps(FULL).replace('"loss": 2.31', '"loss": 1e999')
    with pytest.raises(ConfigError, match="expected a number"):
        record_json.loads(text, Report)


def test_a_deep_config_is_refused_before_it_can_exhaust_the_stack() -> None:
    damaged = data()
    deep: Any = 0
    for _ in range(150):
        deep = [{"in": deep}]
    damaged["config"] = {"input": deep}
    with pytest.raises(ConfigError, match="nests too deeply"):
        record_json.loads(json.dumps(damaged), Report)


def test_a_syntax_error_is_shown_in_its_line() -> None:
    with pytest.raises(ConfigError) as caught:
        record_json.loads('{\n "a": nope\n}', Report, file="r.json")
    shown = caught.value.render().splitlines()
    assert shown[1] == "  --> r.json:2:7"
    assert shown[2:4] == [' 2 |  "a": nope', "   |       ^"]


@pytest.mark.parametrize("line", ["x" * 10_000, '"\x1b[31m" nope', '"\u2028" nope'])
def test_a_line_that_would_not_help_is_not_shown(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        record_json.loads(f'{{"a":\n{line}', Report)
    assert line not in caught.value.render()


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes(b'{"name": "\xe9"}')
    for path, message in (
        (tmp_path / "missing.json", "there is no file"),
        (tmp_path, "cannot read"),
        (tmp_path / "latin.json", "it is not UTF-8 text"),
    ):
        with pytest.raises(ConfigError, match=message):
            record_json.load(path, Report)


def test_data_is_left_alone() -> None:
    before = copy.deepcopy(FULL)
    record_json.dumps(FULL)
    assert before == FULL


def test_a_report_of_the_first_schema_is_read_under_its_old_keys() -> None:
    text = record_json.dumps(FULL).replace('"gradscope.report/2"', '"gradscope.report/1"')
    for new, old in (("upstream", "behind"), ("not_reduced", "untold")):
        assert f'"{new}":' in text
        text = text.replace(f'"{new}":', f'"{old}":')
    assert record_json.loads(text, Report) == FULL
    assert record_json.loads_shown(text) == FULL
    assert record_json.dumps(record_json.loads(text, Report)) == record_json.dumps(FULL)


def test_a_comparison_of_the_first_schema_is_read_under_its_old_keys() -> None:
    gap = TensorDiff(0.5, 0.8, 1.0, 1e-7, 0.25, 1e-8, diverges=True)
    call = CallDiff("fc", "Linear", 0, "", (2,), gap, None)
    report = DiffReport("findings", FULL.run, FULL.run, calls=(call,), measured="outputs")
    text = record_json.dumps(report).replace('"gradscope.diff/2"', '"gradscope.diff/1"')
    for new, old in (
        ("teacher_forced_noise", "own_noise"),
        ("teacher_forced", "own"),
        ("diverges", "departs"),
    ):
        assert f'"{new}":' in text
        text = text.replace(f'"{new}":', f'"{old}":')
    text = text.replace('"measured": "outputs"', '"measured": "ends"')
    assert record_json.loads(text, DiffReport) == report

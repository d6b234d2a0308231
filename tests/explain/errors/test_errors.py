"""Each program that raises is explained: kind, module, facts, lines; its mended twin runs."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradscope
from explain.errors import (
    dtypes_and_devices,
    graphs_and_losses,
    inplace,
    ranges_and_mistakes,
    shapes,
)
from explain.errors.cases import PROGRAMS, ROLES, Broken, Program
from gradscope import plugins
from gradscope.api import failing
from gradscope.errors import Interrupted, ModelError
from gradscope.explain.errors import explain_exception as errors
from gradscope.explain.errors.explanation import Again, Expression
from gradscope.records import json as record_json
from gradscope.records.report import Report
from gradscope.records.run import ErrorRecord, RelatedLine
from gradscope.reporters.views import View

terminal = plugins.load("gradscope.reporters.report", "terminal")

# Importing them fills the table.
FILES = (inplace, graphs_and_losses, shapes, dtypes_and_devices, ranges_and_mistakes)
X = torch.linspace(-1, 1, 12).reshape(3, 4)
KINDS = {
    "inplace-modification",
    "backward-twice",
    "no-grad-root",
    "non-scalar-loss",
    "shape-mismatch",
    "dtype-mismatch",
    "device-mismatch",
    "target-out-of-range",
    "index-out-of-range",
    "out-of-memory",
    "model-error",
}

# What PyTorch says of programs that are as wrong as their users write them.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using a target size:UserWarning"),
    pytest.mark.filterwarnings("ignore:Casting complex values:UserWarning"),
]


def inspected(program: Program) -> Report:
    torch.manual_seed(0)
    return gradscope.inspect(
        program.model,
        program.inputs,
        target=program.target,
        loss=program.loss,
        **program.settings,
    )


def failed(program: Program) -> Report:
    with pytest.raises(ModelError) as raised:
        inspected(program)
    report = raised.value.report
    assert isinstance(report, Report)
    assert report.error is not None
    return report


def explained(program: Program) -> ErrorRecord:
    error = failed(program).error
    assert error is not None
    return error


def faults(broken: Broken, error: ErrorRecord) -> list[str]:
    """Return the faults and gaps of an explanation."""
    said = " ".join([*error.details, error.advice or ""])
    wrong = [f"does not say {fact}" for fact in broken.facts if fact not in said]
    if (error.kind, error.name) != (broken.kind, broken.module):
        wrong.append(f"{error.kind} in {error.name}")
    for role, place in broken.marked().items():
        found = [f"{one.file}:{one.line}" for one in error.related if one.role == role]
        found = [error.location or ""] if role == "here" else found
        if found != [place]:
            wrong.append(f"{role} at {found}, not {place}")
    return wrong


def test_the_table_is_whole() -> None:
    assert {case.build.__module__ for case in PROGRAMS.values()} == {f.__name__ for f in FILES}
    assert len(PROGRAMS) == 118
    counts = Counter(case.kind for case in PROGRAMS.values())
    assert counts.keys() == KINDS
    assert min(counts.values()) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_broken_program(name: str) -> None:
    case = PROGRAMS[name]
    error = explained(case.build(False))
    assert error.details
    assert error.advice
    assert faults(case, error) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_mended_twin_runs(name: str) -> None:
    assert inspected(PROGRAMS[name].build(True)).error is None


def test_the_judge_rejects() -> None:
    case = PROGRAMS["residual_added_into_its_own_input"]
    places = case.marked()
    assert set(places) == {"saved", "mutated"} < set(ROLES)
    record = ErrorRecord("inplace-modification", "m", "backward", name="elsewhere")
    assert len(faults(case, record)) == len(case.facts) + 1 + 2
    file, _, line = places["saved"].partition(":")
    wrong = ErrorRecord(
        *("inplace-modification", "m", "backward", "block"),
        details=case.facts,
        related=(
            RelatedLine("saved", file, int(line)),
            RelatedLine("mutated", file, int(line)),
        ),
    )
    assert len(faults(case, wrong)) == 1


def state_of(model: nn.Module) -> dict[str, Any]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "values": {name: t.detach().clone() for name, t in tensors.items()},
        "objects": {name: id(t) for name, t in tensors.items()},
        "versions": {name: t._version for name, t in tensors.items()},
        "gradients": {name: t.grad for name, t in tensors.items()},
        "modes": [m.training for m in model.modules()],
        "hooks": [
            (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for m in model.modules()
        ],
        "attributes": [
            {k: id(v) for k, v in m.__dict__.items() if not k.startswith("_")}
            for m in model.modules()
        ],
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_live_model_is_given_back(name: str) -> None:
    program = PROGRAMS[name].build(False)
    for p in program.model.parameters():
        if p.device.type != "meta":
            p.grad = torch.full_like(p, 0.5)
    before = state_of(program.model)
    torch.manual_seed(3)
    random = torch.get_rng_state()
    with pytest.raises(ModelError):
        gradscope.inspect(
            program.model,
            program.inputs,
            target=program.target,
            loss=program.loss,
            **program.settings,
        )
    after = state_of(program.model)
    assert torch.equal(torch.get_rng_state(), random)
    values, found = before.pop("values"), after.pop("values")
    assert values.keys() == found.keys()
    for key, value in values.items():
        assert value.device.type == "meta" or torch.equal(value, found[key]), key
    gradients, left = before.pop("gradients"), after.pop("gradients")
    assert all(gradients[key] is left[key] for key in gradients)
    assert before == after


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exponential_shifted_in_place", "state_of_an_lstm_carried_over"])
@pytest.mark.parametrize("width", [40, 60, 80, 120, None])
def test_text_at_each_width(name: str, width: int | None) -> None:
    report = failed(PROGRAMS[name].build(False))
    error = report.error
    assert error is not None
    text = terminal.render(report, View(width=width))
    words = " ".join(text.split())
    for sentence in error.details:
        assert " ".join(sentence.split()) in words
    for one in error.related:
        assert (
            f"{one.file}:{one.line}" in text.replace("\n", "") or f"{one.file}:{one.line}" in words
        )
        assert one.role in words


@pytest.mark.parametrize(
    "name", ["exponential_shifted_in_place", "grey_images_into_a_colour_network"]
)
def test_json_keeps_what_was_told(name: str) -> None:
    report = failed(PROGRAMS[name].build(False))
    assert report.error is not None
    data = json.loads(record_json.dumps(report))["error"]
    assert data["details"] == list(report.error.details)
    assert [one["role"] for one in data.get("related", [])] == [
        one.role for one in report.error.related
    ]
    assert record_json.loads(record_json.dumps(report), Report).error == report.error


def test_the_one_sentence_names_what_met() -> None:
    with pytest.raises(ModelError) as raised:
        inspected(PROGRAMS["grey_images_into_a_colour_network"].build(False))
    text = raised.value.render()
    assert "forward raised in `conv1`" in text
    assert "`conv1.weight` expects 3 channels" in text


class Net(nn.Module):
    """One layer, and whatever happens around it."""

    def __init__(self, forward: Any, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.body = forward

    def forward(self, *args: Any) -> Any:
        return self.body(self, *args)


def test_a_caught_error_is_not_the_one() -> None:
    def body(net: Any, x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(RuntimeError):
            net.bad(x)
        return x @ net.w

    error = explained(Program(Net(body, bad=nn.Linear(7, 4), w=nn.Parameter(torch.ones(5, 2))), X))
    assert error.name == ""
    assert "`net.w` [5, 2]" in error.details[0]


def test_a_chained_error_names_its_cause() -> None:
    def body(net: Any, x: torch.Tensor) -> torch.Tensor:
        try:
            return net.bad(x)
        except RuntimeError as reason:
            raise ValueError("a block got a wrong size") from reason

    error = explained(Program(Net(body, bad=nn.Linear(7, 4)), X))
    assert error.kind == "model-error"
    assert "RuntimeError" in error.details[0]


@pytest.mark.parametrize(
    ("loss", "target", "kind", "fix"),
    [
        ("cross_entropy", torch.tensor([0.0, 1, 1]), "dtype-mismatch", "`target.long()`"),
        ("cross_entropy", torch.tensor([[0], [1], [1]]), "shape-mismatch", "`target.squeeze(1)`"),
        ("cross_entropy", torch.tensor([0, 1]), "shape-mismatch", "give 3 class ids"),
        ("mse", torch.ones(3), "shape-mismatch", "give a target of shape [3, 4]"),
    ],
)
def test_targets_that_a_named_loss_refuses(
    loss: str, target: torch.Tensor, kind: str, fix: str
) -> None:
    model = nn.Linear(4, 4)
    error = explained(Program(model, X, target, loss))
    assert (error.kind, error.phase, error.name) == (kind, "loss", None)
    assert fix in (error.advice or "")
    assert str(list(target.shape)) in error.message


def test_a_recursion_is_told_once_and_is_no_bug_of_the_tool() -> None:
    report = failed(PROGRAMS["forward_that_calls_itself"].build(False))
    error = report.error
    assert error is not None
    own = [f"{frame.file}:{frame.line}" for frame in error.frames]
    assert own.count(error.location or "") == 1
    assert error.call == 0
    with pytest.raises(ModelError):
        gradscope.why(PROGRAMS["forward_that_calls_itself"].build(False).model, X)


def test_a_deep_model_that_meets_the_limit_is_no_endless_one() -> None:
    def body(net: Any, x: torch.Tensor) -> torch.Tensor:
        raise RecursionError("maximum recursion depth exceeded")

    error = explained(Program(Net(body, fc=nn.Linear(4, 4)), X))
    assert (error.kind, error.details) == ("model-error", ())
    assert "sys.setrecursionlimit" in (error.advice or "")


def test_words_of_the_users_own_are_no_sign() -> None:
    def body(net: Any, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("target size is not the same as input size")

    error = explained(Program(Net(body, fc=nn.Linear(4, 4)), X))
    assert (error.kind, error.advice) == ("model-error", None)


def test_a_hook_of_the_users_own() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda module, args, output: output.view(5, 5))
    error = explained(Program(model, X))
    assert (error.kind, error.name) == ("shape-mismatch", "0")
    assert "`output` [3, 4] has 12 elements" in error.details[0]


@pytest.mark.filterwarnings("ignore:`torch.jit.script:FutureWarning")
def test_data_parallel_and_scripted_modules() -> None:
    error = explained(Program(nn.DataParallel(nn.Sequential(nn.Linear(5, 2))), X))
    assert (error.name or "").endswith("0")
    assert "in_features = 5" in error.details[0]
    scripted = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(5, 2))))
    error = explained(Program(scripted, X))
    assert error.kind == "shape-mismatch"
    assert not any("in_features" in one for one in error.details)


def test_a_function_of_the_users_own_saved_it() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return 2 * ctx.saved_tensors[0] * grads[0]

    def body(net: Any, x: torch.Tensor) -> torch.Tensor:
        h = net.fc(x) * 1
        y = Square.apply(h)
        h += 1
        return y + h

    error = explained(Program(Net(body, fc=nn.Linear(4, 4)), X))
    assert "`Square` saved `h` [3, 4] at version 0." in error.details
    assert error.advice == "write `h = h + 1`"
    assert error.related[0].code == "h += 1"


def test_data_has_versions_of_its_own() -> None:
    def body(net: Any, x: torch.Tensor) -> torch.Tensor:
        h = net.fc(x).exp()
        h.data.mul_(2)
        h.add_(1)
        return h

    error = explained(Program(Net(body, fc=nn.Linear(4, 4)), X))
    mutated = [one.code for one in error.related if one.role == "mutated"]
    assert mutated == ["h.add_(1)"]


def test_a_write_in_another_thread_is_not_invented() -> None:
    def body(net: Any, x: torch.Tensor) -> torch.Tensor:
        h = net.fc(x).exp()
        worker = threading.Thread(target=lambda: h.detach().add_(1))
        worker.start()
        worker.join()
        return h

    error = explained(Program(Net(body, fc=nn.Linear(4, 4)), X))
    assert error.kind == "inplace-modification"
    assert error.related == ()


def test_a_checkpoint_beside_the_one_that_saved_it() -> None:
    def body(net: Any, x: torch.Tensor) -> torch.Tensor:
        h = net.fc(x).exp()
        y = checkpoint(lambda t: net.g(t).sigmoid(), h, use_reentrant=False)
        h += 1
        return y + h

    error = explained(Program(Net(body, fc=nn.Linear(4, 4), g=nn.Linear(4, 4)), X))
    assert [one.role for one in error.related] == ["saved", "mutated"]
    assert error.related[1].code == "h += 1"


def test_inner_layers_of_a_library_are_not_told_by_the_outer_call() -> None:
    error = explained(PROGRAMS["transformer_of_another_width"].build(False))
    assert "self.embed(x)" not in " ".join(error.details)


def test_gradients_of_foreign_leaves_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = torch.ones(4, requires_grad=True)
    leaf.grad = kept = torch.full((4,), 7.0)

    def body(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = (net.fc(x) * leaf).exp()
        y.sum().backward()
        return y

    program = Program(Net(body, fc=nn.Linear(4, 4)), X)
    monkeypatch.setattr(failing, "PATIENCE", -1.0)
    assert explained(program).kind == "backward-twice"
    once = kept - 7.0  # the user's own backward adds to his own leaf
    monkeypatch.undo()
    assert explained(program).details
    assert leaf.grad is kept
    assert torch.allclose(kept, 7.0 + 2 * once)


def test_nothing_is_said_where_the_second_run_differs() -> None:
    turns = iter([1, 0, 0, 0])

    def body(net: Any, x: torch.Tensor) -> torch.Tensor:
        h = net.fc(x).exp()
        if next(turns, 0):
            h.add_(1)
        return h

    error = explained(Program(Net(body, fc=nn.Linear(4, 4)), X))
    assert (error.kind, error.details, error.related) == ("inplace-modification", (), ())


def counted(calls: list[int]) -> Program:
    def body(net: Any, x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return net.fc(x).exp().add_(1)

    return Program(Net(body, fc=nn.Linear(4, 4)), X)


def test_a_slow_run_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(failing, "PATIENCE", -1.0)
    error = explained(counted(calls))
    assert len(calls) == 1
    assert error.details == ()
    monkeypatch.undo()
    assert explained(counted(calls)).details
    assert len(calls) == 3


@pytest.mark.parametrize("trouble", [ValueError, KeyboardInterrupt, SystemExit])
def test_trouble_in_the_second_run_hides_nothing(trouble: type[BaseException]) -> None:
    calls: list[int] = []

    def body(net: Any, x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 1:
            raise trouble("again")
        return net.fc(x).exp().add_(1)

    error = explained(Program(Net(body, fc=nn.Linear(4, 4)), X))
    assert (error.kind, error.details) == ("inplace-modification", ())
    assert len(calls) == 2


@pytest.mark.parametrize("where", ["_explained", "failed_operation"])
def test_trouble_in_the_explanation_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def raises(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(errors, where, raises)
    error = explained(PROGRAMS["grey_images_into_a_colour_network"].build(False))
    assert (error.kind, error.name, error.details) == ("shape-mismatch", "conv1", ())


def test_an_interruption_is_not_explained() -> None:
    calls: list[int] = []

    def body(net: Any, x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        inspected(Program(Net(body, fc=nn.Linear(4, 4)), X))
    assert len(calls) == 1


def test_an_interruption_of_the_explanation_keeps_what_was_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of the launcher, which ends a process while it says that another left it."""

    def interrupted(failure: BaseException, *args: Any) -> ErrorRecord:
        if not isinstance(failure, KeyboardInterrupt):
            raise KeyboardInterrupt
        return errors.explain_error(failure, *args)

    def body(net: Any, x: torch.Tensor) -> torch.Tensor:
        return net.last(net.fc(x)[:, :3])

    monkeypatch.setattr(failing, "explain_error", interrupted)
    with pytest.raises(Interrupted) as caught:
        inspected(Program(Net(body, fc=nn.Linear(4, 4), last=nn.Linear(4, 4)), X))
    assert isinstance(caught.value.report, Report)
    assert [call.name for call in caught.value.report.calls] == ["", "fc", "last"]


def test_memory_is_not_filled_twice() -> None:
    calls: list[str] = []
    said = "CUDA out of memory. Tried to allocate 2.00 MiB."
    record = ErrorRecord("out-of-memory", said, "forward")
    again = Again(nn.Identity(), lambda note: calls.append("again"))
    assert errors.explain_again(record, RuntimeError(said), again) is record
    assert calls == []


def test_the_graph_command_explains_too() -> None:
    program = PROGRAMS["residual_added_into_its_own_input"].build(False)
    with pytest.raises(ModelError) as raised:
        gradscope.graph(program.model, program.inputs, target=program.target, loss=program.loss)
    error = raised.value.report.error  # type: ignore[union-attr]
    assert error is not None
    assert faults(PROGRAMS["residual_added_into_its_own_input"], error) == []


EXPRESSIONS = {
    "x + y": ("+", ("x", "y")),
    "self.fc(x.flatten(1))": ("self.fc", ("x.flatten(1)",)),
    "torch.cat([up, skip], 1)": ("torch.cat", ("up", "skip")),
    "y.view(2, -1)": ("view", ("y",)),
    "q @ k.transpose(-2, -1)": ("@", ("q", "k.transpose(-2, -1)")),
    "h[i]": ("[]", ("h", "i")),
    "-mask": ("-", ("mask",)),
}


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression_by_its_bytecode(text: str, tmp_path: Any) -> None:
    file = tmp_path / "net.py"
    file.write_text(f"def f(*given):\n    return [({text})]\n", encoding="utf-8")
    code = compile(file.read_text(encoding="utf-8"), str(file), "exec")
    function = next(one for one in code.co_consts if hasattr(one, "co_code"))
    name, operands = EXPRESSIONS[text]
    found = {Expression.of(function, 2 * i) for i in range(len(function.co_code) // 2)}
    assert Expression(name, operands) in found


def test_what_never_ran_is_no_cause_of_a_loss_without_a_graph():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.a(x).detach()

    with pytest.raises(ModelError) as caught:
        gradscope.inspect(Net(), torch.ones(2, 4), loss="sum")
    assert caught.value.report is not None
    error = caught.value.report.error
    assert error is not None
    assert error.kind == "no-grad-root"
    (detail,) = error.details
    assert "`detach`" in detail
    assert "unused" not in detail

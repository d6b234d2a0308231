"""The terminal's text: whole, at every width that matters, and what must hold of each.

After a wanted change: ``GRADSCOPE_GOLDEN=write pytest tests/diagrams/test_terminal.py``, then
read the difference.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from diagrams import samples
from rich.cells import cell_len

from gradscope.diagrams import GraphView, terminal
from gradscope.errors import OptionError
from gradscope.records.graph import AutogradGraph
from gradscope.records.run import ErrorRecord
from gradscope.typeset.sparklines import log_bars

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = {"60": 60, "80": 80, "120": 120, "200": 200, "pipe": None}
VIEWS = {
    "path": (samples.resnet, GraphView(targets=("layer1.0.conv.weight",))),
    "cut-path": (samples.cut, GraphView(targets=("stem.*", "scale", "fc2"))),
    "expanded": (samples.transformer, GraphView(expand=("h.3.attn",), by="saved")),
}


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("GRADSCOPE_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    assert path.read_bytes() == text.encode(), f"{name} has changed; see this file's docstring"


def cases() -> dict[str, tuple[AutogradGraph, GraphView]]:
    found = {name: (make(), GraphView()) for name, make in samples.ALL.items()}
    return found | {name: (make(), view) for name, (make, view) in VIEWS.items()}


CASES = cases()


def text_of(name: str, width: int | None) -> str:
    graph, view = CASES[name]
    return terminal.render(graph, replace(view, width=width))


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, width: str) -> None:
    check(f"{name}.{width}.txt", text_of(name, WIDTHS[width]))


def test_a_changed_text_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADSCOPE_GOLDEN", raising=False)
    with pytest.raises(AssertionError, match="has changed"):
        check("wxy.80.txt", text_of("wxy", 80).replace("Add", "Sub", 1))


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 200])
@pytest.mark.parametrize("name", CASES)
def test_lines_fit_the_terminal(name: str, width: int) -> None:
    for line in text_of(name, width).splitlines():
        assert cell_len(line) <= width, line


@pytest.mark.parametrize("width", [30, 40])
@pytest.mark.parametrize("name", CASES)
def test_only_a_table_is_wider_than_a_very_narrow_terminal(name: str, width: int) -> None:
    wide = [line for line in text_of(name, width).splitlines() if cell_len(line) > width]
    table = [line for line in text_of(name, width).splitlines() if "hidden at" in line]
    assert not wide or table


def rows(text: str) -> list[tuple[int, str, int]]:
    """Depth, name and operations of the tree's rows; an operation of its own counts as one."""
    lines = text.split("by module")[1].splitlines()[3:]
    found = []
    for line in lines:
        match = re.match(r"^((?:[│ ] )*[├└] )?(\S.*?)(?:  |$)(.*)", line)
        if match is None or line.startswith(("×n", "hidden", "leads", "log scale", "more:")):
            break
        strokes, name, rest = match.group(1) or "", match.group(2), match.group(3)
        single = "Backward" in name and ":" not in name
        figure = re.search(r"(?:^|\s)([\d,]+)\s+[\d,]+\s+[\d.]+ (?:B|KiB)", rest)
        ops = 1 if single else int(figure.group(1).replace(",", "")) if figure else -1
        found.append((len(strokes) // 2, name, ops))
    return found


def closed_sum(found: list[tuple[int, str, int]]) -> int:
    """The operations of the rows without rows below them, times the folds around them."""
    total = 0
    times: list[int] = []
    for (depth, name, ops), after in zip(found, [*found[1:], (0, "", 0)], strict=True):
        times = times[:depth]
        factor = 1
        for one in times:
            factor *= one
        folded = re.search(r"×(\d+)$", name)
        if after[0] > depth:
            times.append(int(folded.group(1)) if folded else 1)
        else:
            total += ops * factor
    return total


@pytest.mark.parametrize("name", samples.ALL)
@pytest.mark.parametrize("depth", [None, 1, 2])
def test_the_rows_operations_sum_to_the_total(name: str, depth: int | None) -> None:
    graph = CASES[name][0]
    found = rows(terminal.render(graph, GraphView(depth=depth)))
    joints = sum(1 for n in graph.nodes if n.kind == "function" and n.op == "AccumulateGrad")
    total = sum(1 for n in graph.nodes if n.kind == "function") - joints
    assert closed_sum(found) == total
    assert closed_sum(found[1:]) != total, "the sum notices a row that is not there"


@pytest.mark.parametrize("name", CASES)
def test_colour_says_nothing_that_the_text_does_not(name: str) -> None:
    graph, view = CASES[name]
    coloured = terminal.render(graph, replace(view, width=120, color=True))
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == text_of(name, 120)


def test_both_ways_to_x_are_seen() -> None:
    assert re.search(r"AddBackward0 .* x \[2, 2\], MulBackward0", text_of("wxy", 80))
    assert "w → AddBackward0 → MulBackward0 → x [2, 2]" in text_of("wxy", 80)


@pytest.mark.parametrize(("name", "words"), [("zeros", "zero"), ("nans", "NaN/Inf")])
def test_the_frontier_stands_in_words_at_its_place(name: str, words: str) -> None:
    (line,) = [x for x in text_of(name, 80).splitlines() if f"{words} from here" in x]
    assert "AddmmBackward0" in line
    closed = terminal.render(CASES[name][0], GraphView(width=80, depth=0))
    assert f"{words} from inside" in closed


def test_full_shows_every_operation() -> None:
    graph = CASES["transformer"][0]
    text = terminal.render(graph, GraphView(full=True))
    names = sum(text.split("by module")[1].count(f"{op}Backward0") for op in ("Addmm", "Add"))
    assert names >= 12 * 4 + 1
    assert "×12" not in text


def test_the_first_targets_of_a_pattern_and_how_many_more() -> None:
    text = terminal.render(CASES["transformer"][0], GraphView(targets=("*.*.*.weight",), width=80))
    assert text.count("operation ") >= 5
    assert "… 19 more match: narrow the pattern" in text


def test_a_target_before_its_source_is_said_to_be() -> None:
    view = GraphView(sources=("fc1",), targets=("fc2",), width=80)
    assert "fc2 lies before fc1" in terminal.render(samples.mlp(), view)


def test_two_places_of_which_neither_leads_to_the_other() -> None:
    view = GraphView(sources=("fc1.weight",), targets=("fc1.bias",), width=80)
    assert "no path: fc1.bias is not upstream of fc1.weight" in terminal.render(samples.mlp(), view)


def test_a_source_alone_is_followed_to_its_end() -> None:
    text = terminal.render(samples.mlp(), GraphView(sources=("fc2",), width=80))
    assert "fc2 → " in text
    assert "fc1.weight" in text


def test_an_unknown_target_is_an_error() -> None:
    with pytest.raises(OptionError, match="nowhere"):
        terminal.render(samples.mlp(), GraphView(targets=("nowhere",)))


@pytest.mark.slow
def test_numbers_of_paths_too_long_to_read_are_powers_of_ten() -> None:
    draft = samples.Draft()
    x = draft.leaf("x", (1,), "input")
    for _ in range(4_100):
        x = draft.op("Stack", *[x] * 12)
    text = terminal.render(draft.graph(), GraphView(targets=("x",)))
    assert "shortest of about 10^4424 paths (each 4,100 operations)" in text


def test_names_do_not_drive_the_terminal() -> None:
    graph = samples.mlp()
    nodes = tuple(
        replace(n, name="evil\x1b[2J") if n.name == "fc1.weight" else n for n in graph.nodes
    )
    assert "\x1b" not in terminal.render(replace(graph, nodes=nodes), GraphView())


def test_a_run_that_failed_says_why() -> None:
    error = ErrorRecord(
        "no-grad-root", "element 0 does not require grad", "backward", advice="unfreeze"
    )
    text = terminal.render(AutogradGraph(samples.RUN, status="failed", error=error), GraphView())
    assert "error: no-grad-root, in the backward" in text
    assert "help: unfreeze" in text


def test_an_output_without_a_graph_says_so() -> None:
    assert "has no graph" in terminal.render(AutogradGraph(samples.RUN), GraphView())


def test_bars_grow_with_their_values() -> None:
    assert log_bars([0.0, None]) == ["", ""]
    assert log_bars([1.0, 1.0]) == ["████████"] * 2
    long = log_bars([10.0**-i for i in range(6)])
    assert [len(bar) for bar in long] == sorted((len(bar) for bar in long), reverse=True)
    assert log_bars([1e-300, 1e300])[0] == "▏"


def test_long_chains_do_not_recurse() -> None:
    text = terminal.render(samples.chain(20_000), GraphView(width=80))
    assert "20,000 operations" in text


def stopped(phase: str, kind: str = "model-error") -> dict[str, object]:
    return {"status": "failed", "error": ErrorRecord(kind, "no", phase)}


def test_a_run_that_failed_has_no_frontier_and_claims_no_cut() -> None:
    graph = samples.cut()
    nodes = tuple(
        replace(n, grad_norm=None) if n.module != "fc2" and n.module else n for n in graph.nodes
    )
    graph = replace(graph, nodes=nodes, names=(*graph.names, "silent"))
    whole = terminal.render(graph, GraphView())
    assert "missing from here" in whole
    assert "no path from the loss leads there" in whole
    failed = replace(graph, **stopped("backward"))  # type: ignore[arg-type]
    text = terminal.render(failed, GraphView())
    for claim in ("from here", "not in the graph", "no path", "detached"):
        assert claim not in text
    asked = terminal.render(failed, GraphView(targets=("stem",)))
    assert "the run stopped before there was an answer" in asked


def test_a_loss_without_a_graph_is_an_answer() -> None:
    graph = replace(samples.cut(), nodes=(), root=None)
    told = replace(graph, **stopped("backward", "no-grad-root"))  # type: ignore[arg-type]
    assert "detached" in terminal.render(told, GraphView())
    early = replace(graph, **stopped("forward", "no-grad-root"))  # type: ignore[arg-type]
    assert "detached" not in terminal.render(early, GraphView())


def test_a_source_alone_is_followed_along_its_longest_path() -> None:
    text = terminal.render(samples.resnet(), GraphView(sources=("layer1.0", "layer1.1")))
    assert text.count("longest path from layer1.") == 2
    assert "only path" not in text


def test_a_main_path_does_not_name_its_start_twice() -> None:
    graph = samples.mlp()
    nodes = tuple(n for n in graph.nodes if n.module == "fc1" or n.kind != "function")
    nodes = tuple(n for n in nodes if n.name is None or n.name.startswith("fc1"))
    cell = replace(graph, nodes=nodes, root=nodes[0].id, start="fc1", loss=None)
    text = terminal.render(cell, GraphView())
    assert "fc1 → fc1.weight" in text
    assert "fc1 → fc1 →" not in text

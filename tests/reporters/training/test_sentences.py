"""Sentences on runs: their end, their steps, folded events, and news."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reporters.run_samples import empty, gan, many, one_step, series, small, step

from gradscope import plugins
from gradscope.records.training import RunHistory, TrainingEvent
from gradscope.reporters.header import listed, stretches
from gradscope.reporters.run import findings, summary
from gradscope.reporters.run.findings import news
from gradscope.reporters.run.summary import facts_of_step
from gradscope.reporters.views import View

terminal = plugins.load("gradscope.reporters.training", "terminal")


@pytest.mark.parametrize(
    ("changes", "age", "said"),
    [
        ({"ended": 1.0, "exit": "0"}, None, "finished: exit code 0"),
        ({"ended": 1.0, "exit": None}, None, "finished: exit code 0"),
        ({"ended": 1.0, "exit": "3"}, None, "failed: exit code 3"),
        ({"ended": 1.0, "exit": "-9"}, None, "failed: exit code -9"),
        ({"ended": 1.0, "exit": "KeyboardInterrupt"}, None, "failed: KeyboardInterrupt"),
        ({}, 0.5, "running (updated 0 s ago)"),
        ({}, 14.0, "running (updated 14 s ago)"),
        ({}, 16.0, "killed or hanging (updated 16 s ago, its file has no end)"),
        # Ten steps that long may pass in silence.
        ({"plain": 60.0}, 500.0, "running (updated 8 min 20 s ago)"),
        ({}, None, "running or killed (its file has no end)"),
    ],
)
def test_how_it_ended(changes: dict[str, object], age: float | None, said: str) -> None:
    run = replace(empty().run, **changes)  # type: ignore[arg-type]
    assert str(summary.end(RunHistory(run, age=age))).startswith(said)


@pytest.mark.parametrize(
    ("intervals", "text"),
    [
        ((), ""),
        (((5, 5),), "step 5"),
        (((1, 400),), "steps 1–400"),
        (((1, 4), (9, 9)), "steps 1–4, 9"),
        (((5, 5), (7, 7)), "steps 5, 7"),
        (tuple((n, n) for n in range(1, 9000, 2)), "steps 1, 3, 5, … 8,999 (4,500 stretches)"),
    ],
)
def test_stretches(intervals: tuple[tuple[int, int], ...], text: str) -> None:
    assert stretches(intervals) == text


def test_listed() -> None:
    assert listed([1, 2]) == "1, 2"
    assert listed([1, 2, 3, 4]) == "1–4"
    assert listed([1, 2, 3, 40, 80, 1200]) == "1, 2, 3, 40, 80, 1,200"
    assert listed([1, 2, 3, 40, 80, 120, 1200]) == "1, 2, 3, 40, 80, … 1,200"


def test_equal_events_are_one_line() -> None:
    skipped = [TrainingEvent(n, 0.1, "skipped-step", f"the scale fell to {2**n}") for n in (4, 9)]
    found = TrainingEvent(5, 0.1, "failed", "gradscope itself failed")
    assert list(map(str, findings.event_lines([skipped[0], found, skipped[1]]))) == [
        "step 4, skipped-step: the scale fell to 16 (2 times, the last at step 9)",
        "step 5, failed: gradscope itself failed",
    ]


def test_of_many_events_a_page_says_how_many_more() -> None:
    words = [chr(97 + n) for n in range(20)]
    told = tuple(TrainingEvent(n, 0.1, "failed", word) for n, word in enumerate(words, 1))
    history = replace(one_step(), events=told)
    assert "… 8 more: `--table events` shows all\n" in terminal.render(history, View())
    assert terminal.render(history, View(table="events")).count(", failed: ") == 20


def test_news_are_told_once() -> None:
    whole = gan()
    cut = replace(whole, steps=whole.steps[:80], events=whole.events[:1], findings=())
    first, then = list(news(cut, None, before=5)), list(news(whole, cut, before=5))
    assert [line.partition(":")[0] for line in first if line.startswith("step")] == [
        f"step {n}" for n in range(76, 81)
    ]
    assert sum(line.startswith("step ") for line in then) == 10
    assert sum(line.startswith("finding: ") for line in then) == 2
    assert sum(line.startswith("event: ") for line in [*first, *then]) == 3
    assert list(news(whole, whole, before=5)) == [then[-1]]


def test_the_most_telling_layers_come_first() -> None:
    """NaN and Inf, what findings name, then what changed most."""
    history = many()
    lost = tuple(int(n == history.sampled[-1]) for n in history.sampled)
    worst = "model.layers.7.mlp.up_proj.weight"
    layers = tuple(
        series(one.name, one.steps, nonfinite=lost) if one.name == worst else one
        for one in history.parameters
    )
    text = terminal.render(replace(history, parameters=layers), View(width=120))
    table = text[text.index("parameters  24 of 499 parameters shown") :].splitlines()
    assert table[3].startswith(worst)
    assert table[4].startswith("model.layers.40.mlp.up_proj.weight")  # which a finding names
    assert "475 more: `-l PATTERN` selects some, `--top 499` shows" in text


def test_a_command_without_these_options_names_the_one_that_has_them() -> None:
    """As `live`, whose page is that of `show`."""
    findings = tuple(TrainingEvent(n, 0.1, "failed", chr(97 + n)) for n in range(20))
    view = View(width=120, command="gradscope show run.db")
    text = terminal.render(replace(many(), events=findings), view)
    assert "475 more: `gradscope show run.db -l PATTERN` selects some, `--top" in text
    assert "… 8 more: `gradscope show run.db --table events` shows all" in text
    narrow = terminal.render(many(), replace(view, width=60))
    option = "use gradscope show run.db --table parameters --columns or a wider terminal"
    assert option in " ".join(narrow.split())


def test_a_pipe_gets_every_layer() -> None:
    text = terminal.render(many(), View(table="parameters"))
    assert all(one.name in text for one in many().parameters)


def test_of_a_run_of_which_not_every_step_is_kept_it_is_said() -> None:
    history = small()
    thinned = replace(history, steps=history.steps[::2][:-1] + history.steps[-1:])
    text = terminal.render(thinned, View())
    assert "step metrics  of the 600 steps kept of 1,200\n" in text
    assert "optimizer: 1,200 steps\n" in text


def test_the_share_of_clipped_steps_is_of_those_whose_norm_was_read() -> None:
    """Of 20 steps three have no norms, and one has only that after clipping."""
    norms = {"gradient_norm": 2.0, "clipped_norm": 1.0}
    unread = {3: {}, 9: {}, 15: {}, 16: {"clipped_norm": 1.0}}
    none = {"gradient_norm": None, "clipped_norm": None}
    steps = [step(n, 20, **(none | unread.get(n, norms))) for n in range(1, 21)]
    text = terminal.render(replace(small(), steps=tuple(steps)), View())
    said = "clipped: 16 of 16 steps whose norm was read (100 %), to a gradient norm of 1.000\n"
    assert said in text
    late = {"clipped_norm": None}
    steps = [step(n, 20, **(norms if n % 2 else late)) for n in range(1, 21)]
    text = terminal.render(replace(small(), steps=tuple(steps)), View())
    assert "clipped: 10 of 10 steps whose norm was read (100 %)" in text


def test_of_which_backwards_a_loss_is_the_sum() -> None:
    def note(*made: tuple[int, tuple[int, int] | None]) -> str:
        steps = tuple(
            step(n, 9, losses=(0.5,) * count, summed=summed)
            for n, (count, summed) in enumerate(made, 1)
        )
        text = terminal.render(replace(small(), steps=steps), View())
        return "".join(line for line in text.splitlines() if line.startswith("loss: "))

    assert note((1, None), (1, None)) == ""
    assert note((4, None), (4, None)) == "loss: sum of 4 backwards"
    assert note((4, None), (2, None)) == "loss: sum of 2 to 4 backwards"
    assert note((20, (0, 1)), (20, (0, 1))) == "loss: backward 1 of 20"
    assert note((20, (0, 1)), (9, (0, 1))) == "loss: 1 of up to 20 backwards"
    assert note((8, (0, 4))) == "loss: sum of backwards 1 to 4 of 8"
    assert facts_of_step(step(1, 9, losses=(0.5, 0.25)))[0] == "loss 0.7500 (sum of 2 backwards)"


def test_groups_of_learning_rates_are_told_apart_where_they_differ() -> None:
    def rates(*pair: float) -> str:
        steps = tuple(step(n, 9, learning_rates=pair) for n in range(1, 10))
        return terminal.render(replace(small(), steps=steps), View())

    assert "learning rate 1 " in rates(0.1, 0.2)
    assert "learning rate 1 " not in rates(0.1, 0.1)

"""A run of many processes shows the figures of one process and of `full_tensor()`."""

from __future__ import annotations

import pytest

from gradscope import plugins
from gradscope.reporters.views import View
from training.ranks.compared import STEPS, Launch

terminal = plugins.load("gradscope.reporters.training", "terminal")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[2, 4])
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return Launch(tmp_path_factory.mktemp("ranks"), request.param, kill=True)


def test_every_figure_is_that_of_full_tensor_and_of_one_process(launch):
    differences = list(launch.differences())
    assert [one for one in differences if not one.size <= 1e-6] == []
    compared = {(one.case, one.against) for one in differences}
    assert compared == {
        (case["case"], against)
        for _, case in launch.cases()
        for against in ("full_tensor", "one process")
    }
    assert {one.figure for one in differences if one.name} == {
        *("value_norm", "grad_norm", "clipped_norm", "update_ratio"),
        *("grad_norm read", "clipped_norm read"),
    }


def test_and_of_all_parameters(launch):
    for first, case in launch.cases():
        for number, truth in enumerate(case["steps"]):
            assert set(launch.figures(first + number)) == set(truth["values"]), case["case"]


def test_nothing_was_changed(launch):
    for plain, watched in zip(launch.plain, launch.truth, strict=True):
        for one, other in zip(plain, watched, strict=True):
            assert one["weights"] == other["weights"], one["case"]


def test_nothing_was_sent(launch):
    """Not even where one rank alone has a NaN to locate: others would wait forever."""
    for plain, watched in zip(launch.plain, launch.truth, strict=True):
        for one, other in zip(plain, watched, strict=True):
            assert one["collectives"] == other["collectives"], one["case"]
            assert sum(one["collectives"].values()) > 0, one["case"]


def test_a_nan_of_one_rank_is_told_with_the_module_that_made_it(launch):
    events = [event for event in launch.history.events if event.kind == "non-finite"]
    assert any(event.details.get("rank") == launch.processes - 1 for event in events)
    origins = [one.origin for one in launch.history.findings if one.origin is not None]
    (made,) = [one for one in origins if one.phase == "forward"]
    last = launch.processes - 1
    assert "(Root)" in made.message
    assert f"returned NaN in rank {last}'s forward; its inputs had none" in made.message
    (got,) = [one for one in origins if one.phase == "backward"]
    assert "every module gradient in rank 0's backward was finite: the origin is on" in got.message


def test_names_are_those_of_the_script(launch):
    names = {one.name for one in (*launch.history.parameters, *launch.history.calls)}
    assert not [name for name in names if "wrapped" in name or name.startswith("module.")]
    types = {kind for one in launch.history.calls for kind in one.types[:1]}
    assert not [kind for kind in types if kind.startswith(("FSDP", "Checkpoint"))]


def test_a_killed_rank_leaves_what_it_recorded(launch):
    assert launch.done.returncode != 0
    text = terminal.render(launch.history, View(width=120))
    last = launch.processes - 1
    assert f"reduced over ranks {'0, 1' if last == 1 else '0–3'} of {launch.processes};" in text
    assert "running (updated" in text  # no end was written
    assert len(launch.history.steps) == STEPS * len(launch.truth[0])


def test_activations_are_one_ranks_with_the_spread_over_all(launch):
    for one in launch.history.calls:
        for low, own, high in zip(
            one.lowest["out_norm"], one.values["out_norm"], one.highest["out_norm"], strict=True
        ):
            assert own is None or low <= own <= high
    spread = [
        one for one in launch.history.calls if one.lowest["out_norm"] != one.highest["out_norm"]
    ]
    assert spread

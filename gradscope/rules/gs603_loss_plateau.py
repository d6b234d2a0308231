"""GS603: a loss that does not fall."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.loop_figures import Course
from gradscope.records.report import Finding
from gradscope.rules._course import until_course
from gradscope.rules._history import StepHistory
from gradscope.rules._rule import Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, plural

#: Number of steps without a fall of the loss.
_STEPS = 500
RULE = Rule(
    code="GS603",
    name="loss-plateau",
    severity="info",
    summary="the loss has not fallen for half the run, and is near its start",
    what=(
        "Compares the mean loss of the last quarter of the run with that of the quarter before, "
        "against their noise, and with the loss of the beginning. It fires where there was no "
        "fall for a long time and little before, so that it would have been seen had the loss "
        "gone on as it began. Left alone are runs with several optimizers, whose losses pull "
        "against each other, losses that are not positive, and losses that are mostly noise, as "
        "of rewards: they need not fall."
    ),
    why=(
        "A network that learns nothing looks like one that trains slowly. Guessing the most "
        "frequent class, targets that are shuffled against their inputs, a learning rate that is "
        "much too small or much too large all end in such a line."
    ),
    fix=(
        "Check that a single batch can be overfitted; if not, check the targets and run `gradscope "
        "check MODEL`. If it can, try learning rates three times larger and smaller."
    ),
    sources=(
        "CS231n notes, babysitting the learning process: overfit a small part first",
        "Karpathy 2019, A recipe for training neural networks: overfit one batch",
        "SageMaker Debugger, LossNotDecreasing",
    ),
    calibration=(
        "Of 12 healthy trainings of 1300 steps and more 0 of 12 fire, and 3 of 3 broken ones are "
        "found; shorter runs are not judged. `noise` could lie anywhere from 0.15 up."
    ),
    thresholds=(
        Threshold("steps", _STEPS, "steps without a fall, below which it does not judge"),
        Threshold("left", 0.9, "the loss over that of the beginning, above which it fires"),
        Threshold("noise", 0.5, "standard deviation over mean, above which it does not judge"),
        Threshold(
            "errors", 2, "fall between the quarters in standard errors, above which it is one"
        ),
    ),
    runs=Runs(samples=0, steps_before=until_course(_STEPS), metrics=("loss",)),
)


def find_over_steps(history: StepHistory, limits: Limits) -> Iterator[Finding]:
    """Yield at most one finding for an optimizer."""
    course = history.blocks.course
    if course is None or not history.alone or course.steps < limits["steps"]:
        return
    if course.first <= 0 or course.lowest <= 0 or course.last < limits["left"] * course.first:
        return
    if course.spread > limits["noise"] * course.last or _falls(course, limits["errors"]):
        return
    yield RULE.finding(
        history.now.optimizer,
        f"for {plural(course.steps, 'step')}, since step {course.since}, the loss has not fallen: "
        f"it is {number(course.last)}, and began at {number(course.first)}.",
        value=course.last / course.first,
        limit=limits.of("left"),
    )


def _falls(course: Course, errors: float) -> bool:
    """Return True if the loss falls, or may fall within the noise: then there is no plateau."""
    noise = errors * course.error
    fallen = course.first - course.last
    if fallen <= errors * course.spread / course.began**0.5 + noise:
        return course.middle - course.last > noise
    # At the pace so far, between the middles of two quarters.
    return course.middle - course.last > noise or fallen / 4 < 2 * noise

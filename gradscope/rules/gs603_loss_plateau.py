"""GS603: a loss that does not fall."""

from __future__ import annotations

from gradscope.records.loop_figures import Course
from gradscope.rules._course import until_course
from gradscope.rules._history import StepHistory
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, plural

#: Number of steps without a fall of the loss.
_STEPS = 500
RULE = Rule(
    code="GS603",
    name="loss-plateau",
    severity="info",
    summary="the loss has not fallen for half the run, and is near its start",
    what=(
        "Compares the mean loss of the run's last quarter with the quarter before, against their "
        "noise, and with the loss at the start. It fires if the loss has not fallen for a long "
        "time and little before, and a fall at the first pace would have been visible. It does "
        "not judge runs with several optimizers, whose losses may oppose each other, nor losses "
        "that are not positive or mostly noise, as with rewards: they need not fall."
    ),
    why=(
        "A network that learns nothing looks like one that trains slowly. The causes differ: it "
        "guesses the most frequent class, targets do not belong to their inputs, or the learning "
        "rate is far too small or too large."
    ),
    fix=(
        "Check that the model can overfit a single batch. If not, check the targets and run "
        "`gradscope check MODEL`. If it can, try learning rates three times larger and smaller."
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
        Threshold("steps", _STEPS, "steps without a fall needed to judge"),
        Threshold("left", 0.9, "the loss divided by the first loss, above which it fires"),
        Threshold(
            "noise", 0.5, "standard deviation divided by mean, above which it does not judge"
        ),
        Threshold(
            "errors",
            2,
            ("fall between the quarters in standard errors, above which the loss is falling"),
        ),
    ),
    runs=Runs(samples=0, steps_before=until_course(_STEPS), metrics=("loss",)),
)


def find_over_steps(history: StepHistory, limits: Limits) -> Findings:
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
    # At the pace so far, the loss falls by `fallen / 4` between the middles of two quarters.
    return course.middle - course.last > noise or fallen / 4 < 2 * noise

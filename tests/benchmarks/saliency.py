"""Measures saliency methods beside captum and pytorch-grad-cam, in one run.

``python -m tests.benchmarks.saliency`` times each method on ResNet-50 (Score-CAM: ResNet-18) with
random weights at 224², for one image and for eight. Each contestant lives in its own process,
so that its peak memory is its own; they take turns, so that a machine whose speed drifts slows all
alike. The first turn is not counted, and all begin anew in fresh processes. Printed are medians
with quartiles, the ratio to the others' median and the memory used above what the process held;
for this one ``--trim -n 1 --processes 1``, as the allocator that is timed holds more beforehand.
``--only grad-cam --batch 1 -n 3 --processes 1`` runs a part of it; ``--clock cpu`` counts the
processor's seconds instead of those on the wall, for a machine that others use as well.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

#: Method → who can do it, in the order of the table. ``captum-8`` is captum told a good batch;
#: ``convolutions`` does only the convolutions of Score-CAM's passes: no way is faster that leaves
#: them to PyTorch.
ROWS = {
    "gradient": ("gradscope", "captum"),
    "integrated-gradients": ("gradscope", "captum"),
    "smooth-grad": ("gradscope", "captum"),
    "grad-cam": ("gradscope", "captum", "pytorch-grad-cam"),
    "occlusion": ("gradscope", "captum", "captum-8"),
    "score-cam": ("gradscope", "pytorch-grad-cam", "convolutions"),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "integrated-gradients": {"n_steps": 50},
    "smooth-grad": {"n_samples": 25},
    "occlusion": {"window": 32, "stride": 16},
}
LAYER = "layer4"
#: glibc's allocator gives what a pass has freed back to the system, or not, by how its heap happens
#: to be laid out: in one process of a contestant it does so after each pass, and takes a fifth
#: longer for the faults of the pages that it gets anew, in the next one never. Here it never does.
KEEPING = os.environ | {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 33),
}


def ours(method: str, model: Any, x: Any, target: Any) -> Callable[[], object]:
    """gradscope's method, from the images to the maps."""
    from gradscope import plugins
    from gradscope.saliency._subject import Objective, Subject

    module = plugins.load("gradscope.saliency", method)
    layer = LAYER if "layer" in module.reads else None

    def run() -> object:
        with Subject(model, x, Objective(target), layer=layer) as subject:
            return module.attribute(subject, **OPTIONS.get(method, {}))

    return run


def captums(method: str, model: Any, x: Any, target: Any, *, tuned: bool) -> Callable[[], object]:
    """captum's, as its documentation shows it; batched where it would not fit into memory."""
    import captum.attr as attr

    if method == "gradient":
        return lambda: attr.Saliency(model).attribute(x.clone().requires_grad_(), target)
    if method == "integrated-gradients":
        return lambda: attr.IntegratedGradients(model).attribute(
            x, target=target, n_steps=50, internal_batch_size=8
        )
    if method == "smooth-grad":
        return lambda: attr.NoiseTunnel(attr.Saliency(model)).attribute(
            x, nt_samples=25, nt_samples_batch_size=1, stdevs=0.15 * float(x.max() - x.min()),
            target=target, abs=False,
        )  # fmt: skip
    if method == "grad-cam":
        cam = attr.LayerGradCam(model, model.get_submodule(LAYER))
        return lambda: attr.LayerAttribution.interpolate(
            cam.attribute(x, target, relu_attributions=True), x.shape[2:], "bilinear"
        )
    return lambda: attr.Occlusion(model).attribute(
        x, target=target, sliding_window_shapes=(3, 32, 32), strides=(3, 16, 16),
        perturbations_per_eval=max(1, 8 // len(x)) if tuned else 1,
    )  # fmt: skip


def grad_cams(method: str, model: Any, x: Any, target: Any) -> Callable[[], object]:
    """pytorch-grad-cam's, by its defaults."""
    from pytorch_grad_cam import GradCAM, ScoreCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    kind = {"grad-cam": GradCAM, "score-cam": ScoreCAM}[method]
    targets = [ClassifierOutputTarget(int(t)) for t in target]

    def run() -> object:
        with kind(model, [model.get_submodule(LAYER)]) as cam:
            return cam(x, targets)

    return run


def convolutions(model: Any, x: Any) -> Callable[[], object]:
    """The convolutions of one pass for each channel of the layer, in the faster layout, by eights.

    Nothing else: no masks, no normalisation, no activation.
    """
    import torch

    found: list[tuple[Any, Any]] = []
    channels: list[int] = []
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_pre_hook(lambda m, args: found.append((m, args[0].shape)))
    model.get_submodule(LAYER).register_forward_hook(lambda m, a, o: channels.append(o.shape[1]))
    model(x[:1])
    last = torch.channels_last
    layers = [
        (torch.randn(8, *shape[1:]).contiguous(memory_format=last), m.weight, m.stride, m.padding)
        for m, shape in found
    ]

    def run() -> None:
        with torch.inference_mode():
            for _ in range(len(x) * channels[0] // 8):
                for given, weight, stride, padding in layers:
                    torch.nn.functional.conv2d(given, weight, None, stride, padding)

    return run


def contest(method: str, who: str, batch: int, device: str, threads: int, clock: str) -> None:
    """One contestant: a measurement for each line of input, the peak memory at its end."""
    import torch
    import torchvision

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    name = "resnet18" if method == "score-cam" else "resnet50"
    model = getattr(torchvision.models, name)().eval().to(device)
    x = torch.randn(batch, 3, 224, 224, device=device)
    target = torch.arange(batch, device=device)
    if who == "gradscope":
        run = ours(method, model, x, target)
    elif who == "convolutions":
        run = convolutions(model, x)
    elif who == "pytorch-grad-cam":
        run = grad_cams(method, model, x, target)
    else:
        run = captums(method, model, x, target, tuned=who.endswith("8"))
    # What is only done once, on a small picture: the memory that it takes must not hide the run's.
    model(x[:1, :, :64, :64]).sum().backward()
    model.zero_grad()
    before = _memory(device)
    print("ready", flush=True)
    now = {"wall": time.perf_counter, "cpu": time.process_time}[clock]
    for _ in sys.stdin:
        began = now()
        with contextlib.redirect_stderr(open(os.devnull, "w")):  # noqa: PTH123
            run()
        if device != "cpu":
            torch.cuda.synchronize()
        print(now() - began, flush=True)
    print(_memory(device, peak=True) - before)


def _memory(device: str, *, peak: bool = False) -> float:
    """Mebibytes: of the device, or of the process (its high-water mark, or now)."""
    if device != "cpu":
        import torch

        if not peak:
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated() / 2**20
        return torch.cuda.max_memory_allocated() / 2**20
    if peak:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * resource.getpagesize() / 2**20


def measured(method: str, batch: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each contestant's rounds in one process, and last its peak memory."""
    contestants: dict[str, subprocess.Popen[str]] = {}
    for who in ROWS[method]:
        command = [sys.executable, "-m", "tests.benchmarks.saliency", "--contest", who]
        command += ["--only", method, "--batch", str(batch), "--device", options.device]
        command += ["--threads", str(options.threads), "--clock", options.clock]
        contestants[who] = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=None if options.trim else KEEPING,
        )
    for process in contestants.values():
        _answer(process)
    taken: dict[str, list[float]] = {who: [] for who in contestants}
    for turn in range(-1, options.rounds):
        order = list(contestants) if turn % 2 == 0 else list(contestants)[::-1]
        for who in order:
            stdin = contestants[who].stdin
            assert stdin is not None
            stdin.write("again\n")
            stdin.flush()
            took = float(_answer(contestants[who]))
            if turn >= 0:  # the first turn pays for what is prepared once
                taken[who].append(took)
    for who, process in contestants.items():
        taken[who].append(float(process.communicate()[0]))
    return taken


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a contestant ended early: {process.args!r}")
    return line


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--rounds", type=int, default=3, help="turns in one process")
    parser.add_argument("--processes", type=int, default=3, help="one after the other, of each")
    parser.add_argument("--only", choices=ROWS, action="append")
    parser.add_argument("--batch", type=int, action="append", help="1 and 8 without it")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument(
        "--trim", action="store_true", help="leave the allocator alone: the peaks are then a user's"
    )
    parser.add_argument("--contest", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contest:
        warnings.simplefilter("ignore")
        batch = options.batch[0]
        method, who = options.only[0], options.contest
        contest(method, who, batch, options.device, options.threads, options.clock)
        return
    print(f"{'method':<20} {'batch':>5}  {'who':<16} {'median s':>9} {'quartiles':>17}", end="")
    print(f" {'ratio':>6} {'peak MiB':>8}")
    for method in options.only or ROWS:
        for batch in options.batch or (1, 8):
            sets = [measured(method, batch, options) for _ in range(options.processes)]
            report(method, batch, sets)


def report(method: str, batch: int, sets: list[dict[str, list[float]]]) -> None:
    """The rows of one method: the ratio is gradscope's median over that contestant's."""
    taken = {who: [t for one in sets for t in one[who][:-1]] for who in sets[0]}
    middle = {who: statistics.median(times) for who, times in taken.items()}
    for who, times in taken.items():
        peak = max(one[who][-1] for one in sets)
        low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
        ratio = "" if who == "gradscope" else f"{middle['gradscope'] / middle[who]:.2f}"
        print(
            f"{method:<20} {batch:>5}  {who:<16} {middle[who]:>9.3f} {low:>8.3f}–{high:<8.3f}"
            f" {ratio:>6} {peak:>8.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

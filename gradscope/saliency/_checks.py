"""Checks how far a map can be trusted: blank maps, completeness, deletion and insertion, randomised
weights, spread.

Each check is a function of the subject and the maps [N, H, W]; it returns plain values for each
image.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradscope.errors import message_of
from gradscope.saliency._forward import probabilities
from gradscope.saliency._subject import Subject

#: Result of a check for one image's map: numbers and sentences for the record.
CheckResults = dict[str, "float | str | list[tuple[str, float | None]] | None"]


def blank(subject: Subject, maps: Tensor, reads: Sequence[str]) -> list[CheckResults]:
    """Return ``blank`` for each image: one sentence on why its map has no structure, else None.

    ``reads`` is the method's attribute: the layer's activation and gradient are read only for
    methods that use them.
    """
    return [{"blank": _why(subject, maps[i], i, reads)} for i in range(len(maps))]


def _why(subject: Subject, values: Tensor, i: int, reads: Sequence[str]) -> str | None:
    if not bool(values.isfinite().all()):
        return "the map holds NaN or Inf: so does the score, or what it was computed from"
    low, high = float(values.min()), float(values.max())
    # The rounding of a constant map is no shape either.
    if high - low > 1e-6 * max(abs(low), abs(high)):
        return None
    state = "zero everywhere" if high == 0 == low else f"{high:.4g} everywhere"
    return f"the map is {state}: {_reason(subject, i, reads)}"


def _reason(subject: Subject, i: int, reads: Sequence[str]) -> str:
    if not bool(subject.logits[i].isfinite().all()):
        return "the logits of this picture are NaN or Inf"
    found = _in_layer(subject, i) if "layer" in reads else None
    if found:
        return found
    if bool((subject.inputs[i] == subject.inputs[i].flatten()[0]).all()):
        return "every pixel of the input has the same value"
    if "input" in reads and not bool(subject.input_gradient[i].any()):
        return (
            "the gradient of the score is zero at every pixel, as upstream of a ReLU that clips "
            "this class's logit or a saturated activation; occlusion needs no gradient"
        )
    if "scores" in reads:
        return "the score did not move with any change of the picture that the method tried"
    return "nothing that the method reads differs from place to place"


def _in_layer(subject: Subject, i: int) -> str | None:
    """Return why a CAM method gets no map from the layer, with advice; None if it gets one."""
    name = f"`{subject.layer}`"
    activation, gradient = subject.activation[i].float(), subject.gradient[i].float()
    if activation[0].numel() == 1:
        return f"{name} is the wrong layer: its maps have one position; name an earlier one"
    if not bool(activation.any()):
        return f"{name} is silent: its output is zero for this picture; name an earlier layer"
    if not bool(gradient.any()):
        return (
            f"no gradient arrives at the map of {name}: the score does not depend on these "
            "positions (the wrong layer: name an earlier one), a clipped activation after it stops "
            "the gradient, or the weights of a layer after it are all zero"
        )
    flat = activation.flatten(1)
    if bool((flat == flat[:, :1]).all()):
        return f"every channel of {name} is constant over the picture; name an earlier layer"
    if bool((gradient.mean((1, 2)) <= 0).all()):
        return (
            f"all weights are negative: every channel of {name} lowers the score of the class, and "
            "the ReLU removes all of them; --why-not shows them"
        )
    together = (gradient.mean((1, 2), keepdim=True) * activation).sum(0)
    if bool((together <= 0).all()):
        return (
            f"the weighted maps of {name} add up to nothing positive: the layer lowers the score "
            "of the class, and the ReLU removes all of it; --why-not shows it"
        )
    return None


#: Two forwards of one picture may differ by some roundings of its score: that is no gain.
_ROUNDINGS = 64


def completeness(subject: Subject, maps: Tensor, *, baseline: float = 0.0) -> list[CheckResults]:
    """Compare Σ map with the gain S(x) − S(x′), x′ being the baseline everywhere.

    Sundararajan et al. 2017. ``residual`` is Σ map minus the gain, ``residual_share`` its size over
    the gain's (None if the gain is only rounding). Only methods that promise completeness should be
    judged by it, such as integrated-gradients, whose residual falls with its number of steps.
    """

    def make(items: slice) -> Tensor:
        return torch.full_like(subject.inputs[items], baseline)

    empty = subject.scores_of(make, len(subject.inputs))
    gains = (subject.scores - empty).double().cpu()
    sums = maps.flatten(1).double().cpu().sum(1)
    largest = torch.maximum(subject.scores.abs(), empty.abs()).double().cpu()
    least = largest * (_ROUNDINGS * torch.finfo(empty.dtype).eps)
    found: list[CheckResults] = []
    for total, gain, rounding in zip(sums.tolist(), gains.tolist(), least.tolist(), strict=True):
        off = total - gain
        share = abs(off / gain) if abs(gain) > rounding else None
        found.append({"sum": total, "gain": gain, "residual": off, "residual_share": share})
    return found


class Areas(NamedTuple):
    """The areas under both curves for each image, [N]: low deletion and high insertion are good."""

    deletion: Tensor
    insertion: Tensor


def curves(
    subject: Subject, maps: Tensor, *, steps: int = 20, baseline: float = 0.0, randoms: int = 3
) -> list[CheckResults]:
    """Return the areas of each image's map, and the mean areas of random maps."""
    own = areas(subject, maps, steps=steps, baseline=baseline)
    draw = subject.generator()
    chance = [
        areas(
            subject,
            torch.rand(maps.shape, generator=draw, device="cpu"),
            steps=steps,
            baseline=baseline,
        )
        for _ in range(randoms)
    ]
    deleted = torch.stack([area.deletion for area in chance]).mean(0)
    inserted = torch.stack([area.insertion for area in chance]).mean(0)
    return [
        {
            "deletion": float(own.deletion[i]),
            "deletion_random": float(deleted[i]),
            "insertion": float(own.insertion[i]),
            "insertion_random": float(inserted[i]),
        }
        for i in range(len(maps))
    ]


def areas(subject: Subject, maps: Tensor, *, steps: int = 20, baseline: float = 0.0) -> Areas:
    """Return the areas under the target's probability over the share of pixels (Petsiuk et al.
    2018).

    Pixels are removed, all channels at once, from the highest value of the map to the lowest, in
    ``steps`` equal parts; the seed sets the order of equal values. Deletion sets them to the
    baseline, insertion starts from the baseline (the paper: from a blurred picture) and brings them
    back. The area is computed by the trapezoidal rule over [0, 1], so it lies in [0, 1].
    """
    images, pixels = len(maps), maps[0].numel()
    ranks = _ranks(maps, subject.generator()).to(subject.inputs.device)
    gone = torch.linspace(0, pixels, steps + 1, device="cpu").round().to(ranks.device)
    inputs = subject.inputs

    def make(items: slice) -> Tensor:
        # The items' order: the image changes fastest, then the number of removed pixels, then
        # deletion or insertion.
        item = torch.arange(items.start, items.stop, device=ranks.device)
        owner, step, inserts = item % images, item // images % (steps + 1), item // half
        first = ranks[owner] < gone[step, None, None]
        covered = first ^ (inserts == 1)[:, None, None]
        return inputs[owner].masked_fill_(covered[:, None], baseline)

    def run(batch: Tensor, items: slice) -> Tensor:
        owner = torch.arange(items.start, items.stop, device=batch.device) % images
        shares = probabilities(subject.scores_by_class(batch, owner))
        return shares.gather(1, target[owner, None])[:, 0]

    half = images * (steps + 1)
    target = subject.target
    scores = subject.batches.scores(make, run, 2 * half).double().cpu()
    deletion, insertion = scores.view(2, steps + 1, images)
    along = (gone / pixels).double().cpu()
    return Areas(torch.trapezoid(deletion.T, along), torch.trapezoid(insertion.T, along))


def _ranks(maps: Tensor, generator: torch.Generator) -> Tensor:
    """Return each pixel's rank from the highest value (0) to the lowest, [N, H, W]."""
    flat = maps.flatten(1).cpu()
    # Shuffled first: a stable sort leaves ties as they came, which would be from the top left.
    shuffled = torch.randperm(flat.shape[1], generator=generator, device="cpu")
    order = shuffled[flat[:, shuffled].argsort(dim=1, descending=True, stable=True)]
    places = torch.arange(flat.shape[1], device="cpu").expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places).view(maps.shape)


def spearman(a: Tensor, b: Tensor) -> float | None:
    """Return Spearman's rank correlation of two maps' values; None if one is constant."""
    left, right = (_midranks(m.flatten().double().cpu()) for m in (a, b))
    left, right = left - left.mean(), right - right.mean()
    scale = float(left.norm() * right.norm())
    return float(left @ right) / scale if scale else None


def _midranks(values: Tensor) -> Tensor:
    """Return the rank of each value; equal values share their mean rank."""
    ordered = values.sort().values
    below, upto = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (below + upto + 1).double() / 2


#: A method with its options.
Attribute = Callable[[Subject], Tensor]


def randomisation(
    subject: Subject, attribute: Attribute, maps: Tensor, *, stages: int = 4
) -> list[CheckResults]:
    """Measure how similar the map stays while weights are shuffled (Adebayo et al., 1810.03292).

    Shuffles the values of each parameter, from the output towards the input: first the last layer,
    then the others in ``stages`` equal parts. Shuffled weights keep their scale, so maps change
    because of what was learned. The target stays the same. Similarity is Spearman's rank
    correlation of absolute values: ``similarity`` with all weights shuffled, ``cascade`` after
    each stage, named by its last layer. It is None if the map has become constant. Near 1, the map
    shows the picture rather than the model.

    Works on a copy of the model.
    """
    try:
        model = copy.deepcopy(subject.model)
    except (RuntimeError, TypeError) as error:
        note = f"not randomised: the model cannot be copied ({message_of(error)})"
        return [{"similarity": None, "cascade": [], "similarity_note": note} for _ in maps]
    layers = _from_the_output(model)
    cascade: list[list[tuple[str, float | None]]] = [[] for _ in maps]
    draw, done = subject.generator(), 0
    for stop in _stops(len(layers), stages):
        for _, layer in layers[done:stop]:
            _shuffle(layer, draw)
        done = stop
        with subject.again(model) as other:
            changed = attribute(other)
        for rows, before, after in zip(cascade, maps, changed, strict=True):
            rows.append((layers[stop - 1][0], spearman(before.abs(), after.abs())))
    return [{"similarity": rows[-1][1] if rows else None, "cascade": rows} for rows in cascade]


def _from_the_output(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules with their own parameters, the last registered first."""
    own = [
        (name or "(model)", module)
        for name, module in model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    ]
    return own[::-1]


def _stops(layers: int, stages: int) -> list[int]:
    """Return the numbers of layers after which the map is computed: one, and evenly on."""
    stops = {min(1, layers), *(round(layers * k / (stages - 1)) for k in range(1, stages))}
    return sorted(stops - {0})


def _shuffle(module: nn.Module, generator: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in module.parameters(recurse=False):
            order = torch.randperm(parameter.numel(), generator=generator, device="cpu")
            values = parameter.flatten()[order.to(parameter.device)]
            parameter.copy_(values.view_as(parameter))


def spread(
    subject: Subject, attribute: Attribute, maps: Tensor, *, seeds: int = 3
) -> list[CheckResults]:
    """Run the method again with other seeds; the given map is the first of ``seeds``.

    ``spread`` is the root mean square over pixels of the standard deviation over seeds, as a share
    of the mean map's range (None if that is constant). ``seed_similarity`` is the lowest rank
    correlation of two of the maps.
    """
    drawn = [maps]
    for seed in range(subject.seed + 1, subject.seed + seeds):
        with subject.again(seed=seed) as other:
            drawn.append(attribute(other))
    return [_of_one(torch.stack([m[i].double() for m in drawn])) for i in range(len(maps))]


def _of_one(maps: Tensor) -> CheckResults:
    """Return the figures of one image; ``maps`` is [seeds, H, W]."""
    mean = maps.mean(0)
    span = float(mean.max() - mean.min())
    noise = float(maps.var(0).mean().sqrt()) if len(maps) > 1 else 0.0
    pairs = [spearman(a, b) for a, b in combinations(maps, 2)]
    defined = [rho for rho in pairs if rho is not None]
    return {
        "seeds": float(len(maps)),
        "spread": noise / span if span else None,
        "seed_similarity": min(defined) if defined else None,
    }

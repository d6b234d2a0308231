"""Holds the model, the images and the score to explain; all methods share its computations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from gradscope.capture.activation_maps import map_of
from gradscope.capture.names import modules_by_name
from gradscope.errors import OptionError
from gradscope.saliency._batching import Batches, Layout
from gradscope.saliency._forward import (
    Forward,
    ModelInputs,
    Objective,
    Pixels,
    Segmentation,
    frozen,
)
from gradscope.saliency._layers import (
    WITHOUT_LAYER,
    Choice,
    Pass,
    above_layer,
    choose,
    from_input,
    input_gradient,
    named_layer,
)

Result = TypeVar("Result")


class Subject:
    """A model on images [N, C, H, W], as a context: inside, parameters require no gradient.

    Everything is computed at its first use, and cached. The mode (eval, train) does not change;
    after the block, the model is restored.

    Args:
        layer: the target layer of CAM methods: a name, the ``choice`` of another subject, or
            None: chosen at its first use, by one more forward of one image.
        total: keep the graph of the first forward down to the input, so that one forward serves
            methods that read the input's gradient and methods that read the layer's.
        batches: the batch size that another subject measured for this model.
        others: the model's inputs besides the images.
        pixels: the pixels of a segmentation that count; None: those predicted as the class.
        background: a class of a segmentation that is explained only on request.

    Attributes:
        layout: the memory layout of inputs for passes with a graph.
        notes: sentences of methods about their maps, such as which ReLUs were covered.
        layer_choice: the target layer, once it is known.
        measured: facts on batches, for another subject of this model.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        objective: Objective | None = None,
        *,
        layer: str | Choice | None = None,
        seed: int = 0,
        total: bool = False,
        batches: Batches | None = None,
        others: ModelInputs | None = None,
        pixels: Pixels | None = None,
        background: int | None = None,
    ) -> None:
        self.model = model
        self.inputs = inputs.detach()
        self.seed = seed
        self._shared: dict[object, Any] = {}
        self.notes: list[str] = []
        self._requested = (objective or Objective()).to(inputs.device)
        others = (others or ModelInputs()).to(inputs.device)
        target = self._requested.target
        self._forward = Forward(model, self.inputs, others, pixels, target, background)
        self.layer_choice = named_layer(model, layer) if isinstance(layer, str) else layer
        self._total = total
        self.measured = batches
        self._exit = ExitStack()
        self.layout = Layout()
        self._logits: Tensor | None = None
        self._input_pass: Pass | None = None
        self._layer_pass: Pass | None = None

    def __enter__(self) -> Subject:
        self._exit.enter_context(frozen(self.model, self.seed))
        return self

    def __exit__(self, *_: object) -> None:
        self._input_pass = self._layer_pass = None  # what was computed from these graphs stays
        self._exit.close()

    @property
    def logits(self) -> Tensor:
        """The logits [N, classes], from the forward that ran first."""
        if self._logits is None and self._total:
            self._to_input()
        elif self._logits is None and self.layer_choice is not None:
            self._to_layer()
        if self._logits is None:
            with torch.inference_mode():
                logits = self.scores_by_class(self.inputs.clone())
            self._logits = logits.clone()
        return self._logits

    def _noted(self, run: Pass) -> Pass:
        if self._logits is None:
            self._logits = run.logits.detach()
        return run

    @property
    def segmentation(self) -> Segmentation | None:
        """Segmentation of the images and the pixels that count; None for a classifier."""
        _ = self.logits
        return self._forward.segmentation

    @property
    def pixels(self) -> Pixels | None:
        """Pixels of a segmentation that the user chose."""
        return self._forward.pixels

    def scores_by_class(self, inputs: Tensor, owners: Tensor | None = None) -> Tensor:
        """Return the scores [M, classes] of other inputs; see ``score``."""
        return self._forward(inputs, self._everyone(len(inputs)) if owners is None else owners)

    def output(self) -> Any:
        """Return the model's output for the images."""
        return self._forward.output(self.inputs.clone(), self._everyone(len(self.inputs)))

    def again(self, model: nn.Module | None = None, *, seed: int | None = None) -> Subject:
        """Return an equal subject for another model of its kind, or with another seed."""
        other = Subject(
            model or self.model,
            self.inputs,
            Objective(self.target, self.objective.versus),
            layer=self.layer_choice,
            seed=self.seed if seed is None else seed,
            batches=self.batches,
        )
        other._forward = replace(self._forward, model=other.model)
        return other

    @cached_property
    def objective(self) -> Objective:
        """The objective with a known target: the requested class, or the class with the highest
        logit."""
        objective = self._requested
        if objective.target is None:
            found = self.segmentation
            best = self.logits.argmax(dim=1) if found is None else found.target
            objective = replace(objective, target=best)
        objective.check(self.logits.shape[1])
        return objective

    @property
    def target(self) -> Tensor:
        """The explained class of each image [N]."""
        target = self.objective.target
        assert target is not None
        return target

    @cached_property
    def scores(self) -> Tensor:
        """The score of each image [N]."""
        return self.objective(self.logits, self._everyone(len(self.inputs)))

    def score(self, inputs: Tensor, owners: Tensor | None = None) -> Tensor:
        """Return the score [M] of other inputs [M, C, H, W], with a graph if gradients are enabled.

        ``owners`` [M] has the index of each row's image; without it, the rows are copies of the N
        images, one after the other (row i belongs to image i % N).
        """
        owners = self._everyone(len(inputs)) if owners is None else owners
        return self.objective(self.scores_by_class(inputs.clone(), owners), owners)

    def _everyone(self, rows: int) -> Tensor:
        return torch.arange(rows, device=self.inputs.device) % len(self.inputs)

    def _to_input(self) -> Pass:
        if self._input_pass is None:
            layer = modules_by_name(self.model)[self.layer] if self.layer_choice else None
            self._input_pass = self._noted(self._from_input(layer))
        return self._input_pass

    def _from_input(self, layer: nn.Module | None) -> Pass:
        return self.layout.run(self.inputs, lambda x: from_input(self.scores_by_class, x, layer))

    def graph_to_input(self) -> tuple[Tensor, Tensor]:
        """Return the score [N] with its graph, and the input [N, C, H, W], which is the graph's
        leaf."""
        run = self._to_input()
        if not self._total:
            self._input_pass = None  # its memory is the caller's to free
        return self.objective(run.logits, self._everyone(len(run.logits))), run.inputs

    def gradient_of(self, score: Tensor, inputs: Tensor) -> Tensor:
        """Return d score / d inputs, [N, C, H, W]; the graph is kept if others will use it."""
        return input_gradient(score, inputs, keep=self._total)

    @cached_property
    def input_gradient(self) -> Tensor:
        """d score / d x, [N, C, H, W]."""
        return self.gradient_of(*self.graph_to_input())

    @property
    def choice(self) -> Choice:
        """The target layer, and the reason for the choice."""
        if self.layer_choice is None:
            if self.inputs.dim() != 4:
                raise OptionError("the model's input is not a picture", help=WITHOUT_LAYER)
            self.layer_choice = choose(self._forward, self._guess)
        return self.layer_choice

    def _guess(self, inputs: Tensor) -> Tensor:
        logits, found = self.scores_by_class(inputs.clone()), self._forward.segmentation
        objective = self._requested
        if found is not None and objective.target is None:
            objective = replace(objective, target=found.target)
        return objective(logits, self._everyone(len(inputs)))

    @property
    def layer(self) -> str:
        """The target layer's name."""
        return self.choice.name

    def _to_layer(self) -> Pass:
        if self._layer_pass is not None:
            return self._layer_pass
        if self._total and self.layer_choice and self._to_input().calls:
            self._layer_pass = self._to_input()
            return self._layer_pass
        layer = modules_by_name(self.model)[self.layer]
        if self._forward.others.names:  # a layer that sees other inputs too, in their own calls
            run = self._from_input(layer)
        else:
            run = self.layout.run(
                self.inputs, lambda x: above_layer(self.scores_by_class, x, layer)
            )
        if not self._noted(run).calls:
            raise OptionError(
                f"layer `{self.layer}` gave no tensor when the model ran",
                help="name a layer that runs and gives a map; `gradscope layers MODEL` lists them",
            )
        self._layer_pass = run
        return run

    def layer_gradient(self, objective: Objective) -> tuple[Tensor, Tensor]:
        """Return the activation and d objective / d activation, [N, K, h, w], of the last call on
        which the score depends.

        Backward stops at the layer.

        Raises:
            OptionError: the layer's output is no map, or the score does not depend on it.
        """
        everyone, run = self._everyone(len(self.inputs)), self._to_layer()
        found = run.at_layer(objective(run.logits, everyone))
        if found is None:
            # If the model ignores the result of an in-place layer, no graph can start there.
            run = self._from_input(modules_by_name(self.model)[self.layer])
            found = run.at_layer(objective(run.logits, everyone))
        if found is None:
            raise OptionError(
                f"the score does not depend on the output of layer `{self.layer}`",
                help="leave out --layer to have one chosen that it depends on",
            )
        activation, gradient = (map_of(o, self.model, self.inputs, self.layer) for o in found)
        return activation, gradient

    @cached_property
    def _at_layer(self) -> tuple[Tensor, Tensor]:
        return self.layer_gradient(self.objective)

    @property
    def activation(self) -> Tensor:
        """The target layer's output [N, K, h, w], as it was before anything wrote into it."""
        return self._at_layer[0]

    @property
    def gradient(self) -> Tensor:
        """d score / d activation, [N, K, h, w]."""
        return self._at_layer[1]

    def upsample(self, maps: Tensor) -> Tensor:
        """Upsample maps [N, h, w] to the input's resolution [N, H, W]: bilinear,
        ``align_corners=False``."""
        size = tuple(self.inputs.shape[-2:])
        resized = interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)
        return resized[:, 0].float()

    def once(self, key: object, make: Callable[[], Result]) -> Result:
        """Return the result of the first call with this key: VarGrad reuses SmoothGrad's noise."""
        if key not in self._shared:
            self._shared[key] = make()
        found: Result = self._shared[key]
        return found

    def generator(self) -> torch.Generator:
        """Return a new seeded generator on the CPU: each method draws the same numbers every
        time."""
        return torch.Generator().manual_seed(self.seed)

    @property
    def batches(self) -> Batches:
        """The batch size and memory layout that this model runs fastest with."""
        if self.measured is None:
            self.measured = Batches(self.model)
        return self.measured

    def scores_of(
        self,
        make: Callable[[slice], Tensor],
        count: int,
        owners: Tensor | None = None,
        *,
        objective: Objective | None = None,
    ) -> Tensor:
        """Return the scores [count] of inputs that are made batch by batch, without a graph.

        ``make(rows)`` gives the inputs [M, C, H, W] of these rows, ``owners`` is as for ``score``.
        """
        everyone = self._everyone(count) if owners is None else owners.to(self.inputs.device)
        counted = objective or self.objective

        def run(inputs: Tensor, rows: slice) -> Tensor:
            return counted(self._forward(inputs, everyone[rows]), everyone[rows])

        return self.batches.scores(make, run, count)

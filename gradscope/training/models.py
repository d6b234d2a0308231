"""The models of a run: found, named, and wrapped as the script has them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.capture.names import modules_of, written_class
from gradscope.loading.surgery import unwrapped
from gradscope.records.training import TrainedModel, without_calls
from gradscope.training.discovery import compiled_inside, outermost_modules, stage_of, variable_name
from gradscope.training.replicas import wrapper_of

#: The ids of stages begin here: no process has this many models.
_STAGES = 1000


@dataclass(slots=True, eq=False)
class Model:
    """One model: ``module`` is the script's own, without its wrappers.

    ``compiled`` is as in ``TrainedModel``: such a model gets no hooks, because the compiler would
    trace them, and it is not run eagerly, because that would change its numbers.
    """

    id: int
    name: str
    outer: weakref.ref[nn.Module]
    module_ref: weakref.ref[nn.Module]
    parameters: int = 0
    trainable: int = 0
    lazy: bool = True  # parameters were without a shape at the last count
    compiled: str | None = None
    autocast: str | None = None  # the dtype around or inside its forward
    recorded: TrainedModel | None = None
    batch_first: bool | None = None  # whether it takes the batch as the first axis
    stage: int | None = None  # of a pipeline
    settled: bool = False  # whether it was asked for its stage
    samples: int = 0  # how often weights of it were copied
    notices: tuple[str, ...] = field(default=())

    @property
    def module(self) -> nn.Module:
        """The model; only valid while it is alive."""
        found = self.module_ref()
        assert found is not None
        return found

    def count(self) -> None:
        """Count the elements of the parameters, again until a lazy module has all of its own."""
        if self.lazy:
            own = list(dict.fromkeys(self.module.parameters()))
            shaped = [p for p in own if not is_lazy(p)]
            self.parameters = sum(p.numel() for p in shaped)
            self.trainable = sum(p.numel() for p in shaped if p.requires_grad)
            self.lazy = len(shaped) < len(own)

    def news(self, step: int) -> TrainedModel | None:
        """Return the model's new entry in the run file; None if that is unchanged."""
        record = self._record(step if self.recorded is None else self.recorded.first_step)
        if record == self.recorded:
            return None
        self.recorded = record
        return record

    def _record(self, step: int) -> TrainedModel:
        module, outer = self.module, self.outer()
        self.count()
        return TrainedModel(
            id=self.id,
            name=self.name,
            type=written_class(module).__name__,
            parameters=self.parameters,
            trainable=self.trainable,
            modules=len(modules_of(module)),
            first_step=step,
            wrapper=None if outer is None else wrapper_of(outer),
            stage=self.stage,
            autocast=self.autocast,
            compiled=self.compiled,
        )


class Models:
    """All models that were found, by the modules that are alive."""

    def __init__(self) -> None:
        self._found: list[Model] = []
        self.probed = False  # the calls of compiled models are recorded
        self.traced = False  # a function was compiled, and whatever it calls is traced
        self.forwards: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # theirs alone is compiled
        self.stale = False  # something was compiled since they were looked for
        self.ever = False  # one was found
        #: Returns the live modules that were made under observation.
        self.registered: Callable[[], Iterable[nn.Module]] = tuple

    def __iter__(self) -> Iterator[Model]:
        """Iterate over the live models; each stays alive until the next."""
        for model in self._found:
            module = model.module_ref()
            if module is not None:
                outer = model.outer()
                if outer is None:  # the script uses it without its wrapper from now on
                    model.outer = model.module_ref
                yield model

    @contextmanager
    def kept(self) -> Iterator[list[Model]]:
        """Yield the live models, all kept alive in the block."""
        found = [(model, model.outer(), model.module) for model in self]
        yield [one for one, *_ in found]

    def only(self, modules: Sequence[nn.Module]) -> None:
        """Use these models, without a search for others."""
        self._given = [weakref.ref(module) for module in modules]

    _given: list[weakref.ref[nn.Module]] | None = None

    @property
    def are_given(self) -> bool:
        """True if the caller named the models."""
        return self._given is not None

    def search(self) -> bool:
        """Search for models again; return True if there are other models than before."""
        if self._given is None:
            roots = outermost_modules(self.registered())
        else:
            roots = [module for given in self._given if (module := given()) is not None]
        known = {id(model.outer()): model for model in self}
        # If a module has several wrappers, the known one is kept.
        roots.sort(key=lambda root: id(root) in known)
        roots = list({id(unwrapped(root)[0]): root for root in roots}.values())
        if {id(root) for root in roots} == set(known) and not self.stale:
            return False
        self.stale = False
        kept = [known[id(root)] for root in roots if id(root) in known]
        # A model that was outermost before may be wrapped now: it stays the same model, with its
        # name.
        inner = {id(model.module): model for model in self}
        for root in roots:
            if id(root) in known:
                continue
            module, _ = unwrapped(root)
            same = inner.get(id(module))
            if same is None:
                kept.append(self._made(root, module))
            else:
                same.outer = weakref.ref(root)
                kept.append(same)
        self._found = sorted(kept, key=lambda model: model.id)
        self.ever = self.ever or bool(kept)
        for model in self:
            self._see_compiled(model)
        return True

    def settle(self) -> bool:
        """Find the models that are stages of a pipeline, after their forward; return True if there
        are new ones.

        Each process has other stages; a stage's number and name do not depend on the process.
        """
        new = [model for model in self if not model.settled]
        for model in new:
            outer, model.settled = model.outer(), True
            model.stage = None if outer is None else stage_of(outer)
            if model.stage is not None:
                model.id = _STAGES * model.id + model.stage
                model.name = self._free_name(model, f"stage{model.stage}")
        return any(model.stage is not None for model in new)

    def forget_hooks(self) -> None:
        """Search again: compiled models may have changed."""
        self._found = list(self)
        self.stale = True

    def _made(self, root: nn.Module, module: nn.Module) -> Model:
        made = Model(
            id=self._next_id(),
            name=variable_name(root) or "",
            outer=weakref.ref(root),
            module_ref=weakref.ref(module),
        )
        made.count()
        return made

    _ids = 0

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    def _see_compiled(self, model: Model) -> None:
        outer = model.outer()
        assert outer is not None
        inside = compiled_inside(outer, model.module, self.forwards)
        model.compiled = inside or ("function" if self.traced else None)
        model.notices = ()
        if model.compiled and not self.probed:
            model.notices = (without_calls(model.compiled),)

    def name(self, model: Model) -> str:
        """Return the model's name, searched again if it had none: the script's variable, else its
        class.
        """
        if not model.name:
            outer = model.outer()
            found = variable_name(outer) if outer is not None else None
            model.name = self._free_name(model, found or written_class(model.module).__name__)
        return model.name

    def _free_name(self, model: Model, plain: str) -> str:
        taken = {other.name for other in self._found if other is not model}
        name, number = plain, 2
        while name in taken:
            name, number = f"{plain}#{number}", number + 1
        return name

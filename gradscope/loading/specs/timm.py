"""``timm:vit_tiny_patch16_224``: every model of timm's registry, ``name.tag`` for its weights."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from gradscope.errors import ConfigError, GradscopeError, TargetError, did_you_mean, first_line
from gradscope.loading.imports import hub, require
from gradscope.loading.specs import Built, ModelKind, Request, require_module


def check(request: Request) -> None:
    """Refuse an unknown name.

    Raises:
        TargetError: the message suggests the closest.
    """
    timm = _timm(request)
    name, _, tag = request.name.partition(".")
    if ":" in name or "/" in name:
        raise TargetError(
            f"`{request.spec}` may not be built: it brings a config that names files to load",
            place=request.place(),
            help="take a plain timm name, with your weights as the config's `checkpoint`",
        )
    if not timm.is_model(name):
        raise TargetError(
            f"timm has no model `{name}`",
            place=request.place(),
            help=did_you_mean(name, timm.list_models())
            or "list them: python -c 'import timm; print(timm.list_models())'",
        )
    if tag:
        _check_tag(timm, name, tag, request, "model")


def build(request: Request) -> Built:
    """Build a timm model, with random weights by default."""
    check(request)
    timm = _timm(request)
    kwargs = dict(request.kwargs)
    weights = "DEFAULT" if kwargs.pop("pretrained", False) else request.weights
    name = request.name
    if weights not in (None, "DEFAULT"):
        name = f"{name.partition('.')[0]}.{weights}"
        _check_tag(timm, name.partition(".")[0], str(weights), request, "weights")
    load = weights is not None and not request.meta

    def create(pretrained: bool) -> Any:
        arguments = {**kwargs, "pretrained": pretrained}
        like = timm.models.model_entrypoint(name.partition(".")[0])
        return request.targets.call(
            *(timm.create_model, request.spec, [name, *request.args], arguments, "model"),
            like=like,
            downloads=pretrained,
        )

    if not load:
        model = create(False)
    else:
        with torch.device("meta"):  # the user's mistakes first, at no cost; then the download
            cfg = create(False).pretrained_cfg
        model = _pretrained(create, name, cfg, request)
    model = require_module(model, request)
    kind = ModelKind(
        "timm",
        name,
        pretrained_cfg=getattr(model, "pretrained_cfg", None),
        data_config=timm.data.resolve_model_data_config(model),
    )
    notices = (f"weights: {name}",) if load else ()
    if weights is not None and request.meta:
        notices = (f"weights: {name} not loaded, the meta device has no values",)
    return Built(model, kind, str(weights) if weights is not None else None, notices)


def _timm(request: Request) -> ModuleType:
    return require("timm", wanted_by=request.spec, place=request.place())


def _check_tag(timm: ModuleType, name: str, tag: str, request: Request, key: str) -> None:
    known = [full.partition(".")[2] for full in timm.list_pretrained(f"{name}.*")]
    if tag not in known:
        raise ConfigError(
            f"timm's `{name}` has no weights `{tag}`",
            place=request.place(key),
            help=did_you_mean(tag, known)
            or (f"it has {', '.join(known)}" if known else "timm has none for it"),
        )


def _pretrained(create: Any, name: str, cfg: Any, request: Request) -> Any:
    try:
        with hub():
            return create(True)
    except GradscopeError as error:
        # The same call without weights succeeded, so only the weights failed.
        reason = error.__cause__ or error
        source = (cfg or {}).get("hf_hub_id") or (cfg or {}).get("url")
        fetch = f"hf download {source}" if (cfg or {}).get("hf_hub_id") else f"fetch {source}"
        raise ConfigError(
            f"cannot load the weights `{name}`: {first_line(reason)}",
            place=request.place("weights"),
            help=f"with a network: {fetch}; then copy its folder into {_cache(source)}",
        ) from error


def _cache(source: Any) -> str:
    if source and "://" in str(source):
        return f"{torch.hub.get_dir()}/checkpoints"
    constants = require("huggingface_hub", wanted_by="timm").constants
    return str(constants.HF_HUB_CACHE)

"""``hf:DIR``, ``hf:config.json``, ``hf:ID``: builds transformers models by their config."""

from __future__ import annotations

import json
import re
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from gradscope.config.yaml12 import DEEPEST
from gradscope.errors import (
    ConfigError,
    GradscopeError,
    Place,
    did_you_mean,
    first_line,
    message_of,
)
from gradscope.images.files import shown
from gradscope.loading.imports import hub, require
from gradscope.loading.policy import check_settings, check_sizes
from gradscope.loading.sources.tensor_files import refused
from gradscope.loading.specs import Built, ModelKind, Request, require_module
from gradscope.nesting import is_deeper
from gradscope.output_files import expanded, is_stream

_CALL_ARGUMENTS = ("attn_implementation", "dtype", "torch_dtype")
# Auto classes that also hold other classes' models: asked last.
_BROAD = ("AutoModelForPreTraining", "AutoModelForTextEncoding")


def build(request: Request) -> Built:
    """Build the model with random weights, or with those of the folder for ``weights: DEFAULT`` (or
    a revision)."""
    transformers = require("transformers", wanted_by=request.spec, place=request.place())
    source, local = _source(request)
    notices = _check_json(source, local, request)
    config = _config(transformers, source, request)
    check_sizes(request.spec, config.to_dict(), request.place())
    check_settings(request.spec, config.to_dict(), request.place())
    auto = auto_class(transformers, config)
    call = {k: v for k, v in request.kwargs.items() if k in _CALL_ARGUMENTS}
    if request.weights is not None and not request.meta:
        model = _pretrained(auto, config, source, call, request, notices)
    else:
        if request.weights is not None:
            notices.append("weights: not loaded, the meta device has no values")
        builder = getattr(transformers, auto).from_config
        model = request.targets.call(builder, request.spec, [config], call, "model")
    kind = ModelKind("hf", request.name, hf_config=config, tokenizer=source)
    return Built(require_module(model, request), kind, request.weights, tuple(notices))


def _source(request: Request) -> tuple[str, bool]:
    """Return transformers' argument (a folder's path or an id), and True if it is a folder.

    Raises:
        ConfigError: the path does not exist, or the folder has no config.json.
    """
    path = request.directory / expanded(request.name)
    if path.name == "config.json" or path.suffix == ".json":
        if path.name != "config.json" and path.is_file():
            return str(path), True
        path = path.parent
    if (path / "config.json").is_file():
        stream = next((file for file in path.iterdir() if is_stream(file)), None)
        if stream is not None:
            help = "take it out of the model's folder"
            message = f"{shown(stream)} is not a regular file"
            raise ConfigError(message, place=request.place(), help=help)
        return str(path), True
    if path.is_dir():
        raise ConfigError(
            f"the folder {shown(path)} has no config.json",
            place=request.place(),
            help="name the folder that `save_pretrained` wrote",
        )
    looks_local = request.name.startswith((".", "/", "~")) or request.name.endswith(".json")
    if looks_local or request.name.count("/") > 1:
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        near = [p.name for p in beside if p.is_dir()]
        raise ConfigError(
            f"there is no folder {shown(path)}",
            place=request.place(),
            help=did_you_mean(path.name, near) or "name a folder with a config.json, or an id",
        )
    return request.name, False


def _check_json(source: str, local: bool, request: Request) -> list[str]:
    """Check a local config.json; return notices of custom code in it, which never runs."""
    if not local:
        return []
    path = Path(source) if source.endswith(".json") else Path(source) / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not a mapping")
        if is_deeper(content, DEEPEST):
            raise RecursionError
    except (ValueError, OSError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        reason = f"it is nested deeper than {DEEPEST}" if deep else error
        raise ConfigError(
            f"{shown(path)} is not a transformers config: {reason}",
            place=request.place(),
            help="write it with `config.save_pretrained`",
        ) from error
    refuse_kernels(content, shown(path), request.place())
    check_sizes(shown(path), content, request.place())
    check_settings(shown(path), content, request.place())
    if "auto_map" in content:
        return [f"{path.name}: its `auto_map` names custom code, which is not run"]
    return []


def refuse_kernels(content: dict[str, Any], name: str, place: Place | None) -> None:
    """Refuse a config whose attention is a kernel of a hub: the kernel would be fetched and run."""
    for key, value in content.items():
        if isinstance(value, dict):
            refuse_kernels(value, name, place)
        elif "_implementation" in key and "/" in str(value):
            raise ConfigError(
                f"{name} sets `{key}: {value}`, which fetches and runs a kernel",
                place=place,
                help=f"override it: `model.{key.lstrip('_')}=eager`, or edit the file",
            )


def _config(transformers: ModuleType, source: str, request: Request) -> Any:
    """Return the config object, with the request's arguments set on it.

    Raises:
        ConfigError: it cannot be loaded, needs custom code, or has no such field.
    """
    extra = {k: v for k, v in request.kwargs.items() if k not in _CALL_ARGUMENTS}
    extra = {k: request.targets.build(v, f"model.{k}") for k, v in extra.items()}
    refuse_kernels(dict(request.kwargs), f"`{request.spec}`", request.place())
    check_sizes(request.spec, request.kwargs, request.place())
    check_settings(request.spec, request.kwargs, request.place())
    if request.args:
        raise ConfigError(f"`{request.spec}` takes named arguments only", place=request.place())
    local = Path(source).exists()
    read = transformers.AutoConfig.from_pretrained
    try:
        with nullcontext() if local else hub(), _wall(read, request, local):
            config, unknown = read(
                source, return_unused_kwargs=True, trust_remote_code=False, **extra
            )
    except GradscopeError:
        raise
    except Exception as error:  # transformers raises OSError, ValueError and its hub's own
        raise _unavailable(error, source, request) from error
    unknown = [name for name in unknown if name in extra]
    if unknown:
        fields = [name for name in config.to_dict() if not name.startswith("_")]
        raise ConfigError(
            f"the config of `{request.spec}` has no field `{unknown[0]}`",
            place=request.place(f"model.{unknown[0]}", of_key=True),
            help=did_you_mean(unknown[0], fields) or f"it has {', '.join(fields[:12])}, …",
        )
    return config


def _wall(found: Any, request: Request, local: bool) -> AbstractContextManager[None]:
    """Return True if the name is a hub id, so that downloads are allowed."""
    return request.targets.wall(found, request.spec, downloads=not local) or nullcontext()


def _unavailable(error: Exception, source: str, request: Request) -> ConfigError:
    if "trust_remote_code" in message_of(error) or "custom code" in message_of(error):
        return ConfigError(
            f"`{request.spec}` needs the code in its repository, which gradscope does not run",
            place=request.place(),
            help="put that code next to your config and give its class: `./modeling.py:Model`",
        )
    first = first_line(error)
    help = f"with a network: hf download {source}; or give a folder with a config.json"
    if "model type" in first or "model_type" in first:
        help = "`model_type` in config.json must be one that the installed transformers knows"
    place = request.place()
    message = f"cannot load `{request.spec}`: {first}"
    if _is_offline(first):
        message = f"{request.spec} is not cached, and there is no network"
    return ConfigError(message, place=place, help=help)


def _is_offline(message: str) -> bool:
    """Return True if an error of transformers or its hub means that there is no network."""
    return re.search("connect|offline|resolve|network", message, re.IGNORECASE) is not None


def auto_class(transformers: ModuleType, config: Any) -> str:
    """Return the Auto class of the config's first architecture; AutoModel if it names none."""
    listed = config.architectures
    wanted = next(iter(listed), None) if isinstance(listed, (list, tuple)) else None
    names = [n for n in dir(transformers) if n.startswith("AutoModelFor")]
    names = [n for n in names if n not in _BROAD] + [n for n in _BROAD if n in names]
    for name in names:
        mapping = getattr(getattr(transformers, name), "_model_mapping", None)
        # The names alone: asking the mapping itself would import every model.
        held = getattr(mapping, "_model_mapping", {}).get(config.model_type)
        if wanted is not None and wanted in (held if isinstance(held, (tuple, list)) else [held]):
            return name
    return "AutoModel"


def _pretrained(
    auto: str, config: Any, source: str, call: dict[str, Any], request: Request, notices: list[str]
) -> Any:
    transformers = require("transformers", wanted_by=request.spec)
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()
    revision = {} if request.weights == "DEFAULT" else {"revision": request.weights}
    builder = getattr(transformers, auto).from_pretrained
    reasons: list[Exception] = []
    local = Path(source).exists()
    for safetensors in (True, False):  # pickles second, and those only as plain weights
        try:
            with nullcontext() if local else hub(), _wall(builder, request, local):
                model, info = builder(
                    source,
                    config=config,
                    use_safetensors=safetensors,
                    weights_only=True,
                    trust_remote_code=False,
                    output_loading_info=True,
                    **call,
                    **revision,
                )
        except GradscopeError:
            raise
        except Exception as error:  # OSError, ValueError, UnpicklingError, the hub's own
            reasons.append(error)
            continue
        notices.append(f"weights: {source}")
        missing = sorted(info.get("missing_keys") or [])
        if missing:
            notices.append(f"weights: {len(missing)} not in the file stay random, {missing[0]} …")
        return model
    # An error about an existing file says more than "no file".
    reason = next((error for error in reasons if not isinstance(error, OSError)), reasons[0])
    if "weights_only" in str(reason) and local:
        raise refused(Path(source), str(reason), request.place("weights")) from reason
    first = first_line(reason)
    raise ConfigError(
        f"the weights of {request.spec} are not cached, and there is no network"
        if not local and _is_offline(first)
        else f"cannot load the weights of `{request.spec}`: {first}",
        place=request.place("weights"),
        help=f"put model.safetensors into {shown(Path(source))}"
        if local
        else f"with a network: hf download {source}",
    ) from reason

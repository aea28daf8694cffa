"""Records the checkpoints that a rank saves and loads: file, time and contents.

torch has no hook for these, so its functions are replaced, and `os.replace` and
`os.rename`, by which a file that was written whole gets its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from distdoctor.model.observations.checkpoints import Moved, Opened, Stored, Storing
from distdoctor.probes import shared_clock
from distdoctor.probes.amp import grad_scalers
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.checkpoints import restored_state
from distdoctor.probes.checkpoints.checkpoint_contents import Contents, disk_of, file_of
from distdoctor.probes.comparison.file_backup import KEEPER
from distdoctor.probes.gpu_emulation.replacement import replace
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST_FILES = 10_000
"""Of one process; what it writes and reads beyond is not looked at."""

_written: set[str] = set()
_count = 0


def install() -> None:
    """Install the probe; called right after `import torch`."""
    for owner in (torch, torch.serialization):
        replace(owner, "save", _save)
        replace(owner, "load", _load)
    for name in ("replace", "rename"):
        made = getattr(os, name)
        replace(os, name, _move)
        for able in (os.supports_dir_fd, os.supports_follow_symlinks):
            if made in able:
                able.add(getattr(os, name))


def _watch_safetensors(module: ModuleType) -> None:
    """Right after `import safetensors.torch`."""
    replace(module, "save_file", _save)
    replace(module, "load_file", _load)


def _save(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    began = shared_clock.now_ns()
    if KEEPER.on:
        KEEPER.changes(_target(args, kwargs, 1)[1])
    _storing(began, args, kwargs)
    result = made(*args, **kwargs)
    _stored(began, args, kwargs)
    return result


def _load(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    began = shared_clock.now_ns()
    try:
        result = made(*args, **kwargs)
    except Exception as error:
        _opened(began, args, kwargs, None, type(error).__name__)
        raise
    _opened(began, args, kwargs, result, "")
    return result


def _move(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    source = _source(args, kwargs) if _written else None
    result = made(*args, **kwargs)
    if source is not None:
        _moved(source, args, kwargs)
    return result


def _target(args: tuple[Any, ...], kwargs: dict[str, Any], at: int) -> tuple[Any, str]:
    """What was named as the file, and its path."""
    target = args[at] if len(args) > at else kwargs.get("f", kwargs.get("filename"))
    return target, file_of(target)


def _is_enough() -> bool:
    global _count
    _count += 1
    return RECORDER.writer is None or _count > _MOST_FILES


@harmless
def _storing(began: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Tell of it before it is done: the job may end meanwhile."""
    _, file = _written_whole(args, kwargs)
    if file and RECORDER.writer is not None and _count < _MOST_FILES:
        RECORDER.observe(
            Storing(file=file, disk=disk_of(file), began_ns=began),
            call_site(1),
        )


def _written_whole(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, str]:
    """What is written, and the file; "": that is none, or gets more than this."""
    target, file = _target(args, kwargs, 1)
    thing = args[0] if args else kwargs.get("obj", kwargs.get("tensors"))
    # torch.distributed.checkpoint writes tensors one by one into files of its own.
    piece = isinstance(thing, torch.Tensor) and hasattr(target, "write")
    return thing, "" if piece else file


@harmless
def _stored(began: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    thing, file = _written_whole(args, kwargs)
    if not file or _is_enough():
        return
    ended = shared_clock.now_ns()
    _written.add(file)
    contents = Contents(thing, printed=True)
    RECORDER.observe(
        Stored(
            file=file,
            disk=disk_of(file),
            began_ns=began,
            ended_ns=ended,
            **contents.fields(),
            **contents.prints(),
            **restored_state.running(),
            **grad_scalers.running(thing),
        ),
        call_site(1),
    )


@harmless
def _opened(
    began: int, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, error: str
) -> None:
    _, file = _target(args, kwargs, 0)
    if not file or _is_enough():
        return
    contents = Contents(result)
    if contents.parts:
        restored_state.loaded(contents.names)
    ended = shared_clock.now_ns()
    RECORDER.observe(
        Opened(
            file=file,
            disk=disk_of(file),
            began_ns=began,
            ended_ns=ended,
            error=error,
            **contents.fields(),
        ),
        call_site(1),
    )


@harmless
def _source(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    file = file_of(args[0] if args else kwargs.get("src"))
    return file if file in _written else None


@harmless
def _moved(source: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    file = file_of(args[1] if len(args) > 1 else kwargs.get("dst"))
    _written.discard(source)
    _written.add(file)
    ended = shared_clock.now_ns()
    RECORDER.observe(Moved(source=source, file=file, ended_ns=ended), call_site(1))


PROBE = Probe(install=install, imports={"safetensors.torch": _watch_safetensors})

"""Finds the line of the user's source that a call came from: its call site."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import TypeAlias

from distdoctor.compiled import HOT
from distdoctor.journal.packed_texts import joined, parted
from distdoctor.model.layers import LAYERS
from distdoctor.model.peer_faults import COMMUNICATING, PEER_IS_GONE
from distdoctor.probes.frame_variables import Names

OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120
_LIBRARY = tuple(
    {
        path.rstrip(os.sep) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_paths().get(name))
    }
)
_MARKS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

_COMMUNICATING = tuple(
    os.sep + part.replace("/", os.sep) + os.sep for part in COMMUNICATING
)

_LAYER_OF = {
    os.sep + part.replace("/", os.sep): LAYERS.index(layer)
    for part, layer in (
        ("torch/autograd/", "backward"),
        ("torch/nn/parallel/distributed.py", "ddp"),
        ("torch/distributed/fsdp/", "fsdp"),
        ("torch/distributed/_composable/fsdp/", "fsdp"),
        ("torch/distributed/tensor/", "dtensor"),
        ("torch/distributed/_tensor/", "dtensor"),
        ("torch/distributed/checkpoint/", "checkpoint"),
        ("torch/distributed/pipelining/", "pipeline"),
        ("horovod/torch/optimizer.py", "horovod"),
    )
}
_USERS = len(LAYERS)
_BACKWARD = LAYERS.index("backward")

_kinds: dict[str, int] = {}  # of files: `_USERS`, or a position in LAYERS
_texts: dict[tuple[int, int], tuple[str, CodeType]] = {}

_MOST_TEXTS = 65_536

_ways: dict[tuple[int, ...], tuple[str, tuple[CodeType, ...]]] = {}
"""By `id` of the code and instruction of each frame: to hash a code takes longer than
all else. Codes are kept with the text, so that no other gets their `id`."""

Stack: TypeAlias = tuple[int, ...] | bytes
"""Where each frame of a whole stack stands; as numbers of 8 bytes if C has read it."""

_stacks: dict[Stack, tuple[tuple[str, str, int], tuple[CodeType, ...]]] = {}
"""What `layered_way` gives, by where each frame of the whole stack stands."""

_DEEPEST = range(48)  # frames of a stack that is looked up as a whole

_MOST_WAYS = 1_024  # of 9 lines each; a journal has room for 4 MiB of texts

_MOST_CALLERS = 8

_MOST_FRAMES = 64  # the user's and others


def is_users(file: str) -> bool:
    """Whether a file is the user's: not Python's, not installed, not distdoctor's.

    A script that lies inside an installed tree is the user's if it is the program.
    """
    return _kind(file) == _USERS


def _kind(file: str) -> int:
    known = _kinds.get(file)
    if known is None:
        known = _USERS if _is_users(file) else _layer(file)
        _kinds[file] = known
    return known


def _layer(file: str) -> int:
    for part, layer in _LAYER_OF.items():
        if part in file:
            return layer
    return 0


def _is_users(file: str) -> bool:
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    if program is not None and file == program and not file.startswith(OWN):
        return not file.startswith(_LIBRARY)
    return not (
        file.startswith(("<", OWN, *_LIBRARY)) or any(mark in file for mark in _MARKS)
    )


def text_of(file: str, line: int, function: str) -> str:
    """A call site in the text form that the journal stores."""
    return joined(os.path.abspath(file), str(line), function)  # noqa: PTH100


def call_site(depth: int) -> str:
    """The innermost frame of user code, `depth` frames above the caller; "" if none."""
    return layered_site(depth + 1)[0]


def layered_site(depth: int) -> tuple[str, int]:
    """The innermost user frame, and the part of torch called: index in `LAYERS`.

    Source of the figure: measured, 0.2 µs at depth 1 with the text known.
    """
    frame, layer = _innermost(frame_above(depth))
    return ("" if frame is None else _text_at(frame)), layer


def layered_way(depth: int) -> tuple[str, str, int]:
    """Like `layered_site`, with the user's frames that led to that one.

    Returns:
        The line; the line and, behind it, those of its callers, outwards, as in the
        journal; the part of torch.

    Measured: 0.2 µs for each frame of the stack.
    """
    frame = frame_above(depth)
    key = HOT.stack(depth) if HOT else _stack(frame)
    if key is None:
        return _layered_way(frame)
    known = _stacks.get(key)
    if known is None:
        known = _layered_way(frame), tuple(codes(frame))
        if len(_stacks) < _MOST_WAYS:
            _stacks[key] = known
    return known[0]


def _stack(frame: FrameType | None) -> Stack | None:
    """Where a frame and those above it stand; None if they are too many."""
    steps: list[int] = []
    for _ in _DEEPEST:
        if frame is None:
            break
        # A code holds its own instructions: no other's are in the same place.
        steps.append(id(frame.f_code) + frame.f_lasti)
        frame = frame.f_back
    return tuple(steps) if frame is None else None


def _layered_way(frame: FrameType | None) -> tuple[str, str, int]:
    frame, layer = _innermost(frame)
    if frame is None:
        return "", "", layer
    text = _text_at(frame)
    return text, _with_callers(frame, text), layer


def codes(frame: FrameType | None) -> Iterator[CodeType]:
    """What runs in a frame and in those above it."""
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _innermost(frame: FrameType | None) -> tuple[FrameType | None, int]:
    """The innermost frame of user code, and the outermost part of torch below it."""
    layer = 0
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kind(code.co_filename)
        if kind == _USERS:
            return frame, layer
        if kind and not (kind == _BACKWARD and _is_forward(code)):
            layer = kind  # the outermost is what the user called
        frame = frame.f_back
    return None, layer


def _is_forward(code: CodeType) -> bool:
    """Whether code of autograd's computes the forward pass of a function.

    Source: torch 2.13, torch/autograd/function.py: `Function.apply` is a class method,
    and `BackwardCFunction.apply`, the way back, one of objects.
    """
    return code.co_name == "apply" and code.co_varnames[:1] == ("cls",)


def _with_callers(frame: FrameType, text: str) -> str:
    frames = [frame]
    steps = [id(frame.f_code), frame.f_lasti]
    above = frame.f_back
    for _ in range(_MOST_FRAMES):
        if above is None:
            break
        code = above.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kind(code.co_filename)
        if kind == _USERS:
            steps += id(code), above.f_lasti
            frames.append(above)
            if len(frames) > _MOST_CALLERS:
                break
        above = above.f_back
    key = tuple(steps)
    known = _ways.get(key)
    if known is not None:
        return known[0]
    if len(_ways) >= _MOST_WAYS:
        return text  # such as of a recursion
    way = "\n".join([text, *map(_text_at, frames[1:])])
    _ways[key] = way, tuple(one.f_code for one in frames)
    return way


def frame_above(depth: int) -> FrameType | None:
    """The frame `depth` above the caller; None on a thread that C++ started."""
    try:
        return sys._getframe(depth + 1)
    except ValueError:
        return None


def users_frames(most: int) -> Iterator[FrameType]:
    """The innermost frames of the user's code on this thread.

    Args:
        most: How many.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(most):
        while frame is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def making_site(depth: int, kind: type) -> str:
    """The line of user code that constructs an object, called while it does.

    Args:
        depth: As in `call_site`.
        kind: Whose `__init__` is part of the making, the user's own as well.
    """
    frame, site = frame_above(depth), ""
    while frame is not None:
        code = frame.f_code
        if _kind(code.co_filename) == _USERS:
            site = _text_at(frame)
            if code.co_name != "__init__" or not code.co_argcount:
                break
            with Names(frame) as value:
                made = isinstance(value(code.co_varnames[0]), kind)
            if not made:
                break
        frame = frame.f_back
    return site


def _text_at(frame: FrameType) -> str:
    code = frame.f_code
    key = id(code), frame.f_lasti
    known = _texts.get(key)
    if known is None:
        if len(_texts) >= _MOST_TEXTS:
            _texts.clear()
        text = text_of(code.co_filename, frame.f_lineno, code.co_qualname)
        known = _texts[key] = text, code
    return known[0]


def asking_site() -> str:
    """The user's line that waited for a child's exit; "" if a launcher did.

    Launchers are programs, too: torchrun is a script beside Python, or a part of torch.
    """
    site = call_site(1)
    file = parted(site)[0]
    by_launcher = not file.endswith(".py") or any(mark in file for mark in _MARKS)
    return "" if by_launcher else site


def error_site(traceback: TracebackType | None) -> str:
    """The innermost line of user code that an exception came through; "" if none."""
    site = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_users(code.co_filename):
            site = text_of(code.co_filename, traceback.tb_lineno, code.co_qualname)
        traceback = traceback.tb_next
    return site


def is_peers_fault(error: BaseException, traceback: TracebackType | None) -> bool:
    """Whether an exception only tells that a peer, or the connection to it, is gone.

    It does if torch raised it and its text speaks of a connection or a timeout.
    Other errors that torch.distributed raises (wrong list length, bad split) are the
    rank's own.
    """
    last = ""
    while traceback is not None:
        last = traceback.tb_frame.f_code.co_filename
        traceback = traceback.tb_next
    by_torch = last.startswith(OWN) or any(part in last for part in _COMMUNICATING)
    return (
        by_torch
        and isinstance(error, RuntimeError)
        and PEER_IS_GONE.search(str(error)) is not None
    )

"""Finds the variable that keeps autograd graphs alive, and the line that fills it.

Only asked when old graphs were counted already: the variables of the user's functions
that are running are looked through, and the graphs they hold on to are followed to the
marks that were hung on them.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Collection, Iterator
from types import FrameType
from typing import Any

from torch import Tensor

from distdoctor.model.source_text import syntax_tree
from distdoctor.probes.call_sites import is_users, text_of
from distdoctor.probes.frame_variables import variables

_MOST_NODES = 20_000
_MOST_ITEMS = 256
_MOST_FRAMES = 20
_MOST_ABOVE = 2  # the user's functions that an evaluation runs in

_FILLS = {"append", "extend", "add", "appendleft", "insert", "update", "put"}


def holder_of(marks: Collection[Any], key: str) -> tuple[str, str]:
    """The variable that holds most of the marked graphs, and its line.

    Args:
        marks: The marks that are alive.
        key: Their key in the metadata of autograd nodes.

    Returns:
        The name, such as "losses" or "self.history", and the site of the line that
        fills it; both empty if no variable holds at least half of them.
    """
    wanted = {id(mark) for mark in marks}
    best, name, where = len(wanted) // 2, "", None
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        while frame is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            break
        for candidate, value in variables_of(frame):
            held = len(_marks_held(_roots(value), key) & wanted)
            if held > best:
                best, name, where = held, candidate, frame
        frame = frame.f_back
    if where is None:
        return "", ""
    return name, line_that_fills(where, name)


class Holder:
    """A variable of a running function that holds autograd graphs.

    A sum of tensors holds one for each addition, a list one for each of its items.

    Attributes:
        count: Graphs that it holds.
        last: The node that the last one ends with.
    """

    def __init__(self, frame: FrameType, name: str, roots: list[Any]) -> None:
        self.name = name
        self.count = _additions(roots[0]) if len(roots) == 1 else len(roots)
        self.last = roots[-1]
        self._frame = frame

    def site(self) -> str:
        """The line that fills the variable; "" if none is found."""
        return line_that_fills(self._frame, self.name)


def holders() -> dict[str, Holder]:
    """Variables of the user's innermost functions that hold graphs, by name."""
    found: dict[str, Holder] = {}
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_ABOVE):
        while frame is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            break
        for name, value in variables_of(frame):
            if roots := _roots(value):
                found.setdefault(name, Holder(frame, name, roots))
        frame = frame.f_back
    return found


def _additions(node: Any) -> int:
    """Additions that follow each other along a graph, back from its last node.

    A loss of several terms has some of its own; the longest chain counts.
    """
    most = 0
    chains = [(node, 0)]
    for one, so_far in chains:
        most = max(most, so_far)
        if so_far < _MOST_NODES and len(chains) < _MOST_NODES:
            chains += [
                (following, so_far + 1)
                for following, _ in one.next_functions
                if following is not None and one.name() == "AddBackward0"
            ]
    return most


def variables_of(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """A frame's variables, and attributes such as "self.losses"."""
    named = variables(frame)
    for name in frame.f_code.co_names:
        if name in frame.f_globals:
            named.setdefault(name, frame.f_globals[name])
    for name, value in named.items():
        yield name, value
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict) and not isinstance(value, (type, Tensor)):
            for attribute, part in list(held.items()):
                # `isinstance` would ask an object of another kind for its class, and
                # that may warn or do something: `torch.distributed.reduce_op` does.
                if issubclass(type(part), (Tensor, list, tuple, dict)):
                    yield f"{name}.{attribute}", part


def _roots(value: Any) -> list[Any]:
    """The ends of graphs that a variable's value holds."""
    tensors: list[Any] = []
    waiting = [(value, 0)]
    for one, depth in waiting:
        if isinstance(one, Tensor):
            if one.grad_fn is not None:
                tensors.append(one.grad_fn)
        elif depth < 2 and isinstance(one, dict):
            waiting += [(part, depth + 1) for part in list(one.values())[:_MOST_ITEMS]]
        elif depth < 2 and isinstance(one, (list, tuple)):
            waiting += [(part, depth + 1) for part in one[-_MOST_ITEMS:]]
        elif depth < 2 and type(one).__name__ in {"deque", "set"}:
            waiting += [(part, depth + 1) for part in list(one)[-_MOST_ITEMS:]]
    return tensors


def _marks_held(roots: list[Any], key: str) -> set[int]:
    found: set[int] = set()
    seen = set(roots)
    waiting = list(roots)
    for node in waiting:
        if (mark := node.metadata.get(key)) is not None:
            found.add(id(mark))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                if len(seen) >= _MOST_NODES:
                    return found
                seen.add(following)
                waiting.append(following)
    return found


def line_that_fills(frame: FrameType, name: str) -> str:
    """The line that puts something into a variable of a frame; "" if none."""
    code = frame.f_code
    tree = syntax_tree("".join(linecache.getlines(code.co_filename)))
    if tree is None:
        return ""
    wanted = name.rpartition(".")[2]
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt | ast.expr) and _fills(node, wanted, "." in name)
    ]
    if not lines:
        return ""
    inside = [line for line in lines if line >= code.co_firstlineno]
    return text_of(code.co_filename, min(inside or lines), code.co_qualname)


def _fills(node: ast.AST, name: str, is_attribute: bool) -> bool:
    """Whether a statement adds to a variable: by `+=`, `.append`, `x = x + …`."""
    match node:
        case ast.AugAssign(target=target):
            return _is(target, name, is_attribute)
        case ast.Call(func=ast.Attribute(value=target, attr=attr)):
            return attr in _FILLS and _is(target, name, is_attribute)
        case ast.Assign(targets=[ast.Subscript(value=target)]):
            return _is(target, name, is_attribute)
        case ast.Assign(targets=[target], value=value):
            return _is(target, name, is_attribute) and any(
                _is(part, name, is_attribute) for part in ast.walk(value)
            )
    return False


def _is(node: ast.AST, name: str, is_attribute: bool) -> bool:
    if isinstance(node, ast.Subscript):
        node = node.value
    if is_attribute:
        return isinstance(node, ast.Attribute) and node.attr == name
    return isinstance(node, ast.Name) and node.id == name

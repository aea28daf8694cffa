"""Tells how often a source line will run again, where loops around it show that.

`for epoch in range(args.epochs)` around a pass over a loader tells how many passes are
to come. It is read from the source and the values of its names; nothing is run: no
property, no function of the user's.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType

from distdoctor.model.source_text import shallow_tree
from distdoctor.probes.call_sites import is_users
from distdoctor.probes.frame_variables import Names, Value

_COUNTERS = {"range", "trange"}
_MOST_ROUNDS = 10**9


def rounds_left(frame: FrameType | None) -> int | None:
    """How often the line that a frame is at will be run again by the loops around it.

    Args:
        frame: Its callers' loops count as well.

    Returns:
        None if one of the loops does not tell.
    """
    left, times = 0, 1
    while frame is not None:
        code = frame.f_code
        if is_users(code.co_filename):
            owner = 0 if code.co_name == "<module>" else code.co_firstlineno
            loops = _around(code.co_filename, frame.f_lineno, owner)
            if loops is None:
                return None
            for loop in loops:
                found = _rounds(loop, frame)
                if found is None:
                    return None
                whole, to_come = found
                left += times * to_come
                times *= whole
                if times > _MOST_ROUNDS:
                    return None
        frame = frame.f_back
    return left


Loop = ast.For | ast.While


def _around(file: str, line: int, function: int) -> list[Loop] | None:
    """The loops of one function around a line, innermost first; None without source.

    The loop that begins on this very line is not one of them: it is what asks.
    """
    known = _loops(file)
    if known is None:
        return None
    loops = [
        loop
        for first, last, loop, owner in known
        if first < line <= last and owner == function
    ]
    return sorted(loops, key=lambda loop: -loop.lineno)


@lru_cache(maxsize=64)
def _loops(file: str) -> tuple[tuple[int, int, Loop, int], ...] | None:
    """First and last line of each loop, the loop, and where its function begins."""
    text = "".join(linecache.getlines(file))
    tree = shallow_tree(text)
    return None if not text or tree is None else tuple(_inside(tree, 0))


_Functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def _inside(node: ast.AST, owner: int) -> Iterator[tuple[int, int, Loop, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Loop):
            yield child.lineno, child.end_lineno or child.lineno, child, owner
        decorators = getattr(child, "decorator_list", [])
        begins = min([child, *decorators], key=lambda n: getattr(n, "lineno", 0))
        inner = begins.lineno if isinstance(child, _Functions) else owner
        yield from _inside(child, inner)


def _rounds(loop: Loop, frame: FrameType) -> tuple[int, int] | None:
    """How many rounds a loop has, and how many are to come."""
    if isinstance(loop, ast.While):
        return None
    if isinstance(loop.iter, ast.List | ast.Tuple):
        count = len(loop.iter.elts)
        return count, max(0, count - 1)
    counter = _counter(loop.iter)
    if counter is None:
        return None
    with Names(frame) as value:
        numbers = [_number(argument, value) for argument in counter.args]
        known = [number for number in numbers if number is not None]
        if len(known) != len(numbers) or not 1 <= len(known) <= 3:
            return None
        try:
            values = range(*known)
        except ValueError:
            return None
        at = value(loop.target.id) if isinstance(loop.target, ast.Name) else None
        if type(at) is int and at in values:
            return len(values), len(values) - 1 - values.index(at)
        return len(values), max(0, len(values) - 1)


def _counter(node: ast.expr) -> ast.Call | None:
    """The call of `range` that a loop goes through, also inside tqdm's."""
    while isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in _COUNTERS:
            return node
        if not node.args or name == "enumerate":
            return None
        node = node.args[0]
    return None


def _number(node: ast.expr, value: Value) -> int | None:
    found: object = None
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult()):
            left, right = _number(node.left, value), _number(node.right, value)
            if left is not None and right is not None:
                if isinstance(node.op, ast.Mult):
                    found = left * right
                else:
                    found = left + right * (-1 if isinstance(node.op, ast.Sub) else 1)
        case _:
            found = _object(node, value)
    return found if type(found) is int else None


def _object(node: ast.expr, value: Value) -> object:
    """What a name, an attribute or an item of a dictionary holds; else None."""
    match node:
        case ast.Constant(value=constant):
            return constant
        case ast.Name():
            return value(node.id)
        case ast.Attribute(value=whose, attr=name):
            holder = _object(whose, value)
            held = None if holder is None else getattr(holder, "__dict__", None)
            return held.get(name) if type(held) is dict else None
        case ast.Subscript(value=whose, slice=ast.Constant(value=key)):
            holder = _object(whose, value)
            return holder.get(key) if type(holder) is dict else None
    return None

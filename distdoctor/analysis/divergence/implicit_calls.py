"""Calls made by functions that nobody calls: finalizers and signal handlers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from distdoctor.analysis.causes import Cause, Divergence, where_of
from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.source.syntax_trees import parsed, simple_name
from distdoctor.model.events import Call
from distdoctor.model.run import Run

_REGISTERS = {"signal": 1, "finalize": 1, "ref": 1, "register": 0}
"""Functions that take a callback, and its position among their arguments:
`signal.signal`, `weakref.finalize`, `weakref.ref`, `atexit.register`."""

_MODULES = frozenset({"signal", "weakref", "atexit"})


@dataclass(frozen=True, slots=True)
class ImplicitCall:
    """A call from a finalizer or a signal handler.

    Attributes:
        ranks: Who made it.
        op: Which operation.
        where: Its place in the group's sequence.
        callback: From what it came, in words.
        others: Who waits.
        other_op: In which operation.
    """

    ranks: tuple[int, ...]
    op: str
    where: str
    callback: str
    others: tuple[int, ...]
    other_op: str


def called_back(run: Run, divergence: Divergence) -> Divergence:
    """The divergence, blamed on a callback if one made the call of only some ranks.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if all ranks came by callbacks, or none did.
    """
    calls = divergence.calls
    how = {rank: _callback(run, rank, call) for rank, call in calls.items()}
    ranks = tuple(sorted(rank for rank in calls if how[rank]))
    others = tuple(sorted(rank for rank in calls if not how[rank]))
    if not ranks or not others:
        return divergence
    call = calls[ranks[0]]
    return replace(
        divergence,
        why=Cause.CALLBACK,
        culprits=ranks,
        victims=others,
        remarks="",
        facts=ImplicitCall(
            ranks,
            call.op,
            where_of(divergence),
            how[ranks[0]],
            others,
            calls[others[0]].op,
        ),
    )


def _callback(run: Run, rank: int, call: Call) -> str:
    """The callback that a call was made from, in words; "" if from none."""
    if call.place is None:
        return ""
    functions = [call.place.function]
    stack = run.stacks.get(rank, ())
    if stack and stack[0].place.line == call.place.line:  # it still stands there
        functions += [frame.place.function for frame in stack]
    for function in functions:
        if function.rpartition(".")[2] == "__del__":
            return f"the finalizer {function}"
    handlers = _handlers(run)
    for function in functions:
        if (how := handlers.get(function.rpartition(".")[2])) is not None:
            return f"{function}, registered with {how}"
    return ""


@memoize
def _handlers(run: Run) -> dict[str, str]:
    """Functions that the sources register as callbacks and never call themselves."""
    registered: dict[str, str] = {}
    called: set[str] = set()
    for source in run.sources.values():
        for node in _calls(source):
            called.add(simple_name(node.func))
            registered |= dict(_registered(node))
    return {name: how for name, how in registered.items() if name not in called}


def _calls(source: str) -> Iterator[ast.Call]:
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call):
            yield node


def _registered(node: ast.Call) -> Iterator[tuple[str, str]]:
    function = node.func
    if not isinstance(function, ast.Attribute) or function.attr not in _REGISTERS:
        return
    if simple_name(function.value) not in _MODULES:
        return
    position = _REGISTERS[function.attr]
    if len(node.args) > position:
        callback = simple_name(node.args[position])
        if callback:
            yield callback, f"{simple_name(function.value)}.{function.attr}"

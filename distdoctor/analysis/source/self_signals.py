"""Lines by which a program ends its own process by a signal, as to try a failure."""

from __future__ import annotations

import ast
import signal

from distdoctor.analysis.source.program import Program, called, calls_in
from distdoctor.model.events import Place

_SENDING = {"kill": 1, "raise_signal": 0, "pthread_kill": 1}
"""Functions of `os` and `signal`, with the position of the signal."""


def sent_to_itself(program: Program, number: int) -> list[Place]:
    """Lines that send this signal to the process that runs them.

    Args:
        program: The user's files.
        number: The signal's.

    Returns:
        The lines, maybe none.
    """
    return [
        Place(function.file, call.lineno, function.name)
        for function in program.functions
        for call in calls_in(function)
        if _sends(call, number)
    ]


def _sends(call: ast.Call, number: int) -> bool:
    name = called(call)
    if name == "abort":
        return number == signal.SIGABRT and not call.args
    if name not in _SENDING or len(call.args) <= _SENDING[name]:
        return False
    inside = {called(one) for one in ast.walk(call) if isinstance(one, ast.Call)}
    own = name == "raise_signal" or not inside.isdisjoint({"getpid", "get_ident"})
    return own and _is(call.args[_SENDING[name]], number)


def _is(given: ast.expr, number: int) -> bool:
    match given:
        case ast.Constant(value=value):
            return bool(value == number)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            known = signal.Signals.__members__.get(name)
            return known is not None and known == number
    return False

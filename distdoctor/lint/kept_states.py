"""The dictionaries that programs save as checkpoints."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.lint.code_base import ProgramFile, Scope


@dataclass(frozen=True, slots=True)
class KeptState:
    """A dictionary with states of several things.

    Attributes:
        scope: Where it is made.
        node: What makes it.
        parts: By key, what the state is of: model, optimizer, scheduler, scaler, ""
            where it is no state.
    """

    scope: Scope
    node: ast.Dict | ast.Call
    parts: Mapping[str, str]


_WORDS = {
    "opt": "optimizer",
    "sched": "scheduler",
    "scaler": "scaler",
    "model": "model",
    "net": "model",
}


def kept_states(file: ProgramFile) -> Iterator[KeptState]:
    """The dictionaries of a file with a state of a model or an optimizer in them."""
    if "state_dict" not in file.text:
        return
    for scope in file.scopes:
        if "state_dict" not in scope.words:
            continue
        for node in _own(scope.body):
            parts: dict[str, str] = {}
            match node:
                case ast.Dict(keys=keys, values=values):
                    for key, value in zip(keys, values, strict=True):
                        if isinstance(key, ast.Constant) and isinstance(key.value, str):
                            parts[key.value] = _state_of(value)
                case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                    parts = {k.arg: _state_of(k.value) for k in keywords if k.arg}
            if any(parts.values()) and isinstance(node, ast.Dict | ast.Call):
                yield KeptState(scope, node, parts)


def _own(body: list[ast.stmt]) -> Iterator[ast.AST]:
    fresh: list[ast.AST] = [*body]
    while fresh:
        node = fresh.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield node
        fresh += ast.iter_child_nodes(node)


def _state_of(value: ast.expr) -> str:
    for node in ast.walk(value):
        match node:
            case ast.Call(func=ast.Attribute(attr="state_dict", value=of)):
                text = ast.unparse(of).lower()
                return next(
                    (word for part, word in _WORDS.items() if part in text), "other"
                )
    return ""

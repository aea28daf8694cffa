"""Which call leads to which function of a code base, and which functions matter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property

from distdoctor.lint.code_base import CodeBase, ProgramFile, Scope
from distdoctor.lint.communication import (
    ENDS,
    REPLICATES,
    SHARDS,
    STARTS,
    WRITES,
    Communication,
    Deed,
    communication,
)
from distdoctor.lint.rank_words import FIRSTS, RANK_CALLS, RANKS, VARIABLES

_COMMON = frozenset(
    {"get", "items", "keys", "values", "append", "update", "add", "pop", "join", "copy"}
    | {"to", "cuda", "cpu", "step", "zero_grad", "backward", "eval", "item", "close"}
    | {"forward", "parameters", "state_dict", "load_state_dict", "write", "read"}
    | {"load", "save", "log", "print", "info", "format", "split", "size", "start"}
)
"""Names of methods that any object may have: they are not taken for the one of ours."""

_RANKISH = RANKS | FIRSTS | VARIABLES | RANK_CALLS
_ASKING = _RANKISH | {"monotonic", "perf_counter", "time", "isnan", "isinf", "isfinite"}
_AVERAGES = re.compile(
    r"DistributedDataParallel|DistributedOptimizer|FullyShardedDataParallel|fully_shard"
)

ONE_RANK = frozenset(
    {"rank_zero_only", "rank_zero_first", "master_only", "main_process_only"}
    | {"on_main_process", "on_local_main_process"}
)
"""Decorators that run a function on the first rank.

Source: lightning_utilities/core/rank_zero.py, mmengine/dist/utils.py,
accelerate/accelerator.py.
"""


class CallGraph:
    """Calls and functions of a code base.

    Args:
        code: The code base.
    """

    def __init__(self, code: CodeBase) -> None:
        self.code = code
        self._targets: dict[int, Scope | None] = {}
        self._communications: dict[int, Communication | None] = {}
        self._averaging: dict[ProgramFile, bool] = {}
        # By rank, what attributes and variables of files are worth; who walks fills it.
        self.worths: dict[int, dict[tuple[int, str, str, bool], object]] = {}
        # By statements, the names that they assign to; who walks fills it.
        self.assigned: dict[int, frozenset[str]] = {}
        # By statement, whether it communicates or leaves its block; who walks fills it.
        self.mattering: dict[int, bool] = {}

    def target(self, call: ast.Call, scope: Scope, owner: str = "") -> Scope | None:
        """The function of the code base that a call leads to; None if nobody knows.

        Args:
            call: The call.
            scope: Where it stands.
            owner: Name of the class whose object `self` is, if that is known.
        """
        key = id(call)
        if key not in self._targets:
            self._targets[key] = self._target(call, scope, owner)
        return self._targets[key]

    def communication(self, call: ast.Call, scope: Scope) -> Communication | None:
        """What a call of a library communicates; None if nothing."""
        key = id(call)
        if key not in self._communications:
            self._communications[key] = self._communication(call, scope.source)
        return self._communications[key]

    def _communication(
        self, call: ast.Call, source: ProgramFile
    ) -> Communication | None:
        found = communication(call, source)
        if found is not None:
            return found
        func = call.func
        if (
            isinstance(func, ast.Attribute)
            and func.attr == "backward"
            and not _is_accumulated(call)
            and self.averages(source)
        ):
            return Communication(Deed.BACKWARD, "backward")
        return None

    def averages(self, source: ProgramFile) -> bool:
        """Whether a file, or one it goes with, has gradients averaged in backward."""
        if source not in self._averaging:
            self._averaging[source] = any(
                _AVERAGES.search(one.text) for one in self.code.around(source)
            )
        return self._averaging[source]

    @cached_property
    def telling(self) -> set[Scope]:
        """Functions that communicate, write, or call one that does."""
        return self._closure(self._tells)

    @cached_property
    def rankish(self) -> set[Scope]:
        """Functions that ask for the rank or the clock, or call one that does."""
        return self._closure(asks_for_rank)

    @cached_property
    def starting(self) -> set[Scope]:
        """Functions that start the process group, or call one that does."""
        return self._closure(_starts_group)

    @cached_property
    def callers(self) -> dict[Scope, list[Scope]]:
        """By function, the functions that call it."""
        found: dict[Scope, list[Scope]] = {}
        for file in self.code.files:
            for scope in file.scopes:
                for call in scope.calls:
                    target = self.target(call, scope)
                    if target is not None and target is not scope:
                        found.setdefault(target, []).append(scope)
        return found

    def wrapped(self, scope: Scope) -> Iterator[ast.expr]:
        """What a function assigns models to that it wraps by DDP."""
        for node in ast.walk(scope.node):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and scope.source.dotted(node.value.func) in REPLICATES
            ):
                yield from node.targets

    def _closure(self, starts: object) -> set[Scope]:
        assert callable(starts)
        found = {
            scope for file in self.code.files for scope in file.scopes if starts(scope)
        }
        fresh = [*found]
        while fresh:
            for caller in self.callers.get(fresh.pop(), ()):
                if caller not in found:
                    found.add(caller)
                    fresh.append(caller)
        return found

    def _tells(self, scope: Scope) -> bool:
        source = scope.source
        for call in scope.calls:
            if self.communication(call, scope) is not None:
                return True
            dotted = source.dotted(call.func)
            if dotted in WRITES or dotted in REPLICATES or dotted in SHARDS:
                return True
            if dotted in ENDS or dotted.endswith("destroy_process_group"):
                return True
            if may_be_model(call.func) and self.averages(source):
                return True  # it may be the forward of a model that communicates
        return False

    def _target(self, call: ast.Call, scope: Scope, owner: str) -> Scope | None:
        source, func = scope.source, call.func
        if isinstance(func, ast.Name):
            inner = [one for one in source.named(func.id) if not one.owner]
            near = [one for one in inner if one.outer in _around(scope)]
            if near:
                return near[-1]
            if func.id in source.classes:
                return self.method(source, func.id, "__init__")
            dotted = source.imports.get(func.id, "")
            return self.code.function(dotted, source) if dotted else None
        if not isinstance(func, ast.Attribute):
            return None
        of = func.value
        if isinstance(of, ast.Name) and of.id in {"self", "cls"}:
            return self.method(source, owner or _owner(scope), func.attr)
        if isinstance(of, ast.Call) and getattr(of.func, "id", "") == "super":
            return None
        dotted = source.dotted(func)
        first = dotted.partition(".")[0]
        root = of
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in source.imports:
            return self.code.function(dotted, source) if first else None
        if func.attr in _COMMON:
            return None
        own = [one for one in source.named(func.attr) if one.owner]
        return own[0] if len(own) == 1 else None

    def method(self, source: ProgramFile, owner: str, name: str) -> Scope | None:
        """A method of a class of a file, or of the classes that it is made of."""
        for _ in range(4):
            for one in source.named(name):
                if one.owner == owner:
                    return one
            definition = source.classes.get(owner)
            bases = definition.bases if definition is not None else []
            dotted = next(filter(None, map(source.dotted, bases)), "")
            if not dotted:
                return None
            owner = dotted.rpartition(".")[2]
            if owner not in source.classes:
                other = self.code.module(dotted.rpartition(".")[0], source)
                if other is None:
                    return None
                source = other
        return None


def _starts_group(scope: Scope) -> bool:
    return any(scope.source.dotted(one.func) in STARTS for one in scope.calls)


def _around(scope: Scope) -> list[Scope]:
    found = []
    at: Scope | None = scope
    while at is not None:
        found.append(at)
        at = at.outer
    return found


def _owner(scope: Scope) -> str:
    return next((one.owner for one in _around(scope) if one.owner), "")


def _is_accumulated(call: ast.Call) -> bool:
    """Whether it is `torch.autograd.backward`, or of something that is no loss."""
    func = call.func
    assert isinstance(func, ast.Attribute)
    return isinstance(func.value, ast.Name) and func.value.id in {"autograd", "ctx"}


def asks_for_rank(scope: Scope) -> bool:
    """Whether a function itself asks for the rank or the clock."""
    if not scope.words.isdisjoint(_ASKING):
        return True
    definition = scope.node
    if isinstance(definition, ast.Module):
        return False
    return any(decorated(one) in ONE_RANK for one in definition.decorator_list) or any(
        name in _RANKISH for name in scope.parameters
    )


def decorated(node: ast.expr) -> str:
    """The simple name of a decorator."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


_MODELS = (
    "model",
    "net",
    "ddp",
    "fsdp",
    "module",
    "coder",
    "learner",
    "student",
    "wrap",
)
"""Parts of names that models are known by; what they hold decides."""


def may_be_model(func: ast.expr) -> bool:
    """Whether what is called may be a model, by its name."""
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return name in {"state_dict", "load_state_dict"} or any(
        part in name.lower() for part in _MODELS
    )

"""Whether a statement may wait for asynchronous work, or change what attributes are."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from distdoctor.analysis.source.program import Function, Program, called, calls_in
from distdoctor.analysis.source.tensor_usage import parts_of
from distdoctor.model.operations import OPERATIONS

_WAITS = re.compile(
    r"wait|(?<!no_)sync|barrier|drain|finish|complet|fence|get_future"
    r"|^(join|result|then|exception|destroy_process_group)$"
)
"""Names of what waits, of torch's and of other libraries' as they are mostly called."""

COLLECTIVES = frozenset(one.name for one in OPERATIONS if one.name) | {
    "_all_gather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "reduce_scatter_single",
}

_DEEPEST = 6  # calls of calls that are looked into


class Awaiting:
    """Where a program may wait.

    Args:
        program: The user's files.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._within: dict[Function, bool] = {}

    def may(self, node: ast.AST, besides: Collection[ast.AST] = ()) -> bool:
        """Whether something waits in what a node does, or nobody can follow it.

        Args:
            node: A statement or an expression.
            besides: Calls that are not meant.

        Returns:
            Whether it may; False is certain.
        """
        return any(
            isinstance(part, ast.Await | ast.Yield | ast.YieldFrom)
            or (
                isinstance(part, ast.Call) and part not in besides and self._waits(part)
            )
            for part in parts_of(node)
        )

    def changes(self, node: ast.AST, attribute: str) -> bool:
        """Whether a function that is called here gives an attribute of that name.

        Args:
            node: What is run.
            attribute: The attribute's name.

        Returns:
            Whether one may, itself or through others.
        """
        stored = {use.function for use in self._program.stored.get(attribute, ())}
        return bool(stored) and any(
            function in stored
            for part in parts_of(node)
            if isinstance(part, ast.Call)
            for function in self._reached(part)
        )

    def _waits(self, call: ast.Call) -> bool:
        name = called(call)
        functions = self._program.named(name)
        if functions:
            return any(self._waits_within(function) for function in functions)
        if name in COLLECTIVES:
            given = [one.value for one in call.keywords if one.arg == "async_op"]
            return not given or (
                isinstance(given[0], ast.Constant) and not given[0].value
            )
        if name == "join":  # of texts, mostly
            assert isinstance(call.func, ast.Attribute)
            return not call.args
        return _WAITS.search(name) is not None

    def _waits_within(self, function: Function) -> bool:
        if function not in self._within:
            self._within[function] = False  # while it is looked into
            self._within[function] = any(map(self._waits, calls_in(function)))
        return self._within[function]

    def _reached(self, call: ast.Call) -> Iterator[Function]:
        """The functions that a call may come to."""
        known: set[Function] = set()
        open_ = [*self._program.named(called(call))]
        for _ in range(_DEEPEST):
            found = [one for one in open_ if one not in known]
            known.update(found)
            open_ = [
                function
                for one in found
                for inner in calls_in(one)
                for function in self._program.named(called(inner))
            ]
        yield from known

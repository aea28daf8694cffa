"""Which statements matter to how ranks part: that communicate, or leave their block."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from distdoctor.lint.call_graph import CallGraph, may_be_model
from distdoctor.lint.code_base import Scope
from distdoctor.lint.communication import ENDS, WRITES


class Mattering:
    """Tells what is to be gone through, and what may be passed over.

    Args:
        graph: The calls of the code base; it keeps the answers.
    """

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph

    def block(self, statements: Sequence[ast.stmt], scope: Scope) -> bool:
        """Whether any of the statements communicates, or leaves the block."""
        return any(self._statement(one, scope) for one in statements)

    def calls(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression has a call in it that matters."""
        known = self._graph.mattering.get(id(node))
        if known is None:
            known = any(
                isinstance(one, ast.Call) and self._call(one, scope)
                for one in ast.walk(node)
            )
            self._graph.mattering[id(node)] = known
        return known

    def _statement(self, node: ast.stmt, scope: Scope) -> bool:
        known = self._graph.mattering.get(id(node))
        if known is None:
            known = any(self._tells(one, scope) for one in _inside(node))
            self._graph.mattering[id(node)] = known
        return known

    def _tells(self, node: ast.AST, scope: Scope) -> bool:
        if isinstance(node, ast.Return | ast.Break | ast.Continue | ast.Raise):
            return True
        return isinstance(node, ast.Call) and self._call(node, scope)

    def _call(self, call: ast.Call, scope: Scope) -> bool:
        if self._graph.communication(call, scope) is not None:
            return True
        target = self._graph.target(call, scope)
        if target is not None:
            return target in self._graph.telling
        dotted = scope.source.dotted(call.func)
        if dotted in WRITES or dotted in ENDS:
            return True
        if dotted.endswith("destroy_process_group"):
            return True
        # A call of a variable may be the forward of a model.
        return self._graph.averages(scope.source) and may_be_model(call.func)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    fresh = [node]
    while fresh:
        one = fresh.pop()
        yield one
        fresh += (
            child
            for child in ast.iter_child_nodes(one)
            if not isinstance(
                child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
            )
        )

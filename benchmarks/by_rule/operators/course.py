"""Faults in the course that one rank takes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from by_rule.bases import (
    Base,
    appended,
    indented,
    inserted,
    own_lines,
    replaced,
    swapped,
)
from by_rule.faulted import Making, fault, operator
from by_rule.operators.calls import only, some_rank

LEFT = "DD108 DD201 DD208 DD212"
"""What may tell that a rank went another way than the others."""


def training_loops(base: Base) -> Iterator[ast.For]:
    """Loops of which all ranks go round equally often, and meet each time."""
    if not base.get_rank:
        return
    for node in base.statements():
        if not isinstance(node, ast.For) or not base.iterates(node):
            continue
        if any(isinstance(one, ast.With) and _joins(one) for one in base.above(node)):
            continue  # a rank may have fewer rounds there
        # What the body itself does, not only some of its rounds.
        direct = (
            one
            for one in node.body
            if isinstance(one, (ast.Expr, ast.Assign, ast.With, ast.AugAssign))
        )
        if any(map(base.meets, direct)) and base.runs(node.body[0], 2):
            yield node


def _joins(node: ast.With) -> bool:
    return any("Join" in ast.unparse(item.context_expr) for item in node.items)


@operator
def loop_left_by_one_rank(base: Base) -> Making:
    """Rank k breaks out of a loop after its first round."""
    for loop in training_loops(base):
        last = loop.body[-1]
        if last not in base.statements() or not base.runs(last):
            continue
        rank = some_rank(base, last)
        edited = appended(base, last, [only(base, rank), "    break"])
        lines = (loop.lineno,)
        yield fault("loop_left_by_one_rank", base, edited, LEFT, [{rank}], lines=lines)


@operator
def round_skipped_by_one_rank(base: Base) -> Making:
    """Rank k skips every round of a loop."""
    for loop in training_loops(base):
        first = loop.body[0]
        rank = some_rank(base, first)
        edited = inserted(base, first, [only(base, rank), "    continue"])
        lines = (loop.lineno,)
        codes = LEFT
        name = "round_skipped_by_one_rank"
        yield fault(name, base, edited, codes, [{rank}], lines=lines)


@operator
def one_round_more(base: Base) -> Making:
    """Rank k has one batch more than the others."""
    for loop in training_loops(base):
        if not isinstance(loop.iter, ast.Name):
            continue
        rank, name = some_rank(base, loop), loop.iter.id
        # What it goes through may come but once.
        more = f"(lambda all: all + all[: {base.get_rank} == {rank}])(list({name}))"
        edited = swapped(base, loop.iter, more)
        yield fault("one_round_more", base, edited, LEFT, [{rank}])


@operator
def one_round_less(base: Base) -> Making:
    """Rank k has one batch less than the others."""
    for loop in training_loops(base):
        if not isinstance(loop.iter, ast.Name):
            continue
        rank, name = some_rank(base, loop), loop.iter.id
        less = f"list({name})[int({base.get_rank} == {rank}) :]"
        edited = swapped(base, loop.iter, less)
        yield fault("one_round_less", base, edited, LEFT, [{rank}])


@operator
def early_return(base: Base) -> Making:
    """Rank k returns from a function before a collective of its."""
    for function in ast.walk(base.tree):
        if not isinstance(function, ast.FunctionDef) or not base.get_rank:
            continue
        if function.name == "__init__":
            continue  # what it has not made would be missing later
        if any(
            isinstance(one, (ast.Return, ast.Yield)) and one.value is not None
            for one in ast.walk(function)
        ):
            continue
        for node in function.body[1:]:
            is_loop = isinstance(node, (ast.For, ast.Expr))
            if is_loop and base.meets(node) and base.runs(node):
                rank = some_rank(base, node)
                edited = inserted(base, node, [only(base, rank), "    return"])
                yield fault("early_return", base, edited, LEFT, [{rank}])
                break


@operator
def exception_on_one_rank(base: Base) -> Making:
    """Rank k fails within a loop."""
    for loop in training_loops(base):
        last = loop.body[-1]
        if last not in base.statements() or not base.runs(last):
            continue
        rank = some_rank(base, last)
        edited = appended(
            base, last, [only(base, rank), '    raise ValueError("a broken record")']
        )
        yield fault("exception_on_one_rank", base, edited, "DD202", [{rank}])


@operator
def exception_swallowed(base: Base) -> Making:
    """Rank k fails within a round, and the loop goes on."""
    for loop in training_loops(base):
        first, last = loop.body[0], loop.body[-1]
        inside = [own_lines(base, one) for one in loop.body]
        stands = set(base.statements())
        if not all(one in stands for one in loop.body):
            continue
        rank = some_rank(base, first)
        lines = [
            "try:",
            f"    apart = 1 / ({base.get_rank} - {rank})",
            *indented([line for one in inside for line in one]),
            "except ZeroDivisionError:",
            "    continue",
        ]
        merged = ast.copy_location(ast.Pass(), first)
        merged.end_lineno, merged.end_col_offset = last.end_lineno, last.end_col_offset
        edited = replaced(base, merged, lines)
        near = (edited.first + 1, edited.last - 1)
        codes = "DD211"
        name = "exception_swallowed"
        yield fault(name, base, edited, codes, [{rank}], lines=near)

"""Lines of source that may be where samples, or their order, come from.

What is wrong is known by then, from what was read; the text only says where in a file
to look first. A line is given with what it does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from distdoctor.analysis.source.program import Program, called, calls_in
from distdoctor.analysis.source.syntax_trees import parsed
from distdoctor.model.events import Place
from distdoctor.model.run import Run

ORDERING = frozenset(
    (
        "randperm",
        "permutation",
        "permuted",
        "shuffle",
        "sample",
        "choice",
        "random_split",
        "train_test_split",
    )
)
"""Functions that give samples an order, or a split, by random numbers."""

SPLITTING = frozenset(("random_split", "train_test_split", "ShuffleSplit", "KFold"))
"""Functions that divide a dataset into one part to train and another to evaluate on."""

SEEDING = frozenset(
    (
        "manual_seed",
        "seed",
        "set_seed",
        "seed_everything",
        "default_rng",
        "RandomState",
        "Generator",
        "Random",
        "time",
        "time_ns",
        "urandom",
    )
)
"""Functions that say where random numbers begin."""

LISTING = frozenset(
    (
        "listdir",
        "glob",
        "iglob",
        "rglob",
        "iterdir",
        "scandir",
        "walk",
        "set",
        "frozenset",
        "hash",
    )
)
"""Functions whose order is another on each machine, or in each process."""

MAKING = frozenset(
    (
        "randn",
        "rand",
        "randint",
        "normal",
        "uniform",
        "random",
        "standard_normal",
        "integers",
        "gauss",
        "poisson",
        "randn_like",
        "rand_like",
        "multinomial",
        "normal_",
        "make_classification",
        "make_regression",
        "make_blobs",
        "make_moons",
    )
)
"""Functions that give samples themselves by random numbers."""

_SPLITTING = frozenset(("islice", "get_worker_info", "get_rank", "get_world_size"))


def calls(run: Run, file: str, names: frozenset[str]) -> list[Place]:
    """Lines of a file that call one of some functions, in order.

    Args:
        run: With the text of the file.
        file: As in `Place.file`.
        names: Of the functions, without what they belong to. With "set", sets that are
            written out count as well.

    Returns:
        The lines, empty if the source is not at hand.
    """
    found: dict[int, None] = {}
    tree = parsed(run.sources.get(file, ""))
    settled = _settled(tree) if names is LISTING else set()
    for node in ast.walk(tree):
        if id(node) in settled:
            continue
        if isinstance(node, ast.Call):
            if called(node) in names:
                found[node.lineno] = None
        elif isinstance(node, ast.Set | ast.SetComp) and "set" in names:
            found[node.lineno] = None
    return [Place(file, line) for line in sorted(found)]


def speaking_of(program: Program, name: str) -> list[Place]:
    """Lines that call a method, or ask whether something has it: `hasattr(x, name)`.

    Args:
        program: The user's files.
        name: The method's name.

    Returns:
        The lines, sorted, each once.
    """
    found = {
        Place(function.file, call.lineno, function.name)
        for function in program.functions
        for call in calls_in(function)
        if called(call) == name
        or any(isinstance(arg, ast.Constant) and arg.value == name for arg in call.args)
    }
    return sorted(found)


def _settled(tree: ast.Module) -> set[int]:
    """Nodes whose order is of no consequence: what is sorted, counted or looked up."""
    sorted_later = {
        node.func.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sort"
        and isinstance(node.func.value, ast.Name)
    }
    settled: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) in _SETTLING:
            settled += node.args
        elif isinstance(node, ast.Compare):
            settled += node.comparators
        elif isinstance(node, ast.Assign) and any(
            isinstance(one, ast.Name) and one.id in sorted_later for one in node.targets
        ):
            settled.append(node.value)
    return {id(inner) for node in settled for inner in ast.walk(node)}


_SETTLING = frozenset(("sorted", "len", "sum", "min", "max", "natsorted"))


def splitting(run: Run, begin: Place) -> list[Place]:
    """Where a function that gives samples takes its part of them, or gives them.

    Args:
        run: With the text of the file.
        begin: Where the function begins.

    Returns:
        One or two lines; where the function begins if nothing tells more.
    """
    tree = parsed(run.sources.get(begin.file, ""))
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    inside = next(
        (
            node
            for node in ast.walk(tree)
            if isinstance(node, functions)
            and begin.line
            in {node.lineno, *(one.lineno for one in node.decorator_list)}
        ),
        None,
    )
    if inside is None:
        return [begin]
    ways = (_takes_a_part, _asks_who_it_is, _goes_through, _gives)
    for way in ways:
        lines = sorted({node.lineno for node in _nodes(inside.body) if way(node)})
        if lines:
            return [Place(begin.file, line, begin.function) for line in lines[:2]]
    return [begin]


def _takes_a_part(node: ast.AST) -> bool:
    sliced = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
    return sliced or (isinstance(node, ast.Call) and called(node) == "islice")


def _asks_who_it_is(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called(node) in _SPLITTING


def _goes_through(node: ast.AST) -> bool:
    return isinstance(node, ast.For | ast.While)


def _gives(node: ast.AST) -> bool:
    return isinstance(node, ast.Yield | ast.YieldFrom | ast.Return)


def _nodes(body: Sequence[ast.stmt]) -> Iterator[ast.stmt | ast.expr]:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.stmt | ast.expr):
                yield node

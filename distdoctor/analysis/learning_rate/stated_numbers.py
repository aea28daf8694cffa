"""Numbers that a job gives names to: its arguments, and the constants of its source."""

from __future__ import annotations

import ast
import io
import operator
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import nan

from distdoctor.analysis.source.syntax_trees import last_name, parsed
from distdoctor.model.events import Place
from distdoctor.model.observations.environment import Arguments
from distdoctor.model.run import Run

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")

_FACTORS: dict[type[ast.operator], Callable[[float, float], object]] = {
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


@dataclass(frozen=True, slots=True)
class Stated:
    """A number that the job names.

    Attributes:
        name: As it is written.
        value: Not a number where nobody knows it.
        place: The line that says so; None if nobody knows.
        near: Text that stands beside it: the help of an option, or a comment.
        used: It is the size of a loader's batches, too.
        option: It is declared as one of the command line.
    """

    name: str
    value: float
    place: Place | None
    near: str = ""
    used: bool = False
    option: bool = False

    @property
    def words(self) -> set[str]:
        """Parts of the name, in small letters."""
        return {word.lower() for word in _WORDS.findall(self.name)}


def stated_numbers(run: Run) -> list[Stated]:
    """Numbers among the arguments of the first rank, and in all of the source.

    What an argument is in this run is known, and not what its default is.
    """
    declared = [
        one for file, text in run.sources.items() for one in _declared(file, text)
    ]
    given = [
        one
        for rank in run.seen[:1]
        for read in run.of(Arguments, rank)
        for one in _given(read, declared)
    ]
    known = {one.name for one in given}
    return [*given, *(one for one in declared if one.name not in known)]


def number(text: str) -> float:
    """The number that a text is; not a number if it is none."""
    try:
        return float(text)
    except ValueError:
        return nan


def _given(read: Arguments, declared: list[Stated]) -> Iterator[Stated]:
    """Arguments that are numbers, where their options are declared."""
    options = {
        one.name: one
        for one in declared
        if one.option and one.place is not None
        if read.place is None or read.place.file == one.place.file
    }
    for name, text in zip(read.names, read.values, strict=False):
        value = number(text)
        if value == value:
            unknown = Stated(name, value, read.place)
            yield replace(options.get(name, unknown), value=value)


def _declared(file: str, text: str) -> Iterator[Stated]:
    """What a file gives names to, and its options with their defaults."""
    tree = parsed(text)
    comment, sizes = comments(text), _sizes(tree)
    for node in ast.walk(tree):
        for name, value in _named(node):
            line = value.lineno
            near = comment.get(line) or comment.get(-line, "")
            place = Place(file, line)
            yield Stated(name, _constant(value), place, near, name in sizes)
        for name, call in _options(node):
            line, words = call.lineno, {one.arg: one.value for one in call.keywords}
            near = comment.get(line) or comment.get(-line, "")
            match words.get("help"):
                case ast.Constant(value=str(help_text)) if help_text:
                    near = f"{name}: {help_text}"
            default, place = _constant(words.get("default")), Place(file, line)
            yield Stated(name, default, place, near, name in sizes, option=True)


def _options(node: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Names of an option of the command line, and the call that declares it."""
    match node:
        case ast.Call(args=[ast.Constant(value=str(first)), *_]) if (
            first.startswith("-") or last_name(node.func) == "add_argument"
        ):
            for one in node.args:
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    yield one.value.lstrip("-").replace("-", "_"), node


def _named(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """What a statement or an expression gives a name to, options left out."""
    given: Iterable[tuple[object, ast.expr | None]] = ()
    match node:
        case ast.Assign(
            targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)
        ):
            given = zip(map(last_name, targets), values, strict=False)
        case (
            ast.Assign(targets=[target], value=value)
            | ast.AnnAssign(target=target, value=ast.expr() as value)
        ):
            given = [(last_name(target), value)]
        case ast.Dict(keys=keys, values=values):
            names = [one.value if isinstance(one, ast.Constant) else "" for one in keys]
            given = zip(names, values, strict=True)
        case ast.Call(args=[ast.Constant(value=str()), *_]):
            pass
        case ast.Call(keywords=keywords):
            given = ((one.arg, one.value) for one in keywords)
        case ast.arguments():
            last_first = [*node.posonlyargs, *node.args][::-1]
            some = zip(last_first, node.defaults[::-1], strict=False)
            others = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            given = ((one.arg, default) for one, default in (*some, *others))
    for name, its in given:
        if isinstance(name, str) and its is not None:
            yield name, its


def _constant(node: ast.expr | None) -> float:
    """The value of a number as it is written, also as a product; else not a number."""
    with suppress(ArithmeticError):  # by zero, or too large
        match node:
            case ast.Constant(value=int() | float() as value) if value is not True:
                return float(value)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _FACTORS:
                made = _FACTORS[type(op)](_constant(left), _constant(right))
                return made if isinstance(made, float) else nan  # of a negative base
    return nan


def _sizes(tree: ast.AST) -> set[str]:
    """Names that are given to a loader as the size of its batches."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = [one.value for one in node.keywords if one.arg == "batch_size"]
            if last_name(node.func).endswith("Loader"):
                given += node.args[1:2]
            found |= set(map(last_name, given))
    return found - {""}


def comments(text: str) -> dict[int, str]:
    """Comments by line; by the line below, with a minus, where one stands alone."""
    found: dict[int, str] = {}
    alone = ""
    # What does not end, or is no Python, has the comments up to there.
    with suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            line = token.start[0]
            if token.type == tokenize.COMMENT:
                words = token.string.lstrip("# ").strip()
                if token.line.lstrip().startswith("#"):
                    alone = f"{alone} {words}".strip()
                    found[-(line + 1)] = alone
                else:
                    found[line] = words
            elif token.type not in {tokenize.NL, tokenize.NEWLINE}:
                alone = ""
    return found

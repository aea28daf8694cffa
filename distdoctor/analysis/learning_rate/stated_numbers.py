"""Numbers that a job gives names to: its arguments, and the constants of its source."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.model.events import Place
from distdoctor.model.observations.environment import Arguments
from distdoctor.model.run import Run

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")

_FACTORS = (ast.Mult, ast.Div, ast.Pow)


@dataclass(frozen=True, slots=True)
class Stated:
    """A number that the job names.

    Attributes:
        name: As it is written.
        place: The line that says so; None if nobody knows.
        near: Text that stands beside it, of comments and help.
        used: It is the size of a loader's batches, too.
    """

    name: str
    value: float
    place: Place | None
    near: str = ""
    used: bool = False

    @property
    def words(self) -> set[str]:
        """Parts of the name, in small letters."""
        return {word.lower() for word in _WORDS.findall(self.name)}


def arguments(run: Run) -> Iterator[Stated]:
    """Numbers among the arguments of the first rank, with where they are declared."""
    for rank in run.seen[:1]:
        for read in run.of(Arguments, rank):
            helped = _help(run, read.place)
            for name, text in zip(read.names, read.values, strict=False):
                value = _number(text)
                if value is not None:
                    place, near, used = helped.get(name, (read.place, "", False))
                    yield Stated(name, value, place, near, used)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _help(run: Run, place: Place | None) -> Mapping[str, tuple[Place, str, bool]]:
    """Where arguments are declared, and with which help."""
    found: dict[str, tuple[Place, str, bool]] = {}
    files = [place.file] if place is not None else list(run.sources)
    for file in files:
        tree = parsed(run.sources.get(file, ""))
        used = _sizes(tree)
        for node in ast.walk(tree):
            if not (
                isinstance(node, ast.Call) and last_name(node.func) == "add_argument"
            ):
                continue
            names = [
                one.value.lstrip("-").replace("-", "_")
                for one in node.args
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            told = " ".join(
                one.value.value
                for one in node.keywords
                if one.arg == "help" and isinstance(one.value, ast.Constant)
                if isinstance(one.value.value, str)
            )
            for name in names:
                at = Place(file, node.lineno, "")
                found[name] = at, f"{name}: {told}" if told else "", name in used
    return found


def of_source(file: str, text: str) -> Iterator[Stated]:
    """Numbers that a file gives names to."""
    tree = parsed(text)
    near_lines, used = comments(text), _sizes(tree)
    for name, node in _named(tree):
        value = _constant(node)
        if value is not None:
            near = near_lines.get(node.lineno) or near_lines.get(-node.lineno, "")
            place = Place(file, node.lineno, "")
            yield Stated(name, value, place, near, name in used)


def parsed(text: str) -> ast.AST:
    """The tree of a file; one without statements if it is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):  # no Python, or of a later release
        return ast.Module([], [])


def _named(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[target], value=value):
                yield from _pairs(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield last_name(target), value
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield key.value, value
            case ast.Call(
                args=[ast.Constant(value=str(option)), *_], keywords=keywords
            ):
                for given in keywords:
                    if option.startswith("--") and given.arg == "default":
                        yield option.strip("-").replace("-", "_"), given.value
            case ast.Call(keywords=keywords):
                yield from ((one.arg, one.value) for one in keywords if one.arg)
            case ast.arguments():
                ordered = [*node.posonlyargs, *node.args]
                first = len(ordered) - len(node.defaults)
                for one, value in zip(ordered[first:], node.defaults, strict=True):
                    yield one.arg, value
                for one, default in zip(node.kwonlyargs, node.kw_defaults, strict=True):
                    if default is not None:
                        yield one.arg, default


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its in zip(target.elts, value.elts, strict=False):
            yield last_name(one), its
    else:
        yield last_name(target), value


def last_name(node: ast.expr) -> str:
    """The last part of a name, an attribute, or a key of text; else ""."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
    return ""


def _constant(node: ast.expr) -> float | None:
    """The value of a number as it is written, also as a product."""
    match node:
        case ast.Constant(value=int() | float() as value) if value is not True:
            return float(value)
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _FACTORS):
            one, other = _constant(left), _constant(right)
            if one is None or other is None or abs(one) > 1e9 or abs(other) > 1e9:
                return None
            if isinstance(op, ast.Mult):
                return one * other
            if isinstance(op, ast.Div):
                return one / other if other else None
            return one**other if one > 0.0 and abs(other) < 20 else None
    return None


def _sizes(tree: ast.AST) -> set[str]:
    """Names that are given to a loader as the size of its batches."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = [one.value for one in node.keywords if one.arg == "batch_size"]
        if last_name(node.func).endswith("Loader"):
            given += node.args[1:2]
        found |= {last_name(one) for one in given}
    return found - {""}


def comments(text: str) -> dict[int, str]:
    """Comments by line; by the line below, with a minus, where one stands alone."""
    found: dict[int, str] = {}
    alone = ""
    try:
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
    except (tokenize.TokenError, IndentationError, SyntaxError):
        pass
    return found

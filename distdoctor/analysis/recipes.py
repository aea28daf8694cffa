"""Which batch a recipe's learning rate belongs to, as far as the job says so itself.

It may be said by the names of arguments and constants (`base_batch`, `ref_lr`), or by
what is written beside a learning rate ("tuned for batches of 256").
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.model.events import Place
from distdoctor.model.observed.settings import Arguments
from distdoctor.model.run import Run

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")

_BASE = {"base", "ref", "reference", "tuned", "nominal", "recipe", "orig", "original"}
_BASE |= {"baseline", "paper", "lr"}
_BATCH = {"batch", "bs", "bsz", "batchsize", "batches"}
_RATE = {"lr", "rate"}
_SINGLE = {"single", "one", "1"}
_PROCESS = {"gpu", "process", "rank", "device", "card", "worker", "node"}
_PART = {"per", "micro", "local", "mini", "each", "max", "min", "num", "step", "steps"}
_NO_RATE = {
    "dropout",
    "decay",
    "drop",
    "warmup",
    "warm",
    "sample",
    "frame",
    "error",
    "min",
    "final",
}

_LEARNING = r"(?:\blrs?\b|learning[ _-]?rates?|\b\w*_lr\b|\brate\b)"
_LINKS = re.compile(
    rf"{_LEARNING}.*?\b(?:for|at|per|with|assumes?)\b[^.;\d]{{0,40}}?"
    r"\bbatch(?:es|[ _-]?size)?\b\s*(?:sizes?)?\s*(?:of|is|=|:)?\s*(?P<after>\d+)\b"
    rf"|{_LEARNING}.*?\b(?:for|at|per|with)\b[^.;\d]{{0,30}}?\b(?P<before>\d+)"
    r"[ -](?:images|samples|examples|batch\b)"
    r"|^\W*(?:tuned|chosen|found|set|meant|right)\s+(?:for|at|with)\b[^.;\d]{0,40}?"
    r"\bbatch(?:es|[ _-]?size)?\b\s*(?:of|is|=|:)?\s*(?P<tuned>\d+)\b",
    re.IGNORECASE,
)
_ALONE = re.compile(
    rf"{_LEARNING}.*?\b(?:single|one|1)[ -](?:gpu|process|rank|device|card)\b"
    r"|^\W*(?:tuned|chosen|found|set|meant|from|of)\b.{0,20}?"
    r"\b(?:single|one|1)[ -](?:gpu|process|rank|device|card)\b",
    re.IGNORECASE,
)

_TOGETHER = re.compile(
    r"(?:\blr|learning[ _-]?rate|\brate)\b[^\d.]{0,16}(?P<rate>\d*\.?\d+(?:e-?\d+)?)\b"
    r"[^\d.;]{0,60}\bbatch(?:es|[ _-]?size)?\b[^\d.;]{0,16}(?P<batch>\d+)\b",
    re.IGNORECASE,
)
"""A sentence that has both numbers."""

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


@dataclass(frozen=True, slots=True)
class Recipe:
    """A learning rate, and the batch it belongs to.

    Attributes:
        rate: As it is stated.
        batch: Samples; 0: those of one rank.
        said: What says so, in words for readers.
        places: The lines that do.
    """

    rate: float
    batch: int
    said: str
    places: tuple[Place, ...]


def recipes(run: Run) -> list[Recipe]:
    """What the job says of learning rates and the batches they belong to."""
    if "recipes" not in run.memory:
        run.memory["recipes"] = list(_recipes(run))
    found: list[Recipe] = run.memory["recipes"]
    return found


def _recipes(run: Run) -> Iterator[Recipe]:
    stated = [*_arguments(run)]
    known = {one.name for one in stated}
    for file, text in run.sources.items():
        # What an argument is in this run is known, and not what its default is.
        stated += [one for one in _of_source(file, text) if one.name not in known]
    rates = [one for one in stated if _is_rate(one)]
    based = [one for one in rates if one.words & (_BASE - {"lr"})]
    for batch in (one for one in stated if _is_base_batch(one)):
        for rate in based or rates:
            if _belong(batch, rate):
                yield Recipe(
                    rate.value,
                    int(batch.value),
                    f"{rate.name} is {rate.value:g}, and {batch.name} "
                    f"{int(batch.value)}",
                    _places(rate, batch),
                )
    for rate in rates:
        if (size := _linked(rate.near)) > 0:
            said = f'beside {rate.name} stands "{_short(rate.near)}"'
            yield Recipe(rate.value, size, said, _places(rate))
        elif rate.words & _SINGLE and rate.words & _PROCESS:
            said = f"its name is {rate.name}"
            yield Recipe(rate.value, 0, said, _places(rate))
        elif _ALONE.search(rate.near):
            said = f'beside {rate.name} stands "{_short(rate.near)}"'
            yield Recipe(rate.value, 0, said, _places(rate))
    for file, text in run.sources.items():
        for match, line in _told_together(text):
            said = f'it says "{_short(match[0])}"'
            place = Place(file, line, "")
            yield Recipe(float(match["rate"]), int(match["batch"]), said, (place,))


def _told_together(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """Comments and docstrings that give a rate and its batch in one sentence."""
    for line, words in _comments(text).items():
        if (match := _TOGETHER.search(words)) is not None:
            yield match, abs(line) - (line < 0)
    for node in ast.walk(_parsed(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(words))):
                for at, one in enumerate(words.splitlines()):
                    if (match := _TOGETHER.search(one)) is not None:
                        yield match, node.lineno + at


def _places(*stated: Stated) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(one.place for one in stated if one.place is not None))


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"


# --- what a name says ---


def _is_rate(one: Stated) -> bool:
    words = one.words
    plain = {"rate"} <= words <= {"rate"} | _BASE | _SINGLE | _PROCESS
    named = "lr" in words or "learning" in words or plain
    return named and one.value > 0.0 and not words & (_BATCH | _NO_RATE)


def _is_base_batch(one: Stated) -> bool:
    words = one.words
    return bool(
        words & _BATCH
        and words & _BASE
        and not words & _PART
        and not words & _PROCESS
        and one.value >= 1
        and one.value == int(one.value)
    )


def _belong(batch: Stated, rate: Stated) -> bool:
    """Whether a batch is the one that a rate is given for."""
    if rate.words & (_BASE - {"lr"}):
        return True
    return bool(batch.words & {"lr", "tuned"}) or not batch.used


def _linked(text: str) -> int:
    """The batch that a text beside a rate gives it for; 0: none."""
    match = _LINKS.search(text)
    if match is None:
        return 0
    return int(next(filter(None, match.groups())))


# --- what is stated ---


def _arguments(run: Run) -> Iterator[Stated]:
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
        tree = _parsed(run.sources.get(file, ""))
        used = _sizes(tree)
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and _last(node.func) == "add_argument"):
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


def _of_source(file: str, text: str) -> Iterator[Stated]:
    """Numbers that a file gives names to."""
    tree = _parsed(text)
    comments, used = _comments(text), _sizes(tree)
    for name, node in _named(tree):
        value = _constant(node)
        if value is not None:
            near = comments.get(node.lineno) or comments.get(-node.lineno, "")
            place = Place(file, node.lineno, "")
            yield Stated(name, value, place, near, name in used)


def _parsed(text: str) -> ast.AST:
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
                yield _last(target), value
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
            yield _last(one), its
    else:
        yield _last(target), value


def _last(node: ast.expr) -> str:
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
        if _last(node.func).endswith("Loader"):
            given += node.args[1:2]
        found |= {_last(one) for one in given}
    return found - {""}


def _comments(text: str) -> dict[int, str]:
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

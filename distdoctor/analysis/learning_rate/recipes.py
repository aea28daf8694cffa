"""Which batch a recipe's learning rate belongs to, as far as the job says so itself.

It may be said by the names of arguments and constants (`base_batch`, `ref_lr`), or by
what is written beside a learning rate ("tuned for batches of 256").
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.analysis.learning_rate.stated_numbers import (
    Stated,
    comments,
    stated_numbers,
)
from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.source.syntax_trees import parsed
from distdoctor.model.events import Place
from distdoctor.model.run import Run

_BASE = {"base", "baseline", "ref", "reference", "tuned", "nominal", "recipe"}
_BASE |= {"orig", "original", "paper"}
_BATCH = {"batch", "bs", "bsz", "batchsize", "batches"}
_SINGLE = {"single", "one", "1"}
_PROCESS = {"gpu", "process", "rank", "device", "card", "worker", "node"}
_RANKS = {"world", "gpus", "ranks", "processes", "devices"}
_PART = {"per", "micro", "local", "mini", "each", "max", "min", "num", "step", "steps"}
_NO_RATE = {"dropout", "decay", "drop", "warmup", "warm", "sample", "frame", "error"}
_NO_RATE |= {"min", "final"}

_LEARNING = r"(?:\blrs?\b|learning[ _-]?rates?|\b\w*_lr\b|\brate\b)"
_FOUND = r"^\W*(?:tuned|chosen|found|set|meant|right"  # what a comment begins with
_SIZE = r"\bbatch(?:es|[ _-]?sizes?)?\b"
_LINKS = re.compile(
    rf"(?:{_LEARNING}.*?|{_FOUND})\s+)\b(?:for|at|per|with|assumes?)\b[^.;\d]{{0,40}}?"
    rf"(?:{_SIZE}\s*(?:of|is|=|:)?\s*(?P<batch>\d+)\b"
    r"|\b(?P<samples>\d+)[ -](?:images|samples|examples|batch\b))",
    re.IGNORECASE,
)
_ALONE = re.compile(
    rf"(?:{_LEARNING}.*?|{_FOUND}|from|of)\b.{{0,20}}?)"
    r"\b(?:single|one|1)[ -](?:gpu|process|rank|device|card)\b",
    re.IGNORECASE,
)

_TOGETHER = re.compile(
    r"(?:\blr|learning[ _-]?rate|\brate)\b[^\d.]{0,16}(?P<rate>\d*\.?\d+(?:e-?\d+)?)\b"
    rf"[^\d.;]{{0,60}}{_SIZE}[^\d.;]{{0,16}}(?P<batch>\d+)\b",
    re.IGNORECASE,
)
"""A sentence that has both numbers."""

_IN_NAME = re.compile(
    r"(?:lr|rate)_?(?:per|at|for)_?(?:bs|batch)?_?(?P<batch>\d+)$", re.IGNORECASE
)
"""Such as `lr_per_256`."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A learning rate, and the batch it belongs to.

    Attributes:
        rate: As it is stated.
        evidence: What says so, in words for readers.
        places: The lines that do.
        batch: Samples; 0: those of some ranks.
        ranks: How many read the batch, if it is not known itself.
    """

    rate: float
    evidence: str
    places: tuple[Place, ...]
    batch: int
    ranks: int = 1


@memoize
def recipes(run: Run) -> list[Recipe]:
    """What the job says of learning rates and the batches they belong to."""
    return list(_recipes(run))


def _recipes(run: Run) -> Iterator[Recipe]:
    stated = stated_numbers(run)
    rates = [one for one in stated if _is_rate(one)]
    based = [one for one in rates if one.words & _BASE]
    for base in stated:
        batch, of_ranks = _is_base_batch(base), _is_base_ranks(base)
        if not batch and not of_ranks:
            continue
        size = int(base.value)
        for rate in based or rates:
            if of_ranks or _belong(base, rate):
                evidence = f"{rate.name} is {rate.value:g}, and {base.name} {size}"
                many = (size, 1) if batch else (0, size)
                yield Recipe(rate.value, evidence, _places(rate, base), *many)
    for rate in rates:
        named = f"its name is {rate.name}"
        beside = f'beside {rate.name} stands "{_short(rate.near)}"'
        if size := _size(_LINKS, rate.near):
            evidence = beside
        elif (size := _size(_IN_NAME, rate.name)) or _is_of_one_rank(rate):
            evidence = named
        elif _ALONE.search(rate.near):
            evidence = beside
        else:
            continue
        yield Recipe(rate.value, evidence, _places(rate), size)
    for file, text in run.sources.items():
        for words, line in _sentences(text):
            if (match := _TOGETHER.search(words)) is not None:
                evidence, place = f'it says "{_short(match[0])}"', Place(file, line)
                yield Recipe(
                    float(match["rate"]), evidence, (place,), int(match["batch"])
                )


def _size(pattern: re.Pattern[str], text: str) -> int:
    """The batch that a text gives a rate for; 0: none."""
    match = pattern.search(text)
    return 0 if match is None else int(match[match.lastgroup or 0])


def _sentences(text: str) -> Iterator[tuple[str, int]]:
    """Comments, and lines of docstrings, with the number of their line."""
    for line, words in comments(text).items():
        yield words, abs(line) - (line < 0)
    for node in ast.walk(parsed(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(words))):
                for at, one in enumerate(words.splitlines(), start=node.lineno):
                    yield one, at


def _places(*stated: Stated) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(one.place for one in stated if one.place is not None))


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"


# --- what a name says ---


def _is_rate(one: Stated) -> bool:
    words = one.words
    plain = {"rate"} <= words <= {"rate"} | _BASE | {"lr"} | _SINGLE | _PROCESS
    named = "lr" in words or "learning" in words or plain
    return named and one.value > 0.0 and not words & (_BATCH | _NO_RATE)


def _is_of_one_rank(one: Stated) -> bool:
    words = one.words
    return "single" in words or bool(words & _SINGLE and words & _PROCESS)


def _is_base_batch(one: Stated) -> bool:
    words = one.words
    named = words & _BATCH and words & (_BASE | {"lr"})
    part = words & (_PART | _PROCESS)
    return bool(named and not part) and one.value >= 1 and one.value.is_integer()


def _is_base_ranks(one: Stated) -> bool:
    words = one.words
    named = words & _RANKS and words & _BASE and not words & _BATCH
    return bool(named) and one.value in range(1, 1 << 20)


def _belong(batch: Stated, rate: Stated) -> bool:
    """Whether a batch is the one that a rate is given for."""
    matching = rate.words & _BASE or batch.words & {"lr", "tuned"}
    return bool(matching) or not batch.used

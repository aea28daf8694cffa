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
    arguments,
    comments,
    of_source,
    parsed,
)
from distdoctor.analysis.memoize import memoize
from distdoctor.model.events import Place
from distdoctor.model.run import Run

_BASE = {"base", "ref", "reference", "tuned", "nominal", "recipe", "orig", "original"}
_BASE |= {"baseline", "paper", "lr"}
_BATCH = {"batch", "bs", "bsz", "batchsize", "batches"}
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

_IN_NAME = re.compile(
    r"(?:lr|rate)_?(?:per|at|for)_?(?:bs|batch)?_?(?P<batch>\d+)$", re.IGNORECASE
)
"""Such as `lr_per_256`."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A learning rate, and the batch it belongs to.

    Attributes:
        rate: As it is stated.
        batch: Samples; 0: those of some ranks.
        said: What says so, in words for readers.
        places: The lines that do.
        ranks: How many read the batch, if it is not known itself.
    """

    rate: float
    batch: int
    said: str
    places: tuple[Place, ...]
    ranks: int = 1


@memoize
def recipes(run: Run) -> list[Recipe]:
    """What the job says of learning rates and the batches they belong to."""
    return list(_recipes(run))


def _recipes(run: Run) -> Iterator[Recipe]:
    stated = [*arguments(run)]
    known = {one.name for one in stated}
    for file, text in run.sources.items():
        # What an argument is in this run is known, and not what its default is.
        stated += [one for one in of_source(file, text) if one.name not in known]
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
    for ranks in (one for one in stated if _is_base_ranks(one)):
        for rate in based or rates:
            said = f"{rate.name} is {rate.value:g}, and {ranks.name} {ranks.value:g}"
            places = _places(rate, ranks)
            yield Recipe(rate.value, 0, said, places, int(ranks.value))
    for rate in rates:
        if (size := _linked(rate.near)) > 0:
            said = f'beside {rate.name} stands "{_short(rate.near)}"'
            yield Recipe(rate.value, size, said, _places(rate))
        elif (match := _IN_NAME.search(rate.name)) is not None:
            said = f"its name is {rate.name}"
            yield Recipe(rate.value, int(match["batch"]), said, _places(rate))
        elif _is_of_one_rank(rate):
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
    for line, words in comments(text).items():
        if (match := _TOGETHER.search(words)) is not None:
            yield match, abs(line) - (line < 0)
    for node in ast.walk(parsed(text)):
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


def _is_of_one_rank(one: Stated) -> bool:
    words = one.words
    return "single" in words or bool(words & _SINGLE and words & _PROCESS)


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


def _is_base_ranks(one: Stated) -> bool:
    words = one.words
    counts = {"world", "gpus", "ranks", "processes", "devices"}
    return bool(
        words & counts
        and words & (_BASE - {"lr"})
        and not words & _BATCH
        and one.value in range(1, 1 << 20)
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

"""Drawings of runs: `sketch` reads one, `draw` makes one.

A drawing has one line per rank and is the shortest way to say what a run did, in a
manual, in a test and in a report:

    group tp | 0 1
    rank 0 | all_reduce(4)  barrier        exit=0
    rank 1 | all_reduce(4)  all_reduce(4)...
    rank 2 | ?

Ranks 0 and 1 reduced 4 elements together; rank 0 called `barrier` and ended, rank 1
waits in another all-reduce, and nothing is known of rank 2. `docs/drawings.md` has all
words and marks; those of observations follow from their dataclasses, as
`distdoctor.model.observations.drawing_syntax` says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from inspect import cleandoc

from distdoctor.errors import SketchError
from distdoctor.model import drawing_words
from distdoctor.model.events import SETUP, STORE, WORLD, Event
from distdoctor.model.run import Run

_CLOSED = "nobody else"
_LEFT = re.compile(r"the command left with (?P<code>\d+)")
_NO_JOURNAL = "the rank left no journal"
_LINE = re.compile(r"rank (?P<rank>\d+) \|(?P<words>.*)")
_MORE = re.compile(r" *\|(?P<words>.*)")
_GROUP = re.compile(r"group (?P<name>[\w-]+) \|(?P<ranks>(?: \d+)+)")
_TIMES = re.compile(r"(?P<word>.+)\+(?P<first>\d+)ms\*(?P<times>\d+)")
_PERIOD_MS = 100


def sketch(drawing: str) -> Run:
    """Read a drawing.

    >>> run = sketch('''
    ...     rank 0 | all_reduce(4)  exit=0
    ...     rank 1 | barrier...
    ... ''')
    >>> [str(event) for event in run.events(1)]
    ['barrier']

    Raises:
        SketchError: A line or a word is not of the grammar above.
    """
    events: dict[int, list[Event]] = {}
    unseen: dict[int, str] = {}
    members: dict[str, tuple[int, ...]] = {}
    ordinals: dict[str, int] = {}
    number, rank, closed = 0, -1, False
    exit_code: int | None = None
    for number, line in enumerate(cleandoc(drawing).splitlines(), start=1):
        if line.strip() == _CLOSED:
            closed = True
            continue
        if left := _LEFT.fullmatch(line.strip()):
            exit_code = int(left["code"])
            continue
        if group := _GROUP.fullmatch(line.rstrip()):
            members[group["name"]] = tuple(map(int, group["ranks"].split()))
            continue
        if events and (more := _MORE.fullmatch(line.rstrip())):
            words = more["words"].split()
            events[rank] += _events(rank, words, number, ordinals)
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise SketchError(number, line, 'is not of the form "rank N | …"')
        rank, words = int(match["rank"]), match["words"].split()
        if rank in events or rank in unseen:
            raise SketchError(number, f"rank {rank}", "was drawn already")
        if words == ["?"]:
            unseen[rank] = _NO_JOURNAL
        else:
            ordinals = {}
            events[rank] = _events(rank, words, number, ordinals)
    drawn = {*events, *unseen}
    for rank in range(max(drawn, default=-1)):
        if rank not in drawn:
            raise SketchError(number, f"rank {rank}", "is left out")
    return Run.of_events(events, unseen, members, closed=closed, exit_code=exit_code)


def draw(run: Run, *, places: bool = True) -> str:
    """Draw a run; `sketch(draw(run)) == run` for every run `sketch` can express.

    Args:
        run: The run.
        places: Whether to write the lines of source; they make wide columns.
    """
    rows = [
        ["?"]
        if rank in run.unseen
        else [drawing_words.write(event, places) for event in run.events(rank)]
        for rank in range(run.world_size)
    ]
    widths = [
        max(len(row[column]) for row in rows if column < len(row))
        for column in range(max(map(len, rows), default=0))
    ]
    groups = [
        f"group {group.name} | {' '.join(map(str, group.ranks))}"
        for group in run.groups
        if group.name not in {WORLD, SETUP, STORE}
        or group.ranks != tuple(range(run.world_size))
    ]
    ranks = [
        f"rank {rank} | " + "  ".join(map(str.ljust, row, widths)).rstrip()
        for rank, row in enumerate(rows)
    ]
    ends = [_CLOSED] if run.closed else []
    if run.exit_code is not None:
        ends.append(f"the command left with {run.exit_code}")
    return "\n".join([*groups, *ranks, *ends])


def _events(
    rank: int, words: Iterable[str], number: int, ordinals: dict[str, int]
) -> list[Event]:
    """The events that words of one line tell.

    Args:
        rank: Whose line it is.
        words: Those of the line.
        number: Of the line, from 1.
        ordinals: How many collectives there were before, by group; is counted on.
    """
    events: list[Event] = []
    for word in words:
        try:
            for once in _repeated(word):
                events.append(drawing_words.read(rank, once, ordinals))
        except (ValueError, KeyError) as error:
            what = "is no event; see distdoctor.model.drawing"
            raise SketchError(number, once, what) from error
    return events


def _repeated(word: str) -> list[str]:
    if word == ".":
        return []
    match = _TIMES.fullmatch(word)
    if match is None:
        return [word]
    first = int(match["first"])
    moments = range(first, first + int(match["times"]) * _PERIOD_MS, _PERIOD_MS)
    return [f"{match['word']}+{moment}ms" for moment in moments]

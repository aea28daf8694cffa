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
from collections.abc import Callable, Iterable
from inspect import cleandoc
from typing import Any
from urllib.parse import quote, unquote

from distdoctor.errors import SketchError
from distdoctor.model.events import (
    ADDRESS_FAULTS,
    SETUP,
    STORE,
    WORLD,
    BadAddress,
    Batch,
    Busy,
    Call,
    Dead,
    Ended,
    Event,
    Failure,
    Left,
    Locked,
    Misplaced,
    Observation,
    Place,
    Quit,
    Shortened,
    Started,
    State,
    Tensor,
    ThreadEnded,
    Touched,
    Unreduced,
    Wrapped,
)
from distdoctor.model.layers import LAYERS
from distdoctor.model.observations import drawing_syntax
from distdoctor.model.operations import CODE_OF, OPERATIONS, REDUCE_OPS, Operation
from distdoctor.model.run import Run

_CLOSED = "nobody else"
_LEFT = re.compile(r"the command left with (?P<code>\d+)")
_NO_JOURNAL = "the rank left no journal"
_LINE = re.compile(r"rank (?P<rank>\d+) \|(?P<words>.*)")
_MORE = re.compile(r" *\|(?P<words>.*)")
_GROUP = re.compile(r"group (?P<name>[\w-]+) \|(?P<ranks>(?: \d+)+)")
_WORD = re.compile(
    r"(?P<name>[a-z_]+)"
    r"(?:=(?P<value>[^@\s]*?))?"
    r"(?:\((?P<tensors>[^)\s]*)\))?"
    r"(?:/(?P<group>[\w-]+))?"
    r"(?:@(?P<file>[^\s:<]+?):(?P<line>\d+)(?P<callers>(?:<[^\s:<]+:\d+)*))?"
    r"(?P<flags>[&'~+]*)(?P<end>\.\.\.inside|\.\.\.issued|\.\.\.|!!|!|\^)?"
    r"(?:%(?P<thread>\d+))?"
    r"(?:\+(?P<entered>\d+)ms)?"
)
_TIMES = re.compile(r"(?P<word>.+)\+(?P<first>\d+)ms\*(?P<times>\d+)")
_PERIOD_MS = 100
_STATES = {
    "": State.DONE,
    "...": State.WAITING,
    "...inside": State.INSIDE,
    "...issued": State.ISSUED,
    "!": State.REFUSED,
    "^": State.RAISED,
}
_ENDINGS = {state: ending for ending, state in _STATES.items()}


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
        else [_word(event, places) for event in run.events(rank)]
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


# --- reading ---------------------------------------------------------------------


def _events(
    rank: int, words: Iterable[str], number: int, ordinals: dict[str, int]
) -> list[Event]:
    return [
        _event(rank, once, number, ordinals)
        for word in words
        if word != "."
        for once in _repeated(word)
    ]


def _repeated(word: str) -> Iterable[str]:
    match = _TIMES.fullmatch(word)
    if match is None:
        return [word]
    first = int(match["first"])
    moments = range(first, first + int(match["times"]) * _PERIOD_MS, _PERIOD_MS)
    return [f"{match['word']}+{moment}ms" for moment in moments]


def _event(rank: int, word: str, number: int, ordinals: dict[str, int]) -> Event:
    match = _WORD.fullmatch(word)
    if match is None:
        raise SketchError(number, word, "is no event; see distdoctor.model.drawing")
    name, mark = match["name"], match["flags"] + (match["end"] or "")
    place = Place(match["file"], int(match["line"])) if match["file"] else None
    try:
        if name in _LIFE:
            return _LIFE[name](rank, match["value"] or "", mark, place)
        if name in CODE_OF and match["value"] is None:
            return _call(rank, match, place, ordinals)
        if name in drawing_syntax.KINDS and match["value"] is None and not mark:
            return drawing_syntax.read(name, match["tensors"] or "", rank, place)
    except (ValueError, KeyError):
        pass
    raise SketchError(number, word, "is no event; see distdoctor.model.drawing")


def _call(
    rank: int, match: re.Match[str], place: Place | None, ordinals: dict[str, int]
) -> Call:
    operation = OPERATIONS[CODE_OF[match["name"]]]
    group = match["group"] or _usual_group(operation)
    ordinal = 0
    if operation.is_collective:
        ordinals[group] = ordinal = ordinals.get(group, 0) + 1
    tensors: tuple[Tensor, ...] = ()
    options: dict[str, str] = {}
    for part in (match["tensors"] or "").split(","):
        key, equals, value = part.partition("=")
        if equals:
            options[key] = value
        elif part:
            tensors = tuple(map(_tensor, part.split("+")))
    if set(options) - {"op", "root", "peer", "tag", "sent", "received", "names", "by"}:
        raise ValueError(options)
    splits = None
    if "sent" in options:
        splits = (_numbers(options["sent"]), _numbers(options["received"]))
    if options.get("op", "sum") not in REDUCE_OPS:
        raise ValueError(options)
    if options.get("by", "") not in LAYERS:
        raise ValueError(options)
    if ("sent" in options) != ("received" in options):
        raise ValueError(options)
    reduce_op = options.get("op", "sum" if "reduce" in operation.name else None)
    return Call(
        rank=rank,
        op=operation.name,
        group=group,
        ordinal=ordinal,
        tensors=tensors,
        reduce_op=reduce_op,
        root=int(options.get("root", 0)) if operation.is_rooted else None,
        peer=int(options["peer"]) if "peer" in options else None,
        tag=int(options.get("tag", 0)),
        splits=splits,
        names=tuple(unquote(name) for name in options["names"].split("+"))
        if "names" in options
        else (),
        asynchronous="&" in match["flags"],
        state=_STATES[match["end"] or ""],
        place=place,
        callers=_lines(match["callers"] or ""),
        thread=int(match["thread"] or 0),
        failing="~" in match["flags"],
        entered_ms=int(match["entered"] or 0),
        batched="+" in match["flags"],
        layer=options.get("by", ""),
        unused="'" in match["flags"],
    )


def _lines(text: str) -> tuple[Place, ...]:
    parts = (part.rpartition(":") for part in text.split("<") if part)
    return tuple(Place(file, int(line)) for file, _, line in parts)


def _usual_group(operation: Operation) -> str:
    if not operation.sets_up:
        return WORLD
    return SETUP if operation.is_collective else STORE


def _tensor(text: str) -> Tensor:
    shape, _, dtype = text.partition(":")
    return Tensor(_numbers(shape.replace("-", ""), "x"), dtype or "float32")


def _numbers(text: str, separator: str = "/") -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(separator) if number)


_LIFE: dict[str, Callable[[int, str, str, Place | None], Event]] = {
    "start": lambda rank, value, mark, place: Started(
        rank=rank, world_size=int(value), joined=mark != "...", place=place
    ),
    "wrap": lambda rank, value, _mark, place: Wrapped(
        **_wrapped(value), rank=rank, place=place
    ),
    "misplaced": lambda rank, value, _mark, place: Misplaced(
        rank=rank, device=value, place=place
    ),
    "unreduced": lambda rank, value, _mark, place: Unreduced(
        rank=rank, parameters=tuple(filter(None, value.split("+"))), place=place
    ),
    "batches": lambda rank, value, mark, place: Batch(
        rank=rank, count=int(value), ended=mark != "...", place=place
    ),
    "shortened": lambda rank, value, _mark, place: _shortened(rank, value, place),
    "fail": lambda rank, value, mark, place: Failure(
        rank=rank,
        error=value,
        place=place,
        fatal="~" not in mark,
        secondary="^" in mark,
    ),
    "leave": lambda rank, _value, _mark, place: Left(rank=rank, place=place),
    "quit": lambda rank, value, _mark, place: _quit(rank, value, place),
    "exit": lambda rank, value, mark, place: Ended(
        rank=rank,
        status=None if value == "?" else int(value),
        orderly="!" not in mark,
        stopped=mark == "!!",
        place=place,
    ),
    "over": lambda rank, value, _mark, _place: ThreadEnded(
        rank=rank, thread=int(value)
    ),
    "touched": lambda rank, value, _mark, place: Touched(
        rank=rank, issued=_issued(value), place=place
    ),
    "stepped": lambda rank, value, _mark, place: Touched(
        rank=rank, issued=_issued(value), stepped=True, place=place
    ),
    "dead": lambda rank, value, _mark, place: Dead(
        rank=rank, seconds=float(value), place=place
    ),
    "locked": lambda rank, value, _mark, place: _locked(rank, value, place),
    "busy": lambda rank, value, _mark, place: _busy(rank, value, place),
}


def _bad_address(fault: str) -> Callable[[int, str, str, Place | None], Event]:
    def event(rank: int, value: str, mark: str, place: Place | None) -> Event:
        address, _, given = value.partition(">")
        return BadAddress(
            rank=rank,
            fault=fault,
            address=address,
            given=given,
            mended=mark != "...",
            place=place,
        )

    return event


_LIFE |= {fault: _bad_address(fault) for fault in ADDRESS_FAULTS}


def _wrapped(value: str) -> dict[str, Any]:
    how, names, ranks = (*value.split(":"), "", "")[:3]
    return {
        "how": how,
        "parameters": tuple(filter(None, names.split("+"))),
        "ranks": drawing_syntax.runs(ranks),
    }


def _shortened(rank: int, value: str, place: Place | None) -> Shortened:
    kept, _, length = value.partition(":")
    known = int(length) if length else None
    return Shortened(rank=rank, kept=int(kept), length=known, place=place)


def _quit(rank: int, value: str, place: Place | None) -> Quit:
    how, _, status = value.rpartition(":")
    return Quit(rank=rank, how=how, status=int(status), place=place)


def _locked(rank: int, value: str, place: Place | None) -> Locked:
    if place is None:
        raise ValueError(value)
    return Locked(rank=rank, place=place, seconds=float(value))


def _issued(value: str) -> Place | None:
    file, _, line = value.rpartition(":")
    return Place(file, int(line)) if file else None


def _busy(rank: int, value: str, place: Place | None) -> Busy:
    if place is None:
        raise ValueError(value)
    return Busy(rank=rank, place=place, seconds=float(value), looks=10)


# --- writing ---------------------------------------------------------------------


def _word(event: Event, places: bool) -> str:
    place = event.place
    where = f"@{place}" if places and place is not None else ""
    match event:
        case Call():
            return _call_word(event, where)
        case Started(world_size=size, joined=joined):
            return f"start={size}{where}{'' if joined else '...'}"
        case BadAddress(fault=fault, address=address, given=given, mended=mended):
            sent = f">{given}" if given else ""
            return f"{fault}={address}{sent}{where}{'' if mended else '...'}"
        case Wrapped(how=how, parameters=parameters, ranks=ranks):
            told = (
                f"{how}:{'+'.join(parameters)}:{drawing_syntax.as_runs(ranks)}".rstrip(
                    ":"
                )
            )
            return f"wrap={told}{where}"
        case Misplaced(device=device):
            return f"misplaced={device}{where}"
        case Unreduced(parameters=parameters):
            return f"unreduced={'+'.join(parameters)}{where}"
        case Batch(count=count, ended=ended):
            return f"batches={count}{where}{'' if ended else '...'}"
        case Shortened(kept=kept, length=length):
            return f"shortened={kept}:{'' if length is None else length}{where}"
        case Failure(error=error, fatal=fatal, secondary=secondary):
            return f"fail={error}{where}{'' if fatal else '~'}{'^' * secondary}"
        case Left():
            return f"leave{where}"
        case Quit(how=how, status=status):
            return f"quit={how}:{status}{where}"
        case Ended(status=status, orderly=orderly, stopped=stopped):
            known = "?" if status is None else status
            return f"exit={known}{where}{'!!' if stopped else '' if orderly else '!'}"
        case ThreadEnded(thread=thread):
            return f"over={thread}"
        case Touched(issued=issued, stepped=stepped):
            return f"{'stepped' if stepped else 'touched'}={issued or ':0'}{where}"
        case Dead(seconds=seconds):
            return f"dead={seconds:g}{where}"
        case Locked(seconds=seconds):
            return f"locked={seconds:g}@{event.place}"
        case Busy(seconds=seconds):
            return f"busy={seconds:g}@{event.place}"
        case Observation():
            return f"{drawing_syntax.write(event)}{where}"


def _call_word(call: Call, where: str) -> str:
    options = ["+".join(map(_tensor_word, call.tensors))] if call.tensors else []
    if call.reduce_op not in {None, "sum"}:
        options.append(f"op={call.reduce_op}")
    if call.root:
        options.append(f"root={call.root}")
    if call.peer is not None:
        options.append(f"peer={call.peer}")
    if call.tag:
        options.append(f"tag={call.tag}")
    if call.splits is not None:
        sent, received = call.splits
        options += [f"sent={_joined(sent, '/')}", f"received={_joined(received, '/')}"]
    if call.names:
        options.append(f"names={'+'.join(quote(name) for name in call.names)}")
    if call.layer:
        options.append(f"by={call.layer}")
    if where:
        where = "<".join([where, *map(str, call.callers)])
    usual = _usual_group(OPERATIONS[CODE_OF[call.op]])
    return "".join(
        [
            call.op,
            f"({','.join(options)})" if options else "",
            "" if call.group == usual else f"/{call.group}",
            where,
            _mark(call),
            f"%{call.thread}" if call.thread else "",
        ]
    )


def _mark(call: Call) -> str:
    flags = "&" * call.asynchronous + "'" * call.unused
    flags += "~" * call.failing + "+" * call.batched
    return flags + _ENDINGS[call.state]


def _tensor_word(tensor: Tensor) -> str:
    dtype = "" if tensor.dtype == "float32" else f":{tensor.dtype}"
    return f"{_joined(tensor.shape, 'x') or '-'}{dtype}"


def _joined(numbers: Iterable[int], separator: str) -> str:
    return separator.join(map(str, numbers))

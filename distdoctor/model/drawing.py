"""Drawings of runs: `sketch` reads one, `draw` makes one.

A drawing has one line per rank and is the shortest way to say what a run did, in a
manual, in a test and in a report:

    group tp | 0 1
    rank 0 | all_reduce(4)  barrier        exit=0
    rank 1 | all_reduce(4)  all_reduce(4)...
    rank 2 | ?

    all_reduce(4)           a collective on a tensor of 4 elements
    all_reduce(2x3:int64)   of shape 2x3 and dtype int64 (float32 is not written)
    all_gather(4+2)         on two tensors
    all_reduce(-)           on a tensor without dimensions
    all_reduce(4,op=max)    with that reduce op (sum is not written)
    broadcast(4,root=1)     from or to that group rank (0 is not written)
    send(4,peer=1,tag=7)    to, or from, that group rank (tag 0 is not written)
    all_to_all_single(4,sent=1/3,received=2/2)
    all_gather(4,by=fsdp)   issued by that part of torch (see model.layers)
    all_reduce(4)/tp        on the group "tp" ("world" is not written)
    barrier@train.py:12     called from that line of the user's source
    barrier@u.py:3<t.py:12  to which t.py:12 had led
    barrier...              waited for and not complete: the thread is blocked
    barrier...inside        entered, and torch did not give back control
    send(4,peer=1)+         one of several given to batch_isend_irecv together
    all_reduce(4)&          asynchronous and complete
    all_reduce(4)&...issued    asynchronous, not waited for
    all_reduce(4)&'         its handle was given to the user and never used
    barrier!                stopped before it was issued
    barrier^                ended with an exception
    barrier~                called while an exception was on its way up
    barrier~...             both; the flags &, ', ~ and + stand before the ending
    barrier%2               called by the thread number 2 (0 is not written)
    barrier+70ms            entered 70 ms after the start (read, and never written)
    barrier+70ms*9          nine times, 100 ms apart
    start=4                 init_process_group of a world of 4; start=4... is in it
    new_group(names=0-2)    new_group of those ranks
    store_wait(names=key)   waits for a key of the store; store_set(names=key) sets it
    overridden=a:1>b:2      sent to b:2 by its launcher, it looks for the others at a:1
    taken=a:1               is to open a store at a port that the job has in use already
    occupied=a:1            or somebody else; elsewhere=a:1 is no address of the machine
    interface=eth0          nor that; with ... it was not led to where it can meet them
    wrap=ddp:a+b            wrapped a model with the parameters a and b
    wrap=ddp:a+b:0-1        which ranks 0 and 1 share; all do where none are named
    misplaced=meta          called an operation on a tensor of that device, in vain
    unreduced=a+b           DDP got no gradients of the parameters a and b
    batches=12              a DataLoader ended after 12 batches; batches=12... is open
    shortened=4:1000        from there on it gave 4 of 1000 batches; 4: of nobody knows
    fail=KeyError           an exception left the rank's code and ended it
    fail=KeyError~          an exception was seen on its way up
    fail=RuntimeError^      an exception raised by a communication call ended it
    leave                   destroy_process_group
    exit=0                  the process ended with that status; exit=? is not known
    exit=137!               without the interpreter's exit handlers: killed
    exit=143!!              ended by distdoctor or by the launcher
    exit=1@main.py:9        that line of its parent learnt of it
    over=2                  the thread number 2 ended
    dead=20@train.py:9      held the interpreter's lock there for 20 s, doing nothing
    locked=40@train.py:9    one of its threads waited for a lock there for 40 s
    touched=t.py:7@t.py:9   the tensor of t.py:7's call changed before the wait, t.py:9
    stepped=t.py:7@t.py:9   an optimizer read it at t.py:9, before any wait
    busy=40@train.py:9      seen there for 40 s, moving nowhere
    read(samples=0-3+7,steps=2)@train.py:9    an observation: its kind in small letters,
                            its fields where they are not what they are by default;
                            see distdoctor.model.observations
    .                       nothing; keeps the columns in line
    ?                       alone on its line: the rank left no journal

A line that begins with its stroke goes on with the rank of the line before it.

The first line is only needed for groups that not all of their members used. A last
line "nobody else" says that no process is left that could still become a rank, and one
such as "the command left with 0" how the whole job ended.
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

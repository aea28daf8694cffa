"""Ranks that do not meet while they join the job, or wait for keys."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.deadlock.stalled import STOOD_S
from distdoctor.analysis.deadlock.wait_for_graph import is_set, standstill
from distdoctor.analysis.rendezvous.store_keys import lines_of_setting, setter_of
from distdoctor.model.events import BLOCKED, Call, Failure, State
from distdoctor.model.findings import Certainty
from distdoctor.model.operations import CODE_OF
from distdoctor.model.run import Run, named

_JOINS = CODE_OF["init_process_group"], CODE_OF["hvd_init"]
_WAIT = CODE_OF["store_wait"]

_MOST_KEYS_TOLD = 5

_TIME_IS_UP = re.compile(r"time(d )?[ -]?out", re.IGNORECASE)
"""In what stores and rendezvous raise (torch 2.8 to 2.13: TCPStore.cpp, socket.cpp)."""


@dataclass(frozen=True, slots=True)
class JoiningFault:
    """Ranks that wait for the others to join, and why they do not find each other.

    Attributes:
        here: Who waits.
        size: Of the world for which they wait.
        call: By what they join.
        missing: Ranks of it that never came there.
        elsewhere: Those of them that were seen to do something else.
        sizes: The world sizes that ranks announce, in words, if they differ.
        addresses: Where ranks look for each other, in words, if that differs.
        address: Where, if it is the same; empty: not known.
    """

    here: tuple[int, ...]
    size: int
    call: str = "init_process_group"
    missing: tuple[int, ...] = ()
    elsewhere: tuple[int, ...] = ()
    sizes: str = ""
    addresses: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class MissingKey:
    """Ranks that wait for keys of the store that nobody has set.

    Attributes:
        here: Who waits.
        keys: For which.
        others: Calls in which others wait meanwhile.
        known: Keys that ranks have set, the first few.
        setter: The rank that set all keys of the kind before; None: not one alone.
    """

    here: tuple[int, ...]
    keys: tuple[str, ...]
    others: tuple[Call, ...]
    known: tuple[str, ...]
    setter: int | None


def joining(run: Run) -> Iterator[Divergence]:
    """Ranks that wait for others to join the job, or gave it up."""
    states = (*BLOCKED, State.RAISED)
    calls = run.calls
    found = run.with_op(*_JOINS)
    found = found[np.isin(calls["state"][found], states)]
    # Only what a rank did last: it may have tried again.
    rows = [int(row) for row in found if _is_last(run, int(row))]
    stuck = standstill(run).waits
    rows = [
        row
        for row in rows
        if _gave_up(run, row) or (run.closed and int(calls["rank"][row]) in stuck)
    ]
    if not rows:
        return
    here = {int(calls["rank"][row]): run.call(row) for row in rows}
    sizes = {rank: len(_group(run, row)) for rank, row in zip(here, rows, strict=True)}
    addresses = {rank: call.names[0] for rank, call in here.items() if call.names}
    size = max(sizes.values())
    missing = [rank for rank in range(size) if rank not in here]
    culprits: tuple[int, ...] = ()
    called = next(iter(here.values())).op.replace("hvd_", "hvd.")
    fault = JoiningFault(tuple(here), size, called)
    if len(set(sizes.values())) > 1:
        culprits = _minority(sizes)
        fault = replace(fault, sizes=_values_in_words(sizes))
    elif missing:
        culprits = tuple(rank for rank in missing if run.has_seen((rank,)))
        fault = replace(fault, missing=tuple(missing), elsewhere=culprits)
    elif len(set(addresses.values())) > 1:
        culprits = _minority(addresses)
        fault = replace(fault, addresses=_values_in_words(addresses))
    elif (still := run.quiet) and (still.seconds < STOOD_S or still.name_server):
        return  # the last of them came just now, or the store answers slowly
    else:
        fault = replace(fault, address=next(iter(addresses.values()), ""))
    yield Divergence(
        why=Cause.JOINING,
        group=None,
        ordinal=0,
        calls=here,
        culprits=culprits,
        victims=tuple(rank for rank in here if rank not in culprits),
        certainty=Certainty.LIKELY,
        facts=fault,
    )


def _is_last(run: Run, row: int) -> bool:
    """Whether a call is the last that its rank made."""
    return row == run.rows_of(int(run.calls["rank"][row]))[-1]


def _gave_up(run: Run, row: int) -> bool:
    """Whether a call ended with an exception because its time was up.

    Another one, such as that of a port in use, tells nothing of the other ranks.
    """
    if run.calls["state"][row] != State.RAISED:
        return False
    failures = run.of(Failure, int(run.calls["rank"][row]))
    message = next((f.message for f in reversed(failures) if f.caught is None), "")
    return not message or _TIME_IS_UP.search(message) is not None


def _group(run: Run, row: int) -> tuple[int, ...]:
    ranks: tuple[int, ...] = run.groups[run.calls["group"][row]].ranks
    return ranks


def _minority(of: dict[int, int] | dict[int, str]) -> tuple[int, ...]:
    """Ranks that do not say what most say; none with a tie."""
    counts = Counter(of.values()).most_common()
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        return ()
    return tuple(rank for rank, value in of.items() if value != counts[0][0])


def _values_in_words(of: dict[int, int] | dict[int, str]) -> str:
    by_value: dict[object, list[int]] = {}
    for rank, value in of.items():
        by_value.setdefault(value, []).append(rank)
    return "; ".join(f"{named(ranks)} {value}" for value, ranks in by_value.items())


def missing_key(run: Run) -> Iterator[Divergence]:
    """A rank waits for a key of the store that nobody sets, or gave it up."""
    calls = run.calls
    waited = run.with_op(_WAIT)
    stuck = {wait.row for threads in standstill(run).waits.values() for wait in threads}
    pending = np.isin(calls["state"][waited], [State.INSIDE, State.RAISED])
    rows = [
        row
        for row in map(int, waited[pending])
        if row in stuck or (_gave_up(run, row) and _is_last(run, row))
        if not is_set(run, row)
    ]
    if not rows:
        return
    here = {int(calls["rank"][row]): run.call(row) for row in rows}
    keys = sorted({name for call in here.values() for name in call.names})
    known = _keys_set(run)
    others = {
        rank: run.call(threads[0].row)
        for rank, threads in standstill(run).waits.items()
        if rank not in here
    }
    setter, sets = setter_of(run, rows)
    culprits = () if setter is None else (setter,)
    yield Divergence(
        why=Cause.KEY,
        group=None,
        ordinal=0,
        calls=here | others,
        culprits=culprits,
        victims=tuple(sorted({**here, **others}.keys() - {*culprits})),
        certainty=Certainty.LIKELY,
        elsewhere=lines_of_setting(run, sets),
        facts=MissingKey(
            tuple(here),
            tuple(keys),
            tuple(others.values()),
            tuple(known[:_MOST_KEYS_TOLD]),
            setter,
        ),
    )


def _keys_set(run: Run) -> list[str]:
    rows = run.with_op(CODE_OF["store_set"])
    specs = np.unique(run.calls["spec"][rows])
    return sorted({name for spec in specs for name in run.specs[spec].names})

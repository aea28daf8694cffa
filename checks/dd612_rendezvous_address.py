"""The ranks are sent to an address where they cannot meet.

What it is
----------
Ranks find each other through a store at `MASTER_ADDR` and `MASTER_PORT`, or at the
address in `init_method`. A launcher such as torchrun opens that store itself and tells
every rank where; a script that then writes another address or port into the
environment, or hands one to `init_process_group`, sends all ranks to a place where
nobody has opened one. Or the port, mostly a fixed one such as 29500 or 12355, is in use
already.

Why it matters
--------------
Under a launcher every rank is a client, rank 0 too: all wait in `init_process_group`,
without a word and before any collective, for up to half an hour. With a port in use
rank 0 dies, and the others talk to whoever owns it.

If a program that is no part of the job holds the port on this machine, that is a
warning: it may be free where the job is to run.

Here the ranks were led to a store all the same, so that the rest of the job could be
examined: on the cluster they are not.

Sick
----
The script overwrites the port that torchrun has chosen:

    rank 0 | start=2  overridden=localhost:12355>127.0.0.1:41327@t.py:9  all_reduce(4)
    rank 1 | start=2  overridden=localhost:12355>127.0.0.1:41327@t.py:9  all_reduce(4)

Rank 0 is to open a store at a port where the job serves something else already:

    rank 0 | start=2  taken=localhost:29500@t.py:9  all_reduce(4)  leave  exit=0
    rank 1 | start=2  all_reduce(4)  leave  exit=0

Another program on this machine holds the port:

    rank 0 | start=2  occupied=localhost:29500@t.py:9  all_reduce(4)  leave  exit=0
    rank 1 | start=2  all_reduce(4)  leave  exit=0

Well
----
An address of another machine, and an interface that is not here, may be right where the
job is to run:

    rank 0 | start=2  elsewhere=10.1.1.20:22@t.py:9  all_reduce(4)  leave  exit=0
    rank 1 | start=2  interface=ib0@t.py:9  all_reduce(4)  leave  exit=0

Rank 0 has opened a store of its own there, before it joined:

    rank 0 | start=2  init_process_group(names=a%3A1)  all_reduce(4)
    rank 1 | start=2  overridden=a:1>b:2  init_process_group(names=a%3A1)  all_reduce(4)

Unknown
-------
A rank that was not seen may look elsewhere:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Under a launcher, leave `MASTER_ADDR` and `MASTER_PORT` alone and call
`init_process_group` without `init_method`; for runs without one, give defaults by
`os.environ.setdefault`. Where the script starts its own ranks, let it ask for a free
port (bind to port 0) and hand that to all of them.

Known problems
--------------
It knows what this process can see: its variables, the ports of this machine, what the
launcher set. Whether an address of another machine is right, a firewall lets it through
or the interface exists there is not asked. A store that the job opens in C++ by itself
may look like a place where nobody answers.

References
----------
- torchrun: environment variables that it sets –
  https://docs.pytorch.org/docs/stable/elastic/run.html
- pytorch: leave init_method out under a launcher –
  https://github.com/pytorch/pytorch/issues/64990
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.rendezvous.addresses import Misdirection, misdirections
from distdoctor.model.events import Started
from distdoctor.model.findings import Finding, Location, Role, Severity
from distdoctor.model.run import Run, named

CODE = "DD612"
SEVERITY = Severity.ERROR
NEEDS = (Started,)


def examine(run: Run) -> Iterator[Finding]:
    """Addresses where ranks can not meet."""
    for wrong in misdirections(run, "overridden", "taken", "occupied", "used"):
        everyone = len(wrong.ranks) == run.world_size
        culprits = () if everyone else wrong.ranks
        role = Role.PARTY if everyone else Role.CULPRIT
        remark = "opens the store there"
        if wrong.fault == "overridden":
            remark = "is sent there" if len(wrong.ranks) == 1 else "are sent there"
        yield Finding(
            message=_message(wrong),
            exhibits=wrong.exhibits,
            culprits=culprits,
            victims=tuple(rank for rank in run.seen if rank not in culprits),
            locations=(Location(wrong.place, wrong.ranks, role, remark),)
            if wrong.place is not None
            else (),
            severity=Severity.WARNING if wrong.fault == "occupied" else None,
            details={"fault": wrong.fault, "address": wrong.address}
            | ({"given": wrong.given} if wrong.given else {}),
        )
    require_whole(run)


def _message(wrong: Misdirection) -> str:
    who = capital(named(wrong.ranks))
    one = len(wrong.ranks) == 1
    if wrong.fault == "taken":
        return (
            f"{who} open{'s' * one} the store at {wrong.address}, and another process "
            "of the job has that port already: the job would end there, or not meet."
        )
    if wrong.fault == "used":
        return (
            f"{who} {'was' if one else 'were'} to open the store at {wrong.address}, "
            "and it was in use: the job ended there."
        )
    if wrong.fault == "occupied":
        return (
            f"{who} open{'s' * one} the store at {wrong.address}, and on this machine "
            "another program has that port: the job would end there, or meet that one."
        )
    return (
        f"{who} look{'s' * one} for the others at {wrong.address}, and the launcher "
        f"had opened the store at {wrong.given}: nobody would answer, and all would "
        "wait in init_process_group."
    )

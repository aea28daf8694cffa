"""Nothing was trained, and the job ended with exit code 0.

What it is
----------
The script saw too few devices, or no data, or took itself for a single process: it
said a line, or nothing, and left. No process group was made, or one was and no batch
was read and no optimizer made a step. Nothing wrong was found, because nothing
happened: the verdict is unknown.

Why it matters
--------------
An exit code of 0 looks like success, to a scheduler and in a pre-flight check alike. On
the cluster the same line may be reached: one device is hidden, a path is wrong, and the
job is done within a second.

Sick
----
The ranks left before they joined:

    rank 0 | exit=0
    rank 1 | exit=0
    the command left with 0

The data were empty:

    rank 0 | start=2  wrap=ddp:w  batches=0@t.py:9  leave  exit=0
    rank 1 | start=2  wrap=ddp:w  batches=0@t.py:9  leave  exit=0
    the command left with 0

The model was wrapped, and that was all:

    rank 0 | start=2  wrap=ddp:w@t.py:7  all_gather(4,by=ddp)  barrier  leave  exit=0
    rank 1 | start=2  wrap=ddp:w@t.py:7  all_gather(4,by=ddp)  barrier  leave  exit=0
    the command left with 0

Well
----
A test of the network, without any model:

    rank 0 | start=2  all_reduce(4)  leave  exit=0
    rank 1 | start=2  all_reduce(4)  leave  exit=0
    the command left with 0

An evaluation reads batches, and makes no step:

    rank 0 | start=2  wrap=ddp:w  batches=4  all_reduce(1)  leave  exit=0
    rank 1 | start=2  wrap=ddp:w  batches=4  all_reduce(1)  leave  exit=0
    the command left with 0

Unknown
-------
A rank that was not seen may have trained:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?
    the command left with 0

Remedy
------
Give the check what the script wants: data to read, or a smaller number of devices. Let
the script leave with a failure where it cannot train (`sys.exit("needs 2 GPUs")` does),
so that nobody takes this for a run.

Known problems
--------------
That nothing was trained is judged by groups, loaders and optimizers: a job that updates
its weights by hand from batches made by hand looks idle, unless it communicates. How
many devices the script wants is known from its words alone.

References
----------
- torch.cuda.device_count, in torch's documentation –
  https://docs.pytorch.org/docs/stable/generated/torch.cuda.device_count.html
- torchrun, in torch's documentation –
  https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.optimizer_step.untrained import untrained
from distdoctor.model.events import Started
from distdoctor.model.findings import Finding, Location, Role, Severity
from distdoctor.model.run import Run

CODE = "DD614"
SEVERITY = Severity.WARNING
NEEDS = (Started,)


def examine(run: Run) -> Iterator[Finding]:
    """A job that left with 0 and had trained nothing."""
    found = untrained(run)
    if found is not None and found.exhibits:
        first = type(found.exhibits[0])
        places = dict.fromkeys(
            event.place for event in found.exhibits if isinstance(event, first)
        )
        last = f" It last said: {run.last_words}" if run.last_words else ""
        yield Finding(
            message=f"{capital(found.why)}, and the job left with exit code 0.{last}",
            exhibits=found.exhibits,
            locations=tuple(
                Location(
                    place, tuple(run.seen), Role.PARTY, "came here, and no further"
                )
                for place in places
                if place is not None
            ),
        )
    require_whole(run)

"""Several ranks write one checkpoint, or read it before it is written.

What it is
----------
Ranks share a disk and no order on it. If all of them save to one path, each truncates
what another is writing. If one saves and the others load without waiting for it, they
find no file, half a file, or that of the epoch before.

Why it matters
--------------
Mostly it goes well, for ranks save about the same at about the same time; then a file
is torn on the day on which it is needed, or a rank goes on from older weights than the
others. A file that is replaced at one blow (`os.replace`) is never torn, and can still
be too old.

Sick
----
Both ranks save to the same path:

    rank 0 | all_reduce(4)  stored(file=/c/last.pt)@t.py:30  all_reduce(4)
    rank 1 | all_reduce(4)  stored(file=/c/last.pt)@t.py:30  all_reduce(4)

Rank 0 saves, and rank 1 loads before that is done:

    rank 0 | barrier  stored(file=/c/a.pt,began_ns=5,ended_ns=9)@t.py:30  barrier
    rank 1 | barrier  opened(file=/c/a.pt,began_ns=7,ended_ns=8)@t.py:31  barrier

It finds no file at all:

    rank 0 | barrier  stored(file=/c/a.pt,began_ns=5,ended_ns=9)@t.py:30  barrier...
    rank 1 | barrier  opened(file=/c/a.pt,began_ns=3,error=FileNotFoundError)@t.py:31

The job ends while rank 0 still writes it:

    rank 0 | barrier  storing(file=/c/a.pt,began_ns=5)@t.py:30
    rank 1 | barrier  opened(file=/c/a.pt,began_ns=7,error=FileNotFoundError)@t.py:31

It came later this time, by luck alone; that is a warning:

    rank 0 | barrier  stored(file=/c/a.pt,began_ns=5,ended_ns=9)@t.py:30  barrier
    rank 1 | barrier  opened(file=/c/a.pt,began_ns=10,ended_ns=12)@t.py:31  barrier

Each replaces it by a file of its own, and they do not write the same (a warning):

    rank 0 | stored(file=/c/a.0,values=1)@t.py:9  moved(source=/c/a.0,file=/c/a)@t.py:10
    rank 1 | stored(file=/c/a.1,values=2)@t.py:9  moved(source=/c/a.1,file=/c/a)@t.py:10

Well
----
Each replaces it, and all write the same:

    rank 0 | stored(file=/c/a.0,values=1)@t.py:9  moved(source=/c/a.0,file=/c/a)@t.py:10
    rank 1 | stored(file=/c/a.1,values=1)@t.py:9  moved(source=/c/a.1,file=/c/a)@t.py:10

Rank 0 saves and all wait for it:

    rank 0 | stored(file=/c/a.pt,ended_ns=9)  barrier  opened(file=/c/a.pt,began_ns=11)
    rank 1 | .                                barrier  opened(file=/c/a.pt,began_ns=10)

Each rank has a file of its own:

    rank 0 | stored(file=/c/0.pt)  opened(file=/c/0.pt)
    rank 1 | stored(file=/c/1.pt)  opened(file=/c/1.pt)

All load what an earlier run has left, and rank 0 replaces it later:

    rank 0 | opened(file=/c/a.pt)  all_reduce(4)  stored(file=/c/a.pt)
    rank 1 | opened(file=/c/a.pt)  all_reduce(4)

They take turns:

    rank 0 | stored(file=/c/a.pt)  barrier
    rank 1 | barrier               stored(file=/c/a.pt)

Each writes a draft of its own, and gives it the common name when it is whole:

    rank 0 | stored(file=/c/a.0)  moved(source=/c/a.0,file=/c/a.pt)
    rank 1 | stored(file=/c/a.1)  moved(source=/c/a.1,file=/c/a.pt)

Rank 1 polls for a file that gets its name when it is whole:

    rank 0 | stored(file=/c/a~,ended_ns=3)  moved(source=/c/a~,file=/c/a,ended_ns=4)
    rank 1 | opened(file=/c/a,began_ns=9)

Unknown
-------
A rank without a journal may be one that writes, too:

    rank 0 | stored(file=/c/a.pt)  barrier
    rank 1 | ?

Remedy
------
Let one rank save (`if dist.get_rank() == 0:`), into a draft that `os.replace` renames,
and let all call `dist.barrier()` between saving and loading. Sharded state is saved by
`torch.distributed.checkpoint`, which all ranks call.

Known problems
--------------
Orders are known by collectives, messages and keys; that ranks wait for a file by
sleeping, or by a scheduler's own means, is not seen and told as a race. Ranks on
several machines may have disks of their own. Only `torch.save`, safetensors and files
that Python opens are seen.

References
----------
- apex: one process of each node writes the same checkpoint –
  https://github.com/NVIDIA/apex/issues/886
- nanochat: ranks save before the folder is there –
  https://github.com/karpathy/nanochat/pull/336
- Python: os.replace – https://docs.python.org/3/library/os.html#os.replace
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.checkpoints.checkpoint_files import contested
from distdoctor.analysis.checkpoints.early_reads import early_reads
from distdoctor.analysis.checkpoints.replaced_files import replaced
from distdoctor.analysis.evidence import require_whole
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.checkpoints import Stored
from distdoctor.model.run import Run

CODE = "DD409"
SEVERITY = Severity.ERROR
NEEDS = (Stored,)


def examine(run: Run) -> Iterator[Finding]:
    """Files that several ranks write, and those that are read too early."""
    yield from contested(run)
    yield from replaced(run)
    yield from early_reads(run)
    require_whole(run)

"""Results are to be repeatable, and cuDNN is told to try its algorithms.

What it is
----------
The job asks for deterministic algorithms, and switches `cudnn.benchmark` on as well.
Then cuDNN measures, at each start, which of its algorithms is the fastest, and takes
another one from run to run.

Why it matters
--------------
Algorithms round differently, so two runs with the same seeds part after some steps, on
GPUs, for a reason that nobody sees; and ranks may choose differently.

Sick
----
Both are switched on:

    rank 0 | flag(name=deterministic,on)@t.py:3  flag(name=cudnn.benchmark,on)@t.py:4
    rank 1 | flag(name=deterministic,on)@t.py:3  flag(name=cudnn.benchmark,on)@t.py:4

Well
----
Speed is preferred, and nobody asked for repeatable results:

    rank 0 | flag(name=cudnn.benchmark,on)@t.py:4
    rank 1 | flag(name=cudnn.benchmark,on)@t.py:4

It was switched off again:

    rank 0 | flag(name=cudnn.benchmark,on)  flag(name=cudnn.deterministic,on)  flag(name=cudnn.benchmark)
    rank 1 | flag(name=cudnn.benchmark,on)  flag(name=cudnn.deterministic,on)  flag(name=cudnn.benchmark)

Unknown
-------
A rank without a journal may have set something else:

    rank 0 | flag(name=cudnn.benchmark,on)@t.py:4
    rank 1 | ?

Remedy
------
For repeatable results, `torch.backends.cudnn.benchmark = False` beside
`torch.use_deterministic_algorithms(True)`; for speed, leave both of the deterministic
switches off.

Known problems
--------------
The switches are judged as they were set last: both that were on for some steps, and one
switched off again before the end, pass. Whether any convolution runs is not asked, and
on a machine without a GPU the switches do nothing.

References
----------
- torch's note on reproducibility –
  https://docs.pytorch.org/docs/stable/notes/randomness.html
- `torch/backends/cudnn/__init__.py` (pytorch/pytorch), `set_flags`
"""  # noqa: E501 - a rank is drawn on one line

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.model.findings import Finding, Location, Role, Severity
from distdoctor.model.observations.rng import Flag
from distdoctor.model.run import Run, named

CODE = "DD313"
SEVERITY = Severity.NOTE
NEEDS = (Flag,)

_WISHES = ("deterministic", "cudnn.deterministic")


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that ask for both."""
    both: dict[int, tuple[Flag, Flag]] = {}
    for rank in run.seen:
        last = {flag.name: flag for flag in run.of(Flag, rank)}
        on = {name: flag for name, flag in last.items() if flag.on}
        wish = next((on[name] for name in _WISHES if name in on), None)
        if wish is not None and "cudnn.benchmark" in on:
            both[rank] = (on["cudnn.benchmark"], wish)
    if both:
        ranks = tuple(both)
        benchmark, wish = next(iter(both.values()))
        yield Finding(
            message=f"{capital(named(ranks))} ask for deterministic algorithms and let "
            "cuDNN choose its own by their speed in this run (cudnn.benchmark)",
            exhibits=(benchmark, wish),
            locations=tuple(
                Location(flag.place, ranks, Role.CULPRIT, f"switches {flag.name} on")
                for flag in (benchmark, wish)
                if flag.place is not None
            ),
        )
    require_whole(run)

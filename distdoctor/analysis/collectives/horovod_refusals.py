"""Operations that Horovod refused, because its ranks gave them unlike arguments.

Horovod raises the same sentence on all ranks: it tells what is unlike, and not which
rank is the one that is wrong. TensorFlow adds the operation's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.model.events import Failure
from distdoctor.model.findings import Location, Role
from distdoctor.model.run import Run, named

_ERRORS = {"HorovodInternalError", "RuntimeError"}
_OF_TENSORFLOW = "FailedPreconditionError"
_NODE = re.compile(r"Detected at node '?([\w./-]{1,200})")
_LONGEST = 300

_UNLIKE = (
    (r"Mismatched data types: ", Cause.DTYPE),
    (r"Mismatched reduction operation: ", Cause.REDUCE_OP),
    (r"Mismatched prescale and/or postscale factors: ", Cause.REDUCE_OP),
    (r"Mismatched \w{1,30} root ranks: ", Cause.ROOT),
    (r"Mismatched \w{1,30} tensor shapes: ", Cause.NUMEL),
    (r"Mismatched (?:MPI )?operations: ", Cause.OPERATION),
)
_PATTERNS = tuple((re.compile(text), cause) for text, cause in _UNLIKE)
_OPS = ("Average", "Sum", "Adasum", "Min", "Max", "Product")
_OP = re.compile(r"reduction op (\d)(?!\d)")


@dataclass(frozen=True, slots=True)
class HorovodRefusal:
    """An operation that Horovod refused.

    Attributes:
        words: What it says.
        ranks: Who raised it; all that took part do, if they live long enough.
        name: Of the operation, if that is told.
    """

    words: str
    ranks: tuple[int, ...]
    name: str = ""

    def __str__(self) -> str:
        """A sentence for a finding."""
        if self.name:
            return (
                f"Horovod refused the operation {self.name}: {self.words} It does not "
                f"say which rank is the wrong one; {named(self.ranks)} raised it."
            )
        return (
            f"Horovod refused an operation: {self.words} It says neither of which "
            f"tensor nor which rank is the wrong one; {named(self.ranks)} raised it."
        )


def refused_by_horovod(run: Run) -> Iterator[Divergence]:
    """What Horovod refused and a rank ended of.

    Args:
        run: The run that is judged.

    Yields:
        At most one divergence, of the first such exception; it accuses nobody.
    """
    told: dict[tuple[str, Cause], list[tuple[int, Failure]]] = {}
    for rank in run.seen:
        for failure in run.of(Failure, rank):
            if not failure.fatal or failure.caught:
                continue
            words = _words(failure)
            for pattern, cause in _PATTERNS:
                if found := pattern.match(words):
                    told.setdefault((found[0], cause), []).append((rank, failure))
    if len(told) != 1:
        return  # nothing, or so much that one of them follows from another
    ((_, cause), raised) = next(iter(told.items()))
    ranks = tuple(sorted({rank for rank, _ in raised}))
    first = raised[0][1]
    words = _words(first).splitlines()[0][:_LONGEST]
    node = _NODE.search(first.message) if first.error == _OF_TENSORFLOW else None
    yield Divergence(
        why=cause,
        group=None,
        ordinal=0,
        calls={},
        culprits=(),
        victims=ranks,
        facts=HorovodRefusal(
            _OP.sub(_named_op, words), ranks, node[1] if node is not None else ""
        ),
        cause=first,
        elsewhere=tuple(
            Location(place, ranks, Role.CULPRIT, "asked Horovod for it")
            for place in dict.fromkeys(one.place for _, one in raised)
            if place is not None
        ),
    )


def _words(failure: Failure) -> str:
    """Horovod's own words; TensorFlow has others in front of them."""
    if failure.error == _OF_TENSORFLOW:
        begin = failure.message.find("Mismatched ")
        return failure.message[begin:] if begin >= 0 else ""
    return failure.message if failure.error in _ERRORS else ""


def _named_op(found: re.Match[str]) -> str:
    number = int(found[1])
    return f"reduction op {_OPS[number]}" if number < len(_OPS) else found[0]

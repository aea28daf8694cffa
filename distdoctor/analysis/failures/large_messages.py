"""Jobs that gloo ended, for a rank was sent more than its collective awaits.

A receiver of gloo's knows from its own call how many bytes come. More of them mean that
the peer is in another call, or brought a larger tensor to this one; which of the two,
and which of the ranks strayed, the message does not tell.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.model.events import Failure
from distdoctor.model.findings import Certainty, Finding, Location, Role
from distdoctor.model.observations.failures import MessageTooLarge
from distdoctor.model.run import Run, named

_MOST_PLACES = 4

_REMEDY = (
    "Find the two calls: run the job under `distdoctor check`, or once more with "
    "`TORCH_DISTRIBUTED_DEBUG=DETAIL` in its environment; both name them. Then have "
    "all ranks make the same calls in the same order, with tensors of one size."
)


def large_messages(run: Run) -> Iterator[Finding]:
    """What gloo said, and where the other ranks were then.

    Args:
        run: The run that is judged.

    Yields:
        One finding, if gloo said so and nothing tells which calls the ranks made.
    """
    told = [one for rank in run.seen for one in run.of(MessageTooLarge, rank)]
    if not told or len(run.calls):
        return
    first = told[0]
    broken = _broken(run, first.aborted)
    yield Finding(
        message=_words(first),
        exhibits=(first, *broken),
        victims=first.aborted,
        locations=_places(broken),
        certainty=Certainty.LIKELY,
        details={"received": first.received, "expected": first.expected},
        remedy=_REMEDY,
    )


def _broken(run: Run, aborted: tuple[int, ...]) -> list[Failure]:
    """The last word of each rank whose connection broke by that."""
    return [
        failures[-1]
        for rank in run.seen
        if rank not in aborted
        and (failures := [one for one in run.of(Failure, rank) if one.secondary])
    ]


def _words(first: MessageTooLarge) -> str:
    who = named(first.aborted) if first.aborted else "a rank"
    several = len(first.aborted) > 1
    its, it = ("their", "them") if several else ("its", "it")
    if first.received >= 0 and first.expected >= 0:
        message = (
            f"a message of {first.received:,} bytes where {its} call expects at most "
            f"{first.expected:,}"
        )
    else:
        message = f"a message larger than {its} call expects"
    verb = "were" if several else "was"
    return (
        f"{capital(who)} {verb} sent {message}, so gloo ended {it}: the ranks brought "
        "tensors of different sizes to one collective, or one side is in a call that "
        "the other did not make (DD108) or makes elsewhere (DD101). Which of them "
        "strayed, this output does not tell."
    )


def _places(broken: list[Failure]) -> tuple[Location, ...]:
    """Where the others were when their connections broke, most ranks first."""
    ranks: dict[object, list[Failure]] = {}
    for failure in broken:
        if failure.place is not None:
            ranks.setdefault(failure.place, []).append(failure)
    found = []
    for same in sorted(ranks.values(), key=len, reverse=True)[:_MOST_PLACES]:
        place = same[0].place
        assert place is not None
        who = tuple(failure.rank for failure in same)
        remark = f"w{'ere' if len(who) > 1 else 'as'} here when the connection broke"
        found.append(Location(place, who, Role.PARTY, remark))
    return tuple(found)

"""A name is given to a call of Horovod's while another call has it.

What it is
----------
Horovod knows what belongs together by the names of the tensors. A name may be used
again when the call that had it is over, and not before: `allreduce_async(x, name="loss")`
twice, with no `synchronize` between them, is refused by an exception. Horovod's optimizer
names gradients by their parameters. Two of them that are alive at once give each gradient
twice if they hold the same parameters, and gradients of one name if two models call
parameters alike; hooks keep an optimizer alive that the script has dropped.

Why it matters
--------------
The exception tells the rule, and neither the name nor who had it. It comes out of
`backward()` where an optimizer did it, far from the line that wrapped the model again.

Sick
----
Two asynchronous calls of one name, and no wait between them:

    rank 0 | name_in_flight(name=allreduce.loss)@t.py:9  fail=ValueError@t.py:9  exit=1
    rank 1 | name_in_flight(name=allreduce.loss)@t.py:9  fail=ValueError@t.py:9  exit=1

A second optimizer for the next stage of training, over the same parameters:

    rank 0 | optimizer_wrapped(optimizer=1)@t.py:5  optimizer_wrapped(optimizer=2)@t.py:9  name_in_flight(name=allreduce.w,holders=2,parameters=1)@t.py:12  fail=ValueError@t.py:12  exit=1
    rank 1 | optimizer_wrapped(optimizer=1)@t.py:5  optimizer_wrapped(optimizer=2)@t.py:9  name_in_flight(name=allreduce.w,holders=2,parameters=1)@t.py:12  fail=ValueError@t.py:12  exit=1

Well
----
The program expects the error, and goes on:

    rank 0 | name_in_flight(name=allreduce.loss)@t.py:9  fail=ValueError~@t.py:9  all_reduce(4)  exit=0
    rank 1 | name_in_flight(name=allreduce.loss)@t.py:9  fail=ValueError~@t.py:9  all_reduce(4)  exit=0

Each call has a name of its own, or none:

    rank 0 | all_reduce(4)&  all_reduce(4)&  exit=0
    rank 1 | all_reduce(4)&  all_reduce(4)&  exit=0

Unknown
-------
A rank without a journal may have been refused:

    rank 0 | all_reduce(4)&
    rank 1 | ?

Remedy
------
Give each call a name of its own, the same on all ranks, or wait for the first with
`hvd.synchronize(handle)`. Wrap a model's parameters once: make one
`hvd.DistributedOptimizer` for all stages, and freeze parameters with
`requires_grad_(False)`. For two models, give names that differ:
`named_parameters=[(f"critic.{name}", p) for name, p in critic.named_parameters()]`.

Known problems
--------------
A call that is over by the time the name comes again is not refused: whether it is, may
differ from run to run. Functions of TensorFlow are not seen.

References
----------
- `horovod/common/tensor_queue.cc` (horovod/horovod), `AddToTensorQueue`
"""  # noqa: E501 - a drawing is as wide as what a rank did

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital, pointers
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.horovod.names_in_flight import RefusedName, refused_names
from distdoctor.model.events import Call
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.run import Run, named

CODE = "DD119"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Names that were in flight when they were given again."""
    for one in refused_names(run):
        yield _finding(one)
    require_whole(run)


def _finding(found: RefusedName) -> Finding:
    ranks, first = found.ranks, found.refused[0]
    name = first.name.partition(".")[2]
    message = (
        f"{capital(named(ranks))} gave the name {name!r} to a call of Horovod's while "
        "another one had it"
    )
    at = pointers(
        [first.place] if first.place is not None else [], ranks, "the call refused"
    )
    if first.holders > 1:
        message += f": {_who(first.holders, first.parameters)}"
        made = enumerate(found.wrapped[-first.holders :], start=1)
        wraps = [
            Location(one.place, ranks, Role.CULPRIT, f"makes optimizer {n}")
            for n, one in made
            if one.place is not None
        ]
        at = (*reversed(wraps), *at)  # the last came to what was there
    elif found.earlier is not None and found.earlier.place is not None:
        had = Location(found.earlier.place, ranks, Role.CULPRIT, "the call that has it")
        at = (*at, had)
    return Finding(
        message=message,
        culprits=found.culprits,
        exhibits=(first,) if found.earlier is None else (first, found.earlier),
        locations=at,
        certainty=Certainty.PROVED,
        details={"name": name},
    )


def _who(holders: int, parameters: int) -> str:
    if parameters < holders:
        return f"{holders} of its optimizers that are alive hold the same parameter"
    return f"{holders} of its optimizers call a parameter so, each another one"

"""Two ways to make a step that must come to the same do not.

What it is
----------
A test of the job's own step, with `distdoctor.equivalence`, found an example for which
a property does not hold: gradients accumulated over micro-batches are not those of one
batch, a step of several ranks is not that of one, mixed precision is not full precision,
a model that recomputes its activations, or that is compiled, is not the plain one, or a
run that is resumed does not go on as it would have. The difference is more than rounding
can explain.

Why it matters
--------------
The job trains, and its loss falls, with gradients that are too large or too small, or
that weigh some samples more than others. A learning rate that was tuned on one GPU is
then wrong on many, and a result depends on how the batch was cut up.

Sick
----
The loss of four micro-batches is not divided by four:

    rank 0 | property(name=accumulation,example=K%3D4,parameter=0.weight,factor=4,excess=20000,why=gradients%20are%204.00%20x%20too%20large)@t.py:9
    rank 1 | property(name=accumulation,example=K%3D4,parameter=0.weight,factor=4,excess=20000,why=gradients%20are%204.00%20x%20too%20large)@t.py:9

One of several properties does not hold, and one rank asked for it:

    rank 0 | property(name=accumulation,held)  property(name=precision,why=clipped%20while%20scaled)@t.py:9
    rank 1 | .

Well
----
All that were tried hold:

    rank 0 | property(name=accumulation,held)  property(name=ranks,held)
    rank 1 | property(name=accumulation,held)  property(name=ranks,held)

Unknown
-------
A rank without a journal may have found something:

    rank 0 | property(name=accumulation,held)
    rank 1 | ?

Remedy
------
The message names the factor. Divide each micro-batch's loss by their number, or, where
they have different numbers of samples that count, the sum of losses by the number in the
whole window, of all ranks. Call `unscale_` before gradients are clipped, and clip once,
behind the last micro-batch. Where layers couple the samples of a batch, the property
does not hold by nature, and the assertion says so by another error.

Known problems
--------------
A property is tried on the examples that were drawn, within the time it was given: one
that held may fail for others. Tolerances come from rounding on the CPU in the dtype
that is tried; a kernel of a GPU that rounds more than its dtype must is judged too
hard. Layers that couple samples (BatchNorm) break a property by nature.

References
----------
- transformers: accumulated is not one batch –
  https://github.com/huggingface/transformers/issues/24725
- torch's note on numerical accuracy –
  https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html
"""  # noqa: E501 - a rank is drawn on one line

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.model.findings import Finding, Location, Role, Severity
from distdoctor.model.observations.equivalence import (
    ACCUMULATION,
    CHECKPOINTING,
    COMPILING,
    PRECISION,
    RANKS,
    RESUMING,
    Property,
)
from distdoctor.model.run import Run, named

CODE = "DD551"
SEVERITY = Severity.ERROR
NEEDS = (Property,)

_CLAIMS = {
    ACCUMULATION: "micro-batches to give the gradients of one batch",
    RANKS: "a step of several ranks to be that of one",
    PRECISION: "a step in mixed precision to be that in full precision",
    CHECKPOINTING: "activation checkpoints to leave gradients as they are",
    COMPILING: "torch.compile to leave gradients as they are",
    RESUMING: "a resumed run to go on as without interruption",
}


def examine(run: Run) -> Iterator[Finding]:
    """Properties that were tried and do not hold; each once for all ranks."""
    found: dict[tuple[object, ...], list[Property]] = {}
    for rank in run.seen:
        for tried in run.of(Property, rank):
            if not tried.held:
                key = (tried.name, tried.place, tried.why, tried.example)
                found.setdefault(key, []).append(tried)
    for properties in found.values():
        yield _finding(properties)
    require_whole(run)


def _finding(properties: list[Property]) -> Finding:
    first = properties[0]
    ranks = tuple(dict.fromkeys(one.rank for one in properties))
    claim = _CLAIMS.get(first.name, f"the property {first.name!r} to hold")
    figures = [
        f"smallest example: {first.example}" * bool(first.example),
        f"worst in {first.parameter}" * bool(first.parameter),
        f"{first.excess:.3g} x what rounding can explain"
        * (1 < first.excess < _WITHOUT_FIGURE),
    ]
    details = "; ".join(filter(None, figures))
    return Finding(
        message=f"{capital(named(ranks))} tested {claim}, and it is not so: "
        f"{first.why or 'the two differ'}{f' ({details})' if details else ''}",
        exhibits=tuple(properties[:2]),
        locations=()
        if first.place is None
        else (
            Location(first.place, ranks, Role.CULPRIT, "makes the optimizer's step"),
        ),
        details={
            "property": first.name,
            "factor": first.factor,
            "excess": first.excess,
            "example": first.example,
            "parameter": first.parameter,
        },
    )


_WITHOUT_FIGURE = 1e299

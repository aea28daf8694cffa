"""A divergence in the words of its check."""

from contextlib import suppress

from distdoctor.analysis.causes import Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.catalogue import every_check
from distdoctor.errors import MissingEvidence
from distdoctor.model.drawing import sketch


def worded(divergence: Divergence) -> str:
    """The message of its finding: each check has the sentence of its own disease."""
    run = sketch("rank 0 | exit=0")
    # As if the run had this one: answers are kept with it, see `analysis.memoize`.
    run.memory[f"{divergences.__module__}.{divergences.__qualname__}"] = [divergence]
    found: list[str] = []
    for check in every_check():
        if check.code < "DD3":
            with suppress(MissingEvidence):
                found += [finding.message for finding in check.examine(run)]
    (message,) = found
    return message

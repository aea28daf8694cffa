"""What reports for people say of two runs that were compared."""

from __future__ import annotations

from distdoctor.model.observations.comparison import REFERENCE, RESUME
from distdoctor.report.schema import ComparedData


def same_in_words(compared: ComparedData) -> str:
    """That a job did the same as another run of it.

    Args:
        compared: What came of comparing them.
    """
    steps = f"{compared.steps} step{'s' if compared.steps > 1 else ''}"
    if compared.how == RESUME:
        return (
            f"the job was interrupted and resumed from its checkpoint at step "
            f"{compared.begun}, and did bit for bit what it does without: {steps} "
            "compared"
        )
    if compared.how == REFERENCE:
        return (
            f"the job computes what its reference does, but for roundings: {steps} "
            "compared"
        )
    return f"a second run repeated the first bit for bit: {steps} compared"

"""Reports the result of a property, in a value, an error, and the journal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from distdoctor.equivalence.comparing import Difference
from distdoctor.errors import EquivalenceBroken
from distdoctor.model.observations.equivalence import Property
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER

CODE = "DD551"
"""Of the check that reads these observations."""


@dataclass(slots=True)
class PropertyReport:
    """The result of a property that holds: how close it came to failing.

    Attributes:
        name: Name of the property.
        examples: How many were tried.
        excess: The largest error that was seen, in units of what rounding can explain:
            0.1 is ten times less than that.
        relative: The largest error of an element, in units of its tensor's largest.
        bound: The largest that was allowed of the latter.
    """

    name: str
    examples: int = 0
    excess: float = 0.0
    relative: float = 0.0
    bound: float = 0.0

    def add(self, found: Difference) -> None:
        """Add an example for which the property holds."""
        self.examples += 1
        self.excess = max(self.excess, found.excess)
        if found.size:
            self.relative = max(self.relative, found.error / found.size)
            self.bound = max(self.bound, found.bound / found.size)

    def held(self) -> PropertyReport:
        """Record that the property holds, and return this report."""
        _write(Property(name=self.name, held=True), "")
        return self


def broken(
    name: str,
    claim: str,
    found: Difference,
    *,
    example: str,
    why: str,
    factor: float = 0.0,
    site: str = "",
    where: str = "",
) -> NoReturn:
    """Record that a property does not hold, and raise.

    Args:
        name: Name of the property.
        claim: What was to be equal, and what is not.
        found: The difference of the smallest example.
        example: That example, in words.
        why: By what factor, and what is known to cause that.
        factor: The factor by which all gradients are wrong.
        site: The line that made the optimizer's step, as in a journal.
        where: File and line of the step.

    Raises:
        EquivalenceBroken: Always.
    """
    __tracebackhide__ = True
    lines = [f"{claim}: {why} ({CODE})", f"  smallest example: {example}"]
    if found.name:
        lines.append(
            f"  {found.what} of {found.name} {list(found.shape)}: {_far(found)}"
        )
    if found.step > 1:
        lines.append(f"  in optimizer step {found.step}")
    if site:
        file, line, _ = site.split("\n")
        lines.append(f"  optimizer step made at {Path(file).name}:{line}")
    elif where:
        lines.append(f"  step defined at {where}")
    excess = found.excess
    fact = Property(
        name=name,
        example=example,
        parameter=found.name,
        factor=factor,
        excess=min(excess, 1e300),
        why=why,
    )
    _write(fact, site)
    raise EquivalenceBroken("\n".join(lines), excess=excess, factor=factor)


def _far(found: Difference) -> str:
    if found.words:
        return found.words
    if not math.isfinite(found.error):
        return "not finite"
    relative = found.error / found.size if found.size else math.inf
    often = f"{found.excess:,.0f}" if found.excess < 1e9 else f"{found.excess:.0e}"
    return (
        f"at most {found.here:.4g} where {found.size:.4g} is right; the error is "
        f"{relative:.2g} of that, {often} x what rounding can explain"
    )


@harmless
def _write(fact: Property, site: str) -> None:
    RECORDER.observe(fact, site)

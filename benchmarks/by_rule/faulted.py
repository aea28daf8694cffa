"""What an operator makes: a faulty program, and what is to be told of it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from by_rule.bases import Base, Edited
from by_rule.programs import digest

NEAR = 3
"""Lines by which a finding's line may differ from the one to be told."""

ERROR = frozenset({"error"})
ADVICE = frozenset({"error", "warning"})

ALL: tuple[frozenset[int], ...] = ()
"""The ranks share the fault: all may be named, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A faulty program.

    Attributes:
        operator: What made it.
        base: Name of the healthy program.
        ranks: How many it runs on.
        text: Its source.
        codes: What may tell it.
        culprits: Sets of ranks, any of which is right; `ALL`: see there.
        lines: Of the faulty text, any of which is right within `NEAR`.
        severities: What a finding may be.
    """

    operator: str
    base: str
    ranks: int
    text: str
    codes: frozenset[str]
    culprits: tuple[frozenset[int], ...]
    lines: tuple[int, ...]
    severities: frozenset[str] = ERROR

    @property
    def key(self) -> str:
        """Of its run."""
        return f"{self.operator} {self.base} {self.ranks} {digest(self.text)}"


Making = Iterator[Fault]
Operator = Callable[[Base], Making]

OPERATORS: dict[str, Operator] = {}
"""All, by name."""


def operator(function: Operator) -> Operator:
    """Declare an operator; its name is the function's."""
    OPERATORS[function.__name__] = function
    return function


def fault(
    name: str,
    base: Base,
    edited: Edited,
    codes: str,
    culprits: Iterable[Iterable[int]] = ALL,
    *,
    lines: Iterable[int] = (),
    severities: frozenset[str] = ERROR,
) -> Fault:
    """A fault whose changed lines are to be told.

    Args:
        name: The operator's.
        base: The healthy program.
        edited: The change.
        codes: With blanks between them.
        culprits: As in `CoverageFault`.
        lines: Further right ones, of the faulty text.
        severities: As in `CoverageFault`.
    """
    return Fault(
        operator=name,
        base=base.name,
        ranks=base.ranks,
        text=edited.text,
        codes=frozenset(codes.split()),
        culprits=tuple(frozenset(one) for one in culprits),
        lines=(edited.first, edited.last, *lines),
        severities=severities,
    )


def made_in(base: Base) -> Iterator[Fault]:
    """All faults that can be made in a program; each parses, and differs from it."""
    plain = ast.dump(base.tree)
    for make in OPERATORS.values():
        for made in make(base):
            if ast.dump(ast.parse(made.text)) != plain:
                yield made

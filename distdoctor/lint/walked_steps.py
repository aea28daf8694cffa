"""What a rank does on its way through a program, as far as its text tells."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from enum import StrEnum

from distdoctor.lint.code_base import Scope
from distdoctor.lint.communication import Communication, Deed


class Way(StrEnum):
    """How a block is left before its end."""

    RETURN = "return"
    BREAK = "break"
    CONTINUE = "continue"
    ENDED = "ended"  # the process ends
    FAILED = "failed"  # an exception is raised


class TooLong(Exception):
    """The walk has met too many statements."""


@dataclass(frozen=True, slots=True)
class CodeSpot:
    """A node of a program, and where it stands."""

    scope: Scope
    node: ast.AST

    @property
    def key(self) -> int:
        """It, among all nodes that live."""
        return id(self.node)

    @property
    def line(self) -> int:
        """Its line, from 1."""
        return getattr(self.node, "lineno", 1)


@dataclass(frozen=True, slots=True)
class JointCall:
    """A call that all ranks have to make."""

    communication: Communication
    spot: CodeSpot
    callers: tuple[CodeSpot, ...]  # the calls that led to it, outermost first
    guards: tuple[CodeSpot, ...] = ()  # the tests around it, outermost first
    uneven: CodeSpot | None = None  # the loop over a share of data that it is in

    @property
    def key(self) -> tuple[Deed, str]:
        """What another rank must call as well; where it does so is its own matter."""
        return self.communication.deed, self.communication.name


@dataclass(frozen=True, slots=True)
class TakenTurn:
    """A test, or a loop, and which way the rank went there."""

    spot: CodeSpot
    way: object
    steps: int  # that it had made before


@dataclass(frozen=True, slots=True)
class BlockExit:
    """A statement by which a rank left a block, and the tests around it."""

    spot: CodeSpot
    guards: tuple[CodeSpot, ...]
    steps: int  # that it had made before

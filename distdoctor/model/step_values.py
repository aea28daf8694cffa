"""What a rank had before a step of an optimizer, value by value.

Only seen where a job is compared with its reference, and only of the first steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from numpy.typing import NDArray

from distdoctor.model.events import Place

Values: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ModuleOutput:
    """What a module gave in the forward passes before a step.

    Attributes:
        name: Of the module, without the names of wrappers; "": the model itself.
        arrays: Its tensors, call after call; this rank's parts.
        rounding: The spacing of numbers at 1.0 in their dtype.
        line: The user's line that called the module first.
        lines: Those that computed something from the end of another module to the end
            of this one; only of a reference that was moved by a rounding.
    """

    name: str
    arrays: tuple[Values, ...] = ()
    rounding: float = 0.0
    line: Place | None = None
    lines: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class StepValues:
    """Tensors of one rank, before one step.

    Attributes:
        step: Number of the step, from 1, among those of all optimizers.
        weights: Parameters by name, without the names of wrappers; the rank's own
            parts, in their own shapes.
        held: Names of those that the optimizer holds.
        gradients: Their gradients, as the optimizer finds them.
        behind_backward: The gradients as the last backward pass left them; only before
            the first steps.
        given: Tensors that models were given since the step before, without those
            that another part of the model computed.
        partial: By name of a parameter, the ranks over which its gradient is still to
            be reduced, by "sum" or "avg": what DTensor has yet to do.
        precision: By name of a parameter, the spacing of numbers at 1.0 in its dtype.
        lines: By name of a parameter, the user's line that made it.
        line: The user's line that makes the step.
        called: That which called a model last.
        random: Names of modules that drew random numbers while they computed.
        of_batch: Names of modules that normalised by statistics of their own batch.
        lossy: Names of communication hooks that send less than the gradients.
        too_large: There is more than is written, and tensors are left out.
        outputs: What modules gave, in the order in which they ended first; only before
            the first steps, and without what was too much.
        losses: Of the backward passes, in order, where they began from one number.
        loss_line: The user's line that began the first backward pass.
        by_hand: Where the user's own backward functions are written, through which a
            backward pass went.
        loss_lines: The user's lines that computed something from the end of the model
            to the backward pass; like `ModuleOutput.lines`.
        gradient_lines: Those from the backward pass to the step.
    """

    step: int
    weights: Mapping[str, Values]
    gradients: Mapping[str, Values]
    held: frozenset[str] = frozenset()
    behind_backward: Mapping[str, Values] = field(default_factory=dict)
    given: tuple[Values, ...] = ()
    partial: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    precision: Mapping[str, float] = field(default_factory=dict)
    lines: Mapping[str, Place] = field(default_factory=dict)
    line: Place | None = None
    called: Place | None = None
    random: tuple[str, ...] = ()
    of_batch: tuple[str, ...] = ()
    lossy: tuple[str, ...] = ()
    too_large: bool = False
    outputs: tuple[ModuleOutput, ...] = ()
    losses: tuple[float, ...] = ()
    loss_line: Place | None = None
    by_hand: tuple[Place, ...] = ()
    loss_lines: tuple[Place, ...] = ()
    gradient_lines: tuple[Place, ...] = ()

"""Reads from a loss's autograd graph what it averages and by what it is multiplied.

Nothing of the graph is changed, and a saved tensor is read only where that runs none
of the hooks that somebody packed it with: those of checkpoints compute anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

from torch import Tensor

from distdoctor.probes.accumulation.loss_elements import (
    MEANS,
    PASSING,
    SCALING,
    SUMS,
    count_of,
    saved,
    shape,
    sum_counts,
)

_MOST_NODES = 50

_SINK = "_DDPSinkBackward"
"""What DDP's outputs come out of, the losses of its model as well, where it looks for
unused parameters; torch 2.13, torch/nn/parallel/distributed.py."""

_STACKING = ("StackBackward0", "CatBackward0")

_ALONG = (
    *(*PASSING, *MEANS, *SUMS, "NegBackward0", "IndexBackward0"),
    *("MaskedFillBackward0", "MaskedSelectBackward0", "TransposeBackward0"),
)
"""What lies between a mean and a constant that its elements were multiplied by."""

_MOST_BELOW = 8

_MEAN, _SUM = 1, 2
"""Of a loss function's `reduction`; torch 2.13, torch/nn/_reduction.py."""

_SMALL = 0.1  # factor of a term that only keeps weights small, whatever it is

_SAME = 1e-6

Edge: TypeAlias = tuple[Any, int]
"""A node, and which of the outputs of its forward."""


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of a loss, as read from the autograd graph.

    Attributes:
        factor: By which its mean is multiplied; 0.0: not known to be a mean.
        count: How many elements it averages; 0.0: not known. A tensor without
            dimensions where the number lies on a GPU.
        constants: The constants that it is multiplied by, in order.
        counts: Of a sum, the element counts that may be meant.
        target: The target that the loss function was given.
    """

    factor: float = 0.0
    count: float | Tensor = 0.0
    constants: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    target: Tensor | None = None

    def times(self, constant: float) -> Term:
        """This term, multiplied by a constant."""
        constants = (*self.constants, constant)
        return replace(self, factor=self.factor * constant, constants=constants)


def factor_of(loss: Tensor, *, waits: bool = True, members: int = 0) -> float:
    """The constant by which a loss multiplies its mean over the batch.

    Args:
        loss: The loss of a batch.
        waits: Also read constants that lie on a GPU, and wait for it.
        members: How many ranks there are; 0: that does not matter.

    Returns:
        0.0 if the loss is not known to be a mean, or the factor not to be a constant.
        Of a sum of several terms the largest. If that is 1.0 and there are others, it
        is open which is the main one, and it is 0.0; but with `members`, it is 1.0 if
        nothing was divided by them.
    """
    terms = terms_of(loss, waits=waits)
    factors = {abs(term.factor) for term in terms}
    if len(factors) == 1 or 1.0 not in factors:
        return max(factors)
    divided = any(is_by(c, members) for term in terms for c in term.constants)
    return 1.0 if members and not divided else 0.0


def is_by(constant: float, number: int) -> bool:
    """Whether a constant equals a number or its reciprocal."""
    size = abs(constant)
    return number > 0 and any(
        abs(size - one) <= 1e-4 * one for one in (float(number), 1.0 / number)
    )


def main_of(terms: Sequence[Term]) -> Term:
    """The term that dominates a loss; its factor is 0.0 if none is known to.

    That is the one with the largest factor. What else there is must be known, too, or
    have been multiplied by little.
    """
    if not terms:
        return Term()
    first = max(terms, key=lambda term: abs(term.factor))
    for term in terms:
        if not term.factor and abs(prod(term.constants)) > _SMALL:
            return Term()
    return replace(first, factor=abs(first.factor))


def sum_of(terms: Sequence[Term]) -> tuple[float, tuple[float, ...]]:
    """By what a summed loss is multiplied, and which element counts it may have.

    Args:
        terms: The terms of a loss.

    Returns:
        0.0 and nothing if the loss has several terms, is a mean, or nothing is known.
    """
    if len(terms) != 1 or terms[0].factor or not terms[0].counts:
        return 0.0, ()
    return abs(prod(terms[0].constants)), terms[0].counts


def is_multiplied(loss: Tensor, factors: Set[float], where: int = 0) -> bool:
    """Whether one of these constants is a factor of a loss or of a summed term.

    Args:
        loss: The loss of a batch.
        factors: Such constants.
        where: Where one lies that is on a GPU, and would have to be waited for.
    """
    nodes = [loss.grad_fn]
    for node in nodes:  # grows meanwhile
        if node is None or len(nodes) > _MOST_NODES:
            continue
        before: list[Any] = [one for one, _ in node.next_functions]
        name = node.name()
        if name in {"MulBackward0", "DivBackward0"}:
            if before[1:] and before[1] is not None:
                continue
            if name == "MulBackward0" and _is_factor(node, factors, where):
                return True
        elif name not in {*PASSING, "AddBackward0"}:
            continue
        nodes += before
    return False


def _is_factor(node: Any, factors: Set[float], where: int) -> bool:
    by = node._saved_other
    if not isinstance(by, Tensor):
        return by in factors
    if by.numel() != 1:
        return False
    return by.item() in factors if by.is_cpu else by.data_ptr() == where


def terms_of(loss: Tensor, *, waits: bool = True) -> list[Term]:
    """The summands of a loss."""
    return _terms((loss.grad_fn, loss.output_nr), [_MOST_NODES], waits)


def _terms(edge: Edge, left: list[int], waits: bool) -> list[Term]:
    node, number = edge
    left[0] -= 1
    if node is None or left[0] < 0:
        return [Term()]
    name = node.name()
    before = node.next_functions
    if name in MEANS or name in SUMS:
        return _reduced(node, name, before[0], left, waits)
    if "Loss" in name or "CrossEntropy" in name:
        return [_of_function(node, before)]
    if name in PASSING:
        return _terms(before[0], left, waits)
    if name == _SINK and number < len(before):
        return _terms(before[number], left, waits)
    if name == "NegBackward0":
        return [term.times(-1.0) for term in _terms(before[0], left, waits)]
    if name in {"AddBackward0", "SubBackward0"}:
        both = [one for one in before if one[0] is not None]
        # Only torch's own code multiplies so: a loss with smoothed labels.
        if len(both) == 2 and all(one.name() == "MulBackward1" for one, _ in both):
            return _terms(both[0][0].next_functions[0], left, waits)
        return [term for one in both for term in _terms(one, left, waits)]
    if name in SCALING:
        by, inner = _constant(node, name, waits)
        if by:
            return [_times(term, by) for term in _terms(inner, left, waits)]
    return [Term()]


def _reduced(
    node: Any, name: str, edge: Edge, left: list[int], waits: bool
) -> list[Term]:
    """What a mean or a sum is of; several losses that were stacked are terms."""
    count, inner = count_of(node), edge[0]
    stacked = inner is not None and inner.name() in _STACKING
    if count == 1 or (stacked and count == len(inner.next_functions)):
        parts = inner.next_functions if stacked else [edge]
        terms = [term for one in parts for term in _terms(one, left, waits)]
        share = 1 / len(parts) if name in MEANS else 1.0
        return [term.times(share) for term in terms] if share != 1.0 else terms
    if name in MEANS:
        term = Term(1.0, float(count))
    else:
        term = Term(counts=sum_counts(node, inner))
    for by in _constants_below(inner, waits):
        term = _times(term, by)
    return [term]


def _constants_below(node: Any, waits: bool) -> Iterator[float]:
    """What each element of a mean or a sum was multiplied by beforehand."""
    for _ in range(_MOST_BELOW):
        if node is None:
            return
        name = node.name()
        inner = [one for one, _ in node.next_functions if one is not None]
        if name in SCALING:
            by, _ = _constant(node, name, waits)
            if by:
                yield by
            elif len(inner) != 1:
                return
        elif name not in _ALONG:
            return
        node = inner[0] if inner else None


def _constant(node: Any, name: str, waits: bool) -> tuple[float, Edge]:
    """What a node multiplies by, and what; 0.0 if that is no constant."""
    first, *others = node.next_functions
    second = others[0][0] if others else None
    if first[0] is None and second is not None and name.startswith("Mul"):
        by, inner = saved(node, "self"), others[0]
    elif first[0] is None or second is not None:
        return 0.0, first
    else:
        by, inner = saved(node, "other"), first
    if isinstance(by, Tensor):
        if by.numel() != 1 or not (waits or by.is_cpu):
            return 0.0, inner
        by = by.item()
    if not isinstance(by, int | float) or not by:
        return 0.0, inner
    return (float(by) if name.startswith("Mul") else 1.0 / by), inner


def _times(term: Term, by: float) -> Term:
    """A term multiplied; a sum that is divided by how many it is of is a mean."""
    for count in term.counts:
        if abs(count * by - 1.0) <= _SAME:
            size = float(prod(term.constants))
            return replace(term, factor=size, count=count, counts=())
    return term.times(by)


def _of_function(node: Any, edges: Any) -> Term:
    """What a loss function gave."""
    reduction = getattr(node, "_saved_reduction", 0)
    if reduction not in {_MEAN, _SUM}:
        return Term()
    target = saved(node, "target")
    counts: tuple[float | Tensor, ...] = ()
    if hasattr(node, "_raw_saved_total_weight"):
        total = saved(node, "total_weight")
        if isinstance(total, Tensor) and saved(node, "weight") is None:
            counts = (total.item() if total.is_cpu else total,)
    elif edges and edges[0][0] is not None:
        sizes = shape(edges[0])
        counts = (float(prod(sizes)), *map(float, sizes[:1]))
    if reduction == _MEAN:
        return Term(1.0, counts[0] if counts else 0.0, target=target)
    known = tuple(count for count in counts if isinstance(count, float))
    return Term(counts=known, target=target)

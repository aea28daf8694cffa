"""Finds the factor by which gradients are wrong, and its likely cause."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from distdoctor.equivalence.capturing import Tensors

_CLOSE = 1e-3  # relative: measured factors are exact but for rounding in float64
_NOTHING = 1e-6  # of the largest: as good as zero


def common_factor(here: Tensors, there: Tensors, close: float = _CLOSE) -> float:
    """The factor between all gradients of two runs; 0.0: there is no common one.

    >>> one = {"w": torch.ones(2, dtype=torch.float64)}
    >>> common_factor({"w": one["w"] * 4}, one)
    4.0
    """
    mine, theirs = flat(here, there), flat(there, here)
    if mine is None or theirs is None:
        return 0.0
    square = float(theirs @ theirs)
    if square == 0 or not math.isfinite(square):
        return 0.0
    factor = float(mine @ theirs) / square
    apart = float((mine - factor * theirs).abs().max())
    within = close * max(abs(factor), _NOTHING) * float(theirs.abs().max())
    return factor if math.isfinite(factor) and apart <= within else 0.0


def flat(tensors: Tensors, like: Tensors) -> Tensor | None:
    """Concatenate tensors by name, zeros for missing ones; None: shapes differ."""
    rows = []
    for name in like.keys() | tensors.keys():
        mine, other = tensors.get(name), like.get(name)
        if mine is None and other is None:
            continue
        if mine is not None and other is not None and mine.shape != other.shape:
            return None
        rows.append((name, torch.zeros_like(other) if mine is None else mine))  # type: ignore[arg-type]
    rows.sort(key=lambda row: row[0])
    if not rows:
        return None
    return torch.cat([tensor.reshape(-1) for _, tensor in rows])


def factor_in_words(factor: float) -> str:
    """A factor in words, for messages.

    >>> factor_in_words(4.0), factor_in_words(0.25)
    ('4.00 x too large', '4.00 x too small')
    """
    if factor < 0:
        return f"multiplied by {factor:.3g}"
    if factor == 0:
        return "zero"
    large = factor >= 1
    return f"{_figure(factor if large else 1 / factor)} x too {_SIZE[large]}"


_SIZE = {True: "large", False: "small"}


def _figure(value: float) -> str:
    return f"{value:,.2f}" if value < 1e4 else f"{value:,.0f}"


def reason(factor: float, known: Mapping[str, float], close: float = _CLOSE) -> str:
    """The known cause of a wrong factor of gradients; "" if there is none.

    Args:
        factor: Factor of the gradients.
        known: Factors by what makes them, the more likely first.
        close: Relative difference of two that are taken for the same.
    """
    for why, value in known.items():
        if value > 0 and abs(value - 1) > close and near(factor, value, close):
            return why
    return ""


def near(one: float, other: float, close: float) -> bool:
    """Whether two numbers are equal up to a relative difference."""
    return abs(one - other) <= close * abs(other)


def weights_of(target: Tensor, parts: Sequence[Tensor]) -> tuple[list[float], float]:
    """Write a vector as a linear combination of others, by least squares.

    Args:
        target: [elements].
        parts: [elements] each.

    Returns:
        What each part is multiplied by, and the largest element of the rest in units of
        the largest of the target.
    """
    columns = torch.stack(list(parts), dim=1)
    scale = columns.abs().amax(dim=0).clamp_min(1e-300)
    solved = torch.linalg.lstsq(columns / scale, target, driver="gelsd").solution
    rest = (columns / scale) @ solved - target
    size = float(target.abs().max())
    left = float(rest.abs().max()) / size if size else 0.0
    return [float(one) for one in solved / scale], left


def alike(
    ones: Sequence[float], others: Sequence[float], close: float = _CLOSE
) -> bool:
    """Whether two sequences of numbers are equal up to rounding."""
    size = max(map(abs, (*ones, *others)), default=0.0)
    return all(abs(a - b) <= close * size for a, b in zip(ones, others, strict=True))

"""Figures of repeated measurements: medians, spreads and the tables they go into."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile of two samples or more."""
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


def spread(samples: Sequence[float], digits: int = 1) -> str:
    """Median and quartiles as they stand in a table.

    >>> spread([1, 2, 3, 4, 5])
    '3.0 (2.0 to 4.0)'
    """
    low, middle, high = quartiles(samples)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def uncertainty(samples: Sequence[float]) -> float:
    """Standard error of the median, from the quartiles, so that outliers do not count.

    Source: for normal samples the quartiles lie 1.349 deviations apart, and the median
    of n varies by 1.2533 deviations / √n.
    """
    low, _, high = quartiles(samples)
    return 1.2533 * (high - low) / 1.349 / math.sqrt(len(samples))


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns: the first to the left, the others to the right."""
    lines = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [
            cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)
        ]
        print("  ".join(cells).rstrip())

"""Where the boxes of a graph go, and the arrows between them."""

from __future__ import annotations

import math
from collections.abc import Set

WIDE, HIGH = 250, 50
"""Size of a box in pixels."""


def box_places(
    count: int, pairs: Set[tuple[int, int]], waiting: int
) -> tuple[list[tuple[int, int]], int, int]:
    """Where boxes go: in two columns, or on a circle if they wait for each other.

    Args:
        count: Number of boxes.
        pairs: Of boxes with an arrow from the first to the second.
        waiting: So many of the boxes, the first ones, wait.

    Returns:
        The left upper corner of each, and width and height of the drawing, in pixels.
    """
    mutual = any(a < waiting and b < waiting for a, b in pairs)
    if mutual and count > 2:
        return _on_a_circle(count)
    awaited = {b for _, b in pairs}
    if count == 1:
        return [(4, 4)], WIDE + 8, HIGH + 8
    right = [n for n in range(count) if n in awaited and (n >= waiting or mutual)]
    right = right if len(right) < count else right[1:]
    right = right or [count - 1]
    left = [n for n in range(count) if n not in right]
    tall = max(len(left), len(right)) * (HIGH + 24)
    places = [(0, 0)] * count
    for column, x in ((left, 4), (right, WIDE + 170)):
        gap = tall / max(len(column), 1)
        for n, node in enumerate(column):
            places[node] = (x, int(gap * n + (gap - HIGH) / 2))
    return places, 2 * WIDE + 174, int(tall)


def _on_a_circle(count: int) -> tuple[list[tuple[int, int]], int, int]:
    across = max(250, count * 62)
    down = max(110, count * 36)
    places = []
    for n in range(count):
        angle = 2 * math.pi * n / count - math.pi / 2
        places.append(
            (
                int(across * (1 + math.cos(angle))) + 4,
                int(down * (1 + math.sin(angle))) + 4,
            )
        )
    return places, 2 * across + WIDE + 8, 2 * down + HIGH + 8


def arrow(begin: tuple[int, int], end: tuple[int, int], *, is_bent: bool) -> str:
    """A curve from the edge of one box to that of another, as a path of SVG.

    Args:
        begin: Left upper corner of the box where it begins.
        end: Of the one where it ends.
        is_bent: It leaves room for one in the other direction.
    """
    x1, y1 = begin[0] + WIDE / 2, begin[1] + HIGH / 2
    x2, y2 = end[0] + WIDE / 2, end[1] + HIGH / 2
    across, down = x2 - x1, y2 - y1
    length = math.hypot(across, down) or 1.0
    x1, y1 = _border(x1, y1, across, down)
    x2, y2 = _border(x2, y2, -across, -down)
    bend = 26 if is_bent else 0
    cx = (x1 + x2) / 2 - down / length * bend
    cy = (y1 + y2) / 2 + across / length * bend
    return f"M{x1:.0f} {y1:.0f}Q{cx:.0f} {cy:.0f} {x2:.0f} {y2:.0f}"


def _border(x: float, y: float, across: float, down: float) -> tuple[float, float]:
    """Where a line from the middle of a box leaves it."""
    if not across and not down:
        return x, y
    reach = min(
        (WIDE / 2 + 4) / abs(across) if across else math.inf,
        (HIGH / 2 + 4) / abs(down) if down else math.inf,
    )
    return x + across * reach, y + down * reach

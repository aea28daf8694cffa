"""Makes the pictures in `docs/pictures` that explain how something is proved.

python docs/make_pictures.py           draws them from the drawings that lie there
python docs/make_pictures.py --run     runs the jobs first, and keeps their calls
python docs/make_pictures.py DRAWING TARGET.svg     lines up the calls of any drawing

What stands in a picture is worked out from its drawing by the analysis that judges
runs: which calls were not issued, who waits for whom, and who can never go on.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html import escape
from math import cos, hypot, pi, sin
from pathlib import Path

from distdoctor.analysis.deadlock.wait_for_graph import standstill
from distdoctor.journal.assembly import read_run
from distdoctor.model.drawing import draw, sketch
from distdoctor.model.events import BLOCKED, State
from distdoctor.model.operations import CODE_OF, OPERATIONS
from distdoctor.model.run import Run

DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures"

JOBS = {
    "left_the_loop": ("tutorial/train.py", 4, ()),
    "ring": ("../fixtures/patients/dd203_circular_wait.py", 3, ("sick",)),
}
"""By picture, the job that is run for it, on how many ranks, and its arguments."""

INK, MUTED, PAPER = "#1f2933", "#5d6975", "#ffffff"
DONE, WAITS, REFUSED = (
    ("#e3f3f0", "#0f766e"),
    ("#fff3d1", "#a16207"),
    ("#fde4e4", "#b91c1c"),
)
"""Colours of a call by how it stands: of its box, and of the line around it."""

_STYLE = (
    "font-family: ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif; font-size: 13px"
)
_SHOWN = 3
"""Calls of each rank that are lined up: the last ones."""


def main(arguments: list[str]) -> None:
    """Draw the pictures; run the jobs first if that is asked for."""
    if len(arguments) == 2:
        run = sketch(Path(arguments[0]).read_text(encoding="utf-8"))
        Path(arguments[1]).write_text(lined_up(run), encoding="utf-8")
        return
    if arguments == ["--run"]:
        for name in JOBS:
            (PICTURES / f"{name}.txt").write_text(calls_of(name), encoding="utf-8")
    for target, text in pictures():
        target.write_text(text, encoding="utf-8")


def pictures() -> Iterator[tuple[Path, str]]:
    """Where each picture lies, and what it is."""
    left, ring, released, unseen = (
        sketch((PICTURES / f"{name}.txt").read_text(encoding="utf-8"))
        for name in ("left_the_loop", "ring", "released", "unseen")
    )
    yield PICTURES / "left_the_loop.svg", lined_up(left)
    yield PICTURES / "ring.svg", waiting(ring)
    yield PICTURES / "released.svg", waiting(released)
    yield PICTURES / "unseen.svg", lined_up(unseen)


def calls_of(name: str) -> str:
    """What the ranks of a job called, as a drawing: of a run made now."""
    script, ranks, arguments = JOBS[name]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(DOCS / script, Path(folder, "train.py"))
        command = ["check", "train.py", "-n", str(ranks), "--record", "record"]
        subprocess.run(
            [sys.executable, "-m", "distdoctor", *command, "--", *arguments],
            cwd=folder,
            check=False,
        )
        drawn = draw(read_run(Path(folder, "record")))
    return "\n".join(map(_calls_alone, drawn.splitlines())) + "\n"


def _calls_alone(line: str) -> str:
    """A line of a drawing, with nothing but calls in it."""
    head, stroke, words = line.partition(" | ")
    if not head.startswith("rank"):
        return line
    kept = [
        re.sub(r"(<[\w./-]+:\d+)+", "", word)
        for word in words.split()
        if (name := re.split(r"[(@/=.!&]", word)[0]) in CODE_OF
        and not OPERATIONS[CODE_OF[name]].sets_up
    ]
    return f"{head}{stroke}{'  '.join(kept)}"


# How calls stand, lined up ----------------------------------------------------------


def lined_up(run: Run) -> str:
    """The last calls on the whole job's group, a column for each place in the order."""
    calls = [row for row in range(len(run.calls)) if run.calls["group"][row] == 0]
    last = max(int(run.calls["ordinal"][row]) for row in calls)
    first = max(1, last - _SHOWN + 1)
    parts, height = [], 58 + 46 * run.world_size
    for column, ordinal in enumerate(range(first, last + 1)):
        x = 96 + 178 * column
        here = [row for row in calls if run.calls["ordinal"][row] == ordinal]
        kinds = {int(run.calls["op"][row]) for row in here}
        parts.append(_text(x + 80, 28, f"call {ordinal}", MUTED))
        if len(kinds) > 1:
            size = f'width="172" height="{height - 44}"'
            parts.append(
                f'<rect x="{x - 6}" y="38" {size} rx="8" fill="none" '
                f'stroke="{REFUSED[1]}" stroke-dasharray="5 4"/>'
            )
        for row in here:
            y = 48 + 46 * int(run.calls["rank"][row])
            parts += _call_box(run, row, x, y)
    for rank in range(run.world_size):
        y = 72 + 46 * rank
        parts.append(_text(46, y, f"rank {rank}", INK))
        if rank in run.unseen:
            parts.append(_text(96 + 8, y, "nothing was recorded", MUTED, "start"))
    legend = [("made", DONE), ("waits in it", WAITS), ("kept from making it", REFUSED)]
    states = {_standing(run, row)[0] for row in calls}
    for number, (word, colours) in enumerate(one for one in legend if one[1] in states):
        x = 96 + 178 * number
        parts.append(_box(x, height + 8, 16, 16, colours))
        parts.append(_text(x + 24, height + 21, word, MUTED, "start"))
    return _svg(96 + 178 * (last - first + 1) + 8, height + 36, parts)


def _call_box(run: Run, row: int, x: float, y: float) -> Iterator[str]:
    colours, ending = _standing(run, row)
    yield _box(x, y, 160, 36, colours)
    name = OPERATIONS[run.calls["op"][row]].name
    yield _text(x + 80, y + 23, f"{name}{ending}", INK)


def _standing(run: Run, row: int) -> tuple[tuple[str, str], str]:
    """The colours of a call, and what is put behind its name."""
    state = run.calls["state"][row]
    if state == State.REFUSED:
        return REFUSED, ""
    return (WAITS, " …") if state in BLOCKED else (DONE, "")


# Who waits for whom ------------------------------------------------------------------


def waiting(run: Run) -> str:
    """The graph of waits: red are ranks that can never go on again."""
    stuck = standstill(run).waits
    rows = [row for row in range(len(run.calls)) if run.calls["state"][row] in BLOCKED]
    middle, radius, size, height = 190.0, 120.0, 380, 320
    places = {
        rank: (
            middle + radius * sin(2 * pi * rank / run.world_size),
            170 - radius * cos(2 * pi * rank / run.world_size),
        )
        for rank in range(run.world_size)
    }
    parts = [
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        f'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="{MUTED}"/>'
        "</marker></defs>"
    ]
    for row in rows:
        rank = int(run.calls["rank"][row])
        group = run.groups[run.calls["group"][row]]
        for other in sorted(_missing(run, row)):
            parts += _arrow(places[rank], places[other], group.name)
    for rank, (x, y) in places.items():
        fill, line = REFUSED if rank in stuck else DONE
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="32" fill="{fill}" stroke="{line}" '
            'stroke-width="1.5"/>'
        )
        parts.append(_text(x, y + 5, f"rank {rank}", INK))
    words = [("can never go on", REFUSED)] if stuck else []
    words += [("can go on", DONE)] if len(stuck) < run.world_size else []
    for number, (word, colours) in enumerate(words):
        parts.append(_box(96 + 150 * number, height - 32, 16, 16, colours))
        parts.append(_text(120 + 150 * number, height - 19, word, MUTED, "start"))
    return _svg(size, height, parts)


def _missing(run: Run, row: int) -> set[int]:
    """Members of a call's group that have not made that call."""
    calls, group = run.calls, run.calls["group"][row]
    there = (calls["group"] == group) & (calls["ordinal"] == calls["ordinal"][row])
    return set(run.groups[group].ranks) - set(calls["rank"][there].tolist())


def _arrow(
    begin: tuple[float, float], end: tuple[float, float], label: str
) -> Iterator[str]:
    (x, y), (v, w) = begin, end
    length = hypot(v - x, w - y)
    dx, dy = (v - x) / length, (w - y) / length
    x, y, v, w = x + 34 * dx, y + 34 * dy, v - 36 * dx, w - 36 * dy
    yield (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{v:.1f}" y2="{w:.1f}" stroke="{MUTED}" '
        'stroke-width="1.5" marker-end="url(#end)"/>'
    )
    beside = -14 if abs(dx) > abs(dy) * 3 else 0
    yield _text((x + v) / 2, (y + w) / 2 + 4 + beside, label, MUTED, halo=True)


# SVG ---------------------------------------------------------------------------------


def _box(x: float, y: float, width: int, height: int, colours: tuple[str, str]) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" '
        f'fill="{colours[0]}" stroke="{colours[1]}"/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    colour: str,
    anchor: str = "middle",
    halo: bool = False,
) -> str:
    around = ""
    if halo:  # so that a line behind the letters does not strike them through
        around = f' stroke="{PAPER}" stroke-width="5" paint-order="stroke"'
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"{around}>'
        f"{escape(text)}</text>"
    )


def _svg(width: int, height: int, parts: list[str]) -> str:
    lines = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" style="{_STYLE}">\n'
        f'<rect width="{width}" height="{height}" rx="10" fill="{PAPER}"/>\n'
        f"{lines}\n</svg>\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])

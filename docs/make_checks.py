"""Writes `docs/checks.md`: the manuals of all checks, as `distdoctor explain` has them.

    python docs/make_checks.py

A manual is the docstring of a file in `checks/`: change it there, and run this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

from distdoctor.catalogue import every_check
from distdoctor.model.declare import Check

TARGET = Path(__file__).parent / "checks.md"

FAMILIES = {
    "1": "Collectives and messages",
    "2": "Hangs",
    "3": "Data and random numbers",
    "4": "Weights, optimizer and checkpoints",
    "5": "Accumulation, precision, learning rate and pace",
    "6": "Rendezvous and the environment",
    "7": "What the source alone shows",
}
"""By the first digit of a code."""

_BEGIN = """\
# The checks

<!-- Made by `python docs/make_checks.py` from the docstrings in checks/: edit those -->

This is the manual of each check, as `distdoctor explain DD108` prints it, with
code that has the disease and code that does not. The drawings under *Sick*, *Well* and
*Unknown* are tests: each is given to the check, and must get the verdict that it stands
under. [drawings.md](drawings.md) tells how to read them.

The severity says what a finding means: an *error* hangs, crashes or trains the wrong
thing, and makes the verdict sick; a *warning* works today and may break on more ranks,
steps or data; a *note* wastes time or memory, or is only worth knowing. A single
finding may be milder than its check.
"""

_DRAWING = re.compile(r"(group|rank) [\w-]+ \|")


def document() -> str:
    """The whole page."""
    parts = [_BEGIN, *_contents()]
    for family, title in FAMILIES.items():
        checks = [one for one in every_check() if one.code[2] == family]
        if checks:
            parts.append(f"## {title}\n")
            parts += map(_page, checks)
    return "\n".join(parts).rstrip("\n") + "\n"


def _contents() -> Iterator[str]:
    yield "| code | disease | severity |"
    yield "|---|---|---|"
    for check in every_check():
        code, summary = check.code, check.manual.summary
        yield f"| [{code}](#{code.lower()}) | {summary} | {check.severity} |"
    yield ""


def _page(check: Check) -> str:
    file = f"{check.name}.py"
    needs = ", ".join(f"`{kind.__name__}`" for kind in check.needs)
    patient = f"fixtures/patients/{file}"
    has_one = (
        TARGET.parent.parent / patient
    ).exists()  # some diseases only leavings of a job show
    lines = [
        f"### {check.code}\n",
        f"**{check.manual.summary}**\n",
        f"{str(check.severity).capitalize()} · name `{check.disease}` · "
        f"needs {needs} · [check](../checks/{file})"
        + (f" · [patient](../{patient})\n" if has_one else "\n"),
    ]
    for title, body in check.manual.sections.items():
        lines.append(f"*{title}*\n")
        lines += [f"{block}\n" for block in _blocks(body)]
    return "\n".join(lines)


def _blocks(body: str) -> Iterator[str]:
    """Paragraphs as they are; what is indented, as a drawing or as code."""
    for block in re.split(r"\n(?:[ \t]*\n)+", body.strip("\n")):
        if block.startswith("    "):
            bare = dedent(block)
            kind = "drawing" if _DRAWING.match(bare) else "text"
            yield f"```{kind}\n{bare}\n```"
        else:
            yield block


if __name__ == "__main__":
    TARGET.write_text(document(), encoding="utf-8")

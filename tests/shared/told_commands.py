"""The commands that the documents tell, as they stand in their `sh` blocks."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    ROOT / "fixtures" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]

STORIES = {
    "docs/postmortem.md": ("## The story of one hang", "test_story_of_a_hang.py"),
    "docs/tutorial.md": ("# From a hung job to the cure", "test_tutorial.py"),
}
"""Sections whose commands follow from each other, and the test that runs them."""


def section(document: Path, heading: str) -> str:
    """What stands below a heading, up to the next of its kind."""
    level = heading.partition(" ")[0]
    text = document.read_text().partition(f"{heading}\n")[2]
    return text.partition(f"\n{level} ")[0]


def blocks(text: str) -> list[str]:
    """What stands in blocks of shell commands."""
    pattern = r"^```(?:sh|bash|console)\n(.*?)^```$"
    return re.findall(pattern, text, re.DOTALL | re.MULTILINE)


def commands_of(block: str) -> list[str]:
    """Each command of a block, without comments: several lines if it takes them."""
    found, lines = [], ""
    for line in block.splitlines():
        lines += line + "\n"
        if not lines.strip():
            lines = ""
        elif not lines.endswith("\\\n") and _is_whole(lines):
            found.append(_bare(lines))
            lines = ""
    assert not lines, lines
    return [one for one in found if one]


def _bare(lines: str) -> str:
    """Without comments, and with continued lines as one."""
    if lines.startswith("#"):
        return ""
    without = re.sub(r"(?<=\s)# .*$", "", lines, flags=re.MULTILINE)
    return re.sub(r"\s*\\\n\s*", " ", without).strip()


@cache
def _is_whole(lines: str) -> bool:
    done = subprocess.run(
        ["bash", "-n"], input=lines, text=True, capture_output=True, check=False
    )
    return done.returncode == 0


def told() -> dict[str, list[str]]:
    """By command, the documents that tell it; without those of stories."""
    found: dict[str, list[str]] = {}
    for document in DOCUMENTS:
        name = str(document.relative_to(ROOT))
        text = document.read_text()
        if name in STORIES:
            text = text.replace(section(document, STORIES[name][0]), "")
        for block in blocks(text):
            for command in commands_of(block):
                found.setdefault(command, []).append(name)
    return found

"""A check's docstring, cut at its headings.

The text that `distdoctor explain` prints, the text in the docs and the drawings that
the tests run are one and the same.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from textwrap import dedent

from distdoctor.errors import CheckMalformed

HEADINGS = (
    "What it is",
    "Why it matters",
    "Sick",
    "Well",
    "Unknown",
    "Remedy",
    "Known problems",
    "References",
)
"""The sections of a manual, in their order; each is required."""

_HEADING = re.compile(r"^(?P<title>\S.*)\n-{3,}$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Manual:
    """A check's docstring, in parts."""

    summary: str
    sections: dict[str, str]

    @classmethod
    def parse(cls, docstring: str) -> Manual:
        """Cut a docstring at its underlined headings.

        Args:
            docstring: As it stands in the check's source; its indent does not matter.

        Returns:
            The manual.

        Raises:
            CheckMalformed: The headings are not exactly `HEADINGS`, in that order.
        """
        summary, *rest = _HEADING.split(inspect.cleandoc(docstring))
        titles, bodies = tuple(rest[::2]), rest[1::2]
        if titles != HEADINGS:
            raise CheckMalformed(f"a manual has the headings {HEADINGS}; got {titles}")
        sections = (body.strip("\n") for body in bodies)
        return cls(summary.strip(), dict(zip(titles, sections, strict=True)))

    def drawings(self, heading: str) -> list[str]:
        """The drawings in a section: its indented blocks, dedented.

        Args:
            heading: One of `HEADINGS`.

        Returns:
            The blocks in their order, each without its indent of four spaces.
        """
        blocks = re.split(r"\n(?:[ \t]*\n)+", self.sections[heading])
        return [dedent(block) for block in blocks if block.startswith("    ")]

    def remedy(self) -> str:
        """The first paragraph of the remedy, on one line.

        Returns:
            What a report says beside a finding.
        """
        return " ".join(self.sections["Remedy"].split("\n\n")[0].split())

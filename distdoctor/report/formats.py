"""The one table of formats that reports are written in: a row, and a module, for each.

To add one, write a module with a function `render_all` and add its row.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from distdoctor.errors import PackageMissing

if TYPE_CHECKING:
    from distdoctor.model.manual import Manual
    from distdoctor.model.run import Run
    from distdoctor.report.schema import Report


class ReportedRun(Protocol):
    """A report, and the run that it tells of."""

    @property
    def report(self) -> Report:
        """What is to be said."""

    @property
    def run(self) -> Run | None:
        """Where rows of ranks and lines of source come from; None: it is not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """How reports are to be written; each format takes what it has a use for.

    Attributes:
        directory: What names of files in the reports are relative to.
        root: Top of the repository that they lie in, as a code host sees it.
        manuals: Reads what `distdoctor explain` says, by code.
        names: By code, what every check is called.
        strict: Warnings count as errors.
        allow_incomplete: Evidence that is incomplete is no failure.
        verbose: Whether to list the checks that found nothing.
        width: Columns.
        colour: Whether to use terminal colours.
    """

    directory: Path
    root: Path | None = None
    manuals: Callable[[], Mapping[str, Manual]] = dict
    names: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    allow_incomplete: bool = False
    verbose: bool = False
    width: int = 80
    colour: bool = False


TEXT = "text"
"""The format for people, which is written if nobody asks for another one."""

FORMATS: Mapping[str, str] = {
    TEXT: "distdoctor.report.text",
    "json": "distdoctor.report.json",
    "sarif": "distdoctor.report.sarif",
    "junit": "distdoctor.report.junit",
    "github": "distdoctor.report.github_annotations",
    "markdown": "distdoctor.report.markdown",
    "html": "distdoctor.report.html",
}
"""By the name of a format, the module that writes it."""

ENCODED = frozenset({"json", "sarif", "junit", "html"})
"""Those that programs read, whose characters nothing may take the place of."""

FOR_BROWSERS = frozenset({"html"})
"""Those that nobody can read on a terminal."""

_NEEDS = {"html": "jinja2"}
"""By format, the package that it needs besides; the extra of ours is named as it."""


def require(form: str) -> None:
    """Do nothing where a format can be written: to be asked before minutes are spent.

    Args:
        form: Its name.

    Raises:
        PackageMissing: What it needs is not installed.
    """
    package = _NEEDS.get(form)
    if package is not None and find_spec(package) is None:
        raise PackageMissing(
            f"the format {form} needs the package {package}, which is not installed: "
            f"pip install 'distdoctor[{form}]'"
        )


def render(form: str, reported: Sequence[ReportedRun], rendering: Rendering) -> str:
    """Reports as one text.

    Args:
        form: Name of the format.
        reported: At least one, of one release of distdoctor.
        rendering: How.

    Returns:
        The text, with a new line at its end.

    Raises:
        PackageMissing: What the format needs is not installed.
    """
    require(form)
    module = importlib.import_module(FORMATS[form])
    text: str = module.render_all(reported, rendering)
    return text

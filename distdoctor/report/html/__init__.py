"""The report as one HTML file, which needs no network; see `docs/report.md`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from distdoctor.errors import PackageMissing

if TYPE_CHECKING:  # what asks for Jinja alone does not wait for numpy
    from distdoctor.model.run import Run
    from distdoctor.report.schema import Report


def render(report: Report, run: Run) -> str:
    """The report as a page.

    Args:
        report: What to say.
        run: What was examined: charts are made of it.

    Returns:
        The text of an HTML file.

    Raises:
        PackageMissing: Jinja is not installed.
    """
    return render_session([(report, run)])


def render_session(judged: Sequence[tuple[Report, Run]]) -> str:
    """Several reports as one page.

    Args:
        judged: Each report with its run.

    Returns:
        The text of an HTML file.

    Raises:
        PackageMissing: Jinja is not installed.
    """
    require_jinja()
    # Here, so that whoever needs no page needs no Jinja.
    from distdoctor.report.html.page_rendering import page_of

    return page_of(judged)


def require_jinja() -> None:
    """Do nothing where pages can be made: to be asked before minutes are spent.

    Raises:
        PackageMissing: Jinja is not installed.
    """
    if find_spec("jinja2") is None:
        raise PackageMissing(
            "an HTML report needs the package jinja2, which is not installed: "
            "pip install 'distdoctor[html]'"
        )

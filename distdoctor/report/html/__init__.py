"""The report as one HTML file, which needs no network; see `docs/report.md`."""

from __future__ import annotations

from collections.abc import Sequence

from distdoctor.report.formats import Rendering, ReportedRun


def render_all(reported: Sequence[ReportedRun], rendering: Rendering) -> str:
    """Reports as one page, in ASCII, so that it reads alike in every encoding.

    A report without its run has no charts, and the page says so.
    """
    # Here, so that whoever needs no page needs no Jinja.
    from distdoctor.report.html.page_rendering import page_of

    page = page_of(reported, is_strict=rendering.strict)
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")

"""The page itself: templates, style and script put together as one text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from distdoctor.journal.secret_masking import masked_text
from distdoctor.report.formats import ReportedRun
from distdoctor.report.html.call_maps import CELL_WORDS
from distdoctor.report.html.page_content import ReportContent, content_of
from distdoctor.report.html.shown_text import shown
from distdoctor.report.plain_text import plain

_WORST_FIRST = ("sick", "unknown", "well")


def page_of(reported: Sequence[ReportedRun], *, is_strict: bool = False) -> str:
    """Reports as one page.

    Its style and its script are in ASCII, and JSON in it too: other characters stand
    only where references to characters may take their place.

    Args:
        reported: Each report with its run, if that is kept.
        is_strict: Warnings count as errors.

    Returns:
        The text of an HTML file.
    """
    contents = [
        content_of(one.report, one.run, f"r{n}", is_strict=is_strict)
        for n, one in enumerate(reported, 1)
    ]
    style, script = _asset("page.css"), _asset("page.js")
    return (
        _templates()
        .get_template("page.html")
        .render(
            reports=contents,
            title=_title(contents),
            version=shown(reported[0].report.distdoctor, 40) if reported else "",
            style=Markup(style),  # noqa: S704 - a file of ours
            script=Markup(script),  # noqa: S704 - likewise
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    )


def _title(contents: Sequence[ReportContent]) -> str:
    if not contents:
        return "No job was judged"
    if len(contents) == 1:
        return f"{contents[0].word}: {contents[0].script}"
    verdicts = {one.verdict for one in contents}
    worst = next((one for one in _WORST_FIRST if one in verdicts), "well")
    return f"{worst.upper()}: {len(contents)} reports"


@cache
def _templates() -> Environment:
    """Templates, which make text of all that they are given."""
    environment = Environment(
        loader=PackageLoader("distdoctor.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.globals["words"] = CELL_WORDS
    environment.filters["with_code"] = _with_code
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def _finalized(value: object) -> object:
    if isinstance(value, str) and not isinstance(value, Markup):
        return _harmless(value)
    return value


@lru_cache(maxsize=1 << 12)
def _harmless(text: str) -> str:
    """A text as it may be shown; most of them come here masked already."""
    return plain(masked_text(text))


def _with_code(text: str) -> Markup:
    """A text in which what stands between backticks is shown as code."""
    parts = _harmless(text).split("`")
    if len(parts) % 2 == 0:  # one is alone: a backtick is all it is
        return escape("`".join(parts))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if n % 2 else part
        for n, part in enumerate(parts)
    )


@cache
def _asset(name: str) -> str:
    path = resources.files("distdoctor.report.html") / "templates" / name
    return path.read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """What a policy allows this text by."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"

"""Turns links that lead through the repository into links of the site."""

from __future__ import annotations

import posixpath
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

TOP_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "fixtures/README.md": "fixtures.md",
}
"""By the path in the repository, the page that a document outside of docs/ becomes."""

_LINK = re.compile(r"(\[[\w./]+\.md)?\]\((?!\w+:)([^)\s#]*)(#[^)\s]*)?\)")
"""The end of a link; its beginning, too, where its text is the name of a document."""

_CHECK = re.compile(r"#dd\d{3}")


@cache
def title_of(document: str) -> str:
    """The heading of a document; of a long one, what stands before its colon."""
    first = (ROOT / document).read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ").partition(":")[0]


def linked(markdown: str, page: str, source: str) -> str:
    """A page's text, with its links as the site has them.

    Args:
        markdown: As it stands in the repository.
        page: Its path in the site.
        source: Its path in the repository.
    """

    def of_site(match: re.Match[str]) -> str:
        text, path, anchor = match[1] or "", match[2], match[3] or ""
        if not path:
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        here = posixpath.dirname(page) or "."
        place, anchor = _place(target, anchor)
        if text and (ROOT / target).is_file():
            text = f"[{title_of(target)}"
        return f"{text}]({posixpath.relpath(place, here)}{anchor})"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(
        part if part.startswith("```") else _LINK.sub(of_site, part) for part in parts
    )


def _place(target: str, anchor: str) -> tuple[str, str]:
    """Where something of the repository is in the site."""
    if target in TOP_PAGES:
        return TOP_PAGES[target], anchor
    if target == "docs/checks.md" and _CHECK.fullmatch(anchor):
        return f"checks/{anchor[1:]}.md", ""
    if target.startswith("docs/"):
        return target.removeprefix("docs/"), anchor
    return f"sources/{target}" + (".md" if target.endswith(".py") else ""), anchor

"""The README's picture: what it shows is what a run of its job says today."""

import html
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

_TEXT = re.compile(r'<text[^>]*?x="([\d.]+)"[^>]*?y="([\d.]+)"[^>]*>(.*?)</text>')


def said(picture: str) -> str:
    """The words of a picture, without what differs from run to run."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for match in _TEXT.finditer(picture):
        text = html.unescape(match[3]).replace("\xa0", " ")
        rows.setdefault(float(match[2]), []).append((float(match[1]), text))
    lines = (
        "".join(text for _, text in sorted(row)) for _, row in sorted(rows.items())
    )
    words = " ".join(" ".join(lines).split())
    words = re.sub(r"distdoctor [\d.]+|torch [\d.]+|in [\d.]+ s\b", "", words)
    # When each rank stood still, and from which second on.
    return re.sub(r"standing still, .*?(?= cure )", "", words)


def test_the_picture_shows_what_is_said_today(tmp_path: Path) -> None:
    """Else: `python docs/make_picture.py`."""
    make = runpy.run_path(str(ROOT / "docs" / "make_picture.py"))
    drawn = make["draw"](make["run_job"](tmp_path))
    shown = said((ROOT / "docs" / "report.svg").read_text())
    assert "DD108 skipped collective" in shown
    assert said(drawn) == shown

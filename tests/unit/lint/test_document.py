"""The document of lint tells what is looked for, and what is printed."""

from __future__ import annotations

import re
from pathlib import Path

from distdoctor.catalogue import manual_of
from distdoctor.lint.lint_text import full
from distdoctor.lint.linting import every_rule, lint_texts
from distdoctor.lint.source_files import SourceText

PAGE = (Path(__file__).parent.parent.parent.parent / "docs" / "lint.md").read_text()

LINES = re.MULTILINE
WHOLE = re.MULTILINE | re.DOTALL


def test_the_table_has_every_rule_in_its_words() -> None:
    rows = re.findall(r"^\| \[(DD\d+)\]\(checks\.md#(dd\d+)\) \| (.*?) \|", PAGE, LINES)
    wanted = []
    for rule in every_rule():
        first = " ".join(rule.manual.split("\n\n")[0].split())
        words = first.removesuffix(" Advice.")
        wanted.append((rule.code, rule.code.lower(), words))
    assert rows == wanted


def test_the_example_is_what_lint_prints() -> None:
    (program,) = re.findall(r"^For this program\n\n```python\n(.*?)^```$", PAGE, WHOLE)
    (shown,) = re.findall(r"^it says\n\n```text\n(.*?)^```$", PAGE, WHOLE)
    found = lint_texts([SourceText("train.py", program)])
    cures = {"DD108": manual_of("DD108").remedy()}
    assert full(found, cures, 80, colour=False) == shown

"""What a user ignores with a reason is not found, and what has none is."""

from __future__ import annotations

import pytest

from distdoctor.lint.linting import Lint, lint_texts, wanted
from distdoctor.lint.source_files import SourceText

PLAIN = """\
import torch.distributed as dist
if dist.get_rank() == 0:
    dist.barrier()
"""


def read(text: str) -> Lint:
    return lint_texts([SourceText("train.py", text)])


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace("r()\n", "r()  # distdoctor: ignore[DD108] a test\n"),
        PLAIN.replace("    d", "    # distdoctor: ignore[DD108] a test\n    d"),
        PLAIN.replace("0:", "0:  # distdoctor: ignore[DD108] a test"),
        PLAIN.replace("r()\n", "r()  # distdoctor: ignore[DD101, DD108] a test\n"),
    ],
    ids=["on its line", "above it", "where ways part", "of several codes"],
)
def test_a_comment_with_a_reason_ignores_a_finding(text: str) -> None:
    found = read(text)
    assert not found.findings
    ((finding, waiver),) = found.ignored
    assert (finding.code, waiver.reason) == ("DD108", "a test")
    assert waiver.where.startswith("train.py:")
    assert not found.remarks


@pytest.mark.parametrize(
    ("comment", "remark"),
    [
        ("# distdoctor: ignore[DD108]", "it needs a reason"),
        ("# distdoctor: ignore[] why", "'' is no code"),
        ("# distdoctor: ignore[all] why", "'all' is no code"),
    ],
)
def test_a_comment_without_a_reason_or_a_code_ignores_nothing(
    comment: str, remark: str
) -> None:
    found = read(PLAIN.replace("r()\n", f"r()  {comment}\n"))
    assert [one.code for one in found.findings] == ["DD108"]
    assert not found.ignored
    (told,) = found.remarks
    assert told.startswith("train.py:3 ignores nothing: ")
    assert remark in told


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace("r()\n", "r()  # distdoctor: ignore[DD101] another\n"),
        PLAIN.replace("r()\n", "r(); '# distdoctor: ignore[DD108] in a text'\n"),
        "# distdoctor: ignore[DD108] elsewhere\n\nimport sys\n" + PLAIN,
        PLAIN + "# distdoctor: ignore[DD108] below\n",
    ],
    ids=["of another code", "in a text", "far above", "below"],
)
def test_a_comment_elsewhere_ignores_nothing(text: str) -> None:
    assert [one.code for one in read(text).findings] == ["DD108"]


def test_settings_ignore_a_code_everywhere() -> None:
    found = wanted(read(PLAIN), waived={"DD108": "known"})
    assert not found.findings
    ((_, waiver),) = found.ignored
    assert (waiver.reason, waiver.where) == ("known", "pyproject.toml")


def test_what_is_not_asked_for_is_not_told_at_all() -> None:
    assert not wanted(read(PLAIN), ignore={"DD108"}).findings
    assert not wanted(read(PLAIN), select={"DD101"}).findings
    assert wanted(read(PLAIN), select={"DD108"}).findings

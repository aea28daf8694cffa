"""Whatever stands in files, reading comes to an end and tells of lines they have."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distdoctor.lint.lint_text import concise, full
from distdoctor.lint.linting import Lint, lint_texts
from distdoctor.lint.mending import diff
from distdoctor.lint.rank_walk import RankWalk
from distdoctor.lint.source_files import SourceText

ROOT = Path(__file__).parent.parent.parent.parent
PROGRAMS = [
    path.read_text()
    for folder in ("patients", "guises", "near_misses", "textbook", "systems")
    for path in sorted((ROOT / "fixtures" / folder).glob("[!_]*.py"))
]
MOST_STATEMENTS = 3_000_000
"""That may be gone through for one text of a few hundred lines."""

WORDS = [
    *(
        "import torch.distributed as dist\n",
        "rank = dist.get_rank()\n",
        "if rank == 0:",
    ),
    *("\n", "\n    ", "\n        ", "dist.barrier()", "return", "break", "else:"),
    *("for _ in range(rank):", "while loss:", "def f(rank):", "f(rank)", "try:"),
    *(
        "class A:",
        "self.f()",
        "with x:",
        "raise",
        "assert rank",
        "lambda: f()",
        "yield",
    ),
    *("loss.backward()", "optimizer.step()", "scaler.step(optimizer)", "match rank:"),
    *("# distdoctor: ignore[DD108] x", "'''", "\\", "\x0c", "\r", "\u2028", "\x00"),
]


@pytest.fixture(autouse=True)
def work(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Statements that were gone through; too many of them are no end."""
    done = [0]
    go_on = RankWalk._statement

    def counted(walk: RankWalk, node: object, frame: object) -> object:
        done[0] += 1
        assert done[0] < MOST_STATEMENTS
        return go_on(walk, node, frame)  # type: ignore[arg-type]

    monkeypatch.setattr(RankWalk, "_statement", counted)
    return done


def read(*texts: str) -> Lint:
    """Read texts, with all that is printed of them."""
    sources = [SourceText(f"file{n}.py", text) for n, text in enumerate(texts)]
    found = lint_texts(sources, advice=True)
    lines = {one.file: one.text.count("\n") + 1 for one in sources}
    lines |= {file.file: len(file.lines) for file in found.code.files}
    for finding in found.findings:
        for place in (finding.at, *finding.related):
            assert 1 <= place.line <= lines[place.file]
            assert place.column >= 1
        assert finding.message
    concise(found)
    full(found, {}, 80, colour=False)
    diff(found)
    return found


@given(st.text(max_size=300))
@settings(max_examples=60)
def test_any_text_is_read(text: str) -> None:
    read(text, f"import torch.distributed as dist\nrank = 0\n{text}")


@given(st.lists(st.sampled_from(WORDS), max_size=40))
@settings(max_examples=150)
def test_any_row_of_words_is_read(words: Sequence[str]) -> None:
    read("".join(words), " ".join(words))


@given(st.integers(min_value=0))
@settings(max_examples=60)
def test_programs_with_lines_changed_are_read(seed: int) -> None:
    draw = random.Random(seed)
    lines = draw.choice(PROGRAMS).splitlines(keepends=True)
    others = draw.choice(PROGRAMS).splitlines(keepends=True)
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(lines))
        match draw.randrange(4):
            case 0:
                del lines[at : at + draw.randint(1, 3)]
            case 1:
                lines.insert(at, draw.choice(others))
            case 2:
                other = draw.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case _:
                lines[at] = lines[at].replace("rank", draw.choice(["0", "x", "loss"]))
        lines = lines or ["\n"]
    read("".join(lines), "".join(others))

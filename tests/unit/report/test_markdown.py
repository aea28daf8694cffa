"""Reports as Markdown, as code hosts render it."""

import re
from collections.abc import Iterator

import pytest
from drawn_reports import (
    FAILED,
    SICK,
    UNKNOWN,
    WARNED,
    WELL,
    Drawn,
    Hostile,
    drawn,
    written,
)
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from distdoctor.report.markdown import MARKER
from distdoctor.report.markdown_text import block, code, prose

EVIL = (
    "</details><script>alert(1)</script>\n```\n# h\n- @everyone #1 GH-2 a@b.example "
    "[x](http://evil.example) ![i](https://evil.example/i.png) www.evil.example "
    "<http://evil.example> &lt; | **b** ~~s~~ `c` $x$ \u202e\x1b[31m"
)
OF_OURS = re.compile(
    r"<!-- distdoctor:report -->|<details>|</details>|</?summary>|[ \n]|"
    r"Lines, ranks and consequences|The whole report"
)
MEANS_SOMETHING = re.compile(r"@\w|(?<!\w)#\d|\bGH-\d|www\.", re.IGNORECASE)

texts = st.text(st.characters(exclude_categories=())) | st.text(
    st.sampled_from("<>`[]()!@#*_~|\\&:/.-+=1 \nawhtpGHs\"'$\x1b")
)


def tokens(text: str) -> Iterator[Token]:
    """All tokens, as GitHub's Markdown has them."""
    parser = MarkdownIt("gfm-like", {"html": True, "linkify": True})
    assert parser.linkify is not None
    parser.linkify.set({"fuzzy_link": False})  # train.py is no address on code hosts
    for token in parser.parse(text):
        yield token
        yield from token.children or ()


def require_harmless(text: str) -> None:
    """Nothing but ours is HTML, a link, an image or a call of somebody."""
    for token in tokens(text):
        assert token.type not in {"link_open", "image", "table_open"}, token
        if token.type.startswith("html"):
            assert OF_OURS.sub("", token.content) == "", token.content
        if token.type == "text":
            assert not MEANS_SOMETHING.search(token.content), token.content


def comment(*reported: Drawn | Hostile, **how: bool) -> str:
    text = written("markdown", *reported, **how)
    assert text.startswith(f"{MARKER}\n")
    assert len(text.encode()) < 65_536
    assert text.replace("\n", "").isprintable()
    require_harmless(text)
    return text


def words(text: str) -> str:
    """What a reader sees, as one line."""
    shown = [
        one.content
        for one in tokens(text)
        if one.type in {"text", "code_inline", "fence", "text_special"}
    ]
    return " ".join(" ".join(shown).replace("\u200b", "").split())


def test_a_sick_run_has_the_code_the_ranks_the_line_and_the_cure() -> None:
    text = comment(drawn(SICK))
    seen = words(text)
    assert "## distdoctor: sick" in text
    assert "### SICK · DD108 skipped collective · proved" in text
    assert "**rank 2** · `train.py:12`" in text
    assert "Rank 2 alone calls barrier" in seen
    assert "**Cure:**" in text
    assert "distdoctor explain DD108" in seen
    assert "▸" in text  # rows of ranks, in the whole report


def test_a_healthy_run_is_short() -> None:
    text = comment(drawn(WELL))
    assert "## distdoctor: well" in text
    assert "checks found nothing" in text
    assert "<details>" not in text


def test_an_unknown_run_says_what_was_not_examined() -> None:
    text = comment(drawn(UNKNOWN))
    assert "## distdoctor: unknown" in text
    assert "not all was seen" in text
    assert "**Not examined**" in text
    assert "- rank 1: " in text


def test_an_exception_that_ended_the_job_is_told_with_its_line() -> None:
    text = comment(drawn(FAILED))
    assert "### FAILED · ValueError" in text
    assert "`train.py:9`" in text
    assert "no check knows why" in text


def test_warnings_and_what_is_ignored_are_told() -> None:
    assert "### Warning · DD508 piled hooks" in comment(drawn(WARNED))
    assert "Warnings count as errors here." in comment(drawn(WARNED), strict=True)
    text = comment(drawn(WARNED, {"DD508": "we know of it"}))
    assert "**Ignored**" in text
    assert "we know of it" in text


def test_several_jobs_share_one_comment() -> None:
    text = comment(*[drawn(SICK)] * 3, drawn(WELL))
    assert text.count("## distdoctor: sick") == 3
    assert text.count(MARKER) == 1


@pytest.mark.parametrize("jobs", [1, 100])
@pytest.mark.parametrize(
    "text", ["é" * 100_000, "`" * 5000, "\x1b" * 5000, "@a " * 9999]
)
def test_it_is_never_longer_than_a_comment_may_be(text: str, jobs: int) -> None:
    comment(*[Hostile(text, findings=40)] * jobs)


def test_what_there_is_no_room_for_is_counted() -> None:
    text = comment(Hostile("é" * 3000, findings=40))
    told = len(re.findall(r"^### ", text, re.MULTILINE))
    (left,) = re.findall(r"And (\d+) more, which", text)
    assert told + int(left) == 3 * 40 + 1


@given(texts)
@example(EVIL)
@example("\t" + EVIL)
def test_any_text_is_only_text(text: str) -> None:
    comment(Hostile(text))
    comment(Hostile(text, verdict="unknown"), Hostile(text))


@given(texts)
@example(EVIL)
@example("    indented")
@example("1. list")
@example("===")
def test_prose_is_one_paragraph_that_says_what_the_text_says(text: str) -> None:
    require_harmless(prose(text))
    kinds = {one.type for one in MarkdownIt("gfm-like").parse(prose(text))}
    assert kinds <= {"paragraph_open", "inline", "paragraph_close"}


@given(texts)
@example("``")
@example(" ` ")
def test_code_is_one_span(text: str) -> None:
    inside = [one for one in tokens(f"a {code(text)} b") if one.type == "code_inline"]
    assert len(inside) == bool(code(text))
    require_harmless(f"a {code(text)} b")


@given(texts, st.integers(500, 2000))
@example("```\n</details>", 500)
def test_a_block_ends_where_it_should(text: str, most: int) -> None:
    made = block(text, most)
    (fence,) = [one for one in tokens(made) if one.level == 0]
    assert fence.type == "fence"


def test_code_in_a_sentence_stays_code() -> None:
    seen = [
        one.content
        for one in tokens(prose("at `if x < 1`: *"))
        if one.type == "code_inline"
    ]
    assert seen == ["if x < 1"]

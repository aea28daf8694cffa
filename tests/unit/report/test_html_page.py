"""The page as a whole: what a job says in it is text, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace

import html5lib
import pytest
from generated import Mesh, Step, generate
from html_pages import (
    EVERYTHING,
    Elements,
    Reported,
    full_report,
    full_run,
    page_of,
    page_of_reports,
    render,
    report_of,
    with_text_everywhere,
    with_text_in_run,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_in

from distdoctor.catalogue import every_check
from distdoctor.model.drawing import sketch
from distdoctor.model.events import WORLD
from distdoctor.report.schema import Report

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\x1b[31mred\x1b[0m\x07",
    "\u202egnp.exe\u2066",
    "\"' onload='alert(1)' x=\"",
    "]]><svg/onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "--><!--",
    "`a` <b>`",
    "\ud800 \x00 \ufeff",
    "javascript:alert(1)",
    "&lt;b&gt;&amp;",
)

DRAWINGS = [
    pytest.param(drawing, id=f"{check.code}-{heading}-{n}")
    for check in every_check()
    for heading in ("Sick", "Well", "Unknown")
    for n, drawing in enumerate(check.manual.drawings(heading)[:1], start=1)
]

_run = full_run()
_report = full_report(_run)
_shapes = Elements(render(_report, _run)).shapes


def require_harmless(page: str) -> None:
    """All of its elements are those of the templates, and nothing in it acts."""
    elements = Elements(page)
    assert elements.wrong == []
    assert elements.unclosed == []
    assert elements.comments == []
    assert {tag for tag, _ in elements.shapes} <= {tag for tag, _ in _shapes}
    for tag, names in elements.shapes:
        allowed = {name for other, some in _shapes if other == tag for name in some}
        assert names <= allowed | {"open", "class"}, tag
        assert not any(name.startswith("on") or name == "style" for name in names)
    assert all(value.startswith("#") for value in elements.all("href"))
    assert not list(elements.all("src"))
    scripts = [attrs for tag, attrs in elements.found if tag == "script"]
    assert sum("type" not in attrs for attrs in scripts) == 1
    printable = page.replace("\n", "")
    assert printable.isprintable()


@given(text=st.text(max_size=60) | st.sampled_from(HOSTILE))
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_what_a_job_says_never_becomes_markup(text: str) -> None:
    run = with_text_in_run(_run, text)
    require_harmless(render(with_text_everywhere(_report, text), run))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_words_are_harmless_alone_and_among_others(text: str) -> None:
    run = with_text_in_run(_run, text)
    require_harmless(render(with_text_everywhere(_report, text), run))
    require_harmless(render(with_text_everywhere(_report, f"a{text}b"), run))


def test_data_of_maps_stay_data_whatever_groups_are_named() -> None:
    run = with_text_in_run(_run, "</script><script>alert(1)</script>")
    page = render(_report, run)
    blocks = re.findall(r'<script type="application/json" [^>]+>(.*?)</script>', page)
    assert len(blocks) == page.count("data-map=")
    groups = [json.loads(block)["group"] for block in blocks]
    assert any("</script>" in group for group in groups)


@pytest.mark.parametrize("drawing", DRAWINGS)
def test_the_page_of_a_drawing_is_well_formed(drawing: str) -> None:
    elements = Elements(page_of(drawing))
    assert elements.wrong == []
    assert elements.unclosed == []


def test_a_strict_parser_of_html_has_nothing_to_say() -> None:
    for page in (render(_report, _run), page_of(EVERYTHING), page_of("rank 0 | ?")):
        parser = html5lib.HTMLParser()
        parser.parse(page)
        assert parser.errors == []


def test_every_name_of_a_place_is_there_once_and_refers_to_something() -> None:
    one = Reported(_report, _run)
    elements = Elements(page_of_reports(one, one))
    names = list(elements.all("id"))
    assert len(names) == len(set(names))
    referring = [value.removeprefix("#") for value in elements.all("href")]
    for attribute in ("aria-labelledby", "aria-describedby"):
        for value in elements.all(attribute):
            referring += value.split()
    assert set(referring) <= set(names)


def test_a_picture_has_a_name_and_a_table_its_caption() -> None:
    page = render(_report, _run)
    for tag, attrs in Elements(page).found:
        if tag == "svg":
            named = "aria-labelledby" in attrs or "aria-label" in attrs
            assert named or attrs.get("aria-hidden") == "true"
    assert page.count("<table") == page.count("<caption")


def test_a_page_asks_for_nothing_from_elsewhere() -> None:
    page = render(_report, _run)
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert len(style) == 1
    assert "@import" not in style[0]
    assert set(re.findall(r"url\(([^)]*)\)", page)) <= {
        *("#hatch-waits", "#hatch-stopped", "#dots-absent", "#r1-waits-tip")
    }
    assert not re.search(r"https?://", page)


def test_the_policy_allows_the_style_and_the_script_of_the_page_alone() -> None:
    page = render(_report, _run)
    policy = next(
        attrs["content"] or ""
        for tag, attrs in Elements(page).found
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        text = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[-1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy


def test_secrets_are_masked_wherever_they_come_from() -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
    run = with_text_in_run(_run, secret)
    assert secret not in render(with_text_everywhere(_report, secret), run)
    run = replace(_run, sources={"t.py": f"token = '{secret}'\n" * 20})
    assert secret not in render(_report, run)


@pytest.mark.parametrize(
    ("drawing", "words"),
    [
        (
            "rank 0 | start=2 barrier exit=0\nrank 1 | start=2 barrier exit=0",
            "WELL",
        ),
        ("rank 0 | ?", "UNKNOWN"),
        (
            "rank 0 | all_reduce(4)@t.py:7!\nrank 1 | barrier@t.py:9...",
            "SICK",
        ),
    ],
)
def test_the_verdict_is_a_word_and_comes_first(drawing: str, words: str) -> None:
    page = page_of(drawing)
    texts = [text.strip() for text in Elements(page).texts if text.strip()]
    assert words in texts
    assert texts.index(words) < next(
        n for n, text in enumerate(texts) if text == "Checks"
    )
    assert f"<title>{words}: train.py" in page


def test_a_section_without_data_says_why_in_a_sentence() -> None:
    page = page_of("rank 0 | start=1 leave exit=0")
    texts = Elements(page).texts
    assert "What this page does not show" in texts
    for sentence in (
        "No stacks were taken",
        "No calls of ranks were recorded",
        "No log of NCCL was read",
        "No weights of copies of a model were compared",
        "No pass over a loader was seen",
    ):
        assert any(text.startswith(sentence) for text in texts), sentence


def test_every_section_is_there_where_a_run_has_all() -> None:
    page = render(_report, _run)
    keys = ("waits", "maps", "lanes", "stacks", "samples", "weights", "nccl")
    for key in (*keys, "environment"):
        assert f'id="r1-{key}"' in page
    assert "What this page does not show" not in page


def test_several_reports_are_one_page_with_a_table_of_verdicts() -> None:
    well = sketch("rank 0 | start=1 leave exit=0")
    text = page_of_reports(Reported(_report, _run), Reported(report_of(well), well))
    assert "<title>SICK: 2 reports" in text
    assert 'id="r2-verdict"' in text
    assert Elements(text).unclosed == []


def test_a_page_of_many_ranks_and_calls_stays_small() -> None:
    def size(calls: int) -> int:
        tails = {341: [Step(WORLD, 10, "float16")]}
        run = generate(Mesh({"all": 1024}), [Step(WORLD, 10)], calls, tails)
        page = render(_as_large(run.world_size), run)
        assert "rank 341" in page
        return len(page)

    few, many = size(1_000), size(10_000)
    assert many < 300_000
    assert many < 1.2 * few


def _as_large(ranks: int) -> Report:
    """A report of a job of so many ranks: to judge it takes longer than to show it."""
    victims = [rank for rank in range(ranks) if rank != 341]
    finding = replace_in(_report.findings[0], ranks=[341], victims=victims)
    report = with_text_everywhere(_report, "x")
    report.findings = [finding]
    report.world_size = ranks
    return report


def test_without_a_run_the_page_says_what_it_does_not_show() -> None:
    text = render(_report, None)
    assert Elements(text).unclosed == []
    for word in ("Who waits for whom", "Environment", "Lines of source"):
        assert word in text
    assert "Only the report is at hand here" in text
    assert "Its source is not at hand" in text
    assert "No rank was seen to wait" not in text
    assert "Rank 0 <code>skipped</code> it" in text
    assert "Last calls" not in text


def test_a_page_of_no_report_gives_no_verdict() -> None:
    text = page_of_reports()
    assert "<title>No job was judged" in text
    assert "<h1>No job was judged</h1>" in text
    assert "WELL" not in text
    assert Elements(text).unclosed == []


def test_where_warnings_count_as_errors_the_page_says_so() -> None:
    warned = replace_in(_report.findings[0], severity="warning")
    report = replace_in(_report, findings=[warned], verdict="well")
    words = "warnings count as errors here"
    assert words in page_of_reports(Reported(report, _run), strict=True)
    assert words not in page_of_reports(Reported(report, _run))
    assert words not in page_of_reports(Reported(_report, _run), strict=True)


def test_a_page_is_read_alike_in_every_encoding() -> None:
    text = render(with_text_everywhere(full_report(_run), "é 漢 \U0001f600"), _run)
    assert text.isascii()
    heading = html5lib.parse(text).find(".//{*}h1")
    assert heading is not None
    assert "é 漢 \U0001f600" in (heading.text or "")

"""The page as a whole: what a job says in it is text, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from dataclasses import replace
from importlib import util
from pathlib import Path

import html5lib
import pytest
from click.testing import CliRunner
from generated import Mesh, Step, generate
from html_pages import (
    EVERYTHING,
    Elements,
    full_report,
    full_run,
    page_of,
    report_of,
    with_text_everywhere,
    with_text_in_run,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_in

from distdoctor.catalogue import every_check
from distdoctor.cli.examine import run as examine_command
from distdoctor.cli.options import ReportOptions
from distdoctor.errors import PackageMissing
from distdoctor.model.drawing import sketch
from distdoctor.model.events import WORLD
from distdoctor.report.html import render, render_session, require_jinja
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
    elements = Elements(render_session([(_report, _run), (_report, _run)]))
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
    page = render_session([(_report, _run), (report_of(well), well)])
    assert "<title>SICK: 2 reports" in page
    assert 'id="r2-verdict"' in page
    assert Elements(page).unclosed == []


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


def test_without_jinja_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        util, "find_spec", lambda name: None if name == "jinja2" else object()
    )
    monkeypatch.setattr("distdoctor.report.html.find_spec", util.find_spec)
    with pytest.raises(PackageMissing, match=r"pip install 'distdoctor\[html\]'"):
        require_jinja()
    with pytest.raises(PackageMissing):
        ReportOptions(
            form="html",
            output=Path("r.html"),
            strict=False,
            allow_incomplete=False,
            verbose=False,
        )


def test_a_page_is_refused_on_a_terminal_before_the_job_is_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = CliRunner().invoke(examine_command, ["nowhere", "--format", "html"])
    assert "a page is not for a terminal" not in told.output  # a pipe may have it
    monkeypatch.setattr(sys.stdout.__class__, "isatty", lambda _: True, raising=False)
    with pytest.raises(Exception, match=r"--output report\.html"):
        ReportOptions(
            form="html",
            output=None,
            strict=False,
            allow_incomplete=False,
            verbose=False,
        )

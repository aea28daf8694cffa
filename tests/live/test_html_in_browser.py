"""Pages in a real browser: keys, colours, paper, screen readers, and no errors."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from html_pages import (
    full_report,
    full_run,
    render,
    report_of,
    with_text_everywhere,
    with_text_in_run,
)

from distdoctor.model.drawing import sketch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = (
    "</script><script>window.hit=1</script>",
    "<img src=x onerror=window.hit=1>",
    "' onload=window.hit=1 x='\" onfocus=window.hit=1 autofocus",
    "]]><svg/onload=window.hit=1>\u202e\x1b[2J",
)

_run = full_run()
PAGE = render(full_report(_run), _run)
_well = sketch("rank 0 | start=2 barrier exit=0\nrank 1 | start=2 barrier exit=0")
WELL = render(report_of(_well), _well)
_unknown = sketch("rank 0 | ?\nrank 1 | ?")
UNKNOWN = render(report_of(_unknown), _unknown)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser without a window."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium: apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page, and what it complained of."""

    page: Page
    errors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def value(self, script: str) -> Any:
        """What an expression is in the page."""
        return self.page.evaluate(script)


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    """Opens pages, and in the end requires that none complained or asked for more."""
    every: list[Opened] = []

    def open_page(text: str, **options: Any) -> Opened:
        path = tmp_path / f"{len(every)}.html"
        path.write_text(text, encoding="utf-8")
        one = Opened(browser.new_context(**options).new_page())
        one.page.on("console", lambda message: one.errors.append(message.text))
        one.page.on("pageerror", lambda error: one.errors.append(str(error)))
        one.page.on("request", lambda request: one.asked.append(request.url))
        one.page.goto(path.as_uri())
        every.append(one)
        return one

    yield open_page
    for one in every:
        assert one.errors == []
        assert [url for url in one.asked if not url.startswith("file:")] == []
        assert len(one.asked) == 1
        one.page.context.close()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_words_do_nothing_in_a_browser(opened: Any, text: str) -> None:
    run = with_text_in_run(_run, text)
    one = opened(render(with_text_everywhere(full_report(_run), text), run))
    assert one.value("window.hit === undefined")
    assert one.value("document.querySelectorAll('img, iframe, object').length") == 0
    assert one.value("document.querySelectorAll('script:not([type])').length") == 1


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("page", [PAGE, WELL, UNKNOWN], ids=["sick", "well", "unknown"])
def test_axe_finds_nothing_that_keeps_readers_out(
    opened: Any, page: str, mode: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    one = opened(page, color_scheme=mode)
    one.value("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    found = Axe().run(one.page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = re.findall(r"[\d.]+", colour)[:3]
    return float(red), float(green), float(blue)


def _luminance(colour: str) -> float:
    parts = [
        c / 255 / 12.92 if c / 255 <= 0.03928 else ((c / 255 + 0.055) / 1.055) ** 2.4
        for c in _rgb(colour)
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


COLOURS = """(selector) => {
  const one = document.querySelector(selector);
  let ground = one;
  while (getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
  const style = getComputedStyle(one);
  return [one.closest("svg") ? style.fill : style.color, getComputedStyle(ground).backgroundColor];
}"""  # noqa: E501 - a line of a script


SELECTORS = (
    *(".verdict h2", ".verdict p", ".quiet", ".card .sentence", ".cure", "nav a"),
    *(".source .marked code", ".badge.error", ".tag.culprit", "footer"),
    *("svg .label", "svg .axis", "svg .label.culprit"),
)


def test_text_is_readable_in_both_modes(opened: Any) -> None:
    seen: dict[str, list[object]] = {}
    for mode in ("light", "dark"):
        one = opened(PAGE, color_scheme=mode)
        for selector in SELECTORS:
            text, ground = one.page.evaluate(COLOURS, selector)
            assert _contrast(text, ground) >= 4.5, (mode, selector)
            seen.setdefault(selector, []).append((text, ground))
    assert not [name for name, (light, dark) in seen.items() if light == dark]


def test_the_page_is_dark_where_the_reader_wants_it_so(opened: Any) -> None:
    light, dark = (
        _luminance(
            opened(PAGE, color_scheme=mode).value(
                "getComputedStyle(document.body).backgroundColor"
            )
        )
        for mode in ("light", "dark")
    )
    assert light > 0.9
    assert dark < 0.05


def test_all_that_can_be_used_is_reached_by_the_tab_key(opened: Any) -> None:
    one = opened(PAGE)
    wanted = one.value(
        "[...document.querySelectorAll('a, summary, [tabindex=\"0\"]')]"
        ".filter((e) => e.checkVisibility()).length"
    )
    reached = []
    for _ in range(wanted + 5):
        one.page.keyboard.press("Tab")
        name = one.value(
            "document.activeElement === document.body ? '' : "
            "[...document.querySelectorAll('*')].indexOf(document.activeElement) + ''"
        )
        if not name or name in reached:
            break
        reached.append(name)
        assert one.value(
            "parseFloat(getComputedStyle(document.activeElement).outlineWidth) >= 2"
        )
    assert len(reached) == wanted


def test_the_first_tab_leads_past_the_head_of_the_page(opened: Any) -> None:
    one = opened(PAGE)
    one.page.keyboard.press("Tab")
    assert one.value("document.activeElement.textContent") == "Skip to the verdict"
    one.page.keyboard.press("Enter")
    assert one.value("document.activeElement.id") == "main"


def test_a_map_is_walked_by_arrow_keys_and_says_where_one_is(opened: Any) -> None:
    one = opened(PAGE)
    region = one.page.locator("[data-map]").first
    live = one.page.locator("[aria-live]").first
    assert region.get_attribute("role") == "application"
    assert "Arrow keys" in live.inner_text()
    region.focus()
    one.page.keyboard.press("End")
    here = live.inner_text()
    assert here.startswith("rank 0, call 2 on world: ranks differ")
    assert "all_reduce(4 float32) at t.py:8, stopped before it was issued" in here
    one.page.keyboard.press("ArrowDown")
    assert live.inner_text().startswith("rank 1, call 2 on world: ")
    assert "barrier at t.py:12, waits in it" in live.inner_text()
    one.page.keyboard.press("ArrowLeft")
    assert live.inner_text().startswith("rank 1, call 1 on world: made as by most")
    one.page.keyboard.press("n")
    assert "call 2 on world: ranks differ" in live.inner_text()
    assert (
        one.value("document.querySelector('.cursor').getAttribute('visibility')")
        == "visible"
    )


def test_a_map_tells_of_the_cell_that_is_clicked(opened: Any) -> None:
    one = opened(PAGE)
    region = one.page.locator("[data-map]").first
    region.scroll_into_view_if_needed()
    box = region.locator("path.cell.split").bounding_box()
    one.page.mouse.click(box["x"] + 5, box["y"] + box["height"] - 5)
    told = one.page.locator("[aria-live]").first.inner_text()
    assert told.startswith("rank 1, call 2 on world")


def test_without_scripts_all_is_there_but_the_walk(opened: Any) -> None:
    one = opened(PAGE, java_script_enabled=False)
    text = one.page.locator("main").inner_text()
    for words in ("SICK", "DD108 skipped collective", "Who waits for whom", "Cure"):
        assert words in text
    assert one.page.locator("[data-map] svg").first.is_visible()


def test_nothing_is_wider_than_a_narrow_screen(opened: Any) -> None:
    for page in (PAGE, WELL, UNKNOWN):
        one = opened(page, viewport={"width": 400, "height": 800})
        assert one.value("document.documentElement.scrollWidth") <= 400


def test_on_paper_nothing_is_folded(opened: Any) -> None:
    one = opened(PAGE, color_scheme="dark")
    folded = "document.querySelectorAll('details:not([open])').length"
    before = one.value(folded)
    assert before > 0
    one.value(
        f"addEventListener('beforeprint', () => {{ window.foldedOnPaper = {folded}; }})"
    )
    assert one.page.pdf(format="A4").startswith(b"%PDF")
    assert one.value("window.foldedOnPaper") == 0
    assert one.value(folded) == before
    one.page.emulate_media(media="print", color_scheme="dark")
    ground = one.value("getComputedStyle(document.body).backgroundColor")
    assert _rgb(ground) == (255, 255, 255)
    assert not one.page.locator("nav").is_visible()


def test_headings_and_landmarks_are_in_order(opened: Any) -> None:
    one = opened(PAGE)
    levels = one.value(
        "[...document.querySelectorAll('h1, h2, h3, h4, h5, h6')]"
        ".map((h) => Number(h.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    for landmark in ("banner", "main", "navigation", "contentinfo"):
        assert one.page.get_by_role(landmark).count() == 1


def test_pictures_and_regions_have_names_for_screen_readers(opened: Any) -> None:
    one = opened(PAGE)
    one.value("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    tree = one.page.locator("body").aria_snapshot()
    assert 'img "Who waits for whom; the table below says the same"' in tree
    assert 'img "Map of ranks and collectives of world"' in tree
    assert not re.search(r"^\s*- img:?$", tree, re.MULTILINE)
    unnamed = one.value(
        "document.querySelectorAll('[role=group]:not([aria-label])').length"
    )
    assert unnamed == 0

"""The site of the documents: it builds, asks no other host, and has all pages."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from built_site import build

from distdoctor.catalogue import manuals
from distdoctor.cli import _COMMANDS
from distdoctor.excerpts.patient_excerpts import patient
from distdoctor.excerpts.patient_states import in_state, marked_lines, without_marks

ROOT = Path(__file__).parent.parent.parent
PATIENTS = sorted((ROOT / "fixtures" / "patients").glob("dd*.py"))

_LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src"}
_LOADS |= {"source": "src", "video": "src", "object": "data", "embed": "src"}
_NOT_LOADED = {"canonical", "prev", "next", "alternate"}


class Page(HTMLParser):
    """What a page loads by itself, and where it leads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what a tag loads, or leads to."""
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.add(given["id"])
        name = _LOADS.get(tag)
        if name in given and given.get("rel") not in _NOT_LOADED:
            self.loaded.append(given[name])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


def test_the_site_is_whole_and_asks_no_other_host(tmp_path: Path) -> None:
    """One test, since the site is built for it."""
    site = build(tmp_path / "site")
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    for path, page in pages.items():
        outside = [one for one in page.loaded if re.match(r"(https?:)?//", one)]
        assert not outside, path
        for link in page.links if path.name != "404.html" else ():
            if re.match(r"\w+:", link):
                continue
            target, _, anchor = link.partition("#")
            found = (path.parent / target).resolve() if target else path
            assert found.exists(), (path, link)
            if anchor and found in pages:
                assert anchor in pages[found].ids | {"__top"}, (path, link)
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text()), style
    for code in manuals():
        text = (site / "checks" / f"{code.lower()}.html").read_text()
        assert "Remedy" in text
    shown = {path.stem for path in (site / "checks").glob("*_bad.py")}
    assert shown == {f"{path.stem[:5]}_bad" for path in PATIENTS}
    reference = (site / "command_line.html").read_text()
    for name in _COMMANDS:
        assert f'id="distdoctor-{name}"' in reference
    assert 'id="distdoctor.testing.assert_well"' in (site / "api.html").read_text()
    assert (site / "schemas" / "report.json").exists()


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "index.md"
    page.parent.mkdir()
    page.write_text("# Top\n\n[a](#nowhere)\n")
    settings = (ROOT / "mkdocs.yml").read_text()
    validation = settings.partition("\nvalidation:\n")[2].partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(f"site_name: a\nvalidation:\n{validation}\n")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "nowhere" in done.stderr


@pytest.mark.parametrize("path", PATIENTS, ids=lambda path: path.stem)
def test_a_patient_is_shown_with_its_disease_and_without(path: Path) -> None:
    source = path.read_text()
    sick, well = in_state(source, "sick"), in_state(source, "well")
    for program in (sick, well):
        compile(program, path.name, "exec")
        assert "sys.argv" not in program
        assert "state ==" not in program
    assert marked_lines(sick)
    assert without_marks(sick) != without_marks(well)
    shown = patient(path)
    assert shown.well is not None
    assert shown.sick.stressed
    for excerpt in (shown.sick, shown.well):
        lines = excerpt.program.splitlines()
        for line in excerpt.text.splitlines():
            assert line in lines or line.strip() in {"", "..."}
        assert len(excerpt.text.splitlines()) < 80


@pytest.mark.parametrize("state", ["sick", "well"])
def test_every_program_of_fixtures_can_be_had_in_one_state(state: str) -> None:
    """Also one whose f-strings ask for it, or that does nothing else in a function."""
    asking = [
        path
        for path in sorted((ROOT / "fixtures").rglob("*.py"))
        if "RANKS = " in (text := path.read_text()) and "state" in text
    ]
    assert len(asking) > 100
    for path in asking:
        compile(in_state(path.read_text(), state), path.name, "exec")


def test_pictures_are_those_of_the_drawings_beside_them() -> None:
    """Else: `python docs/make_pictures.py`."""
    made = runpy.run_path(str(ROOT / "docs" / "make_pictures.py"))["pictures"]()
    for path, text in made:
        assert path.read_text() == text, path

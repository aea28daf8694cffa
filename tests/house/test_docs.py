"""The documents: their examples run, their drawings are read, their links lead on."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from distdoctor.analysis.divergence.cascade import CASCADE
from distdoctor.analysis.divergence.cascade_steps import CascadeStep, PerGroup
from distdoctor.catalogue import manuals
from distdoctor.model.drawing import sketch

ROOT = Path(__file__).parent.parent.parent
AT_THE_TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTS = [*AT_THE_TOP, *sorted((ROOT / "docs").glob("*.md"))]

each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: path.name
)


def fenced(text: str, kind: str) -> list[str]:
    """The blocks of one kind, such as "python"."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def without_blocks(text: str) -> str:
    """What stands outside of fenced blocks, and of code within a line."""
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`]+`", "", outside)


def examples(document: Path) -> Iterator[ast.Module]:
    for block in fenced(document.read_text(), "python"):
        # What stands alone there is a decorator of a test.
        bare = re.sub(r"\A(@.*\n)+\Z", r"\g<0>def test(): ...\n", block)
        yield ast.parse(dedent(bare))


def anchors(document: Path) -> set[str]:
    """What can stand behind a `#`, as code hosts make it of headings."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    bare = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.replace(" ", "-") for title in bare}


@each_document
def test_examples_are_python_and_import_what_is_there(document: Path) -> None:
    for example in examples(document):
        for node in ast.walk(example):
            if isinstance(node, ast.ImportFrom) and node.module:
                if not node.module.startswith("distdoctor"):
                    continue
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names)


@each_document
def test_excerpts_stand_in_the_file_that_they_are_from(document: Path) -> None:
    """A comment says which: `<!-- from checks/… -->`, right above the block."""
    text = document.read_text()
    pattern = r"<!-- from (\S+) -->\n```\w+\n(.*?)^```$"
    for file, excerpt in re.findall(pattern, text, re.DOTALL | re.MULTILINE):
        source = (ROOT / file).read_text()
        for part in excerpt.split("\n...\n"):
            assert part.strip("\n") in source


@each_document
def test_a_drawing_can_be_read(document: Path) -> None:
    for drawing in fenced(document.read_text(), "drawing"):
        sketch(drawing)


@each_document
def test_codes_that_are_named_are_there(document: Path) -> None:
    assert set(re.findall(r"DD\d{3}", document.read_text())) <= set(manuals())


@each_document
def test_a_link_leads_somewhere(document: Path) -> None:
    text = without_blocks(document.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        found = (document.parent / path).resolve() if path else document
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


@each_document
def test_a_file_that_is_named_is_there(document: Path) -> None:
    """What stands in `back quotes` and begins with one of our folders.

    A module may be named without its ending.
    """
    ours = r"`((?:distdoctor|checks|fixtures|tests|docs|reference_jobs|benchmarks)/"
    for path in re.findall(ours + r"[\w./-]+)`", document.read_text()):
        assert (ROOT / path).exists() or (ROOT / f"{path}.py").exists(), path


def test_the_guide_tells_of_every_disease() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text()
    assert set(re.findall(r"\| \[(DD\d{3})\]", guide)) == set(manuals())


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_readme_sets_up_as_the_gate_does() -> None:
    first, second = fenced((ROOT / "README.md").read_text(), "sh")[:2]
    gate = (ROOT / ".ci" / "run").read_text()
    assert first.strip().removeprefix("pip install ") in gate
    assert second.strip() in gate.splitlines()


def test_the_page_of_checks_is_what_their_manuals_say() -> None:
    """Else: `python docs/make_checks.py`."""
    document = runpy.run_path(str(ROOT / "docs" / "make_checks.py"))["document"]
    assert (ROOT / "docs" / "checks.md").read_text() == document()


def test_the_options_of_check_script_are_those_that_are_told() -> None:
    source = (ROOT / "distdoctor" / "pytest_plugin" / "scripts.py").read_text()
    tree = ast.parse(source)
    call = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__call__"
    )
    text = (ROOT / "docs" / "testing.md").read_text()
    listed = re.search(
        r"The options are those of `distdoctor check`:(.*?)\. ", text, re.DOTALL
    )
    assert listed
    assert re.findall(r"`(\w+)`", listed[1]) == [
        one.arg for one in call.args.kwonlyargs
    ]


def test_the_table_of_imports_is_that_of_the_house() -> None:
    house = runpy.run_path(str(ROOT / "tests" / "house" / "test_house.py"))
    section = (ROOT / "docs" / "architecture.md").read_text()
    section = section.partition("## Who may import whom")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
    table = {part: " ".join(row.replace("–", "").split(", ")) for part, row in rows}
    assert table == house["MAY_IMPORT"]


def test_each_word_in_the_tables_of_drawings_is_read() -> None:
    examples: list[str] = []
    column = 0
    for line in (ROOT / "docs" / "drawings.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if {"word", "example"} & set(cells):
            column = cells.index("word") if "word" in cells else cells.index("example")
        elif line.startswith("| "):
            examples += re.findall(r"`([^`]+)`", cells[column])
    assert len(examples) > 40
    for word in examples:
        sketch(f"rank 0 | {word}")


def test_messages_that_are_quoted_are_those_of_the_code() -> None:
    """Those in the first column of tables; `…` stands for what is filled in."""
    spoken = {
        node.value
        for source in (ROOT / "distdoctor").rglob("*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    quoted = re.findall(r"^\| (`.*?) \| ", text, re.MULTILINE)
    assert len(quoted) > 30
    for message in quoted:
        for sentence in re.findall(r"`([^`]+)`", message):
            # A text may be put together of several, at a semicolon.
            for part in filter(None, map(str.strip, re.split(r"…|(?=; )", sentence))):
                assert any(part in one for one in spoken), part


def explained(rows: Iterable[CascadeStep]) -> Iterator[str]:
    """What the rows of a cascade explain, with those that others hold."""
    for row in rows:
        if isinstance(row, PerGroup):
            for one in row.rows:
                yield one.explains
                yield from explained(one.then)
        else:
            yield row.explains


def test_the_cascade_is_told_row_by_row() -> None:
    text = (ROOT / "docs" / "divergence.md").read_text()
    listed = re.findall(r"^ +- ([^;:\n]+)", text, re.MULTILINE)
    assert listed == [*explained(CASCADE)]


def test_the_signatures_of_batches_are_those_of_the_code() -> None:
    from distdoctor.equivalence import batches

    text = (ROOT / "docs" / "equivalence.md").read_text()
    for make in (batches.tokens, batches.labelled, batches.regression, batches.made):
        given = [
            one.replace(annotation=one.empty)
            for one in inspect.signature(make).parameters.values()
        ]
        bare = str(inspect.Signature(given))
        assert f"\nbatches.{make.__name__}{bare}\n" in text

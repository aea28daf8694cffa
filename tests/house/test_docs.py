"""The examples in the documents: what they import and name is there."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from distdoctor.analysis.divergence.cascade import CASCADE
from distdoctor.analysis.divergence.cascade_steps import CascadeStep, PerGroup
from distdoctor.catalogue import manuals

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def examples(document: Path) -> Iterator[ast.Module]:
    for block in re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL):
        # What stands alone there is a decorator of a test.
        bare = re.sub(r"\A(@.*\n)+\Z", r"\g<0>def test(): ...\n", block)
        yield ast.parse(bare)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_are_python_and_import_what_is_there(document: Path) -> None:
    for example in examples(document):
        for node in ast.walk(example):
            if isinstance(node, ast.ImportFrom) and node.module:
                if not node.module.startswith("distdoctor"):
                    continue
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_codes_and_documents_that_are_named_are_there(document: Path) -> None:
    text = document.read_text()
    assert set(re.findall(r"DD\d{3}", text)) <= set(manuals())
    for target in re.findall(r"\]\(([\w/.]+\.md)\)", text):
        assert (document.parent / target).exists()


def test_the_options_of_check_script_are_those_that_are_told() -> None:
    source = (ROOT / "distdoctor" / "pytest_plugin" / "scripts.py").read_text()
    tree = ast.parse(source)
    call = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__call__"
    )
    text = (ROOT / "docs" / "testing.md").read_text()
    told = re.search(
        r"The options are those of `distdoctor check`:(.*?)\. ", text, re.DOTALL
    )
    assert told
    assert re.findall(r"`(\w+)`", told[1]) == [one.arg for one in call.args.kwonlyargs]


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
    told = re.findall(r"^ +- ([^;:\n]+)", text, re.MULTILINE)
    assert told == [*explained(CASCADE)]

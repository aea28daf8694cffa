"""Each rule finds its disease in the programs of its docstring, and in no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import dedent

import pytest

from distdoctor.catalogue import names_by_code
from distdoctor.lint.linting import Rule, every_rule, lint_texts
from distdoctor.lint.source_files import SourceText

HEADINGS = ("Found", "Left alone")


def programs(rule: Rule, heading: str) -> list[str]:
    """The programs under a heading: blocks of indented lines, apart by a plain one."""
    section = re.split(r"^(Found|Left alone)\n-+$", rule.manual, flags=re.MULTILINE)
    body = section[section.index(heading) + 1]
    found: list[list[str]] = [[]]
    for line in body.splitlines():
        if line.startswith("    ") or not line.strip():
            found[-1].append(line)
        else:
            found.append([])
    texts = [dedent("\n".join(lines)).strip() for lines in found]
    whole = [f"{text}\n" for text in texts if text]
    return [part for text in whole for part in apart(text)]


def apart(text: str) -> Iterator[str]:
    """Programs that follow each other without a word: each begins with its imports."""
    lines = text.splitlines(keepends=True)
    begins = [0]
    inside = False
    for n, line in enumerate(lines):
        imports = line.startswith(("import ", "from "))
        if imports and inside:
            begins.append(n)
            inside = False
        elif line.strip() and not imports:
            inside = True
    ends = [*begins[1:], len(lines)]
    yield from ("".join(lines[one:end]) for one, end in zip(begins, ends, strict=True))


def cases(heading: str) -> list[tuple[str, str]]:
    return [
        (rule.code, program)
        for rule in every_rule()
        for program in programs(rule, heading)
    ]


def found_in(program: str) -> set[str]:
    source = SourceText("train.py", program)
    return {one.code for one in lint_texts([source], advice=True).findings}


@pytest.mark.parametrize(("code", "program"), cases("Found"))
def test_a_rule_finds_its_disease_in_its_programs(code: str, program: str) -> None:
    compile(program, "train.py", "exec")
    assert code in found_in(program)


@pytest.mark.parametrize(("code", "program"), cases("Left alone"))
def test_programs_that_look_alike_are_left_alone(code: str, program: str) -> None:
    compile(program, f"beside-{code}.py", "exec")
    assert found_in(program) == set()


@pytest.mark.parametrize("rule", every_rule(), ids=lambda rule: rule.code)
def test_a_rule_is_of_a_check_and_has_both_kinds_of_programs(rule: Rule) -> None:
    assert rule.code in names_by_code()
    assert programs(rule, "Found")
    assert programs(rule, "Left alone")

"""A page per disease: its manual, and code with the disease and without."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from distdoctor.catalogue import every_check
from distdoctor.excerpts.patient_excerpts import CodeExcerpt, Patient, patient
from distdoctor.excerpts.patient_states import StateUnreadable
from distdoctor.model.declare import Check

ROOT = Path(__file__).parent.parent.parent


def _page_maker() -> ModuleType:
    """`docs/make_checks.py`, which knows how a manual is written."""
    spec = importlib.util.spec_from_file_location(
        "make_checks", ROOT / "docs" / "make_checks.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_MAKE_CHECKS = _page_maker()


def disease_files() -> Iterator[tuple[str, str]]:
    """Paths in the site and contents: the pages, and the programs that they show."""
    yield "checks.md", _contents()
    for check in every_check():
        base = f"checks/{check.code.lower()}"
        found = _patient_of(check)
        yield f"{base}.md", _page(check, found)
        if isinstance(found, Patient):
            yield f"{base}_bad.py", found.sick.program
            if found.well is not None:
                yield f"{base}_good.py", found.well.program


def nav() -> list[dict[str, list[dict[str, str]]]]:
    """The pages, for the navigation: by family, code and name of each."""
    return [
        {
            title: [
                {f"{one.code} {one.disease}": f"checks/{one.code.lower()}.md"}
                for one in every_check()
                if one.code[2] == family
            ]
        }
        for family, title in _MAKE_CHECKS.FAMILIES.items()
        if any(one.code[2] == family for one in every_check())
    ]


def _contents() -> str:
    """All diseases as tables, a table for each family."""
    begin = _MAKE_CHECKS._BEGIN.split("\n\n")
    parts = [f"{begin[0]}\n", *(f"{one.rstrip()}\n" for one in begin[2:])]
    for family, title in _MAKE_CHECKS.FAMILIES.items():
        checks = [one for one in every_check() if one.code[2] == family]
        if checks:
            parts += [f"## {title}\n", "| code | disease | severity |", "|---|---|---|"]
            parts += [
                f"| [{one.code}](checks/{one.code.lower()}.md) | {one.manual.summary} "
                f"| {one.severity} |"
                for one in checks
            ]
            parts.append("")
    return "\n".join(parts)


def _patient_of(check: Check) -> Patient | str | None:
    """What is shown of a check's patient.

    Returns:
        Both of its programs; where they cannot be told apart, the text as it stands;
        None: it has no patient.
    """
    path = ROOT / "fixtures" / "patients" / f"{check.name}.py"
    if not path.exists():
        return None
    try:
        return patient(path)
    except StateUnreadable:
        return path.read_text(encoding="utf-8")


def _page(check: Check, found: Patient | str | None) -> str:
    sections = check.manual.sections
    parts = [
        f"# {check.code}: {check.disease.replace('-', ' ')}\n",
        f"**{check.manual.summary}**\n",
        f"{str(check.severity).capitalize()} · name `{check.disease}` · needs "
        + ", ".join(f"`{kind.__name__}`" for kind in check.needs)
        + "\n",
        _section("What it is", sections["What it is"]),
        _section("Why it matters", sections["Why it matters"]),
        *_code(check, found),
        _section("Remedy", sections["Remedy"]),
        "## How it is told\n\nEach drawing is a test: the check must give it the "
        "verdict under which it stands. [Drawings](../drawings.md) tells how to read "
        "them.\n",
    ]
    verdicts = ("Sick", "Well", "Unknown")
    parts += [_section(one, sections[one], level=3) for one in verdicts]
    parts += [_section(one, sections[one]) for one in ("Known problems", "References")]
    return "\n".join(parts)


def _section(title: str, body: str, level: int = 2) -> str:
    blocks = [f"{block}\n" for block in _MAKE_CHECKS._blocks(body)]
    return "\n".join([f"{'#' * level} {title}\n", *blocks])


def _code(check: Check, found: Patient | str | None) -> Iterator[str]:
    base = check.code.lower()
    if found is None:
        yield (
            "## Bad and good code\n\nNo script for a CPU has this disease: it shows in "
            "what a job leaves, or in how its ranks are started.\n"
        )
        return
    if isinstance(found, str):
        yield "## Bad and good code\n"
        yield "As `script.py sick` it has the disease; as `script.py well`, not:\n"
        yield f"```python\n{found.strip()}\n```\n"
        return
    ranks = f"on {found.ranks} rank{'s' * (found.ranks > 1)}"
    yield "## Bad code\n"
    yield _block(found.sick)
    if found.well is None:
        yield f"[The whole script]({base}_bad.py) runs {ranks}.\n"
        return
    yield "## Good code\n"
    yield _block(found.well)
    yield (
        f"The whole scripts, which run {ranks}: [bad]({base}_bad.py) and "
        f"[good]({base}_good.py). They are made of the check's patient, which the "
        "tests run in both states: the disease is found in the one, and nothing in the "
        "other.\n"
    )


def _block(excerpt: CodeExcerpt) -> str:
    stressed = " ".join(map(str, excerpt.stressed))
    header = f'python hl_lines="{stressed}"' if stressed else "python"
    text = re.sub(r"^```", "` ` `", excerpt.text, flags=re.MULTILINE)
    return f"```{header}\n{text}\n```\n"

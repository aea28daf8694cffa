"""Finds the checks: every module `dd…` of `distdoctor.checks`, and no list to keep."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from distdoctor.errors import CheckMalformed, CheckUnknown
from distdoctor.model.manual import Manual

if TYPE_CHECKING:
    from distdoctor.model.declare import Check

CHECKS = "distdoctor.checks"

_FEW = 3
"""Names that are offered for one that nobody has."""

_MOST_SPEAKING = 12
"""Checks that are named where a word may mean several."""

_CLOSE = 0.75
"""Of 1: how much such a name has in common with it, at least."""


@cache
def every_check() -> tuple[Check, ...]:
    """All checks, by code.

    Raises:
        CheckMalformed: A module lacks a part, or two share a code.
    """
    found = [
        read_check(importlib.import_module(f"{CHECKS}.{module.name}"))
        for module in pkgutil.iter_modules(importlib.import_module(CHECKS).__path__)
    ]
    by_code = {check.code: check for check in found}
    if len(by_code) < len(found):
        raise CheckMalformed(f"two checks share a code: {[c.name for c in found]}")
    return tuple(by_code[code] for code in sorted(by_code))


def manuals() -> dict[str, Manual]:
    """By code, the manual of every check, read from its source and not imported."""
    return {path.stem[:5].upper(): _manual(path) for path in _files()}


def names_by_code() -> dict[str, str]:
    """By code, what every check is called, in words; none is read for that."""
    return {path.stem[:5].upper(): path.stem[6:].replace("_", " ") for path in _files()}


def manual_of(code: str) -> Manual:
    """The manual of one check, read from its source and not imported.

    Raises:
        CheckUnknown: There is none of this code.
    """
    for path in _files():
        if path.stem[:5].upper() == code.upper():
            return _manual(path)
    raise CheckUnknown(f"no check is called {code}; `distdoctor explain` lists them")


def code_named(name: str) -> str:
    """The code of a check, as people write it or call its disease.

    Args:
        name: "DD108", or "skipped-collective": with hyphens, spaces or underscores, in
            any case, and each word as short as is clear.

    Raises:
        CheckUnknown: No check is called so, or several are.
    """
    known = names_by_code()
    if name.strip().upper() in known:
        return name.strip().upper()
    given = re.split(r"[\s_-]+", name.strip().lower())
    if given == [""]:
        raise CheckUnknown("give a code, or a name; `distdoctor explain` lists them")
    for code, disease in known.items():
        if disease.split() == given:
            return code  # though another's may begin so
    fitting = [code for code, disease in known.items() if _begins(given, disease)]
    speaking = [code for code in _speaking_of(given) if code not in fitting]
    if len(fitting) == 1 and not speaking:
        return fitting[0]
    if fitting:
        several = ", ".join(f"{one} {known[one]}" for one in [*fitting, *speaking])
        raise CheckUnknown(f"{name} may be any of {several}; name one of them")
    close = get_close_matches(" ".join(given), known.values(), _FEW, _CLOSE)
    like = f"{', '.join(close)} is close, and " if close else ""
    if not close and speaking:
        several = ", ".join(f"{one} {known[one]}" for one in speaking)
        like = f"of it speak {several}; "
    raise CheckUnknown(
        f"no check is called {name}; {like}`distdoctor explain` lists them"
    )


def _speaking_of(given: list[str]) -> list[str]:
    """Codes of checks whose manual has one word, that was given, before its drawings.

    Of a word that begins names, such as "deadlock", somebody may mean others as well.
    """
    if len(given) != 1:
        return []
    word = re.compile(rf"\b{re.escape(given[0])}s?\b", re.IGNORECASE)
    told = {
        code: (
            manual.summary,
            *map(manual.sections.get, ("What it is", "Why it matters")),
        )
        for code, manual in manuals().items()
    }
    return [
        code for code, texts in told.items() if any(word.search(t or "") for t in texts)
    ][:_MOST_SPEAKING]


def read_check(module: ModuleType) -> Check:
    """The check that a module declares.

    Raises:
        CheckMalformed: CODE, SEVERITY, NEEDS, examine or a part of the manual is not
            there.
    """
    from distdoctor.model.declare import Check  # numpy: only where a run is examined

    name = module.__name__.rpartition(".")[2]
    try:
        return Check(
            name=name,
            code=module.CODE,
            severity=module.SEVERITY,
            needs=module.NEEDS,
            manual=Manual.parse(module.__doc__ or ""),
            examine=module.examine,
        )
    except (AttributeError, CheckMalformed) as error:
        raise CheckMalformed(f"{name}: {error}") from error


def _begins(given: list[str], disease: str) -> bool:
    """Whether words that were given are begins of those of a disease, in order."""
    words = disease.split()
    return (
        all(given)
        and len(given) <= len(words)
        and all(map(str.startswith, words, given))
    )


def _files() -> list[Path]:
    spec = importlib.util.find_spec(CHECKS)
    if spec is None or spec.submodule_search_locations is None:
        raise CheckUnknown("the checks are not installed; install distdoctor again")
    folder = Path(spec.submodule_search_locations[0])
    return sorted(folder.glob("dd[0-9]*.py"))


def _manual(path: Path) -> Manual:
    return Manual.parse(ast.get_docstring(ast.parse(path.read_text())) or "")

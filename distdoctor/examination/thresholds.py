"""Thresholds of checks: constants of their modules, which a project may change.

Source: `[tool.distdoctor.DDxxx]` of pyproject.toml, by way of the record of the run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

from distdoctor.errors import CheckUnknown
from distdoctor.model.declare import Check

Thresholds = Mapping[str, Mapping[str, int | float]]
"""By code of a check, values by the constant's name in small letters."""


def thresholds_of(check: Check) -> dict[str, int | float]:
    """The thresholds of a check as they are."""
    return {name: value for name, (_, value) in _constants(check).items()}


def _constants(check: Check) -> dict[str, tuple[str, int | float]]:
    """Name and value of its constants, by the name of the threshold."""
    return {
        name.strip("_").lower(): (name, value)
        for name, value in vars(_module(check)).items()
        if name.isupper() and isinstance(value, int | float)
    }


def require_thresholds(checks: Iterable[Check], wanted: Thresholds) -> None:
    """Raise unless all that is to be changed is there.

    Raises:
        CheckUnknown: A check, or a threshold of it, is not.
    """
    by_code = {check.code: check for check in checks}
    for code, values in wanted.items():
        if code not in by_code:
            raise CheckUnknown(
                f"there is no check {code}; distdoctor explain lists those there are"
            )
        known = thresholds_of(by_code[code])
        for name in values:
            if name not in known:
                has = ", ".join(sorted(known)) or "none"
                raise CheckUnknown(f"{code} has no threshold `{name}`; it has: {has}")


@contextmanager
def changed(checks: Iterable[Check], wanted: Thresholds) -> Iterator[None]:
    """Have checks use other thresholds meanwhile; unknown ones change nothing."""
    before: list[tuple[ModuleType, str, int | float]] = []
    try:
        for check in checks:
            known = _constants(check)
            for name, value in wanted.get(check.code, {}).items():
                if name in known:
                    before.append((_module(check), *known[name]))
                    setattr(_module(check), known[name][0], value)
        yield
    finally:
        for module, name, value in reversed(before):
            setattr(module, name, value)


def _module(check: Check) -> ModuleType:
    return sys.modules[check.examine.__module__]

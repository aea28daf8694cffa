"""Masks secrets in reports, whatever they were made from; see `secret_masking`."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any

import msgspec

from distdoctor.journal.secret_masking import masked_arguments, masked_text
from distdoctor.report.schema import Report


def mask_report(report: Report) -> Report:
    """Mask the secrets that the texts of a report hold.

    Args:
        report: It is changed.

    Returns:
        The same report.
    """
    report.launch = masked_arguments(report.launch)
    _masked(report)
    return report


def _masked(value: Any) -> Any:
    """A part of a report; structs and lists are changed, all else is made anew."""
    match value:
        case str():
            return masked_text(value)
        case msgspec.Struct():
            for name in value.__struct_fields__:
                setattr(value, name, _masked(getattr(value, name)))
        case list():
            if not _are_numbers(value):
                value[:] = map(_masked, value)
        case tuple():
            return tuple(map(_masked, value))
        case dict():
            if not _are_numbers(value.values()):
                return {key: _masked(part) for key, part in value.items()}
    return value


def _are_numbers(values: Iterable[Any]) -> bool:
    """Whether there are ranks or the like alone; of those a report may hold many."""
    return set(map(type, values)) <= {int, NoneType}

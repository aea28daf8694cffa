"""Masks secrets in reports, whatever they were made from; see `secret_masking`."""

from __future__ import annotations

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
            value[:] = map(_masked, value)
        case tuple():
            return tuple(map(_masked, value))
        case dict():
            return {key: _masked(part) for key, part in value.items()}
    return value

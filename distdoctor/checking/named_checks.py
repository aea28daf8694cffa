"""Checks that a project's settings name, looked up before a job is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.errors import CheckUnknown, LaunchRefused

if TYPE_CHECKING:
    from distdoctor.launch.supervisor import Plan


def require_codes(plan: Plan) -> None:
    """Raise unless all checks are there that the project's settings name.

    Raises:
        LaunchRefused: One is not, or has no such threshold.
    """
    if plan.ignored or plan.thresholds:
        from distdoctor.judging import load_checks

        try:
            load_checks({**{code: {} for code in plan.ignored}, **plan.thresholds})
        except CheckUnknown as error:
            raise LaunchRefused(f"pyproject.toml, tool.distdoctor: {error}") from error

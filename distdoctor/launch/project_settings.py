"""What a project says to distdoctor: the table `[tool.distdoctor]` of pyproject.toml.

    [tool.distdoctor.check]      # defaults of options of `distdoctor check`
    ranks = 4

    [tool.distdoctor.ignore]     # findings that are known, each with a reason
    DD301 = "every rank is to see all samples"

    [tool.distdoctor.DD204]      # a threshold of one check
    stuck_after_s = 60

    [[tool.distdoctor.reference]]    # where a tensor lies in that of a reference
    tensor = "experts.*.bias"
    axis = 0

The nearest file that has the table counts, from a folder upwards.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from distdoctor.errors import LaunchRefused

if TYPE_CHECKING:
    from distdoctor.analysis.comparison.told_places import ToldPlace

FILE = "pyproject.toml"

_CODE = re.compile(r"DD\d{3}")


class TensorRow(msgspec.Struct, forbid_unknown_fields=True):
    """A row of `reference`; see `ToldPlace`."""

    tensor: str
    name: str = msgspec.field(name="is", default="")
    axis: int | None = None
    parts: list[int] = []


class ProjectSettings(msgspec.Struct, forbid_unknown_fields=True):
    """The table, as it was read.

    Attributes:
        check: Defaults of options of `check`, by name.
        ignore: Why findings of a check are ignored, by its code.
        thresholds: By code, thresholds of a check by name.
        reference: Where tensors of ranks lie in those of a reference.
        path: The file; empty if there is none with such a table.
    """

    check: dict[str, bool | int | float | str | list[str]] = {}
    ignore: dict[str, str] = {}
    thresholds: dict[str, dict[str, int | float]] = {}
    reference: list[TensorRow] = []
    path: str = ""

    @property
    def places(self) -> tuple[ToldPlace, ...]:
        """The rows of `reference`."""
        # Numpy comes with it, which `--help` has no use for.
        from distdoctor.analysis.comparison.told_places import ToldPlace

        return tuple(
            ToldPlace(
                tensor=row.tensor,
                reference=row.name,
                axis=row.axis,
                parts=tuple(row.parts),
            )
            for row in self.reference
        )


def project_settings(folder: Path) -> ProjectSettings:
    """The settings for a job that runs in a folder.

    Raises:
        LaunchRefused: The file is no TOML, or the table has what is not known there, or
            a finding is ignored without a reason.
    """
    for place in (folder, *folder.parents):
        path = place / FILE
        table = _table(path)
        if table is not None:
            return _settings(table, path)
    return ProjectSettings()


def _table(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if "distdoctor" not in text:
        return None
    try:
        table = tomllib.loads(text).get("tool", {}).get("distdoctor")
    except (tomllib.TOMLDecodeError, AttributeError) as error:
        raise LaunchRefused(f"{path} cannot be read: {error}") from error
    if table is not None and not isinstance(table, dict):
        raise LaunchRefused(f"{path}: tool.distdoctor is to be a table")
    return table


def _settings(table: dict[str, Any], path: Path) -> ProjectSettings:
    thresholds = {key: table[key] for key in table if _CODE.fullmatch(key)}
    rest = {key: table[key] for key in table if key not in thresholds}
    for key in rest.keys() - {"check", "ignore", "reference"}:
        raise LaunchRefused(
            f"{path}: [tool.distdoctor] has no `{key}`: known are `check`, `ignore`, "
            "`reference` and the codes of checks, such as `DD204`"
        )
    try:
        settings = msgspec.convert(
            {**rest, "thresholds": thresholds, "path": str(path)}, ProjectSettings
        )
    except msgspec.ValidationError as error:
        raise LaunchRefused(f"{path}: [tool.distdoctor]: {error}") from error
    for code, reason in settings.ignore.items():
        if not reason.strip():
            raise LaunchRefused(
                f"{path}: [tool.distdoctor.ignore] {code} needs a reason, as text"
            )
    return settings

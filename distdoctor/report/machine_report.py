"""What a machine can do: as a list for people, and as data, `distdoctor.env/1`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from distdoctor.journal.folder import as_text as with_escapes
from distdoctor.model.machine_condition import MachineCondition, MachineState
from distdoctor.report.page import Page
from distdoctor.report.plain_text import plain

SCHEMA = "distdoctor.env/1"

_STYLES = {
    MachineState.OK: "green",
    MachineState.LIMITS: "yellow",
    MachineState.ABSENT: "dim",
}


class ConditionData(msgspec.Struct, kw_only=True):
    """One thing that jobs, or distdoctor, use of the machine."""

    name: str
    state: str  # ok | limits | absent
    found: str  # what was seen
    means: str  # what follows; may be empty
    cure: str  # may be empty
    needed: bool  # without it, no job can be checked here
    commands: list[str] = []  # what to type for the cure, where that is known
    optional: bool = False  # only jobs that use it want it


class Machine(msgspec.Struct, kw_only=True):
    """All of it. Fields may be added, and none is ever renamed or removed."""

    schema: str = SCHEMA
    distdoctor: str
    usable: bool  # nothing that every check needs is absent
    conditions: list[ConditionData]


def json_schema() -> dict[str, Any]:
    """The schema as JSON Schema (draft 2020-12)."""
    return msgspec.json.schema(Machine)


def as_json(conditions: Sequence[MachineCondition], version: str) -> str:
    """The list for machines, with a new line at its end.

    Args:
        conditions: What was found.
        version: Of distdoctor.
    """
    machine = Machine(
        distdoctor=version,
        usable=not any(condition.prevents for condition in conditions),
        conditions=[
            ConditionData(
                **asdict(condition)
                | {
                    "state": str(condition.state),
                    "commands": [*condition.commands],
                }
            )
            for condition in conditions
        ],
    )
    data = msgspec.json.encode(with_escapes(msgspec.to_builtins(machine)))
    return msgspec.json.format(data, indent=2).decode() + "\n"


def as_text(
    conditions: Sequence[MachineCondition], version: str, width: int, colour: bool
) -> str:
    """The list for people: a line each, what it means, and the cure.

    Args:
        conditions: What was found.
        version: Of distdoctor.
        width: Columns.
        colour: Whether to use terminal colours.
    """
    page = Page(max(60, min(width, 120)), colour)
    release = ".".join(version.split(".")[:2])
    page.print(Text(f"distdoctor {release} · this machine", "bold"), end="\n\n")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for condition in conditions:
        style = "bold red" if condition.prevents else _STYLES[condition.state]
        state = Text(str(condition.state), style)
        text = ": ".join(filter(None, (condition.found, condition.means)))
        table.add_row(state, condition.name, Text(plain(text)))
        if condition.cure:
            table.add_row("", "", Text(f"cure: {plain(condition.cure)}", "green"))
    page.print(table)
    page.print()
    _print_fixes(page, conditions)
    preventing = ", ".join(c.name for c in conditions if c.prevents)
    end = "a script can be checked here: distdoctor check train.py"
    if preventing:
        end = f"no job can be checked here without {preventing}"
    page.print(Text(end), soft_wrap=True)
    return page.text()


def _print_fixes(page: Page, conditions: Sequence[MachineCondition]) -> None:
    """What to type, the most needed first; optional things behind all others."""
    lacking = [one for one in conditions if one.state is not MachineState.OK]
    for title, optional in (("to fix", False), ("if your jobs use it", True)):
        fixes = [one for one in lacking if one.commands and one.optional == optional]
        if not fixes:
            continue
        page.print(Text(title, "bold"))
        width = max(len(one.name) for one in fixes) + 2
        for one in sorted(fixes, key=lambda each: not each.prevents):
            for number, command in enumerate(one.commands):
                line = Text("  " + ("" if number else one.name).ljust(width))
                # A command that is wrapped cannot be copied.
                page.print(line.append(plain(command), "green"), soft_wrap=True)
        page.print()

"""The reference of what is imported, and the JSON schemas of what is written."""

from __future__ import annotations

import json
from collections.abc import Iterator

from distdoctor.report import machine_report, schema

_API = """\
# What is imported

What tests and programs may import of distdoctor. All else may change from one release
to the next.

## distdoctor.testing

[How to test in CI](testing.md) has examples.

::: distdoctor.testing

## distdoctor.equivalence

[How to prove a training step](equivalence.md) has examples.

::: distdoctor.equivalence

## Fixtures of the pytest plugin

They are there once distdoctor is installed, and need no import.

::: distdoctor.pytest_plugin.fixtures
    options:
      filters: ["!^_", "!^is_rank$", "!^Seat$"]

::: distdoctor.pytest_plugin.scripts
    options:
      filters: ["!^_", "!^pytest_", "!^tidy$"]
"""

_SCHEMAS = """\
# JSON schemas

Of what is written with `--format json`, as JSON Schema (draft 2020-12). Fields may be
added to them; none is ever renamed or removed.

| schema | is written by | told in |
|---|---|---|
| [`distdoctor.report/1`](schemas/report.json) | reports | [report](report.md) |
| [`distdoctor.env/1`](schemas/env.json) | `distdoctor env` | [env](env.md) |
"""


def reference_files() -> Iterator[tuple[str, str]]:
    """Paths in the site and contents."""
    yield "api.md", _API
    yield "schemas.md", _SCHEMAS
    for name, its in (
        ("report", schema.json_schema()),
        ("env", machine_report.json_schema()),
    ):
        yield f"schemas/{name}.json", json.dumps(its, indent=2) + "\n"

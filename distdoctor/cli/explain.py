"""Print the manual of a check, or, without a code, the list of all."""

from __future__ import annotations

import click

from distdoctor.catalogue import manual_of, manuals
from distdoctor.cli.completed_words import codes


@click.command()
@click.argument("code", required=False, shell_complete=codes)
def run(code: str | None) -> None:
    """Print the manual of a check, or, without a code, the list of all."""
    if code is None:
        for known, manual in manuals().items():
            print(f"{known}  {manual.summary}")
        return
    manual = manual_of(code)
    print(f"{code.upper()}  {manual.summary}")
    for title, body in manual.sections.items():
        print(f"\n{title}\n{'-' * len(title)}\n{body}")

"""What the Tab key offers for arguments: codes of checks, kept records, jobs.

A shell asks at each press of the key, so nothing here loads torch or numpy. That files
will do as well stands first: bash forgets what was offered before it.
"""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

_LONGEST = 60
"""Characters of a command line that are shown beside its process."""


def codes(
    _context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Codes of checks, with their names."""
    from distdoctor.catalogue import names_by_code

    return [
        CompletionItem(code, help=name)
        for code, name in names_by_code().items()
        if code.startswith(begun.upper())
    ]


def kept_records(
    _context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Folders of records that were kept, the latest first; else any file."""
    from distdoctor.checking.record_folders import records

    folder = records()
    try:
        found = sorted((str(one) for one in folder.iterdir()), reverse=True)
    except OSError:
        found = []
    fitting = [CompletionItem(one) for one in found if one.startswith(begun)]
    return [CompletionItem(begun, type="file"), *fitting]


def jobs(
    _context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Processes of this user that are ranks or start some; else any file."""
    from distdoctor.launch.running_ranks import running_ranks
    from distdoctor.report.plain_text import plain

    fitting = [
        CompletionItem(str(pid), help=plain(" ".join(words))[:_LONGEST])
        for pid, words in running_ranks()
        if str(pid).startswith(begun)
    ]
    return [CompletionItem(begun, type="file"), *fitting]

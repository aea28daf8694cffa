"""Options of `check` that a project sets in its pyproject.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from distdoctor.errors import LaunchRefused
from distdoctor.launch.project_settings import project_settings


def check_defaults() -> dict[str, Any]:
    """Values of options by the names that click gives them.

    Raises:
        LaunchRefused: The project's settings cannot be used, or name an option that
            `check` does not have.
    """
    settings = project_settings(Path.cwd())
    if not settings.check:
        return {}
    from distdoctor.cli.check import run

    options = {
        word.lstrip("-"): option
        for option in run.params
        for word in option.opts
        if word.startswith("--")
    }
    for word in settings.check.keys() - options.keys():
        raise LaunchRefused(
            f"{settings.path}: [tool.distdoctor.check] has `{word}`, and `distdoctor "
            f"check` has no option --{word}; `distdoctor check --help` lists them"
        )
    defaults: dict[str, Any] = {}
    for word, value in settings.check.items():
        option, given = options[word], value
        if isinstance(option, click.Option) and option.multiple:
            given = value if isinstance(value, list) else [str(value)]
        elif isinstance(value, list):
            raise LaunchRefused(
                f"{settings.path}: [tool.distdoctor.check] has several values for "
                f"`{word}`, and --{word} takes one"
            )
        defaults[str(option.name)] = given
    return defaults

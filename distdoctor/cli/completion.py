"""Print what a shell needs to complete commands of distdoctor."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_DISTDOCTOR_COMPLETE"


@click.command(
    epilog="Put it where the shell reads it when it starts: `distdoctor completion "
    "bash >> ~/.bashrc`, and likewise for zsh (~/.zshrc) and fish "
    "(~/.config/fish/completions/distdoctor.fish)."
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def run(shell: str) -> None:
    """Print what SHELL needs to complete commands, options, codes and records."""
    from distdoctor.cli import app

    kind = get_completion_class(shell)
    assert kind is not None
    print(kind(app, {}, "distdoctor", _VARIABLE).source())

"""A page that asks which of several jobs is to be watched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from distdoctor.report.plain_text import plain
from distdoctor.watching.watched import Watchable


class JobChoice(ModalScreen[int]):
    """The jobs that run now, the newest first.

    Args:
        choices: The jobs.
    """

    CSS = """
    JobChoice { background: $background; }
    #ask { height: auto; padding: 0 1; text-style: bold; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back"),
        Binding("q", "app.leave(0)", "Quit"),
        Binding("ctrl+c", "app.leave(130)", "Quit", show=False, priority=True),
    ]

    def __init__(self, choices: Sequence[Watchable]) -> None:
        super().__init__()
        self._choices = list(choices)

    def compose(self) -> ComposeResult:
        """The question, and the jobs."""
        ask = f"{len(self._choices)} jobs run now; enter watches one"
        yield Static(ask, id="ask", markup=False)
        yield OptionList(
            *(Option(Text(plain(one.title))) for one in self._choices),
            markup=False,
        )
        yield Footer(show_command_palette=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """One was chosen."""
        self.dismiss(event.option_index)

    def action_back(self) -> None:
        """Stay with the one that is watched."""
        self.dismiss()

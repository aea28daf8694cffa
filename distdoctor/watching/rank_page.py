"""A page over the screen that shows one rank: what it does, and its last calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import ScrollableContainer
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from distdoctor.report.plain_text import plain
from distdoctor.watching.snapshot import WatchedRank
from distdoctor.watching.snapshot_words import at, called, doing_words, memory, seconds


class RankPage(ModalScreen[None]):
    """One rank.

    Args:
        one: What is known of it.
        lines: Its last calls, or its stack.
    """

    CSS = """
    RankPage { background: $background; }
    #rank { height: auto; padding: 0 1; text-style: bold; }
    #calls { height: 1fr; padding: 0 1; border-top: solid $primary; }
    #calls-text { height: auto; width: auto; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "back", "Back"),
        Binding("ctrl+c", "app.leave(130)", "Quit", show=False, priority=True),
    ]

    def __init__(self, one: WatchedRank, lines: Sequence[str]) -> None:
        super().__init__()
        self._one, self._lines = one, list(lines)

    def compose(self) -> ComposeResult:
        """The rank above, its calls below."""
        yield Static(Text(_words(self._one)), id="rank", markup=False)
        text = "\n".join(map(plain, self._lines)) or "none of its calls is known"
        with ScrollableContainer(id="calls"):
            yield Static(Text(text, no_wrap=True), id="calls-text", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Show the newest call, which is the last line."""
        calls = self.query_one("#calls", ScrollableContainer)
        calls.focus()
        calls.scroll_end(animate=False)

    def action_back(self) -> None:
        """Go back to the table."""
        self.dismiss()


def _words(one: WatchedRank) -> str:
    parts = [f"rank {one.rank}", doing_words(one)]
    if one.since_s is not None:
        parts[-1] += f" for {seconds(one.since_s)}"
    if one.pid is not None:
        parts.append(f"process {one.pid}")
    if one.host:
        parts.append(plain(one.host))
    if one.memory_bytes is not None:
        parts.append(memory(one.memory_bytes))
    text = " · ".join(parts)
    if one.call is not None:
        where = f", {at(one.call)}" if at(one.call) else ""
        text += f"\nlast call: {called(one.call)}{where}"
        if one.call.function:
            text += f" in {plain(one.call.function)}"
    if one.detail:
        text += f"\n{plain(one.detail)}"
    return text

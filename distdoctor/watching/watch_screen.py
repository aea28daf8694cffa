"""The screen of `distdoctor watch`, on a terminal, by textual.

Looks are taken by a thread of their own, and the next one begins a while after the last
has ended: a large job, or a slow machine, is looked at more seldom. What a job names
itself is shown as text, never as markup.
"""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from distdoctor.errors import DistdoctorError
from distdoctor.report.plain_text import plain
from distdoctor.watching.folded_ranks import FEW_RANKS, RankRow, RowOrder, rows_of
from distdoctor.watching.job_choice import JobChoice
from distdoctor.watching.rank_page import RankPage
from distdoctor.watching.rank_table import GAP, table_of
from distdoctor.watching.snapshot import JobState, RankDoing, Snapshot
from distdoctor.watching.snapshot_words import has_steps, job_line, outcome
from distdoctor.watching.wait_tree import wait_lines
from distdoctor.watching.watched import Watchable

REST = 4.0
"""So many times as long as a look takes nothing is done behind it."""

MOST_ROWS = 200
"""Of the table."""

_MOST_WAITS = 7  # lines
_LEAVE_S = 1.0  # for a look that is under way when it is to end

_STYLES = {
    RankDoing.DIED: "bold red",
    RankDoing.REFUSED: "bold red",
    RankDoing.UNREADABLE: "red",
    RankDoing.WAITING: "yellow",
    RankDoing.IN_CALL: "yellow",
    RankDoing.BACKWARD: "yellow",
    RankDoing.STANDING: "bold yellow",
    RankDoing.STOPPED: "bold yellow",
    RankDoing.UNHEARD: "dim",
    RankDoing.ENDED: "dim",
}

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def show(choices: Sequence[Watchable]) -> int:
    """Show a job until the user quits; the exit status: 0, or 128 + n after a signal.

    Args:
        choices: Jobs, of which the first is shown; of several the user may choose.

    Raises:
        Exception: A bug of ours, which a look met.
    """
    app = WatchApp(choices)
    status = app.run(inline=False) or 0
    if app.bug is not None:
        raise app.bug
    if not app.has_rested(_LEAVE_S):
        # What it started for the look ends with it; nothing of ours stays behind.
        import psutil

        with suppress(psutil.Error):
            for child in psutil.Process().children():
                child.kill()
        os._exit(status)
    return status


class RankTable(DataTable[Text]):
    """The table of ranks, which says what enter is for."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Last calls"),
    ]


class WatchApp(App[int]):
    """The screen.

    Attributes:
        snapshot: The last look; None: there was none yet.
        bug: What a look raised that it should not; None: nothing.

    Args:
        choices: Jobs, of which the first is shown.
    """

    CSS = """
    #job { height: auto; text-style: bold; padding: 0 1; }
    #state { height: auto; max-height: 5; padding: 0 1; }
    #only { display: none; height: 1; border: none; padding: 0 1; }
    #ranks { height: 1fr; min-height: 4; margin: 0 1; overflow-x: hidden; }
    #waits { height: auto; max-height: 9; padding: 0 1; border-top: solid $primary; }
    #waits-text { height: auto; }
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "distdoctor watch"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave(0)", "Quit"),
        Binding("ctrl+c", "leave(130)", "Quit", show=False, priority=True),
        Binding("ctrl+q", "leave(0)", "Quit", show=False, priority=True),
        Binding("slash", "filter", "Filter"),
        Binding("s", "sort", "Sort"),
        Binding("f", "fold", "Fold"),
        Binding("p", "pause", "Pause"),
        Binding("j", "choose", "Jobs"),
        Binding("escape", "all", "All", show=False),
    ]

    def __init__(self, choices: Sequence[Watchable]) -> None:
        super().__init__()
        self._choices = list(choices)
        self._watched = self._choices[0]
        self.snapshot: Snapshot | None = None
        self.bug: Exception | None = None
        self._failure = ""
        self._order = RowOrder.ODD
        self._folded: bool | None = None  # None: as many ranks as there are say it
        self._only = ""
        self._paused = False
        self._rows: list[RankRow] = []  # as they are drawn
        self._shape: tuple[object, ...] = ()
        self._wanted = threading.Event()
        self._resting = threading.Event()
        self._ends = threading.Event()

    # --- looking ---

    def compose(self) -> ComposeResult:
        """The parts of the screen, from above."""
        yield Static("looking …", id="job", markup=False)
        yield Static("", id="state", markup=False)
        yield Input(placeholder="ranks (0-7,12), or a word", id="only", compact=True)
        yield RankTable(id="ranks", cursor_type="row", cell_padding=0)
        with VerticalScroll(id="waits", can_focus=False):
            yield Static("", id="waits-text", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to look, and to listen to signals."""
        self._main.query_one("#ranks").focus()
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            with suppress(RuntimeError, ValueError, NotImplementedError):
                loop.add_signal_handler(number, self._end, 128 + number)
        self.set_interval(1.0, self._require_terminal)
        threading.Thread(target=self._look_on, daemon=True).start()
        if len(self._choices) > 1:
            self.action_choose()

    def _require_terminal(self) -> None:
        """End where the terminal is gone, and no signal tells it."""
        if self.is_headless:
            return
        try:
            termios.tcgetattr(0)
        except termios.error:
            self._end(128 + signal.SIGHUP)

    def _end(self, status: int) -> None:
        self._ends.set()
        self._wanted.set()
        if status == 128 + signal.SIGHUP:
            # Nobody may be there to take what is still to be drawn.
            threading.Thread(target=_leave_anyhow, args=(status,), daemon=True).start()
        self.exit(status)

    def has_rested(self, seconds: float) -> bool:
        """Whether no look is under way, after so long a time at the most."""
        self._ends.set()
        self._wanted.set()
        return self._resting.wait(seconds)

    def _look_on(self) -> None:
        """Look again and again, until the end."""
        while not self._ends.is_set():
            self._resting.clear()
            begun = time.monotonic()
            watched, snapshot, failure = self._watched, None, ""
            if not self._paused:
                try:
                    snapshot = watched.look()
                except DistdoctorError as error:
                    failure = str(error)
                except Exception as error:  # noqa: BLE001 - raised where it is seen
                    self._tell(self._fail, error)
                    break
            took = time.monotonic() - begun
            self._resting.set()
            if not self._paused and watched is self._watched:
                self._tell(self._take, snapshot, failure)
            self._wanted.wait(max(watched.every_s, REST * took))
            self._wanted.clear()
        self._resting.set()

    def _tell(self, function: object, *values: object) -> None:
        """Call something in the thread of the screen, unless that is about to end."""
        with suppress(RuntimeError):
            self._loop_call(function, *values)

    def _loop_call(self, function: object, *values: object) -> None:
        if self._ends.is_set() or self._loop is None:
            return
        assert callable(function)
        self._loop.call_soon_threadsafe(self.call_later, function, *values)

    def _fail(self, error: Exception) -> None:
        self.bug = error
        self.exit(1)

    def _take(self, snapshot: Snapshot | None, failure: str) -> None:
        self._failure = failure
        if snapshot is not None:
            self.snapshot = snapshot
        self.draw()

    # --- drawing ---

    @property
    def _main(self) -> Screen[object]:
        """The screen below the pages that may lie over it."""
        return self.screen_stack[0]

    def draw(self) -> None:
        """Show the last look."""
        if self._ends.is_set() or not self.is_running:
            return
        with suppress(NoMatches):  # the screen is about to go
            self._show()

    def _show(self) -> None:
        snapshot = self.snapshot
        if snapshot is None:
            self._main.query_one("#state", Static).update(Text(plain(self._failure)))
            return
        head = job_line(snapshot) + (" · paused" if self._paused else "")
        self._main.query_one("#job", Static).update(Text(head, no_wrap=True))
        self._draw_ranks(snapshot)
        self._main.query_one("#state", Static).update(self._state(snapshot))
        self._draw_waits(snapshot)

    def _state(self, snapshot: Snapshot) -> Text:
        job = snapshot.job
        lines = []
        if words := outcome(snapshot):
            lines.append(Text(words, style="bold"))
        elif self._failure:
            lines.append(Text(plain(self._failure), style="bold"))
        elif job.folder and job.state is not JobState.REMOVED:
            lines.append(Text(f"record: {plain(job.folder)}"))
        lines += [Text(plain(remark)) for remark in snapshot.remarks]
        told = [self._order.value, "folded" if self._folds(snapshot) else "each rank"]
        if self._only:
            none = "" if self._rows else " (none matches)"
            told.append(f"only {plain(self._only)!r}{none}: escape shows all")
        told.append(
            f"a look takes {snapshot.look_s:.2f} s, one every "
            f"{max(snapshot.every_s, REST * snapshot.look_s):.1f} s"
        )
        lines.append(Text(" · ".join(told), style="dim"))
        return Text("\n").join(lines)

    def _folds(self, snapshot: Snapshot) -> bool:
        if self._folded is None:
            return len(snapshot.ranks) > FEW_RANKS
        return self._folded

    def _draw_ranks(self, snapshot: Snapshot) -> None:
        table = self._main.query_one("#ranks", RankTable)
        rows = rows_of(
            snapshot.ranks,
            folded=self._folds(snapshot),
            order=self._order,
            only=self._only,
        )
        chosen = self._chosen(table)
        self._rows = rows[:MOST_ROWS]
        bar = 2 if len(self._rows) >= table.size.height else 0
        width = max(40, table.size.width - bar - 1)
        head, *cells = table_of(
            self._rows,
            width,
            by_steps=has_steps(snapshot),
            of_record=bool(snapshot.job.folder),
        )
        gap = " " * GAP
        styled = [
            [
                Text(
                    gap.join((cell, "")) if n < len(head) - 1 else cell,
                    style=_STYLES.get(row.first.doing, ""),
                )
                for n, cell in enumerate(line)
            ]
            for row, line in zip(self._rows, cells, strict=True)
        ]
        if left := sum(len(row.ranks) for row in rows[MOST_ROWS:]):
            styled.append([Text(f"… {left} more"), *[Text("")] * (len(head) - 1)])
        shape = (*head, len(styled))
        if shape != self._shape:
            self._shape = shape
            table.clear(columns=True)
            for number, name in enumerate(head):
                table.add_column(Text(name + gap), key=str(number))
            for number, line in enumerate(styled):
                table.add_row(*line, key=str(number))
        else:
            for number, line in enumerate(styled):
                for column, cell in enumerate(line):
                    if table.get_cell(str(number), str(column)) != cell:
                        table.update_cell(str(number), str(column), cell)
        if chosen is not None:
            self._choose(table, chosen)

    def _chosen(self, table: RankTable) -> int | None:
        """The first rank of the row that the cursor is on."""
        if 0 <= table.cursor_row < len(self._rows):
            return self._rows[table.cursor_row].ranks[0]
        return None

    def _choose(self, table: RankTable, rank: int) -> None:
        """Keep the cursor on a rank, wherever its row is now."""
        for number, row in enumerate(self._rows):
            if rank in row.ranks:
                if table.cursor_row != number:
                    table.move_cursor(row=number, animate=False)
                return

    def _draw_waits(self, snapshot: Snapshot) -> None:
        lines = wait_lines(snapshot, _MOST_WAITS)
        if not lines:
            is_record = bool(snapshot.job.folder)
            is_open = snapshot.job.state is JobState.RUNNING
            lines = ["no rank waits for half a second"] if is_record and is_open else []
        text = Text("\n".join(lines), no_wrap=False)
        self._main.query_one("#waits-text", Static).update(text)
        self._main.query_one("#waits").display = bool(lines)

    def on_resize(self) -> None:
        """Fit the table to the new size."""
        self.call_after_refresh(self.draw)

    # --- keys ---

    def action_leave(self, status: int) -> None:
        """End."""
        self._end(status)

    def action_filter(self) -> None:
        """Ask for a filter."""
        only = self._main.query_one("#only", Input)
        only.display = True  # at once: what is typed next is for it
        self._main.set_focus(only)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter as it is typed."""
        self._only = event.value
        self.draw()

    def on_input_submitted(self) -> None:
        """Go back to the table, and keep the filter."""
        self._close_filter()

    def _close_filter(self) -> None:
        only = self._main.query_one("#only", Input)
        only.display = False
        self._main.set_focus(self._main.query_one("#ranks", RankTable))

    def action_all(self) -> None:
        """Show all ranks again."""
        self._main.query_one("#only", Input).value = ""
        self._only = ""
        self._close_filter()
        self.draw()

    def action_sort(self) -> None:
        """Sort by the next order."""
        orders = [*RowOrder]
        self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        self.draw()

    def action_fold(self) -> None:
        """Fold ranks alike, or unfold them."""
        if self.snapshot is not None:
            self._folded = not self._folds(self.snapshot)
            self.draw()

    def action_pause(self) -> None:
        """Stop looking, or go on."""
        self._paused = not self._paused
        self._wanted.set()
        self.draw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show what the first rank of a row has called last."""
        if self.snapshot is None or not 0 <= event.cursor_row < len(self._rows):
            return
        one = self._rows[event.cursor_row].first
        lines = self._watched.last_calls(one.rank)
        self.push_screen(RankPage(one, lines))

    def action_choose(self) -> None:
        """Choose one of several jobs."""
        if len(self._choices) > 1:
            self.push_screen(JobChoice(self._choices), self._watch)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Whether a key has a meaning now."""
        return action != "choose" or len(self._choices) > 1

    def _watch(self, number: int | None) -> None:
        if number is None or self._choices[number] is self._watched:
            return
        self._watched, self.snapshot = self._choices[number], None
        self._main.query_one("#job", Static).update(Text("looking …"))
        self._wanted.set()


def _leave_anyhow(status: int) -> None:
    time.sleep(3 * _LEAVE_S)
    os._exit(status)

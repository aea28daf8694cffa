"""The screen: what it shows, its keys, its size, and names that are hostile."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from unittest import mock

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from distdoctor.errors import LeavingsMissing
from distdoctor.watching.job_choice import JobChoice
from distdoctor.watching.rank_page import RankPage
from distdoctor.watching.snapshot import (
    JobState,
    RankDoing,
    Snapshot,
    WatchedCall,
    WatchedJob,
    WatchedRank,
    WatchedWait,
)
from distdoctor.watching.watch_screen import RankTable, WatchApp, show


def snapshot(ranks: int = 4, **call: object) -> Snapshot:
    told: dict[str, object] = {
        "op": "all_reduce",
        "group": "world",
        "ordinal": 9,
        "place": "train.py:88",
        **call,
    }
    what = WatchedCall(**told)  # type: ignore[arg-type]
    lines = [
        WatchedRank(
            rank=n,
            doing=RankDoing.OWN_CODE if n == 2 else RankDoing.WAITING,
            since_s=12.0,
            call=what,
            steps=40,
            steps_per_s=3.5,
            memory_bytes=300 << 20,
            pid=4000 + n,
            host="node-a",
        )
        for n in range(ranks)
    ]
    others = [n for n in range(ranks) if n != 2]
    return Snapshot(
        job=WatchedJob(
            name="train.py",
            state=JobState.RUNNING,
            by="check",
            folder="/r/2026",
            ranks=ranks,
            alive=ranks,
            elapsed_s=33.0,
            budget_s=120.0,
        ),
        ranks=lines,
        waits=[WatchedWait(ranks=others, call=what, on=[2], since_s=12.0)],
        every_s=0.05,
    )


class Job:
    """A job that is looked at, and stands still."""

    every_s = 0.05

    def __init__(self, seen: Snapshot | Exception, title: str = "a job") -> None:
        self.seen, self.title, self.looks = seen, title, 0

    def look(self) -> Snapshot:
        """Look once."""
        self.looks += 1
        if isinstance(self.seen, Exception):
            raise self.seen
        return self.seen

    def last_calls(self, rank: int) -> list[str]:
        """Made-up ones."""
        return [f"call {n} of rank {rank} [bold]" for n in range(50)]


Walk = Callable[[WatchApp, Pilot[int]], Awaitable[None]]


def shown(*jobs: Job, walk: Walk, size: tuple[int, int] = (80, 24)) -> WatchApp:
    """Show jobs, and walk through the screen."""
    app = WatchApp(jobs)

    async def play() -> None:
        async with app.run_test(size=size) as pilot:
            await settled(app, pilot)
            await walk(app, pilot)

    asyncio.run(play())
    assert app.has_rested(5)
    return app


async def settled(app: WatchApp, pilot: Pilot[int]) -> None:
    """Wait until something was looked at and drawn."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        await pilot.pause(0.05)
        if app.snapshot is not None and "Quit" in text_of(app):
            break
    await pilot.pause(0.1)


def text_of(app: WatchApp) -> str:
    """What stands on the screen, in lines."""
    lines = [
        "".join(segment.text for segment in strip)
        for strip in app.screen._compositor.render_strips()
    ]
    return "\n".join(line.rstrip() for line in lines)


def rows(app: WatchApp) -> list[list[str]]:
    table = app.query_one("#ranks", RankTable)
    return [
        [cell.plain.strip() for cell in table.get_row_at(n)]
        for n in range(table.row_count)
    ]


def test_all_of_it_fits_80_by_24() -> None:
    async def walk(app: WatchApp, _: Pilot[int]) -> None:
        lines = text_of(app).splitlines()
        assert len(lines) == 24
        assert lines[0] == " train.py · check · 4 of 4 ranks alive · 33 s of 120 s"
        assert "memory" in lines[3]
        assert lines[4].split()[:4] == ["2", "own", "code", "12"]
        assert lines[4].endswith("300 MiB")
        assert lines[-1].split()[:3] == ["⏎", "Last", "calls"]
        assert "q Quit" in lines[-1]
        assert any(line.startswith(" └─ ranks {0-1,3} wait") for line in lines)

    shown(Job(snapshot()), walk=walk)


@pytest.mark.parametrize("size", [(40, 10), (60, 16), (120, 40), (250, 60), (10, 3)])
def test_any_size_is_drawn(size: tuple[int, int]) -> None:
    async def walk(app: WatchApp, pilot: Pilot[int]) -> None:
        await pilot.resize_terminal(*size)
        await pilot.pause(0.2)
        assert len(text_of(app).splitlines()) == size[1]

    shown(Job(snapshot(40)), walk=walk)


def test_q_quits() -> None:
    async def walk(_: WatchApp, pilot: Pilot[int]) -> None:
        await pilot.press("q")

    assert shown(Job(snapshot()), walk=walk).return_value == 0


def test_ctrl_c_ends_it_as_a_signal_does() -> None:
    async def walk(_: WatchApp, pilot: Pilot[int]) -> None:
        await pilot.press("ctrl+c")

    assert shown(Job(snapshot()), walk=walk).return_value == 130


@pytest.mark.parametrize("page", [["enter"], ["slash"]])
def test_ctrl_c_ends_it_from_any_page(page: list[str]) -> None:
    async def walk(_: WatchApp, pilot: Pilot[int]) -> None:
        await pilot.press(*page)
        await pilot.pause(0.2)
        await pilot.press("ctrl+c")

    assert shown(Job(snapshot()), walk=walk).return_value == 130


def test_a_filter_narrows_while_it_is_typed_and_escape_shows_all() -> None:
    async def walk(app: WatchApp, pilot: Pilot[int]) -> None:
        await pilot.press("slash", "2")
        await pilot.pause(0.1)
        assert [row[0] for row in rows(app)] == ["2"]
        await pilot.press("enter")
        await pilot.pause(0.1)
        assert isinstance(app.focused, RankTable)
        assert "only '2'" in text_of(app)
        await pilot.press("escape")
        await pilot.pause(0.1)
        assert len(rows(app)) == 4

    shown(Job(snapshot()), walk=walk)


def test_a_filter_that_nothing_matches_says_so() -> None:
    async def walk(app: WatchApp, pilot: Pilot[int]) -> None:
        await pilot.press("slash", *"zz")
        await pilot.pause(0.1)
        assert rows(app) == []
        assert "none matches" in text_of(app)
        assert app.query_one("#only", Input).value == "zz"

    shown(Job(snapshot()), walk=walk)


def test_keys_sort_fold_and_pause() -> None:
    job = Job(snapshot())

    async def walk(app: WatchApp, pilot: Pilot[int]) -> None:
        await pilot.press("s")
        assert [row[0] for row in rows(app)] == ["0", "1", "2", "3"]
        assert "by rank" in text_of(app)
        await pilot.press("f")
        assert [row[0] for row in rows(app)] == ["0-1,3", "2"]
        await pilot.press("p")
        await pilot.pause(0.3)
        looks = job.looks
        await pilot.pause(0.5)
        assert job.looks == looks
        assert "paused" in text_of(app)
        await pilot.press("p")
        await pilot.pause(0.5)
        assert job.looks > looks

    shown(job, walk=walk)


def test_many_ranks_are_folded() -> None:
    async def walk(app: WatchApp, pilot: Pilot[int]) -> None:
        assert [row[0] for row in rows(app)] == ["2", "0-1,3-1023"]
        await pilot.press("f")
        await pilot.pause(0.2)
        assert len(rows(app)) == 201
        assert rows(app)[-1][0] == "… 824 more"

    shown(Job(snapshot(1024)), walk=walk)


def test_enter_shows_the_last_calls_of_the_rank_under_the_cursor() -> None:
    async def walk(app: WatchApp, pilot: Pilot[int]) -> None:
        await pilot.press("down", "enter")
        await pilot.pause(0.2)
        assert isinstance(app.screen, RankPage)
        text = text_of(app)
        assert text.splitlines()[0].startswith(" rank 0 · waiting for 12 s · process")
        assert "call 49 of rank 0 [bold]" in text
        await pilot.press("escape")
        await pilot.pause(0.1)
        assert not isinstance(app.screen, RankPage)

    shown(Job(snapshot()), walk=walk)


def test_the_cursor_stays_on_its_rank() -> None:
    job = Job(snapshot())

    async def walk(app: WatchApp, pilot: Pilot[int]) -> None:
        await pilot.press("down", "down")
        table = app.query_one("#ranks", RankTable)
        assert rows(app)[table.cursor_row][0] == "1"
        await pilot.press("s")
        await pilot.pause(0.1)
        assert rows(app)[table.cursor_row][0] == "1"

    shown(job, walk=walk)


def test_of_several_jobs_one_is_chosen() -> None:
    other = Job(snapshot(2), "other [red] \x1b[31m job")

    async def walk(app: WatchApp, pilot: Pilot[int]) -> None:
        assert isinstance(app.screen, JobChoice)
        assert app.screen.query_one(OptionList).option_count == 2
        assert "other [red] \\x1b[31m job" in text_of(app)
        await pilot.press("down", "enter")
        await pilot.pause(0.5)
        assert len(rows(app)) == 2
        await pilot.press("j")
        await pilot.pause(0.1)
        assert isinstance(app.screen, JobChoice)
        await pilot.press("escape")

    shown(Job(snapshot()), other, walk=walk)


def test_a_job_that_is_gone_is_told_and_the_last_look_stays() -> None:
    job = Job(snapshot())

    async def walk(app: WatchApp, pilot: Pilot[int]) -> None:
        job.seen = LeavingsMissing("it has [red]ended\x1b[0m")
        await pilot.pause(0.6)
        assert "it has [red]ended\\x1b[0m" in text_of(app)
        assert len(rows(app)) == 4

    shown(job, walk=walk)


def test_a_bug_of_ours_is_not_hidden() -> None:
    job = Job(snapshot())

    async def walk(_: WatchApp, pilot: Pilot[int]) -> None:
        job.seen = ZeroDivisionError("a bug")
        await pilot.pause(1.0)

    app = shown(job, walk=walk)
    assert isinstance(app.bug, ZeroDivisionError)
    with (
        mock.patch.object(
            WatchApp, "run", lambda self, **_: setattr(self, "bug", KeyError())
        ),
        pytest.raises(KeyError),
    ):
        show([job])


def test_the_verdict_is_shown_when_the_job_is_over() -> None:
    job = Job(snapshot())

    async def walk(app: WatchApp, pilot: Pilot[int]) -> None:
        assert isinstance(job.seen, Snapshot)
        over = msgspec.structs.replace(
            job.seen.job, state=JobState.OVER, stopped="deadlock", verdict="sick"
        )
        job.seen = msgspec.structs.replace(job.seen, job=over)
        await pilot.pause(0.6)
        text = " ".join(text_of(app).split())
        assert "a deadlock is proved · verdict: sick" in text
        assert "distdoctor examine /r/2026" in text

    shown(job, walk=walk)


HOSTILE = "\x1b]0;x\x07[red]a[/red][link=http://e.vil]b[/link]\u202e[@click=app.quit]c"


def test_what_a_job_names_is_text_and_no_markup() -> None:
    hostile = snapshot(3, op=HOSTILE, group=HOSTILE, place=f"{HOSTILE}:3")
    job = msgspec.structs.replace(hostile.job, name=HOSTILE, folder=HOSTILE)
    seen = msgspec.structs.replace(hostile, job=job, remarks=[HOSTILE])

    async def walk(app: WatchApp, pilot: Pilot[int]) -> None:
        text = text_of(app)
        assert "[red]a[/red]" in text.splitlines()[0]
        assert not any(c in text for c in "\x1b\x07\u202e")
        for widget in app.query(Static):
            assert "link" not in str(getattr(widget.visual, "style", ""))
        svg = app.export_screenshot()
        assert "href" not in svg
        await pilot.press("enter")
        await pilot.pause(0.2)
        assert not any(c in text_of(app) for c in "\x1b\x07\u202e")

    shown(Job(seen), walk=walk, size=(200, 30))

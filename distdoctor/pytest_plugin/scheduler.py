"""Runs the tests marked for ranks in one pytest process, one after the other."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distdoctor.errors import SlotsTaken
from distdoctor.model.stop_reasons import Stop
from distdoctor.pytest_plugin.forking import RanksNotStarted, Zygote
from distdoctor.pytest_plugin.horovod_ranks import Rendezvous
from distdoctor.pytest_plugin.merging import merge
from distdoctor.pytest_plugin.outcome import Outcome
from distdoctor.pytest_plugin.pool import Pool, RankProcess
from distdoctor.pytest_plugin.rank_orders import (
    REPORT,
    MarkerWrong,
    Order,
    Setup,
    Wanted,
    wanted_by,
)
from distdoctor.pytest_plugin.ranked_run import RankedRun
from distdoctor.pytest_plugin.session_report import give
from distdoctor.pytest_plugin.slots import Gpus, slots_of
from distdoctor.pytest_plugin.wire import NotPicklable, pickled

_RECORDS = "distdoctor-records"
_SCRATCH = "distdoctor-tmp"

_NOT_LOADED = (
    *("terminal", "timeout", "rerunfailures", "pytest_cov"),
    "hypothesispytest",  # its engine runs in the pytest that asked
)
"""Plugins for a whole session: of these there is one, in the pytest that asked."""

_CHANGED: dict[str, Any] = {
    **dict.fromkeys(("lf", "failedfirst", "newfirst", "stepwise", "stepwise_skip")),
    **dict.fromkeys(("usepdb", "trace", "cacheclear", "collectonly", "looponfail")),
    **dict.fromkeys(("setuponly", "setupshow", "setupplan", "distload", "pyargs")),
    **dict.fromkeys(("xmlpath", "log_file", "numprocesses", "maxprocesses")),
    **dict.fromkeys(("cacheshow", "debug", "durations", "pastebin", "report_log")),
    REPORT: None,
    "maxfail": 0,
    "keyword": "",
    "markexpr": "",
    "deselect": [],
    "dist": "no",
    "tx": [],
    "px": [],
}
"""Options that mean the session, and what they are in a rank's."""


class Scheduler:
    """Owns the zygote, pools and slots of one pytest process, and runs its tests.

    Args:
        config: pytest's configuration.
        largest: The most ranks that a test of the session asks for.
    """

    def __init__(self, config: pytest.Config, largest: int) -> None:
        self._config = config
        self._slots, self._gpus = slots_of(config, largest), Gpus()
        self._zygote: Zygote | None = None
        self._pool: Pool | None = None
        self._pools = self._tests = 0
        self._broken = ""
        self._rendezvous: Rendezvous | None = None
        self._without_horovod: str | None = None  # why; empty: it is there

    def run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        """Run a test on its ranks, and report it as pytest does."""
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        leave = None
        try:
            wanted = wanted_by(item)
        except MarkerWrong as error:
            outcome, timeout_s = Outcome(refused=str(error)), 0.0
        else:
            outcome, timeout_s = self._play(item, following, wanted), wanted.timeout_s
            leave = outcome.leave
        reports = merge(item, outcome, timeout_s)
        verdict = _verdict(reports)
        if outcome.record is not None and verdict != "failed":
            shutil.rmtree(outcome.record, ignore_errors=True)
        if outcome.judgement is not None and self._config.getoption(REPORT):
            give(reports[0], [outcome.judgement.report])
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if leave is not None:
            pytest.exit(leave)

    def close(self) -> None:
        """End all processes and remove what they left."""
        self._close_rendezvous()
        if self._zygote is None:
            return
        if self._pool is not None:
            self._pool.finish()
        self._discard()
        self._zygote.close()
        self._zygote = None

    # --- one test ---

    def _play(
        self, item: pytest.Item, following: pytest.Item | None, wanted: Wanted
    ) -> Outcome:
        if wanted.device == "cuda" and wanted.ranks > len(self._gpus.names):
            return Outcome(unable=self._too_few_gpus(wanted.ranks))
        if wanted.launcher == "horovod" and (why := self._horovod_problem()):
            return Outcome(refused=why)
        try:
            self._slots.acquire(1 if wanted.lane == "fake" else wanted.ranks)
            if wanted.device == "cuda":
                leased = self._gpus.lease(wanted.ranks)
                wanted = replace(wanted, gpus=tuple(leased))
            if is_property(item):
                return self._property(item, wanted)
            processes = self._processes(wanted)
        except (RanksNotStarted, SlotsTaken) as error:
            self._discard()
            return Outcome(refused=str(error))
        except BaseException:
            self._discard()
            raise
        else:
            return self._play_on(processes, item, following, wanted)
        finally:
            self._gpus.release()
            self._slots.release()

    def _horovod_problem(self) -> str:
        """Why tests cannot run on ranks of Horovod; empty: they can."""
        if self._without_horovod is None:
            # It may import Horovod in a process of its own, once in a session.
            from distdoctor.launch.horovod_installation import Framework
            from distdoctor.launch.horovodrun import horovod_problem

            self._without_horovod = horovod_problem(Framework.TORCH)
        return self._without_horovod

    def _too_few_gpus(self, ranks: int) -> str:
        return f"the test wants {ranks} GPUs, and there are {len(self._gpus.names)}"

    def _play_on(
        self,
        processes: Sequence[RankProcess],
        item: pytest.Item,
        following: pytest.Item | None,
        wanted: Wanted,
    ) -> Outcome:
        play = self._new_play(processes, item, following, wanted)
        with self._ending(play, wanted):
            play.run()
        return play.outcome

    def _property(self, item: pytest.Item, wanted: Wanted) -> Outcome:
        """A test whose arguments hypothesis draws."""
        from distdoctor.pytest_plugin.properties import RankedProperty

        def begin() -> RankedRun:
            play = self._new_play(
                self._processes(wanted), item, None, wanted, examples=True
            )
            play.run()
            return play

        def end(play: RankedRun) -> None:
            with self._ending(play, wanted):
                if play.is_ready and not play.outcome.stopped:
                    play.finish()

        found = RankedProperty(item, begin, end, wanted.timeout_s)
        outcome = found.run()
        outcome.falsifying = found.falsifying
        return outcome

    def _new_play(
        self,
        processes: Sequence[RankProcess],
        item: pytest.Item,
        following: pytest.Item | None,
        wanted: Wanted,
        *,
        examples: bool = False,
    ) -> RankedRun:
        assert self._zygote is not None
        self._tests += 1
        name = f"{self._tests}-{_safe(item.name)}"
        folder = self._zygote.folder / f"test-{self._tests}"
        self._close_rendezvous()
        if wanted.launcher == "horovod":
            self._rendezvous = Rendezvous(wanted.ranks)
        order = Order(
            number=self._tests,
            nodeid=item.nodeid,
            path=str(item.path),
            following=self._following(following, wanted),
            ranks=(),
            wanted=wanted,
            folder=folder if wanted.watch else None,
            examples=examples,
            scratch=self._base() / _SCRATCH / name,
            rendezvous=self._rendezvous.port if self._rendezvous is not None else 0,
        )
        return RankedRun(order, processes, self._zygote, self._config)

    @contextmanager
    def _ending(self, play: RankedRun, wanted: Wanted) -> Iterator[None]:
        """See to the ranks when a test is over, however that came, and judge it."""
        done = False
        try:
            yield
            done = True
        except pytest.fail.Exception as error:  # as of a plugin for timeouts
            play.outcome.remark, play.outcome.stopped = str(error), Stop.TIMEOUT
            done = True
        finally:
            if done and play.outcome.is_bad:
                play.look()
            spent = play.outcome.is_bad and not play.is_intact
            if not done or spent or wanted.lane == "fresh":
                self._discard()
            else:
                self._leave(play.processes)
            self._close_rendezvous()
        play.judge(self._base() / _RECORDS / play.name)
        self._warn(play)

    def _close_rendezvous(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    def _leave(self, processes: Sequence[RankProcess]) -> None:
        for process in processes:
            with suppress(OSError):
                process.wire.send(("leave",))

    def _following(
        self, item: pytest.Item | None, wanted: Wanted
    ) -> tuple[str, str] | None:
        """The next test, if this one's fixtures may live on for it.

        They may when it runs on the same ranks in the same way: a fixture that
        communicates would else be torn down by some of those that set it up.
        """
        if item is None or item.get_closest_marker("ranks") is None:
            return None
        try:
            theirs = wanted_by(item)
        except MarkerWrong:
            return None
        if _shape(wanted) != _shape(theirs) or wanted.lane != "pool":
            return None
        return str(item.path), item.nodeid

    def _warn(self, play: RankedRun) -> None:
        seen = set()
        for warning, when, nodeid, location in play.warnings:
            key = (str(warning.message), warning.filename, warning.lineno)
            if key not in seen:
                seen.add(key)
                self._config.hook.pytest_warning_recorded.call_historic(
                    kwargs={
                        "warning_message": warning,
                        "when": when,
                        "nodeid": nodeid,
                        "location": location,
                    }
                )

    # --- processes ---

    def _processes(self, wanted: Wanted) -> Sequence[RankProcess]:
        """Who plays: the ranks of the pool, or new ones.

        Raises:
            RanksNotStarted: They cannot be had.
        """
        if self._zygote is not None and self._zygote.gone:
            self._discard()
            self._zygote.close()
            self._zygote = None
        if self._broken:
            raise RanksNotStarted(self._broken)
        if self._zygote is None:
            capture = self._config.getoption("capture", "fd") != "no"
            directory = self._config.invocation_params.dir
            try:
                self._zygote = Zygote(directory, capture=capture)
            except RanksNotStarted as error:
                self._broken = str(error)  # the next test would find it no better
                raise
        if wanted.lane == "fresh" and self._pool is not None:
            self._discard()
        if self._pool is None:
            self._pools += 1
            self._pool = Pool(self._zygote, self._pools, self._setup)
        count = 1 if wanted.lane == "fake" else wanted.ranks
        self._pool.grow(count)
        return self._pool.processes[:count]

    def _discard(self) -> None:
        if self._zygote is not None:
            self._zygote.end_ranks()
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _setup(self, name: str, port: int, log: str) -> Setup:
        config = self._config
        given = vars(config.option).copy()
        given.pop("file_or_dir", None)  # its own argument
        options = {
            **{name: option for name, option in given.items() if _fits(option)},
            **{name: option for name, option in _CHANGED.items() if name in given},
            "basetemp": str(self._base() / f"ranks-{name}"),
            "rootdir": str(config.rootpath),
            "inifilename": str(config.inipath) if config.inipath else None,
            "plugins": list(config.option.plugins),
        }
        captured = config.getoption("capture", "fd") != "no"
        arguments = [part for name in _NOT_LOADED for part in ("-p", f"no:{name}")]
        return Setup(
            options=options,
            arguments=[*arguments, str(config.rootpath)],
            sys_path=list(sys.path),
            directory=str(config.invocation_params.dir),
            log=log if captured else "",
            port=port,
            debug=bool(given.get("usepdb")),
        )

    def _base(self) -> Path:
        factory = self._config._tmp_path_factory  # type: ignore[attr-defined]
        base: Path = factory.getbasetemp()
        return base


def _shape(wanted: Wanted) -> tuple[object, ...]:
    """In what the ranks of two tests must agree to be the same."""
    place = (wanted.ranks, wanted.backend, wanted.device)
    return (*place, wanted.lane, wanted.launcher)


def is_property(item: pytest.Item) -> bool:
    """Whether a test is a hypothesis test."""
    return bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))


def _verdict(reports: Sequence[Any]) -> str:
    outcomes = [report.outcome for report in reports]
    return next((o for o in ("failed", "skipped") if o in outcomes), "passed")


def _safe(name: str) -> str:
    return re.sub(r"\W+", "-", name)[:60]


def _fits(value: Any) -> bool:
    """Whether an option's value can be sent to another process."""
    try:
        pickled(value)
    except NotPicklable:
        return False
    return True

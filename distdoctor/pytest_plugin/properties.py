"""Runs hypothesis tests on ranks: the engine in pytest, the test bodies on ranks.

Each example is drawn once, here, and sent to all ranks, so that all of them try the
same, and a failure replays. An example that fails, kills a rank or hangs is a failure
for the engine, which goes on to shrink it; after a failure the ranks begin anew.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import UnsatisfiedAssumption

from distdoctor.model.stop_reasons import Stop
from distdoctor.pytest_plugin.forking import RanksNotStarted
from distdoctor.pytest_plugin.outcome import Outcome
from distdoctor.pytest_plugin.ranked_run import RankedRun
from distdoctor.pytest_plugin.wire import NotPicklable, pickled

_UNBEARABLE = (
    HealthCheck.too_slow,
    HealthCheck.differing_executors,
    HealthCheck.function_scoped_fixture,
)
"""Health checks that ranks would fail for reasons that are not the test's."""


_SHRINK_S = 30.0  # a hang costs new ranks, and shrinking takes many


class ExampleFailed(AssertionError):
    """An example failed on ranks."""


class _EngineLeft(BaseException):
    """An exception that hypothesis does not treat as a failing example."""


class _FromRanks:
    """Placeholder in pytest for a fixture's value, which exists on the ranks."""

    def __repr__(self) -> str:
        return "..."


class RankedProperty:
    """A test on ranks whose examples hypothesis draws.

    Args:
        item: The test.
        begin: Starts ranks, up to where they wait for the first example.
        end: Ends those ranks, by force if they cannot be reused.
        timeout_s: For all examples together.

    Attributes:
        outcome: Outcome of the last failed example; of all, if none failed.
        falsifying: The example that fails, as hypothesis tells it; "" if none does.
    """

    def __init__(
        self,
        item: pytest.Item,
        begin: Callable[[], RankedRun],
        end: Callable[[RankedRun], None],
        timeout_s: float,
    ) -> None:
        self._item, self._begin, self._end = item, begin, end
        self._until = time.monotonic() + timeout_s
        self._play: RankedRun | None = None
        self._failing = ""
        self.outcome = Outcome()
        self.falsifying = ""

    def run(self) -> Outcome:
        """Run examples until hypothesis has had enough."""
        try:
            if why := self._refusal():
                return Outcome(refused=why)
            self._search()
        except ExampleFailed as error:
            self.falsifying = "\n".join(getattr(error, "__notes__", ()))
        except _EngineLeft as error:
            if error.args:
                return Outcome(refused=str(error))
        except Exception as error:  # noqa: BLE001 - hypothesis's own: unsatisfiable, flaky
            self._conclude()
            why = "\n".join([repr(error), *getattr(error, "__notes__", ())])
            return Outcome(refused=why, phase_reports=self.outcome.phase_reports)
        finally:
            self._conclude()
        return self.outcome

    def _refusal(self) -> str:
        if not isinstance(self._item, pytest.Function) or hasattr(
            self._item.cls, "assertEqual"
        ):
            return "@given on ranks needs a function or a plain class, not a TestCase"
        return ""

    def _search(self) -> None:
        test: Any = self._item.obj  # type: ignore[attr-defined]
        function = getattr(test, "__func__", test)
        handle, inner = test.hypothesis, test.hypothesis.inner_test
        given = function._hypothesis_internal_use_settings
        names = self._item._fixtureinfo.argnames  # type: ignore[attr-defined]
        fixtures = dict.fromkeys(names, _FromRanks())

        @functools.wraps(inner)
        def on_ranks(*_self: Any, **kwargs: Any) -> None:
            here = getattr(test, "__self__", None)  # each rank has one of its own
            drawn = {k: v for k, v in kwargs.items() if k not in fixtures}
            self._try({k: v for k, v in drawn.items() if v is not here or here is None})

        on_ranks._hypothesis_internal_add_digest = self._item.nodeid.encode()  # type: ignore[attr-defined]
        function._hypothesis_internal_use_settings = settings(
            given,
            deadline=None,
            suppress_health_check={*given.suppress_health_check, *_UNBEARABLE},
            # To explain, hypothesis traces lines here, where none are run.
            phases=[phase for phase in given.phases if phase is not Phase.explain],
        )
        handle.inner_test = on_ranks
        try:
            test(**fixtures)
        finally:
            handle.inner_test = inner
            function._hypothesis_internal_use_settings = given

    def _try(self, drawn: dict[str, Any]) -> None:
        """One example on all ranks."""
        if time.monotonic() > self._until and self._failing:
            # Each candidate is simpler than the last that failed: that one stands.
            self.falsifying = f"{self._failing}\n(not shrunk further: that took long)"
            raise _EngineLeft
        data = _packed(drawn)
        if self._play is None:
            try:
                self._play = self._begin()
            except RanksNotStarted as error:
                raise _EngineLeft(str(error)) from None
        play = self._play
        if play.is_ready:
            play.example(data)
        if play.rejected:
            raise UnsatisfiedAssumption
        if not self._failing or play.outcome.is_bad:
            self.outcome = play.outcome
        if not play.is_ready or play.outcome.is_bad:
            self._conclude()
            if not self._failing:
                self._until = min(self._until, time.monotonic() + _SHRINK_S)
            arguments = ", ".join(f"{name}={value!r}" for name, value in drawn.items())
            self._failing = f"Falsifying example: {self._item.name}({arguments})"
            if self.outcome.stopped == Stop.TIMEOUT or not self._was_tried():
                self.falsifying = self._failing
                raise _EngineLeft
            raise ExampleFailed(_failure_line(self.outcome))

    def _was_tried(self) -> bool:
        """Whether the ranks came as far as the example: their set-up was well."""
        setups = [
            phase_report.data["outcome"] == "passed"
            for reports in self.outcome.phase_reports.values()
            for phase_report in reports
            if phase_report.data["when"] == "setup"
        ]
        return bool(setups) and all(setups)

    def _conclude(self) -> None:
        if self._play is not None:
            play, self._play = self._play, None
            self._end(play)


def _packed(drawn: dict[str, Any]) -> bytes:
    for name, value in drawn.items():
        if type(value).__name__ == "DataObject":
            raise _EngineLeft(
                f"{name}=data() draws while the test runs, which ranks cannot do "
                "together: draw all arguments by @given"
            )
    try:
        return pickled(drawn)
    except NotPicklable as error:
        raise _EngineLeft(
            "an example cannot be sent to the ranks, because it cannot be pickled: "
            f"{error}"
        ) from None


def _failure_line(outcome: Outcome) -> str:
    """In one line, the same for one fault: the engine compares failures."""
    failed = [
        f"rank {rank}"
        for rank, reports in sorted(outcome.phase_reports.items())
        if any(phase_report.data["outcome"] == "failed" for phase_report in reports)
    ]
    return f"failed on {', '.join(failed) or 'ranks'} {outcome.stopped}".strip()

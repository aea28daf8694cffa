"""Tracebacks of a job: without distdoctor's own lines."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from distdoctor.probes import call_sites
from distdoctor.probes.failures import tracebacks

WALK = "_walk_tb_with_full_positions"
OURS = str(Path(call_sites.__file__).with_name("boot.py"))


def living_in(file: str, inner: Callable[[], Any]) -> Callable[[], Any]:
    """A function of that file which calls another one."""
    names: dict[str, Any] = {"inner": inner}
    exec(compile("def call():\n    return inner()\n", file, "exec"), names)
    call: Callable[[], Any] = names["call"]
    return call


def fails() -> None:
    raise KeyError("weights")


def raised(chain: Callable[[], Any]) -> BaseException:
    try:
        chain()
    except KeyError as error:
        return error
    raise AssertionError


@pytest.fixture
def printing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    # As it was, and not loaded anew: pytest holds functions of this very module.
    monkeypatch.setattr(traceback, WALK, getattr(traceback, WALK))
    tracebacks.watch_printing(traceback)
    return traceback


THROUGH_US = living_in(OURS, living_in("/job/train.py", living_in(OURS, fails)))


def files(error: BaseException) -> list[str]:
    return [one.filename for one in traceback.extract_tb(error.__traceback__)]


def test_an_uncaught_exception_shows_no_line_of_ours() -> None:
    error = raised(THROUGH_US)
    assert OURS in files(error)
    tracebacks.clean(error)
    assert files(error) == [__file__, "/job/train.py", __file__]


def test_the_exception_that_led_to_it_shows_none_either() -> None:
    cause = raised(THROUGH_US)
    error = ValueError("no model")
    error.__cause__ = cause
    cause.__context__ = error  # a circle ends, too
    tracebacks.clean(error)
    assert OURS not in files(cause)


def test_what_the_job_prints_of_an_exception_shows_none(
    printing: ModuleType,
) -> None:
    output = "".join(printing.format_exception(raised(THROUGH_US)))
    assert OURS not in output
    assert "/job/train.py" in output
    assert "KeyError: 'weights'" in output


def test_an_exception_all_of_whose_lines_are_ours_stays_as_it_is(
    printing: ModuleType,
) -> None:
    error = raised(living_in(OURS, fails))
    lone = error.__traceback__
    assert lone is not None
    own = lone.tb_next
    assert own is not None
    own.tb_next = None
    assert tracebacks.without_own(own) is own
    error.__traceback__ = own
    assert OURS in "".join(printing.format_exception(error))


def test_python_has_the_function_that_is_replaced() -> None:
    assert hasattr(traceback, WALK), sys.version

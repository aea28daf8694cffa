"""Handlers in which no probe sees anything tell what they catch."""

import importlib.util
import marshal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from distdoctor.probes.failures import handled_exceptions, handler_marks
from distdoctor.probes.recorder import RECORDER

SOURCE = '''
import functools


def plain(value):
    """Skip what is zero."""
    found = []
    for one in value:
        try:
            found.append(1 / one)
        except ZeroDivisionError:
            continue
    return found


class Reader:
    @staticmethod
    def read(text):
        try:
            return int(text)
        except ValueError:
            return -1


def untouched(value):
    return value


def halved(value):
    try:
        if len(value) > 2:
            raise ValueError("long")
        return value
    except ValueError:
        return value / 2


asked = []


class Lazy:
    def __getattr__(self, name):
        asked.append(name)
        raise AttributeError(name)


lazy = Lazy()
'''


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's that is there before the rank joins."""
    file = tmp_path / "program_of_user.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("program_of_user", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "program_of_user", module)
    spec.loader.exec_module(module)
    files = [(module, str(file))]  # and not those of all other tests
    monkeypatch.setattr(handler_marks, "_users_modules", lambda: files)
    return module


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is noted: the kind of the exception, and the line of the `try`."""
    seen: list[tuple[str, str]] = []

    def failure(error: BaseException, _trace: object, fatal: bool, caught: str) -> None:
        assert not fatal
        seen.append((type(error).__name__, caught))

    monkeypatch.setattr(RECORDER, "failure", failure)
    monkeypatch.setattr(RECORDER, "writer", object())
    monkeypatch.setattr(handled_exceptions, "_reported", set())
    return seen


def test_what_is_swallowed_is_told_once(
    program: ModuleType, noted: list[tuple[str, str]]
) -> None:
    before = program.untouched.__code__
    handler_marks.install()
    assert program.plain([1, 0, 2, 0]) == [1.0, 0.5]
    assert program.Reader.read("x") == -1
    assert [kind for kind, _ in noted] == ["ZeroDivisionError", "ValueError"]
    assert program.untouched.__code__ is before
    assert program.plain.__doc__ == "Skip what is zero."


def test_a_file_that_was_changed_meanwhile_is_left_alone(
    program: ModuleType, noted: list[tuple[str, str]]
) -> None:
    assert program.__file__ is not None
    Path(program.__file__).write_text(SOURCE.replace("1 / one", "2 / one"))
    before = program.plain.__code__
    handler_marks.install()
    assert program.plain.__code__ is before
    assert program.plain([0]) == []
    assert noted == []


def test_where_nobody_looks_it_is_an_import(
    program: ModuleType, noted: list[tuple[str, str]]
) -> None:
    handler_marks.install()
    elsewhere = (
        "import sys, types, marshal\n"
        "code = marshal.loads(sys.stdin.buffer.read())\n"
        "print(types.FunctionType(code, {})([1, 0]))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", elsewhere],
        input=marshal.dumps(program.plain.__code__),
        capture_output=True,
        check=True,
    )
    assert done.stdout.strip() == b"[1.0]"
    assert noted == []


def test_what_looks_can_be_compiled_whole(
    program: ModuleType, noted: list[tuple[str, str]]
) -> None:
    handler_marks.install()
    whole: Any = torch.compile(program.halved, backend="eager", fullgraph=True)
    assert whole(torch.ones(3)).tolist() == [0.5] * 3
    assert whole(torch.ones(2)).tolist() == [1.0] * 2
    assert noted == []  # nothing is handled while it runs


def test_objects_of_the_user_are_not_asked(
    program: ModuleType, noted: list[tuple[str, str]]
) -> None:
    handler_marks.install()
    assert program.asked == []
    assert noted == []


def test_the_program_itself_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # multiprocessing may have given the program of this pytest a second name.
    monkeypatch.delitem(sys.modules, "__mp_main__", raising=False)
    main = sys.modules["__main__"]
    found = [module for module, _ in handler_marks._users_modules()]
    assert main not in found or found[0] is main
    assert sys.modules[__name__] in found

"""Building and keeping wheels, with programs of ours in the place of pip."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from command_box import Box

from distdoctor.errors import HorovodUnavailable
from distdoctor.horovod_build import wheel_compilation
from distdoctor.horovod_build.build_target import BuildTarget
from distdoctor.horovod_build.horovod_wheel import get_wheel, install_wheel
from distdoctor.horovod_build.wheel_cache import (
    CACHE_VARIABLE,
    WheelSlot,
    default_cache,
)
from distdoctor.launch.horovod_installation import Framework

# Answers as a Python does that is asked for its torch, and installs and builds.
PYTHON = """#!{python}
import json, os, pathlib, sys, subprocess, time, zipfile
arguments = sys.argv[1:]
if "pip" not in arguments:
    facts = dict(python="3.11", machine="x86_64", headers={headers!r}, pip=True)
    print("FACTS" + json.dumps(facts | dict(framework="2.13.0", wheel="")))
elif "--wheel-dir" in arguments:
    with open({folder!r} + "/builds", "a") as builds:
        builds.write("a build\\n")
    print("Building wheel for horovod")
    sys.stdout.flush()
    into = pathlib.Path(arguments[arguments.index("--wheel-dir") + 1])
    into.mkdir()
    {act}
    with zipfile.ZipFile(into / "horovod-0.28.1-cp311-cp311-linux.whl", "w") as file:
        file.writestr("a", os.environ["MAKEFLAGS"])
"""


def fake_python(folder: Path, act: str = "") -> str:
    """A program that seems to be a Python which builds Horovod.

    Args:
        folder: Where to put it; the file `builds` there has a line for each build.
        act: What it does in the midst of building.
    """
    (folder / "include").mkdir(exist_ok=True)
    (folder / "include" / "Python.h").touch()
    path = folder / "python"
    headers = str(folder / "include")
    path.write_text(
        PYTHON.format(
            python=sys.executable, folder=str(folder), headers=headers, act=act
        )
    )
    path.chmod(0o755)
    return str(path)


def quiet(_line: str) -> None:
    """Tells nobody of the progress."""


def target_of(folder: Path, act: str = "", *, mpi: bool = False) -> BuildTarget:
    return BuildTarget(
        python=fake_python(folder, act),
        python_version="3.11",
        machine="x86_64",
        headers=str(folder / "include"),
        framework=Framework.TORCH,
        framework_version="2.13.0",
        mpi=mpi,
        settings={},
    )


@pytest.fixture(autouse=True)
def compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, the first on PATH, with what seems to be compilers."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("g++", "make", "cmake", "mpicxx"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.delenv("CXX", raising=False)
    return folder


def test_a_wheel_is_built_once(tmp_path: Path) -> None:
    target, told = target_of(tmp_path), list[str]()
    cache = tmp_path / "cache"
    wheel = get_wheel(target, cache, 3, told.append)
    assert wheel.parent == cache / target.slot
    assert zipfile.ZipFile(wheel).read("a") == b"-j3"
    assert len(told) == 1
    assert str(wheel.parent / "build.log") in told[0]
    Path(target.python).unlink()
    assert get_wheel(target, cache, 3, told.append) == wheel
    assert len(told) == 1


def test_a_wheel_is_built_again_if_that_is_wanted(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    for _ in range(2):
        get_wheel(target, tmp_path / "cache", 1, quiet, rebuild=True)
    assert (tmp_path / "builds").read_text().count("\n") == 2


def test_a_torn_wheel_is_none(tmp_path: Path) -> None:
    slot = WheelSlot(tmp_path, "kind")
    (slot.folder / "horovod-0.28.1-torn.whl").write_text("PK half")
    assert slot.wheel() is None


def test_two_who_build_at_a_time_build_once(tmp_path: Path) -> None:
    target, told = target_of(tmp_path, "time.sleep(0.5)"), list[str]()
    wheels = list[Path]()

    def build() -> None:
        wheels.append(get_wheel(target, tmp_path / "cache", 1, told.append))

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wheels == [wheels[0]] * 2
    assert (tmp_path / "builds").read_text() == "a build\n"
    assert "another process builds the same; waiting for it …" in told


@pytest.mark.parametrize("missing", ["g++", "make", "mpicxx"])
def test_a_compiler_that_is_missing_is_named(
    missing: str, tmp_path: Path, compilers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (compilers / missing).unlink()
    monkeypatch.setenv("PATH", str(compilers))
    with pytest.raises(HorovodUnavailable, match="cannot be built") as caught:
        get_wheel(target_of(tmp_path, mpi=True), tmp_path / "cache", 1, quiet)
    assert f"no {missing} (on Debian" in str(caught.value)
    assert not (tmp_path / "builds").exists()


def test_headers_that_are_missing_are_named(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    (tmp_path / "include" / "Python.h").unlink()
    with pytest.raises(HorovodUnavailable, match=r"no Python\.h in .*python3-dev"):
        get_wheel(target, tmp_path / "cache", 1, quiet)


LOG = """
[ 97%] Building CXX object mpi_ops_v2.cc.o
g++ -Werror -DX=error mpi_ops_v2.cc
mpi_ops_v2.cc:7:3: error: 'at' is no member of 'torch'
mpi_ops_v2.cc:9:3: fatal error: gone.h: No such file
make: *** [all] Error 2
  error: subprocess-exited-with-error
"""


def test_a_build_that_fails_tells_the_first_errors_and_the_log(tmp_path: Path) -> None:
    act = f"print({LOG!r}); sys.exit(1)"
    with pytest.raises(HorovodUnavailable, match="could not be compiled") as caught:
        get_wheel(target_of(tmp_path, act), tmp_path / "cache", 1, quiet)
    sentence, *lines = str(caught.value).splitlines()
    log = sentence.rpartition("see ")[2]
    assert LOG in Path(log).read_text()
    assert lines == [
        "  mpi_ops_v2.cc:7:3: error: 'at' is no member of 'torch'",
        "  mpi_ops_v2.cc:9:3: fatal error: gone.h: No such file",
    ]
    assert not list((tmp_path / "cache").rglob("*.whl"))


def test_a_download_that_fails_is_no_error_of_the_compiler(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    pip = Path(target.python)
    text = pip.read_text().replace(
        'print("Building wheel for horovod")',
        'print("ERROR: No matching distribution: horovod"); sys.exit(1)',
    )
    pip.write_text(text)
    with pytest.raises(HorovodUnavailable, match="could not be downloaded") as caught:
        get_wheel(target, tmp_path / "cache", 1, quiet)
    assert str(caught.value).endswith("\n  ERROR: No matching distribution: horovod")


def test_cmake_tells_its_error_in_the_line_after() -> None:
    lines = ["CMake Error at CMakeLists.txt:5:", "  Could NOT find MPI", "x"]
    assert list(wheel_compilation._first_errors(lines)) == [
        "CMake Error at CMakeLists.txt:5: Could NOT find MPI"
    ]


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HorovodUnavailable, match="give a writable one with --cache"):
        get_wheel(target_of(tmp_path), tmp_path / "file", 1, quiet)


def test_the_cache_lies_where_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    assert default_cache() == Path("/caches/distdoctor/horovod")
    monkeypatch.setenv(CACHE_VARIABLE, "/elsewhere")
    assert default_cache() == Path("/elsewhere")


def test_pip_that_cannot_install_is_quoted(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    Path(target.python).write_text("#!/bin/sh\necho ERROR: no room >&2\nexit 1\n")
    with pytest.raises(HorovodUnavailable, match="by pip: ERROR: no room"):
        install_wheel(target, tmp_path / "horovod.whl", quiet)


def test_the_compiler_is_asked_for_a_newer_standard_at_last(tmp_path: Path) -> None:
    compiler = tmp_path / "bin" / "g++"
    compiler.write_text('#!/bin/sh\necho "$@"\n')
    act = (
        "subprocess.run([os.environ['CXX'], '-std=c++14', 'a b.cc']);"
        "subprocess.run([os.environ['CXX'], 'x/xla_mpi_ops.cc'])"
    )
    get_wheel(target_of(tmp_path, act), tmp_path / "cache", 1, quiet)
    (log,) = (tmp_path / "cache").rglob("build.log")
    assert log.read_text().splitlines()[1:] == [
        "-std=c++14 a b.cc -std=c++17",
        "x/xla_mpi_ops.cc -std=c++17 -UTENSORFLOW_VERSION -DTENSORFLOW_VERSION=0",
    ]


BUSY = "subprocess.run(['sleep', '300'])"


def start(box: Box, compilers: Path) -> subprocess.Popen[str]:
    """Start a build that does not end, and wait until it compiles."""
    box.environment["PATH"] = f"{compilers}:{box.environment['PATH']}"
    python = fake_python(box.folder, BUSY)
    process = box.start("horovod", "build", "--python", python, "--no-install")
    end = time.monotonic() + 60
    while "sleep" not in [one.info["name"] for one in box.marked()]:
        assert time.monotonic() < end
        time.sleep(0.1)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_build_that_is_interrupted_leaves_nothing(
    number: signal.Signals, box: Box, compilers: Path
) -> None:
    process = start(box, compilers)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + number, "")
    assert err.splitlines()[1:] == ["distdoctor: interrupted; nothing is left of it"]
    assert not box.marked()
    assert box.temporary() == []
    assert not list((box.folder / "cache").rglob("*.whl"))


def test_compilers_end_when_distdoctor_is_killed(box: Box, compilers: Path) -> None:
    process = start(box, compilers)
    process.kill()
    process.communicate(timeout=60)
    end = time.monotonic() + 30
    while box.marked():
        assert time.monotonic() < end
        time.sleep(0.1)
    shutil.rmtree(box.folder / "tmp")


def test_the_command_prints_the_path_of_the_wheel(box: Box, compilers: Path) -> None:
    box.environment["PATH"] = f"{compilers}:{box.environment['PATH']}"
    box.environment.pop(CACHE_VARIABLE, None)
    python = fake_python(box.folder)
    arguments = ("horovod", "build", "--python", python, "--no-install", "--no-mpi")
    status, out, err = box.run(*arguments)
    assert status == 0, err
    assert Path(out.strip()).is_file()
    assert out.startswith(str(box.folder / "cache" / "distdoctor" / "horovod"))
    assert box.run(*arguments) == (0, out, "")

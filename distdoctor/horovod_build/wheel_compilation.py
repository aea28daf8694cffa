"""Compiles Horovod: the settings that make its last release fit today's frameworks."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from distdoctor.errors import HorovodUnavailable
from distdoctor.horovod_build.build_target import HOROVOD_VERSION, BuildTarget
from distdoctor.horovod_build.logged_command import LoggedCommand, Tell
from distdoctor.launch.horovod_installation import Framework

_BUILD_TOOLS = ("setuptools>=61", "wheel", "packaging", "cffi")

_COMPILER_BYTES = 2 << 30
"""What a compiler may need at most. Source: measured, the files that include all of
torch take 1.2 GiB with g++ 12."""

_BEGUN = "Building wheel for horovod"
"""What pip says when all is downloaded, and the compilers start."""

_ERRORS = re.compile(
    r": (fatal )?error: |^\s*CMake Error|undefined reference|No space left on device"
    r"|internal compiler error|Killed signal|cannot find -l"
)
_ANY_ERROR = re.compile(r"^\s*(ERROR|error|\w*Error)\b.*:")
_MOST_LINES, _MOST_CHARACTERS = 3, 200

# The last -std on the line counts, and Horovod asks for C++14, which is too old for the
# headers of both frameworks. The file xla_mpi_ops.cc has code for GPUs alone, but its
# headers move from one TensorFlow to the next; for an old TensorFlow it is empty.
_COMPILER = """#!/bin/sh
case " $* " in
*xla_mpi_ops.cc*)
    exec {compiler} "$@" -std=c++17 -UTENSORFLOW_VERSION -DTENSORFLOW_VERSION=0 ;;
*)
    exec {compiler} "$@" -std=c++17 ;;
esac
"""


def parallel_compilers() -> int:
    """How many compilers the cores and the memory of this machine can bear."""
    fit = psutil.virtual_memory().available // _COMPILER_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), fit))


def require_compilers(target: BuildTarget) -> None:
    """Look for what a build needs and pip cannot bring.

    Raises:
        HorovodUnavailable: Something is missing; all that is, is named.
    """
    needed = [_compiler(), "make", *(["mpicxx"] if target.mpi else [])]
    missing = [name for name in needed if shutil.which(name) is None]
    if not (Path(target.headers) / "Python.h").is_file():
        missing.append(f"Python.h in {target.headers}")
    if not missing:
        return
    remedy = "on Debian: apt-get install g++ make python3-dev"
    if "mpicxx" in missing:
        remedy += " libopenmpi-dev openmpi-bin; --no-mpi builds without MPI"
    raise HorovodUnavailable(
        f"Horovod cannot be built: no {', no '.join(missing)} ({remedy})"
    )


def compile_wheel(
    target: BuildTarget, work: Path, log: Path, jobs: int, tell: Tell
) -> Path:
    """Download Horovod's source and compile it.

    Args:
        target: What for.
        work: An empty folder, which may be removed afterwards.
        log: File that takes all that the tools print.
        jobs: How many compilers may run at a time.
        tell: Is given lines about the progress.

    Returns:
        The wheel, in the folder `work`.

    Raises:
        HorovodUnavailable: It did not succeed; the text has the first errors.
    """
    pip = (target.python, "-m", "pip", "--disable-pip-version-check", "--no-input")
    tools = work / "tools"
    with log.open("wb") as output:
        command = LoggedCommand(log, output, tell)
        environment = _environment(target, work, jobs)
        wanted = list(_BUILD_TOOLS)
        if shutil.which("cmake") is None:
            wanted.append("cmake")
        fetched = command.run([*pip, "install", "--target", tools, *wanted], os.environ)
        if fetched:
            raise HorovodUnavailable(
                f"what builds Horovod ({', '.join(wanted)}) could not be installed by "
                f"pip; see {log}{_quoted(log)}"
            )
        source = ("--no-binary", "horovod", f"horovod=={HOROVOD_VERSION}")
        options = ("--no-build-isolation", "--no-deps", "--no-cache-dir")
        into = ("--wheel-dir", work / "wheel")
        status = command.run(
            [*pip, "wheel", "-v", *options, *into, *source], environment
        )
    wheels = list((work / "wheel").glob("horovod-*.whl"))
    if status == 0 and wheels:
        return wheels[0]
    if _BEGUN not in log.read_text(errors="replace"):
        raise HorovodUnavailable(
            f"the source of Horovod {HOROVOD_VERSION} could not be downloaded by pip; "
            f"see {log}{_quoted(log)}"
        )
    raise HorovodUnavailable(
        f"{target.told} could not be compiled; see {log}{_quoted(log)}"
    )


def _compiler() -> str:
    return os.environ.get("CXX") or "g++"


def _environment(target: BuildTarget, work: Path, jobs: int) -> Mapping[str, str]:
    """The environment of the build."""
    wrapper = work / "cxx17"
    compiler = shutil.which(_compiler()) or _compiler()
    wrapper.write_text(_COMPILER.format(compiler=shlex.quote(compiler)))
    wrapper.chmod(0o755)
    tools = work / "tools"
    # The ranks' own settings, and those of another build, have no say here.
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HOROVOD_")
    }
    framework = {
        Framework.TORCH: ("PYTORCH", "TENSORFLOW"),
        Framework.TENSORFLOW: ("TENSORFLOW", "PYTORCH"),
    }[target.framework]
    return (
        kept
        | dict(target.settings)
        | {
            "CXX": str(wrapper),
            "MAKEFLAGS": f"-j{jobs}",
            "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
            "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # cmake 4 refuses older projects
            f"HOROVOD_WITH_{framework[0]}": "1",
            f"HOROVOD_WITHOUT_{framework[1]}": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_WITH_MPI" if target.mpi else "HOROVOD_WITHOUT_MPI": "1",
            # Since Python 3.12 has no distutils, Horovod does not find them itself.
            "CPLUS_INCLUDE_PATH": _joined(
                target.headers, kept.get("CPLUS_INCLUDE_PATH")
            ),
            "PATH": _joined(
                str(tools / "bin"), str(Path(target.python).parent), kept.get("PATH")
            ),
            "PYTHONPATH": _joined(str(tools), kept.get("PYTHONPATH")),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TMPDIR": str(work),
        }
    )


def _joined(*entries: str | None) -> str:
    return os.pathsep.join(filter(None, entries))


def _quoted(log: Path) -> str:
    """The first errors in a log, as lines that follow the sentence."""
    lines = list(_first_errors(log.read_text(errors="replace").splitlines()))
    return "".join(f"\n  {line[:_MOST_CHARACTERS]}" for line in lines)


def _first_errors(lines: list[str]) -> Iterator[str]:
    """The lines that say why, and not those that only say that."""
    for pattern in (_ERRORS, _ANY_ERROR):
        found = [at for at, line in enumerate(lines) if pattern.search(line)]
        for at in found[:_MOST_LINES]:
            text = lines[at].strip()
            if text.startswith("CMake Error"):  # it tells the reason in the next line
                text = " ".join(
                    [text, *(line.strip() for line in lines[at + 1 : at + 2])]
                )
            yield text
        if found:
            return

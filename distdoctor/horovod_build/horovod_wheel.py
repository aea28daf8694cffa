"""Gets a Horovod: from the cache or by building it, and into a Python."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from distdoctor.errors import HorovodUnavailable
from distdoctor.horovod_build.build_target import BESIDE, BuildTarget
from distdoctor.horovod_build.logged_command import Tell
from distdoctor.horovod_build.wheel_cache import WheelSlot
from distdoctor.horovod_build.wheel_compilation import compile_wheel, require_compilers
from distdoctor.launch.horovod_installation import examine_horovod

_MOST_CHARACTERS = 300


def get_wheel(
    target: BuildTarget, cache: Path, jobs: int, tell: Tell, *, rebuild: bool = False
) -> Path:
    """A wheel of Horovod, from the cache if it has one.

    Args:
        target: What for.
        cache: Folder of wheels.
        jobs: How many compilers may run at a time.
        tell: Is given lines about the progress.
        rebuild: Build it, whatever the cache has.

    Raises:
        HorovodUnavailable: It cannot be built, or not be kept.
    """
    slot = WheelSlot(cache, target.slot)
    kept = slot.wheel()
    if kept is not None and not rebuild:
        return kept
    require_compilers(target)
    with slot.alone(lambda: tell("another process builds the same; waiting for it …")):
        kept = slot.wheel()
        if kept is not None and not rebuild:
            return kept
        tell(f"building {target.told}; this takes some minutes (log: {slot.log})")
        try:
            with tempfile.TemporaryDirectory(
                prefix="distdoctor-horovod-", ignore_cleanup_errors=True
            ) as work:
                wheel = compile_wheel(target, Path(work), slot.log, jobs, tell)
                return slot.keep(wheel)
        except OSError as error:
            raise HorovodUnavailable(
                f"Horovod cannot be built: {error.filename}: {error.strerror}"
            ) from error


def install_wheel(target: BuildTarget, wheel: Path, tell: Tell) -> None:
    """Install a wheel, and what Horovod needs beside it, into the Python it is for.

    Raises:
        HorovodUnavailable: pip failed, or ranks cannot import what was installed.
    """
    pip = [target.python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    # What is there already is not replaced by another build of the same release.
    fresh = ["install", "--force-reinstall", "--no-deps", str(wheel)]
    for what in (["install", *BESIDE], fresh):
        done = subprocess.run(
            [*pip, *what],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            why = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
            raise HorovodUnavailable(
                f"{wheel} could not be installed into {target.python} by pip: "
                f"{' '.join(why)[:_MOST_CHARACTERS]}"
            )
    found = examine_horovod(target.python, target.framework)
    if found.problem:
        raise HorovodUnavailable(
            f"{wheel} was installed, and cannot be used: {found.problem}"
        )
    tell(f"installed: Horovod {found.told}")

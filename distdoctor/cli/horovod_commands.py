"""Get what a Horovod job needs."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.group()
def run() -> None:
    """Get Horovod, which cannot be downloaded ready to use."""


@run.command(
    epilog="Exit status: 0 it is there, 2 it cannot be built or installed, 128 + n "
    "interrupted by signal n."
)
@click.option(
    "--tensorflow", is_flag=True, help="Build it for TensorFlow; otherwise for torch."
)
@click.option(
    "--python",
    default=sys.executable,
    metavar="PATH",
    help="The Python to build it for; otherwise the one that runs distdoctor.",
)
@click.option(
    "--mpi/--no-mpi",
    default=None,
    help="With MPI beside Gloo; otherwise with it where mpicxx is installed.",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep wheels in this folder; otherwise in $DISTDOCTOR_HOROVOD_CACHE, or "
    "~/.cache/distdoctor/horovod.",
)
@click.option("--no-install", is_flag=True, help="Build it and print the path alone.")
@click.option("--rebuild", is_flag=True, help="Build it, though there is one.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="How many compilers may run at a time; otherwise what cores and memory bear.",
)
@click.pass_context
def build(
    context: click.Context,
    *,
    tensorflow: bool,
    python: str,
    mpi: bool | None,
    cache: Path | None,
    no_install: bool,
    rebuild: bool,
    jobs: int | None,
) -> None:
    """Build Horovod for the torch that is installed, and install it.

    It takes some minutes, once for each release of torch: the wheel is kept. Its path
    is printed.
    """
    # Here, so that --help does not wait for psutil.
    from distdoctor.horovod_build.build_target import find_target
    from distdoctor.horovod_build.horovod_wheel import get_wheel, install_wheel
    from distdoctor.horovod_build.wheel_cache import default_cache
    from distdoctor.horovod_build.wheel_compilation import parallel_compilers
    from distdoctor.launch.horovod_installation import Framework
    from distdoctor.launch.interruption import signals_interrupt

    framework = Framework.TENSORFLOW if tensorflow else Framework.TORCH
    with signals_interrupt() as received:
        try:
            target = find_target(python, framework, mpi)
            if target.caution:
                _tell(target.caution)
            wheel = get_wheel(
                target,
                cache or default_cache(),
                jobs or parallel_compilers(),
                _tell,
                rebuild=rebuild,
            )
            if not no_install and (rebuild or target.installed != wheel.as_uri()):
                install_wheel(target, wheel, _tell)
        except KeyboardInterrupt:
            _tell("interrupted; nothing is left of it")
            context.exit(128 + received[0])
    sys.stdout.write(f"{wheel}\n")


def _tell(line: str) -> None:
    sys.stderr.write(f"distdoctor: {line}\n")
    sys.stderr.flush()

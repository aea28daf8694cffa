"""What a Horovod is to be built for: a Python, its framework, and how ranks meet."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from distdoctor.errors import HorovodUnavailable
from distdoctor.launch.horovod_installation import Framework

HOROVOD_VERSION = "0.28.1"
"""The release that is built: the last one, of June 2023."""

BESIDE = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi")
"""What Horovod imports; the extra `horovod` of pyproject.toml lists the same."""

_KERAS_3 = (2, 16)
"""First release of TensorFlow that brings Keras 3."""

_DEADLINE_S = 60.0
_CHANGES_THE_BUILD = re.compile(
    r"HOROVOD_(GPU|CPU|CUDA|NCCL|ROCM|CCL|BUILD|ALLOW|CMAKE)"
)

_ASK = """
import importlib.metadata as metadata, importlib.util as util
import json, os, platform, runpy, sys, sysconfig
name = sys.argv[1]
facts = {
    "python": ".".join(map(str, sys.version_info[:2])),
    "machine": platform.machine(),
    "headers": sysconfig.get_path("include"),
    "pip": util.find_spec("pip") is not None,
    "framework": "",
    "wheel": "",
}
spec = util.find_spec(name)
if spec is not None and name == "torch":
    try:  # torch itself takes seconds to import
        file = os.path.join(os.path.dirname(spec.origin), "version.py")
        facts["framework"] = str(runpy.run_path(file)["__version__"])
    except Exception:
        facts["framework"] = str(__import__(name).__version__)
elif spec is not None:
    known = sorted(metadata.packages_distributions().get(name, ()))
    facts["framework"] = metadata.version(known[0]) if known else ""
try:
    direct = metadata.distribution("horovod").read_text("direct_url.json")
    facts["wheel"] = json.loads(direct or "{}").get("url", "")
    for beside in sys.argv[2:]:
        metadata.version(beside)
except metadata.PackageNotFoundError:
    facts["wheel"] = ""
print("\\nFACTS" + json.dumps(facts), flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTarget:
    """What a wheel of Horovod is built for.

    Attributes:
        python: The Python that builds it, and that it is for.
        python_version: Of that, such as "3.11".
        machine: Such as "x86_64".
        headers: Folder of Python's C headers.
        framework: What ranks use Horovod with.
        framework_version: The exact release, such as "2.13.0+cpu".
        mpi: Ranks can meet by MPI as well as by Gloo.
        settings: Variables HOROVOD_* of the user's that change what is built.
        installed: Address of the wheel that the Python's Horovod was installed from;
            empty: none, or something that it needs beside it is missing.
    """

    python: str
    python_version: str
    machine: str
    headers: str
    framework: Framework
    framework_version: str
    mpi: bool
    settings: Mapping[str, str]
    installed: str = ""

    @property
    def controllers(self) -> str:
        """How ranks can meet: "gloo" or "gloo+mpi"."""
        return "gloo+mpi" if self.mpi else "gloo"

    @property
    def slot(self) -> str:
        """Name of the folder in the cache for a wheel of this kind."""
        parts = [
            f"horovod{HOROVOD_VERSION}",
            f"{self.framework}{self.framework_version}",
            f"py{self.python_version.replace('.', '')}",
            self.machine,
            self.controllers,
        ]
        if self.settings:
            text = json.dumps(sorted(self.settings.items()))
            parts.append(hashlib.sha256(text.encode()).hexdigest()[:8])
        return re.sub(r"[^\w.+-]", "_", "-".join(parts))

    @property
    def told(self) -> str:
        """What is built, for a reader."""
        return (
            f"Horovod {HOROVOD_VERSION} for {self.framework.label} "
            f"{self.framework_version}, Python {self.python_version}, "
            f"{self.controllers}"
        )

    @property
    def caution(self) -> str:
        """What does not work though it builds; empty: nothing is known of."""
        number = re.match(r"(\d+)\.(\d+)", self.framework_version)
        if self.framework is not Framework.TENSORFLOW or number is None:
            return ""
        if tuple(map(int, number.groups())) < _KERAS_3:
            return ""
        return (
            f"with the Keras 3 of TensorFlow {self.framework_version}, Horovod "
            f"{HOROVOD_VERSION} reduces nothing in `fit`; use TensorFlow 2.15, or "
            "tf_keras with TF_USE_LEGACY_KERAS=1"
        )


def find_target(
    python: str,
    framework: Framework,
    mpi: bool | None = None,
    environment: Mapping[str, str] = os.environ,
) -> BuildTarget:
    """Ask a Python what a Horovod for it has to be built for.

    Args:
        python: Path or name of the Python.
        framework: What ranks are to use Horovod with.
        mpi: Whether with MPI; None: where there is a compiler for it.
        environment: Where to look for settings of the user's.

    Raises:
        HorovodUnavailable: The Python, its framework or its pip is not there.
    """
    path = shutil.which(python)
    if path is None:
        raise HorovodUnavailable(f"no Python {python!r}; give one with --python")
    # Not resolved: the link is what makes it the Python of its virtual environment.
    path = os.path.abspath(path)  # noqa: PTH100
    facts = _ask(path, framework)
    if not facts["framework"]:
        raise HorovodUnavailable(
            f"there is no {framework.label} in {path}, which Horovod could be built "
            "for; install it there first, or give another Python with --python"
        )
    if not facts["pip"]:
        raise HorovodUnavailable(
            f"{path} has no pip, which installs what the build needs; "
            f"`{path} -m ensurepip` brings it"
        )
    if mpi is None:
        mpi = shutil.which("mpicxx") is not None
    return BuildTarget(
        python=path,
        python_version=str(facts["python"]),
        machine=str(facts["machine"]),
        headers=str(facts["headers"]),
        framework=framework,
        framework_version=str(facts["framework"]),
        mpi=mpi,
        settings={
            name: value
            for name, value in environment.items()
            if _CHANGES_THE_BUILD.match(name) and value
        },
        installed=str(facts["wheel"]),
    )


def _ask(python: str, framework: Framework) -> Mapping[str, object]:
    try:
        done = subprocess.run(
            [python, "-P", "-c", _ASK, framework, *BESIDE],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DEADLINE_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except OSError as error:
        raise HorovodUnavailable(
            f"{python} cannot be started: {error.strerror}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise HorovodUnavailable(
            f"{python} did not tell its {framework.label} in {_DEADLINE_S:.0f} s; give "
            "another Python with --python, or run it again on a less busy machine"
        ) from error
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("FACTS"):
            facts: Mapping[str, object] = json.loads(line.removeprefix("FACTS"))
            return facts
    told = done.stderr.strip().splitlines() or [f"it left with {done.returncode}"]
    raise HorovodUnavailable(
        f"{python} cannot say which {framework.label} it has, as Python 3.11 or newer "
        f"can: {told[-1]}"
    )

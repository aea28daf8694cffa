"""Which Horovod a Python has, and whether ranks can import it.

Horovod's libraries are linked against one build of torch, or of TensorFlow. With
another one they do not load, and every rank dies at its import. So a process of its own
tries that, before a job is started.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

DEADLINE_S = 90.0
"""For the framework and Horovod to be imported; 30 s were seen on a busy machine."""


class Framework(StrEnum):
    """What Horovod is built for: a name that can be imported."""

    TORCH = "torch"
    TENSORFLOW = "tensorflow"

    @property
    def label(self) -> str:
        """Its name for a reader."""
        return "TensorFlow" if self is Framework.TENSORFLOW else "torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class HorovodInstallation:
    """What was found out about the Horovod of one Python, for one framework.

    Attributes:
        python: The Python that was asked, as it was named.
        framework: What Horovod is to be used with.
        version: Horovod's release; empty: there is none, or it is not known.
        built_for: Release of the framework that it was built for; empty: not built for
            this framework, or not known.
        framework_version: Release of the framework that is there; empty: not known.
        controllers: How ranks can meet: "gloo", "mpi".
        fault: Why ranks cannot use it; empty: they can.
        remedy: The command that builds and installs one that they can use; empty: there
            is none, or none is called for.
    """

    python: str
    framework: Framework
    version: str = ""
    built_for: str = ""
    framework_version: str = ""
    controllers: tuple[str, ...] = ()
    fault: str = ""
    remedy: str = ""

    @property
    def problem(self) -> str:
        """Why ranks cannot use it, in one sentence with the remedy; empty: they can."""
        if not self.remedy:
            return self.fault
        return f"{self.fault}; `{self.remedy}` builds and installs one that fits"

    @property
    def told(self) -> str:
        """Release, framework and controllers, in one line."""
        built = f"{self.framework.label} {self.built_for or self.framework_version}"
        means = " and ".join(self.controllers) or "no controller"
        return f"{self.version}, built for {built.strip()}, with {means}"


_ASK = """
import importlib.util, json, os, sys
framework = sys.argv[1]
facts = {}
def tell():
    print("\\nFACTS" + json.dumps(facts), flush=True)
def found(name):
    return importlib.util.find_spec(name)
spec = found("horovod")
if spec is not None and spec.submodule_search_locations:
    folder = list(spec.submodule_search_locations)[0]
    facts["horovod"] = "of an unknown release"
    import importlib.metadata
    try:
        facts["horovod"] = importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        with open(os.path.join(folder, "metadata.json")) as file:
            built = json.load(file)
        facts["built"] = {str(key): str(value) for key, value in built.items()}
    except (OSError, ValueError, AttributeError):
        pass
    inside = os.path.join(folder, framework)
    names = os.listdir(inside) if os.path.isdir(inside) else []
    library = {"torch": "mpi_lib_v2.", "tensorflow": "mpi_lib."}[framework]
    facts["library"] = any(name.startswith(library) for name in names)
    facts["there"] = found(framework) is not None
    tell()
    if facts["there"] and facts["library"]:
        try:
            module = __import__(framework)
            facts["framework"] = str(module.__version__)
            tell()
            hvd = __import__("horovod." + framework, fromlist=["size"])
            means = (("gloo", hvd.gloo_built), ("mpi", hvd.mpi_built))
            facts["controllers"] = [name for name, built in means if built()]
        except Exception as error:
            facts["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
tell()
"""


def examine_horovod(
    python: str = sys.executable,
    framework: Framework = Framework.TORCH,
    deadline_s: float = DEADLINE_S,
) -> HorovodInstallation:
    """Find out whether ranks of a Python can use Horovod; nothing is imported here.

    Args:
        python: The Python that would run the job.
        framework: What the job uses Horovod with.
        deadline_s: For the framework and Horovod to be imported.
    """
    facts, why = _ask(python, framework, deadline_s)
    key = "pytorch" if framework is Framework.TORCH else "tensorflow"
    found = HorovodInstallation(
        python=python,
        framework=framework,
        version=facts.get("horovod", ""),
        built_for=facts.get("built", {}).get(key, "") if facts.get("library") else "",
        framework_version=facts.get("framework", ""),
        controllers=tuple(facts.get("controllers", ())),
    )
    fault, remedy = _fault(found, facts, why)
    return replace(found, fault=fault, remedy=remedy)


def build_command(
    python: str, framework: Framework = Framework.TORCH, *more: str
) -> str:
    """The command that builds a Horovod for a Python and installs it there."""
    words = ["distdoctor", "horovod", "build"]
    if framework is Framework.TENSORFLOW:
        words.append("--tensorflow")
    if python != sys.executable:
        words += ["--python", python]
    return shlex.join([*words, *more])


def _ask(
    python: str, framework: Framework, deadline_s: float
) -> tuple[dict[str, Any], str]:
    """What the Python told, and if it did not come to the end, why."""
    facts: dict[str, Any] = {}
    try:
        # -P: files of the folder we happen to be in are no part of Horovod.
        done = subprocess.run(
            [python, "-P", "-c", _ASK, framework],
            capture_output=True,
            timeout=deadline_s,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            check=False,
        )
    except OSError as error:
        return facts, f"{python} cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired as error:
        output, why = error.stdout or b"", f"it did not end in {deadline_s:.0f} s"
    else:
        output, why = done.stdout, ""
        if done.returncode < 0:
            why = f"the process died of signal {-done.returncode}"
        elif done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            why = lines[-1] if lines else f"Python left with {done.returncode}"
    for line in output.decode(errors="replace").splitlines():
        if line.startswith("FACTS"):
            try:
                facts = json.loads(line.removeprefix("FACTS"))
            except ValueError:  # cut off when the process died
                continue
    return facts, why


def _fault(
    found: HorovodInstallation, facts: Mapping[str, Any], why: str
) -> tuple[str, str]:
    """Why ranks cannot use Horovod, and the command that would help; empty: none."""
    python, name = found.python, found.framework.label
    build = build_command(python, found.framework)
    why = facts.get("error", why)
    if not found.version:
        if why:
            return f"it is not known whether {python} has Horovod: {why}", ""
        return f"Horovod is not installed in {python}", build
    horovod = f"the Horovod {found.version} of {python}"
    if not facts.get("there"):
        return f"{python} has Horovod, and no {name} to use it with", ""
    if not facts.get("library"):
        return f"{horovod} was built without {name}", build
    if not why:
        return "", ""
    installed, built = found.framework_version, found.built_for
    if not installed:
        return f"{name} cannot be imported in {python}: {why}", ""
    if built and installed != built:
        fault = (
            f"{horovod} was built for {name} {built}, and cannot be imported with "
            f"{name} {installed}, which is installed"
        )
        return fault, build
    again = build_command(python, found.framework, "--rebuild")
    return f"{horovod} cannot be imported ({why})", again

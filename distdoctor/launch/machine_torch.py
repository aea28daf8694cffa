"""Checks what torch can do on this machine, in a process of its own.

To import torch takes seconds, on a busy machine a minute, and a broken installation
may end the process: so this one does not.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from distdoctor.launch.horovod_installation import (
    HorovodInstallation,
    examine_horovod,
)
from distdoctor.model.machine_condition import (
    MachineCondition,
    enough,
    present,
)

DEADLINE_S = 90.0
"""For torch to be imported and gloo to be tried; over 30 s were seen on a busy box."""

TESTED = ((2, 8), (2, 15))
"""First and last release of torch that the probes were tried with."""

_INSTALL = (
    f"pip install 'torch>={TESTED[0][0]}.{TESTED[0][1]},"
    f"<{TESTED[1][0]}.{TESTED[1][1] + 1}'"
)
_INSTALL_AGAIN = _INSTALL.replace("install", "install --force-reinstall", 1)

_ASK = """
import json
def told(error): return f"{type(error).__name__}: {error}".splitlines()[0]
facts = {}
import torch
import torch.distributed as dist
facts["torch"] = torch.__version__
facts["cuda"] = torch.version.cuda or ""
facts["rocm"] = torch.version.hip or ""
if dist.is_available():
    if dist.is_nccl_available():
        try:
            facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        except Exception:
            facts["nccl"] = "of an unknown release"
    if dist.is_gloo_available():
        try:
            store = dist.HashStore()
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
            dist.all_reduce(torch.ones(1))
            facts["gloo"] = ""
        except Exception as error:
            facts["gloo"] = told(error)
try:
    facts["gpus"] = [
        torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())
    ]
except Exception as error:
    facts["gpu_error"] = told(error)
print("\\nFACTS" + json.dumps(facts), flush=True)
"""


def torch_conditions(deadline_s: float) -> Iterator[MachineCondition]:
    """Results for torch, its backends, the GPUs that it sees, and Horovod."""
    facts, why = ask_torch(deadline_s)
    yield release(facts, why)
    if "torch" in facts:
        yield gloo(facts)
        yield nccl(facts)
        yield gpus(facts, driver=shutil.which("nvidia-smi") is not None)
        yield horovod(examine_horovod(deadline_s=deadline_s))


def ask_torch(deadline_s: float, program: str = _ASK) -> tuple[dict[str, Any], str]:
    """What torch reports of itself, and if it reports nothing, why."""
    try:
        # -P: files of the folder we happen to be in are no part of torch.
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {}, f"`import torch` was not done after {deadline_s:.0f} s"
    for line in done.stdout.splitlines():
        if line.startswith("FACTS"):
            return json.loads(line.removeprefix("FACTS")), ""
    error_lines = done.stderr.strip().splitlines()
    return {}, error_lines[-1] if error_lines else f"Python left with {done.returncode}"


def release(facts: Mapping[str, Any], why: str) -> MachineCondition:
    """Which torch is installed, and whether the probes support it."""
    if "torch" not in facts:
        return present(
            None,
            "torch",
            why,
            f"nothing can be checked with {sys.executable}",
            "install torch into the environment that distdoctor runs in",
            needed=True,
            commands=(_INSTALL,),
        )
    version, built = str(facts["torch"]), "for the CPU alone"
    if facts["cuda"]:
        built = f"for CUDA {facts['cuda']}"
    elif facts["rocm"]:
        built = f"for ROCm {facts['rocm']}"
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    first, last = (".".join(map(str, tested)) for tested in TESTED)
    return enough(
        TESTED[0] <= number <= TESTED[1],
        "torch",
        f"{version}, built {built}",
        f"distdoctor was tried with {first} to {last}: what it says may be wrong",
        f"use a release from {first} to {last}",
        needed=True,
        commands=(_INSTALL,),
    )


def gloo(facts: Mapping[str, Any]) -> MachineCondition:
    """Whether ranks can communicate by gloo, as tried with one rank."""
    failure = facts.get("gloo", "this torch was built without it")
    cure = "install a torch with torch.distributed, such as those of pytorch.org"
    command = _INSTALL_AGAIN
    if "gloo" in facts:
        command = "export GLOO_SOCKET_IFNAME=lo"
        cure = (
            "see the host name and the gloo interface below; GLOO_SOCKET_IFNAME=lo "
            "keeps it on this machine"
        )
    met, means = "a group of one rank met", "ranks cannot meet on the CPU"
    return present(
        not failure and met,
        "gloo",
        failure,
        means,
        cure,
        needed=True,
        commands=(command,),
    )


def nccl(facts: Mapping[str, Any]) -> MachineCondition:
    """Whether torch has NCCL."""
    means = "what only NCCL does cannot be seen here"
    return present(
        facts.get("nccl"),
        "NCCL",
        "this torch was built without it",
        means,
        "none is needed without GPUs; with some, install a torch built for CUDA",
        optional=True,
    )


def gpus(facts: Mapping[str, Any], *, driver: bool) -> MachineCondition:
    """The GPUs that torch can use.

    Args:
        facts: What torch said.
        driver: The machine has NVIDIA's tools, and so most likely a GPU.
    """
    if failure := facts.get("gpu_error"):
        return enough(
            False,
            "GPUs",
            failure,
            "torch cannot use them",
            "see whether the driver works, and is new enough for this torch",
            commands=("nvidia-smi",),
        )
    seen = list(facts.get("gpus", ()))
    found, cure = "torch sees none", ""
    commands: tuple[str, ...] = ()
    if driver:
        found += ", though nvidia-smi is here"
        cure = "install a torch built for CUDA, if there is a GPU"
        commands = ("nvidia-smi", _INSTALL_AGAIN)
    named = seen and f"{len(seen)}: {', '.join(sorted(set(seen)))}"
    means = "ranks run on the CPU"
    return present(
        named, "GPUs", found, means, cure, commands=commands, optional=not driver
    )


def horovod(found: HorovodInstallation) -> MachineCondition:
    """Whether Horovod is installed, and can be used with this torch."""
    means = "jobs that import it cannot be checked here"
    commands = (found.remedy,) if found.remedy else ()
    if not found.version:
        return present(
            None,
            "horovod",
            found.fault,
            means,
            found.remedy,
            commands=commands,
            optional=True,
        )
    told = found.fault or found.told
    return enough(
        not found.fault, "horovod", told, means, found.remedy, commands=commands
    )

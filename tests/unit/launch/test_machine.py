"""What a machine can do: each state of each thing, and the two forms of the list."""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from distdoctor.launch import machine, machine_cures, machine_network
from distdoctor.launch import machine_torch as of_torch
from distdoctor.launch import machine_tracing as tracing
from distdoctor.launch.horovod_installation import Framework, HorovodInstallation
from distdoctor.launch.stacks import find_py_spy
from distdoctor.model.machine_condition import MachineCondition, MachineState
from distdoctor.report.machine_report import as_json, as_text, json_schema

GOOD: Mapping[str, Any] = {
    "torch": "2.13.0+cpu",
    "cuda": "",
    "rocm": "",
    "nccl": "",
    "gloo": "",
    "gpus": [],
}

UNLIMITED = resource.RLIM_INFINITY


# --- torch ---


@pytest.mark.parametrize(
    ("changes", "state", "phrase"),
    [
        ({}, MachineState.OK, "2.13.0+cpu, built for the CPU alone"),
        ({"torch": "2.9.1", "cuda": "12.8"}, MachineState.OK, "built for CUDA 12.8"),
        ({"rocm": "6.4"}, MachineState.OK, "built for ROCm 6.4"),
        ({"torch": "2.7.0"}, MachineState.LIMITS, "2.7.0"),
        ({"torch": "2.16.0a0"}, MachineState.LIMITS, "2.16.0a0"),
    ],
)
def test_torch_is_told_with_its_build(
    changes: dict[str, str], state: MachineState, phrase: str
) -> None:
    found = of_torch.release({**GOOD, **changes}, "")
    assert (found.state, found.prevents) == (state, False)
    assert phrase in found.found


def test_without_torch_nothing_can_be_checked() -> None:
    facts, why = of_torch.ask_torch(60.0, "import no_such_torch")
    found = of_torch.release(facts, why)
    assert found.prevents
    assert found.found == "ModuleNotFoundError: No module named 'no_such_torch'"


def test_a_torch_that_does_not_come_is_not_waited_for() -> None:
    begun = time.monotonic()
    facts, why = of_torch.ask_torch(0.5, "import time; time.sleep(60)")
    assert time.monotonic() - begun < 30
    assert (facts, why) == ({}, "`import torch` was not done after 0 s")


def test_a_torch_that_dies_is_told_by_its_status() -> None:
    _, why = of_torch.ask_torch(60.0, "import os; os.abort()")
    assert why == "Python left with -6"


def test_the_folder_we_are_in_is_no_part_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    program = "import json; print('FACTS' + json.dumps({'torch': '2.13'}))"
    assert of_torch.ask_torch(60.0, program) == ({"torch": "2.13"}, "")


def test_gloo_that_is_missing_or_fails_prevents_a_check() -> None:
    assert of_torch.gloo(GOOD).state is MachineState.OK
    assert of_torch.gloo({}).prevents
    failed = of_torch.gloo({**GOOD, "gloo": "RuntimeError: no device"})
    assert failed.prevents
    assert failed.found == "RuntimeError: no device"


def test_nccl_and_horovod_may_be_absent() -> None:
    assert of_torch.nccl({**GOOD, "nccl": "2.27.5"}).found == "2.27.5"
    lacking = HorovodInstallation(python="python", framework=Framework.TORCH)
    for absent in (of_torch.nccl(GOOD), of_torch.horovod(lacking)):
        assert (absent.state, absent.prevents) == (MachineState.ABSENT, False)


def test_horovod_is_told_with_what_it_is_built_for() -> None:
    fine = HorovodInstallation(
        python="python",
        framework=Framework.TORCH,
        version="0.28.1",
        built_for="2.13.0",
        controllers=("gloo", "mpi"),
    )
    found = of_torch.horovod(fine)
    assert found.state is MachineState.OK
    assert found.found == "0.28.1, built for torch 2.13.0, with gloo and mpi"
    broken = replace(fine, fault="built for another", remedy="distdoctor horovod build")
    found = of_torch.horovod(broken)
    assert (found.state, found.found) == (MachineState.LIMITS, "built for another")
    assert found.cure == "distdoctor horovod build"


def test_gpus_are_counted_and_named() -> None:
    seen = of_torch.gpus({**GOOD, "gpus": ["H100", "H100"]}, driver=True)
    assert (seen.state, seen.found) == (MachineState.OK, "2: H100")
    broken = of_torch.gpus({"gpu_error": "RuntimeError: driver"}, driver=True)
    assert broken.state is MachineState.LIMITS


def test_gpus_that_torch_cannot_see_have_a_cure() -> None:
    assert not of_torch.gpus(GOOD, driver=False).cure
    hidden = of_torch.gpus(GOOD, driver=True)
    assert hidden.state is MachineState.ABSENT
    assert "built for CUDA" in hidden.cure


# --- tracing ---


def test_ptrace_is_tried_and_not_guessed() -> None:
    py_spy = find_py_spy()
    assert tracing.program(py_spy).state is MachineState.OK
    refusing = shutil.which("false")
    assert tracing.traced(refusing) is False
    assert tracing.traced(shutil.which("true")) is True
    assert tracing.traced(None) is None


@pytest.mark.parametrize(
    ("allowed", "yama", "state", "cure"),
    [
        (True, "1", MachineState.OK, ""),
        (None, "", MachineState.LIMITS, "with py-spy installed"),
        (False, "", MachineState.LIMITS, "in a container: start it with"),
        (False, "2", MachineState.LIMITS, "sysctl kernel.yama.ptrace_scope=0; in a"),
    ],
)
def test_a_refused_trace_has_a_cure(
    allowed: bool | None, yama: str, state: MachineState, cure: str
) -> None:
    found = tracing.permission(allowed, yama)
    assert found.state is state
    assert found.cure.startswith(cure)
    assert bool(found.cure) == bool(cure)


@pytest.mark.parametrize(
    ("yama", "contained", "commands"),
    [
        ("1", False, ["sysctl kernel.yama.ptrace_scope=0"]),
        ("1", True, ["docker run --cap-add=SYS_PTRACE IMAGE"]),
        ("", True, ["docker run --cap-add=SYS_PTRACE IMAGE"]),
        ("3", False, []),  # it cannot be lowered while the machine runs
        ("", False, []),
    ],
)
def test_what_to_type_for_a_trace_depends_on_who_refuses_it(
    yama: str, contained: bool, commands: list[str]
) -> None:
    found = tracing.permission(False, yama, contained)
    assert [one.removeprefix("sudo ") for one in found.commands] == commands
    assert found.cure


def test_py_spy_may_be_absent() -> None:
    assert tracing.program(None).cure == "pip install py-spy"


def test_a_kernel_without_yama_has_no_scope(tmp_path: Path) -> None:
    (tmp_path / "scope").write_text("1\n")
    assert tracing.scope(tmp_path / "scope") == "1"
    assert tracing.scope(tmp_path / "none") == ""


# --- network ---


def unknown(_name: str) -> str:
    raise OSError(-2, "Name or service not known")


def silent(_name: str) -> str:
    time.sleep(5)
    return "10.0.0.1"


def test_a_host_name_without_an_address_is_told() -> None:
    assert machine_network.host_name("a", lambda _: "10.0.0.1").found == "a is 10.0.0.1"
    lost = machine_network.host_name("a", unknown)
    assert (lost.state, lost.prevents) == (MachineState.LIMITS, False)
    assert lost.found == "a has no address (Name or service not known)"
    assert "/etc/hosts" in lost.cure


def test_a_silent_name_server_is_not_waited_for() -> None:
    begun = time.monotonic()
    assert machine_network.host_name("a", silent, 0.1).state is MachineState.LIMITS
    assert time.monotonic() - begun < 4


def test_a_loopback_without_ports_prevents_a_check() -> None:
    assert machine_network.loopback().state is MachineState.OK
    assert machine_network.loopback("203.0.113.7").prevents  # kept for documentation


@pytest.mark.parametrize(
    ("wanted", "state"),
    [("", MachineState.OK), ("lo", MachineState.OK), ("lo,eth7", MachineState.LIMITS)],
)
def test_the_interface_that_gloo_is_told_must_be_there(
    wanted: str, state: MachineState
) -> None:
    found = machine_network.interface(wanted, ["lo", "eth0"])
    assert found.state is state
    assert ("eth7" in found.found) == (state is MachineState.LIMITS)


# --- limits and room ---


def test_a_missing_or_small_shared_memory_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.shared_memory(tmp_path / "none").state is MachineState.ABSENT
    for size, state in ((64 << 20, MachineState.LIMITS), (8 << 30, MachineState.OK)):
        usage = shutil._ntuple_diskusage(size, 0, size)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        assert machine.shared_memory(tmp_path).state is state


@pytest.mark.parametrize(
    ("limit", "state", "cure"),
    [
        ((UNLIMITED, UNLIMITED), MachineState.OK, ""),
        ((65536, 65536), MachineState.OK, ""),
        ((1024, UNLIMITED), MachineState.LIMITS, "ulimit -n 4096"),
        ((1024, 8192), MachineState.LIMITS, "ulimit -n 4096"),
        ((1024, 2048), MachineState.LIMITS, "ask for a higher hard limit"),
    ],
)
def test_few_open_files_have_a_cure(
    limit: tuple[int, int], state: MachineState, cure: str
) -> None:
    found = machine.open_files(limit)
    assert (found.state, found.cure) == (state, cure)


def test_few_processes_have_a_cure() -> None:
    assert machine.processes((4096, 4096)).state is MachineState.OK
    assert machine.processes((512, UNLIMITED)).cure == "ulimit -u 2048"


def test_locked_memory_matters_to_rdma_alone() -> None:
    assert machine.locked_memory((UNLIMITED, UNLIMITED)).state is MachineState.OK
    small = machine.locked_memory((64 << 10, 64 << 10))
    assert (small.state, small.found) == (MachineState.LIMITS, "64 KiB")


def test_a_launcher_is_looked_for_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.launcher("sh").state is MachineState.OK
    monkeypatch.setenv("PATH", "")
    assert machine.launcher("sh").state is MachineState.ABSENT


def test_one_core_and_little_memory_are_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert machine.memory(64 << 30).state is MachineState.OK
    assert machine.memory(1 << 30).state is MachineState.LIMITS
    for cores, state in (({3}, MachineState.LIMITS), ({0, 1}, MachineState.OK)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, c=cores: c)
        assert machine.cores().state is state


def test_records_need_a_folder_with_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "not" / "yet" / "there"
    usage = shutil._ntuple_diskusage(100 << 30, 0, 100 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert machine.room(deep).state is MachineState.OK
    usage = shutil._ntuple_diskusage(100 << 30, 0, 200 << 20)
    assert machine.room(deep).found.startswith("200 MiB free")
    assert machine.room(deep).state is MachineState.LIMITS
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "--record" in machine.room(deep).cure


# --- the list ---

OK = MachineCondition("torch", MachineState.OK, "2.13.0", needed=True)
GONE = MachineCondition(
    "gloo", MachineState.ABSENT, "no \x1b[31m", "so", "do this", needed=True
)


def test_the_list_says_what_prevents_a_check() -> None:
    text = as_text([OK, GONE], "0.1.0", 80, colour=False)
    assert "ok      torch  2.13.0\n" in text
    assert "absent  gloo   no \\x1b[31m: so\n" in text
    assert "cure: do this\n" in text
    assert text.endswith("no job can be checked here without gloo\n")
    assert as_text([OK], "0.1.0", 80, colour=False).endswith(
        "distdoctor check train.py\n"
    )
    assert "\x1b[" in as_text([OK], "0.1.0", 80, colour=True)


def test_the_list_as_data_follows_its_schema() -> None:
    data = json.loads(as_json([OK, GONE], "0.1.0"))
    jsonschema.validate(data, json_schema())
    assert data["schema"] == "distdoctor.env/1"
    assert data["usable"] is False
    assert json.loads(as_json([OK], "0.1.0"))["usable"] is True


def test_the_command_answers_for_this_machine() -> None:
    """Here, where the tests run, a script can be checked."""
    done = subprocess.run(
        [sys.executable, "-m", "distdoctor", "env", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    data = json.loads(done.stdout)
    jsonschema.validate(data, json_schema())
    names = [condition["name"] for condition in data["conditions"]]
    assert len(set(names)) == len(names)
    assert {
        "torch",
        "gloo",
        "NCCL",
        "GPUs",
        "ptrace",
        "/dev/shm",
        *machine.LAUNCHERS,
    } <= (set(names))


def test_the_command_fails_where_nothing_can_be_checked(tmp_path: Path) -> None:
    """With a torch that cannot be imported in front of the real one."""
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch is gone')")
    done = subprocess.run(
        [sys.executable, "-m", "distdoctor", "env"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 1
    assert "absent  torch" in done.stdout
    assert "libtorch is gone" in done.stdout
    assert "no job can be checked here without torch" in done.stdout


# --- what to type ---


def lacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, contained: bool
) -> list[MachineCondition]:
    """All conditions of a machine that lacks everything."""
    small = shutil._ntuple_diskusage(64 << 20, 0, 1 << 20)
    monkeypatch.setattr(
        shutil, "which", lambda name: name if name == PACKAGES else None
    )
    monkeypatch.setattr(machine, "HOT", None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    none = HorovodInstallation(
        python="python",
        framework=Framework.TORCH,
        fault="not installed",
        remedy="distdoctor horovod build",
    )
    absent = machine.shared_memory(tmp_path / "none", contained)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: small)
    limit = (256, 256)
    return [
        of_torch.release({}, "ModuleNotFoundError"),
        of_torch.release({**GOOD, "torch": "2.7.0"}, ""),
        of_torch.gloo({}),
        of_torch.gloo({**GOOD, "gloo": "RuntimeError: no device"}),
        of_torch.nccl(GOOD),
        of_torch.gpus({"gpu_error": "RuntimeError: driver"}, driver=True),
        of_torch.gpus(GOOD, driver=True),
        of_torch.horovod(none),
        machine.probes(),
        tracing.program(None),
        tracing.permission(False, "1", contained),
        *map(machine.launcher, machine.LAUNCHERS),
        machine_network.host_name("a", unknown),
        machine_network.loopback("203.0.113.7"),
        machine_network.interface("eth7", ["lo"]),
        machine.cores(),
        machine.memory(1 << 20),
        absent,
        machine.shared_memory(tmp_path, contained),
        machine.open_files(limit, contained),
        machine.processes(limit, contained),
        machine.locked_memory(limit, contained),
        machine.room(tmp_path),
    ]


PACKAGES = "apt-get"

WITHOUT_COMMANDS = {"NCCL", "torchrun", "srun", "cores", "memory"}
"""Another machine, another environment, or somebody else has to help there."""


@pytest.mark.parametrize("contained", [False, True])
def test_whatever_is_lacking_has_a_cure_and_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contained: bool
) -> None:
    found = lacking(tmp_path, monkeypatch, contained=contained)
    for one in found:
        assert one.state is not MachineState.OK, one
        assert one.cure, one
        assert bool(one.commands) != (one.name in WITHOUT_COMMANDS), one


def test_commands_are_listed_with_the_most_needed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = as_text(lacking(tmp_path, monkeypatch, contained=True), "0.1", 100, False)
    fixes, _, optional = text.partition("\nto fix\n")[2].partition(
        "\nif your jobs use it\n"
    )
    lines = [line.split("  ") for line in fixes.splitlines() if line.strip()]
    assert lines[0][1] == "torch"
    assert "docker run --shm-size=8g IMAGE" in fixes
    assert "docker run --cap-add=SYS_PTRACE IMAGE" in fixes
    assert "docker run --ulimit nofile=4096 IMAGE" in fixes
    assert "pip install deepspeed" in optional
    assert "pip install deepspeed" not in fixes


def test_where_nothing_is_lacking_nothing_is_to_be_fixed() -> None:
    fine = MachineCondition("cores", MachineState.OK, "8")
    text = as_text([fine], "0.1", 80, False)
    assert "to fix" not in text
    assert "if your jobs" not in text


def test_a_container_is_known_by_what_its_start_leaves(tmp_path: Path) -> None:
    assert not machine_cures.in_container(tmp_path)
    (tmp_path / "proc" / "1").mkdir(parents=True)
    cgroup = tmp_path / "proc" / "1" / "cgroup"
    cgroup.write_text("0::/init.scope\n")
    assert not machine_cures.in_container(tmp_path)
    cgroup.write_text("0::/kubepods/besteffort/pod1\n")
    assert machine_cures.in_container(tmp_path)
    cgroup.unlink()
    (tmp_path / ".dockerenv").touch()
    assert machine_cures.in_container(tmp_path)


def test_a_full_shared_memory_is_not_made_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil._ntuple_diskusage(8 << 30, 8 << 30, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    assert machine.shared_memory(tmp_path).commands == (f"ls -l {tmp_path}",)

"""What ranks tell of their software and variables, and what of it is a difference."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from distdoctor.analysis.environment.debug_switches import left_switches
from distdoctor.analysis.environment.software_differences import (
    version_differences_of,
)
from distdoctor.analysis.environment.source_differences import source_differences
from distdoctor.analysis.environment.variable_differences import (
    nccl_variable_differences,
    other_variable_differences,
)
from distdoctor.journal.environment import MASK_KEY_VARIABLE
from distdoctor.model.drawing import sketch
from distdoctor.model.observations.environment import Software, Sources, Variables
from distdoctor.model.run import Run
from distdoctor.probes.environment import software
from distdoctor.probes.environment.software import Inventory
from distdoctor.probes.environment.variables import settings_of
from distdoctor.probes.recorder import RECORDER

CODE = b'"""Loss."""\n\ndef loss(x):\n    """Squares."""\n    return x * x\n'


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the probes write."""
    written: list[Any] = []
    monkeypatch.setattr(RECORDER, "observe", lambda one, _site="": written.append(one))
    monkeypatch.setattr(RECORDER, "writer", object())
    return written


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules can be imported, and are forgotten behind the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    # Among the modules of all tests that this process has loaded, too.
    monkeypatch.setattr(software, "_MOST_FILES", 1_000_000)
    monkeypatch.setattr(software, "_MOST_BYTES", 1 << 40)
    known = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - known:
        del sys.modules[name]


def sources_of(observed: list[Any]) -> dict[str, str]:
    return {
        module: text
        for one in observed
        if isinstance(one, Sources)
        for module, text in zip(one.modules, one.texts, strict=True)
    }


def versions_of(observed: list[Any]) -> dict[str, str]:
    return {
        package: version
        for one in observed
        if isinstance(one, Software)
        for package, version in zip(one.packages, one.versions, strict=True)
    }


def begun() -> Inventory:
    """The probe in a program that begins now."""
    time.sleep(0.02)  # the clock of a file system has steps of up to 10 ms
    inventory = Inventory()
    inventory.begin()
    return inventory


# --- the probes ---


def test_versions_of_what_is_imported_are_told(observed: list[Any]) -> None:
    import torch

    begun().tell()
    versions = versions_of(observed)
    assert versions["torch"] == torch.__version__
    assert "numpy" in versions
    assert not {"distdoctor", "json", "torch.nn"} & versions.keys()
    assert observed[0].python == ".".join(map(str, sys.version_info[:3]))


def test_a_package_without_a_number_has_that_of_its_installation(
    observed: list[Any], project: Path
) -> None:
    (project / "price_list.py").write_text("")
    (project / "Price.List-1.4.2.dist-info").mkdir()
    import price_list  # type: ignore[import-not-found] # noqa: F401

    begun().tell()
    assert versions_of(observed)["price_list"] == "1.4.2"


def test_comments_and_line_ends_do_not_count(
    observed: list[Any], project: Path
) -> None:
    (project / "loss_a.py").write_bytes(CODE)
    (project / "loss_b.py").write_bytes(
        b"# mine\r\n" + CODE.replace(b"\n", b"  \r\n") + b"\n\n# end\n"
    )
    (project / "loss_c.py").write_bytes(CODE.replace(b"x * x", b"x + x"))
    import loss_a  # type: ignore[import-not-found] # noqa: F401
    import loss_b  # type: ignore[import-not-found] # noqa: F401
    import loss_c  # type: ignore[import-not-found] # noqa: F401

    begun().tell()
    texts = sources_of(observed)
    assert texts["loss_a"] == texts["loss_b"] != texts["loss_c"]


def test_a_file_that_came_after_the_program_began_is_left_out(
    observed: list[Any], project: Path
) -> None:
    inventory = begun()
    (project / "of_rank_0.py").write_bytes(CODE)
    os.utime(project / "of_rank_0.py", (1, 1))  # as a copy that keeps times
    import of_rank_0  # type: ignore[import-not-found] # noqa: F401

    inventory.tell()
    assert "of_rank_0" not in sources_of(observed)


def test_what_file_systems_call_now_is_never_later_than_a_file_made_now(
    tmp_path: Path,
) -> None:
    for number in range(300):
        before = software._file_time_s()
        (tmp_path / str(number)).write_bytes(CODE)
        made = (tmp_path / str(number)).stat()
        assert before <= max(made.st_mtime, made.st_ctime)


def test_what_is_imported_later_is_told_once(
    observed: list[Any], project: Path
) -> None:
    (project / "late_part.py").write_bytes(CODE)
    inventory = begun()
    inventory.tell()
    before = len(observed)
    import late_part  # type: ignore[import-not-found] # noqa: F401

    inventory.stepped()
    inventory.tell()
    added = [one for one in observed[before:] if isinstance(one, Sources)]
    assert [one.modules for one in added] == [("late_part",)]


def test_a_module_that_loads_when_it_is_asked_is_not_asked(
    observed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    monkeypatch.setitem(sys.modules, "late_library", Late("late_library"))
    monkeypatch.setitem(sys.modules, "no_module", "text")
    begun().tell()
    assert "late_library" not in versions_of(observed)


def test_files_in_archives_and_files_that_are_gone_are_left_out(
    observed: list[Any], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    egg = ModuleType("in_an_egg")
    egg.__file__ = str(project / "old-1.0.egg" / "in_an_egg.py")
    monkeypatch.setitem(sys.modules, "in_an_egg", egg)
    begun().tell()
    assert "in_an_egg" not in sources_of(observed)


def test_a_secret_is_told_by_a_fingerprint_and_other_variables_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(MASK_KEY_VARIABLE, "key of the job")
    given = {"HOROVOD_SECRET_KEY": "open", "NCCL_X": "a" * 500, "AWS_TOKEN": "b"}
    told = dict(one.split("=") for one in settings_of(given | {"TF_VAR_x": "c"}))
    assert told.keys() == {"HOROVOD_SECRET_KEY", "NCCL_X"}
    for value in told.values():
        assert re.fullmatch(r"<masked:[0-9a-f]{8}>", value)


def test_a_value_that_is_no_text_can_be_written() -> None:
    (told,) = settings_of({"NCCL_X": os.fsdecode(b"\xff")})
    told.encode()


# --- the differences ---


def run_of(*settings: tuple[str, ...], hosts: str = "aaaa") -> Run:
    return Run.of_events(
        {
            rank: [Variables(rank=rank, host=hosts[rank], settings=some)]
            for rank, some in enumerate(settings)
        }
    )


@pytest.mark.parametrize(
    "setting",
    [
        *("CUDA_VISIBLE_DEVICES=1", "HOROVOD_RANK=1", "HOROVOD_HOSTNAME=b"),
        *("HOROVOD_GLOO_RENDEZVOUS_PORT=1", "OMP_NUM_THREADS=3", "NCCL_DEBUG=INFO"),
        *("CUDA_CACHE_PATH=/tmp/1", "NCCL_IB_HCA=mlx5_1", "NCCL_SOCKET_IFNAME=eth1"),
        *("HOROVOD_TIMELINE=/tmp/t.json", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/r1"),
    ],
)
def test_what_is_a_ranks_own_is_no_difference(setting: str) -> None:
    run = run_of((setting,), ())
    assert not [*nccl_variable_differences(run), *other_variable_differences(run)]


def test_what_a_host_may_need_differs_within_a_host_alone() -> None:
    settings = ("NCCL_IB_TIMEOUT=22",), ()
    assert not list(nccl_variable_differences(run_of(*settings, hosts="ab")))
    assert list(nccl_variable_differences(run_of(*settings, hosts="aa")))


@pytest.mark.parametrize(
    "setting", ["NCCL_ALGO=Ring", "TORCH_NCCL_ASYNC_ERROR_HANDLING=0"]
)
def test_what_all_have_to_share_names_who_has_it(setting: str) -> None:
    (one,) = nccl_variable_differences(run_of((), (), (setting,), hosts="abc"))
    assert one.odd == (2,)


def test_a_switch_of_some_is_told_once() -> None:
    some = run_of(("NCCL_P2P_DISABLE=1",), ())
    assert not list(left_switches(some))  # it is a difference
    assert list(nccl_variable_differences(some))
    (one,) = left_switches(run_of(("CUDA_LAUNCH_BLOCKING=1",), ()))
    assert [*one.on] == [0]
    assert not one.is_shared


def graveness(drawing: str) -> list[bool]:
    run = sketch(drawing)
    versions = version_differences_of(run, frozenset())
    sources = source_differences(run)
    return [one.is_grave for one in versions] + [one.is_grave for one in sources]


@pytest.mark.parametrize(
    ("package", "other", "grave"),
    [
        ("torch", "2.12.0", True),
        ("torch", "2.13.1", False),
        ("torch", "2.13.0%2Bcpu", False),
        ("horovod", "2.12.0", True),
        ("numpy", "1.0.0", False),
    ],
)
def test_another_release_of_what_carries_the_job_is_grave(
    package: str, other: str, grave: bool
) -> None:
    drawing = (
        f"rank 0 | software(packages={package},versions=2.13.0)\n"
        f"rank 1 | software(packages={package},versions={other})"
    )
    assert graveness(drawing) == [grave]


PROGRAM = "sources(modules=__main__,files=/j/t.py,texts=m,lines=00000009)"


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("texts=a,lines=00000001", "texts=a,lines=00000001", []),
        ("texts=a,lines=0000000100000002", "texts=b,lines=0000000100000003", [True]),
        ("texts=a,lines=00000001", "texts=b,lines=00000002", [False]),
        (
            "texts=a,lines=0000000100000002,constants=0",
            "texts=b,lines=0000000100000003,constants=0",
            [False],
        ),
    ],
    ids=["alike", "versions", "of one name", "values"],
)
def test_only_versions_of_a_module_are_grave(
    first: str, second: str, found: list[bool]
) -> None:
    drawing = (
        f"rank 0 | {PROGRAM}  sources(modules=net,files=/j/net.py,{first})\n"
        f"rank 1 | {PROGRAM}  sources(modules=net,files=/k/net.py,{second})"
    )
    assert graveness(drawing) == found


def test_a_program_at_another_path_is_only_likely_a_version() -> None:
    lines = "lines=0000000100000002000000030000000"
    (one,) = source_differences(
        sketch(
            f"rank 0 | sources(modules=__main__,files=/j/t.py,texts=a,{lines}4)\n"
            f"rank 1 | sources(modules=__main__,files=/k/t.py,texts=b,{lines}5)"
        )
    )
    assert (one.is_grave, one.is_certain) == (True, False)


def test_modules_of_programs_that_are_no_file_are_not_compared() -> None:
    drawing = (
        "rank 0 | sources(modules=net,files=/j/net.py,texts=a,lines=00000001)\n"
        "rank 1 | sources(modules=net,files=/k/net.py,texts=b,lines=00000001)"
    )
    assert graveness(drawing) == []


def test_what_is_told_in_parts_is_put_together() -> None:
    drawing = (
        "rank 0 | software(packages=a,versions=1)  software(packages=b,versions=1)\n"
        "rank 1 | software(packages=a+b,versions=1+2)"
    )
    assert graveness(drawing) == [False]

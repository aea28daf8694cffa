"""The assertions for tests: what they tell, on real ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from distdoctor.testing import assert_same_across_ranks, assert_well

DEADLINE_S = 200.0


def test_without_a_group_of_real_ranks_nothing_is_asserted() -> None:
    with pytest.raises(RuntimeError, match="there is no process group"):
        assert_same_across_ranks(torch.ones(1))
    program = (
        "import torch, torch.distributed as dist\n"
        "from torch.testing._internal.distributed.fake_pg import FakeStore\n"
        "from distdoctor.testing import assert_same_across_ranks\n"
        "dist.init_process_group('fake', rank=0, world_size=2, store=FakeStore())\n"
        "try:\n    assert_same_across_ranks(torch.ones(1))\n"
        "except RuntimeError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=DEADLINE_S,
        text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert "ranks of torch's fake backend exchange nothing" in done.stdout


def test_a_run_that_is_not_well_fails_with_its_report() -> None:
    assert_well(SimpleNamespace(verdict="well", text=""))
    sick = SimpleNamespace(verdict="sick", text="SICK   DD108 skipped collective")
    with pytest.raises(AssertionError, match="the run is sick, not well\n\nSICK   DD1"):
        assert_well(sick)
    unknown = SimpleNamespace(verdict="unknown", text="", has_failed=False)
    with pytest.raises(AssertionError, match="the run is unknown"):
        assert_well(unknown)
    assert_well(unknown, allow_incomplete=True)
    with pytest.raises(AssertionError):
        assert_well(sick, allow_incomplete=True)
    unknown.has_failed = True
    with pytest.raises(AssertionError, match="the run is unknown"):
        assert_well(unknown, allow_incomplete=True)

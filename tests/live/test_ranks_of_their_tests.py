"""Running those of torch's tests that start ranks: the probes are in these."""

from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from their_tests import Way, outcomes_of, recorded

WITH_RANKS = """
import os, subprocess, time
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

class TestRanks(MultiProcessTestCase):
    world_size = 2
    def setUp(self):
        super().setUp()
        self._spawn_processes()
    def test_sum(self):
        store = dist.FileStore(self.file_name, 2)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=2)
        value = torch.ones(1)
        dist.all_reduce(value)
        self.assertEqual(value.item(), 2.0)
        dist.destroy_process_group()

def test_what_is_left_behind():
    left = subprocess.Popen(["sleep", "600"])
    with open(os.path.join(os.path.dirname(__file__), "left"), "w") as file:
        file.write(str(left.pid))
"""


@pytest.mark.parametrize("forks", [True, False])
def test_probes_are_in_the_ranks_that_a_test_starts(
    tmp_path: Path, forks: bool
) -> None:
    pytest.importorskip("expecttest")  # torch's module of test cases needs it
    path = tmp_path / "test_theirs.py"
    path.write_text(WITH_RANKS)
    way = Way(tmp_path, joins=False, each_s=100.0, forks=forks)
    found = outcomes_of(path, way, tmp_path / "record")
    assert {told.outcome for told in found.values()} == {"passed"}
    ranks, records, losses = recorded(tmp_path / "record")
    assert ranks == 2
    assert records > 4
    assert not losses
    left = int((tmp_path / "left").read_text())
    with suppress(psutil.NoSuchProcess):
        psutil.Process(left).wait(10)

"""GPUs that Ray counts where the CPU stands in for them."""

import json
import os
from types import ModuleType

import pytest

from distdoctor.journal.environment import RANKS_VARIABLE
from distdoctor.probes.gpu_emulation import ray_resources

VARIABLE = "RAY_OVERRIDE_RESOURCES"


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module whose `init` tells what it would find in the environment."""
    monkeypatch.setenv(RANKS_VARIABLE, "4")
    monkeypatch.delenv(VARIABLE, raising=False)
    module = ModuleType("ray")
    module.__dict__["init"] = lambda **_: os.environ.get(VARIABLE)
    ray_resources.watch(module)
    return module


def test_ray_counts_a_gpu_for_each_rank(ray: ModuleType) -> None:
    assert json.loads(ray.init()) == {"GPU": 4}
    assert VARIABLE not in os.environ


def test_what_the_user_says_holds(
    ray: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ray.init(num_gpus=0) is None
    monkeypatch.setenv(VARIABLE, "{}")
    assert ray.init() == "{}"

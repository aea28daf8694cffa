"""Which backend serves a process group that was made without naming one."""

import pytest
import torch.distributed as dist

from distdoctor.probes.groups.backends import backend_of


@pytest.mark.parametrize(
    ("name", "config", "found"),
    [
        ("gloo", "cpu:gloo,cuda:gloo", "gloo"),
        ("undefined", "cpu:gloo", "gloo"),
        ("undefined", "cuda:gloo,cpu:gloo", "gloo"),
        ("undefined", "xpu:xccl", "undefined"),
        ("undefined", "", "undefined"),
    ],
)
def test_the_backend_of_this_device_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, config: str, found: str
) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda _group: name)
    monkeypatch.setattr(dist, "get_backend_config", lambda _group: config)
    assert backend_of() == found

"""All tests of this folder are live: most start real ranks, the others processes."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_jobs import Hosts
from two_hosts import two_hosts

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them, before the whole suite's hook puts what is marked last."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.live)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts that see each other, and none of each other's processes."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip", "ps"))):
        pytest.skip("no unshare, nsenter, ip and ps: apt install util-linux iproute2")
    spaces = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "true"]
    if subprocess.run(spaces, capture_output=True, check=False).returncode:
        pytest.skip("namespaces of a network may not be made here: run as root")
    with two_hosts(tmp_path_factory.mktemp("hosts")) as pair:
        yield pair


@pytest.fixture
def clean(hosts: Hosts) -> Iterator[Hosts]:
    """The two hosts, on which nothing may be left in the end."""
    yield hosts
    left = [host.left_over() for host in hosts]
    for host in hosts:
        host.end_all()
    assert left == [[], []]

"""What several test modules need."""

import socket

import pytest
from hypothesis import settings

# How long an example takes is the machine's affair.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture
def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start ranks come last, so that what fails at once is seen at once."""
    items.sort(key=lambda item: item.get_closest_marker("live") is not None)

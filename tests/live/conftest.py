"""All tests of this folder are live: most start real ranks, the others processes."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them, before the whole suite's hook puts what is marked last."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.live)

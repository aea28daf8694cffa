"""Importing what the probes need costs the job no look for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from distdoctor.probes import own_imports


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_no_garbage_is_collected_inside() -> None:
    with own_imports.later():
        assert not gc.isenabled()
        with own_imports.later():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_garbage_is_collected_again_behind_an_error() -> None:
    with pytest.raises(ImportError), own_imports.later():
        raise ImportError
    assert gc.isenabled()


def test_a_program_that_collects_none_collects_none_afterwards() -> None:
    gc.disable()
    with own_imports.later():
        pass
    assert not gc.isenabled()

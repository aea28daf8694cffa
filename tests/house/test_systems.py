"""The table of systems of parallelism is whole."""

import runpy
from pathlib import Path

from programs import programs
from systems import systems

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_each_system_has_a_job_and_two_patients_with_twins() -> None:
    for system in systems():
        assert system.script.exists(), system.job
        twins = [one for one in system.patients if one.has_twin]
        assert len(twins) >= 2, system.name


def test_each_patient_is_of_a_system() -> None:
    known = {one.name for one in systems()}
    assert {one.system for one in programs("systems")} <= known


def test_the_page_has_a_row_for_each_system() -> None:
    """Else: `python docs/make_systems.py NAME`."""
    making = runpy.run_path(str(DOCS / "make_systems.py"))
    page = (DOCS / "systems.md").read_text()
    made = making["rows"](page)
    assert list(made) == [one.name for one in systems()]
    assert page == making["document"](made)

"""Records that earlier releases wrote are read, and told, as these told them.

`records/version_1.tar.xz` holds runs that were recorded with journals of version 1, and
`version_1.json` what was said of them then.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from unpacked_records import unpack

from distdoctor.journal.notes_reader import read_life
from distdoctor.journal.reader import JournalReader
from distdoctor.judging import judge
from distdoctor.model.events import Failure, Left, Place, Shortened, Started

RECORDS = Path(__file__).parent.parent.parent / "records"
TOLD = json.loads((RECORDS / "version_1.json").read_text())


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the records lie."""
    folder = tmp_path_factory.mktemp("version_1")
    unpack("version_1.tar.xz", folder)
    return folder


@pytest.mark.parametrize("name", TOLD)
def test_the_same_is_told_of_a_record_of_version_1(name: str, records: Path) -> None:
    journal = next((records / name).glob("rank-0.0.journal"))
    assert JournalReader(journal).header().version == 1
    report = judge(records / name).report
    findings: list[dict[str, Any]] = [
        {
            "code": finding.code,
            "ranks": list(finding.ranks),
            "summary": finding.summary,
            "lines": [location.line for location in finding.locations],
        }
        for finding in report.findings
    ]
    assert {"verdict": report.verdict, "findings": findings} == TOLD[name]


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ('{"what": "leave"}', Left()),
        ('{"what": "start", "world_size": 2}', Started(world_size=2, joined=False)),
        ('{"what": "shortened", "kept": 4, "length": -1}', Shortened(kept=4)),
        ('{"what": "of a later release"}', None),
    ],
)
def test_an_event_of_version_1_is_that_of_the_present(text: str, event: object) -> None:
    assert read_life(text) == (event, "")


def test_a_failure_of_version_1_told_its_lines_itself() -> None:
    text = (
        '{"what": "fail", "error": "KeyError", "message": "", "fatal": false, '
        '"site": "a.py\\n3\\nf", "caught": "a.py\\n9\\nmain", '
        '"spawned": -1, "secondary": false}'
    )
    caught = Place("a.py", 9, "main")
    event = Failure(error="KeyError", fatal=False, caught=caught)
    assert read_life(text) == (event, "a.py\n3\nf")


@pytest.mark.parametrize("text", ["", "3", "[]", '{"what": "fail"}', '["Left"]'])
def test_what_is_no_event_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of json or of ours
        read_life(text)

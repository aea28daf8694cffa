"""The command line of `autopsy` for jobs that run."""

import pytest
from click.testing import CliRunner

from distdoctor.cli import autopsy
from distdoctor.errors import LeavingsMissing


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give a path, a process number, --job, --all or --ras"),
        (["4711", "some/folder"], "not both"),
        (["--all", "some/folder"], "not both"),
        (["--watch", "some/folder"], "--watch is for jobs that run"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(autopsy.run, arguments)
    assert done.exit_code == 2
    assert words in done.output


def test_a_process_that_is_not_there_is_said() -> None:
    done = CliRunner().invoke(autopsy.run, [str(2**22 + 17)])
    assert isinstance(done.exception, LeavingsMissing)
    assert "there is no process" in str(done.exception)

"""The plugin for pytest: what tests on ranks can do, and how they are reported."""

import json
import re
from pathlib import Path

import plugin_sessions as sessions
import pytest
from plugin_sessions import Session

pytest_plugins = ["pytester"]

TESTS = """\
import unittest, warnings
import pytest, torch
import torch.distributed as dist

made = []

@pytest.fixture(scope="module")
def module_wide(rank, world_size):
    made.append(world_size)
    yield rank, world_size
    made.append(-world_size)

@pytest.fixture(scope="class")
def class_wide():
    return []

@pytest.mark.ranks([1, 2, 3])
def test_sizes(rank, world_size, group, module_wide):
    assert (dist.get_rank(), dist.get_world_size()) == (rank, world_size)
    assert module_wide == (rank, world_size)
    assert group is dist.group.WORLD
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world_size

@pytest.mark.ranks(2)
class TestClass:
    def test_first(self, class_wide, module_wide):
        class_wide.append(made[-1])
        assert made[-1] == 2

    def test_second(self, class_wide, module_wide):
        assert class_wide == [2]
        assert made[-1] == 2

@pytest.mark.ranks(2)
class TestUnit(unittest.TestCase):
    def setUp(self):
        self.sum = torch.ones(1)

    def test_sum(self):
        dist.all_reduce(self.sum)
        self.assertEqual(self.sum.item(), 2)

@pytest.mark.ranks(2)
@pytest.mark.parametrize("letter", ["a", "b"])
def test_fixtures_of_pytest(letter, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LETTER", letter)
    print(letter)
    assert capsys.readouterr().out == letter + "\\n"
    assert list(tmp_path.iterdir()) == []

@pytest.mark.ranks(2)
def test_own_fixtures(rank, device, mesh, rank_tmp_path, shared_tmp_path):
    assert device == torch.device("cpu")
    assert mesh.size() == 2
    (rank_tmp_path / "mine").touch()
    (shared_tmp_path / str(rank)).touch()
    dist.barrier()
    assert {path.name for path in shared_tmp_path.iterdir()} == {"0", "1"}
    assert [path.name for path in rank_tmp_path.iterdir()] == ["mine"]

@pytest.mark.ranks(4)
def test_values_differ(rank):
    print("rank", rank, "is here")
    print("all are here")
    assert rank == 2

@pytest.mark.ranks(4)
def test_lines_differ(rank):
    if rank == 3:
        raise ValueError("three")
    assert rank > 7

@pytest.mark.ranks(2)
@pytest.mark.skip(reason="not now")
def test_skipped():
    pass

@pytest.mark.ranks(2)
def test_skipped_on_one(rank):
    if rank == 0:
        pytest.skip("only here")

@pytest.mark.ranks(2)
@pytest.mark.xfail(strict=True)
def test_fails_on_one_as_expected(rank):
    assert rank == 0

@pytest.mark.ranks(2)
def test_says_more(rank, record_property):
    record_property("distdoctor", f"of rank {rank}")
    warnings.warn("look here")

@pytest.mark.ranks(100, lane="fake")
def test_fake(rank, world_size):
    dist.all_reduce(torch.ones(1))
    assert world_size == dist.get_world_size() == 100
    assert rank < 99

@pytest.mark.ranks(2, lane="fresh")
def test_fresh():
    assert made == []

@pytest.mark.ranks(2, cores=3)
def test_wrong_marker():
    pass

@pytest.mark.ranks(2)
def test_missing_fixture(no_such_fixture):
    pass

def test_without_ranks(rank):
    pass

@pytest.mark.ranks(2)
def test_findings(distdoctor_findings):
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    assert distdoctor_findings() == []

@pytest.mark.ranks(2)
def test_sick():
    dist.all_reduce(torch.ones(1), async_op=True)
    dist.barrier()

@pytest.mark.ranks(2)
@pytest.mark.distdoctor(ignore=["dd113"])
def test_sick_and_ignored():
    dist.all_reduce(torch.ones(1), async_op=True)
    dist.barrier()

def test_plain():
    assert made == []
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session runs."""
    return tmp_path_factory.mktemp("plugin")


@pytest.fixture(scope="module")
def session(folder: Path) -> Session:
    """All of these in one session."""
    return sessions.run(folder, TESTS, "--distdoctor-report=reports.json")


PASSED = [
    *("test_sizes[1ranks]", "test_sizes[2ranks]", "test_sizes[3ranks]"),
    *("test_first", "test_second", "test_sum", "test_own_fixtures"),
    *("test_fixtures_of_pytest[a]", "test_fixtures_of_pytest[b]"),
    *("test_skipped_on_one", "test_says_more", "test_fresh", "test_findings"),
    *("test_sick_and_ignored", "test_plain"),
]


@pytest.mark.parametrize("name", PASSED)
def test_it_passes_on_its_ranks(session: Session, name: str) -> None:
    assert session.tests[name].outcome == "passed", session.output


@pytest.mark.parametrize("name", ["test_skipped", "test_fails_on_one_as_expected"])
def test_it_is_left_out_or_fails_as_expected(session: Session, name: str) -> None:
    assert session.tests[name].outcome == "skipped"


def part_of(session: Session, name: str) -> str:
    """What is printed of the failure of a test."""
    return session.output.partition(f"_ {name} _")[2].partition("\n____")[0]


def test_ranks_that_fail_in_one_line_are_folded(session: Session) -> None:
    assert session.tests["test_values_differ"].message == "assert 0 == 2"
    text = part_of(session, "test_values_differ")
    assert "ranks {0-1,3} failed alike; rank 2 did not fail\n" in text
    assert "\nrank 3: assert 3 == 2\n" in text
    assert text.count(">       assert rank == 2") == 1


def test_what_each_rank_printed_is_shown_once(session: Session) -> None:
    text = part_of(session, "test_values_differ")
    for rank in range(4):
        assert re.search(f"stdout call, rank {rank} -+\nrank {rank} is here\n", text)


def test_failures_in_other_lines_are_shown_too(session: Session) -> None:
    text = part_of(session, "test_lines_differ")
    assert "failed otherwise" in text
    assert ">       assert rank > 7" in text
    assert "ValueError: three" in text


def test_fake_ranks_run_one_after_the_other(session: Session) -> None:
    reported = session.tests["test_fake"]
    assert reported.outcome == "failed"
    assert "rank 99 failed; ranks {0-98} did not fail" in reported.text


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("test_wrong_marker", "has no argument 'cores'"),
        ("test_missing_fixture", "fixture 'no_such_fixture' not found"),
        ("test_without_ranks", "mark the test with @pytest.mark.ranks"),
    ],
)
def test_what_cannot_run_is_an_error(session: Session, name: str, why: str) -> None:
    assert session.tests[name].outcome == "error"
    assert why in session.tests[name].text


def test_a_test_that_passes_is_judged_as_well(session: Session) -> None:
    reported = session.tests["test_sick"]
    assert reported.outcome == "failed"
    assert reported.message.startswith("DD113 buffer touched early: ranks {0-1}")
    assert reported.properties == ["DD113 ranks {0-1}"]


def test_what_was_found_is_written_to_a_file(session: Session, folder: Path) -> None:
    assert session.status == 1
    written = json.loads((folder / "reports.json").read_text())
    found = {
        (report["script"].rpartition("::")[2], finding["code"])
        for report in written["reports"]
        for finding in report["findings"]
    }
    assert ("test_sick", "DD113") in found


def test_properties_and_warnings_of_ranks_arrive(session: Session) -> None:
    reported = session.tests["test_says_more"]
    assert reported.properties == ["of rank 0", "of rank 1"]
    assert session.output.count("UserWarning: look here") == 1


def test_only_records_of_what_was_found_are_kept(session: Session) -> None:
    kept = set(re.findall(r"kept in (\S+)", session.output))
    folder = Path(next(iter(kept))).parent
    names = {path.name.partition("-")[2] for path in folder.iterdir()}
    assert names == {"test_sick"}


def test_no_process_and_no_file_is_left(session: Session) -> None:
    assert session.left == []


SEVERAL = """\
import pathlib, pytest
import torch.distributed as dist

@pytest.mark.ranks(2)
@pytest.mark.parametrize("n", range(4))
def test_it(n, rank):
    dist.barrier()
    assert n != 1 or pathlib.Path("repaired").exists()
"""


def test_it_stops_at_the_first_and_goes_on_with_the_last_failed(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(SEVERAL)
    result = pytester.runpytest_subprocess("-x")
    result.assert_outcomes(passed=1, failed=1)
    pytester.path.joinpath("repaired").touch()
    result = pytester.runpytest_subprocess("--lf")
    result.assert_outcomes(passed=1)


def test_workers_of_xdist_have_ranks_of_their_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SEVERAL)
    options = ("-n", "2", "--junitxml=report.xml", "--distdoctor-slots=2")
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*ranks {0-1} failed alike*"])
    assert "assert (1 != 1 or" in pytester.path.joinpath("report.xml").read_text()


DEBUGGED = """\
import pytest
import torch.distributed as dist

@pytest.mark.ranks(2, timeout=30)
def test_it(rank):
    secret = 17 + rank
    if rank == 1:
        raise ValueError("look at me")
    dist.barrier()
"""


def test_one_rank_is_debugged_while_others_wait(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(DEBUGGED)
    command = sessions.command("--pdb", str(path))
    result = pytester.run(*command, stdin=b"p secret * 100\nc\n", timeout=120)
    result.stdout.fnmatch_lines(
        ["*post_mortem, rank 1*", "*1800", "*DD202 waits for dead rank*"]
    )
    result.assert_outcomes(failed=1)

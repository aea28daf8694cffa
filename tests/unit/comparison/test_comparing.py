"""Runs of one job that are compared: what is said, and what becomes of files."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from distdoctor.analysis.comparison.repeated_runs import repeated
from distdoctor.analysis.comparison.resumed_runs import cut, resumed, unequal
from distdoctor.catalogue import every_check
from distdoctor.errors import MissingEvidence
from distdoctor.examination.concluding import conclude
from distdoctor.examination.examining import examine
from distdoctor.journal.compared import as_comparison, with_comparison
from distdoctor.journal.environment import KEEP_VARIABLE
from distdoctor.launch.file_restore import FileRestore
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Severity, Sick
from distdoctor.model.run import Run
from distdoctor.probes.comparison import file_backup

WRITES = "stored(file=/c,parts=model)"
READS = "opened(file=/c,parts=model)@t.py:9"


def step(number: int, **sorts: int) -> str:
    """A traced step; sorts that are not named are alike in all."""
    digests = {"weights": 1, "rate": 1, "input": number, "output": number} | sorts
    names = "+".join(digests).replace("random", "random%20torch")
    prints = "+".join(map(str, digests.values()))
    return f"traced(step={number},names={names},prints={prints},lr=0.{digests['rate']})"


def run_of(*ranks: str) -> Run:
    return sketch("\n".join(f"rank {n} | {line}" for n, line in enumerate(ranks)))


# --- two runs ---


def test_what_is_done_again_alike_is_repeated() -> None:
    run = run_of(f"{step(1)}  {step(2)}", f"{step(1)}  {step(2)}  {step(3)}")
    compared, differences = repeated(run, run)
    assert (compared.steps, compared.why, differences) == (2, "", [])


def test_what_differs_in_one_step_is_told_in_the_order_of_its_causes() -> None:
    first = run_of(step(1), f"seeded(seed=7)@t.py:3  {step(1)}  {step(2)}")
    second = run_of(step(1), f"seeded(seed=9)@t.py:3  {step(1, weights=5, output=5)}")
    _, differences = repeated(first, second)
    assert [(one.rank, one.step, one.what) for one in differences] == [
        (1, 0, "seed"),
        (1, 0, "weights"),
        (1, 0, "output"),
    ]


def test_what_follows_from_an_earlier_step_is_not_told() -> None:
    first = run_of(f"{step(1)}  {step(2)}")
    second = run_of(f"{step(1, output=5)}  {step(2, weights=5, output=5)}")
    _, differences = repeated(first, second)
    assert [(one.step, one.what) for one in differences] == [(0, "output")]


def test_a_stream_that_nobody_draws_from_may_begin_anywhere() -> None:
    first = run_of(f"{step(1, random=5)}  {step(2, random=5)}")
    second = run_of(f"{step(1, random=6)}  {step(2, random=6)}")
    assert not repeated(first, second)[1]


def test_a_tensor_is_named_where_steps_tell_it() -> None:
    def traced(value: int) -> str:
        names = "output+output%20conv+output%20fc"
        return f"traced(names={names},prints={value}+1+{value})"

    _, differences = repeated(run_of(traced(2)), run_of(traced(3)))
    assert [(one.what, one.name) for one in differences] == [("output", "fc")]


def judged(first: Run, second: Run) -> tuple[str, list[tuple[str, Severity]]]:
    run = with_comparison(first, as_comparison(*repeated(first, second)))
    verdicts = examine(run, [one for one in every_check() if one.code == "DD308"])
    found = [
        (finding.message, verdict.severity_of(finding))
        for verdict in verdicts
        if isinstance(verdict, Sick)
        for finding in verdict.findings
    ]
    return conclude(run, verdicts).verdict, found


def test_a_run_that_computes_something_else_is_sick() -> None:
    joined = "init_process_group(2)  all_reduce(4)"
    first = run_of(f"{joined}  {step(1)}", f"{joined}  {step(1)}")
    second = run_of(f"{joined}  {step(1, input=9)}", f"{joined}  {step(1)}")
    verdict, ((message, severity),) = judged(first, second)
    assert severity is Severity.ERROR
    assert "input of the model in step 1 on rank 0" in message
    assert verdict == "sick"


def test_a_seed_that_nothing_depends_on_is_noted() -> None:
    first = run_of(f"seeded(seed=7)@t.py:3  {step(1)}")
    second = run_of(f"seeded(seed=8)@t.py:3  {step(1)}")
    _, ((message, severity),) = judged(first, second)
    assert severity is Severity.NOTE
    assert message.endswith("nothing that was computed differs")


# --- a resume ---

WHOLE = f"{step(1)}  {step(2)}  {WRITES}  {step(3)}  {step(4)}  {step(5)}"
INTERRUPTED = f"{step(1)}  {step(2)}  {WRITES}  {step(3)}"


def lost(again: str, whole: str = WHOLE, interrupted: str = INTERRUPTED) -> list[Any]:
    _, differences = resumed(run_of(whole), run_of(interrupted), run_of(again))
    return [(one.what, one.step) for one in differences]


def later(number: int, **sorts: int) -> str:
    """A step behind the checkpoint, of a job that counts from 1 again."""
    return step(number, **({"input": number + 2, "output": number + 2} | sorts))


def test_a_job_that_goes_on_as_it_was_is_proved() -> None:
    runs = [WHOLE, INTERRUPTED, f"{READS}  {later(1)}  {later(2)}  {later(3)}"]
    compared, differences = resumed(*map(run_of, runs))
    assert (compared.steps, compared.begun, differences) == (3, 2, [])


def test_a_learning_rate_that_begins_anew_is_told_and_not_what_follows() -> None:
    again = f"{READS}  {later(1, rate=5)}  {later(2, rate=5, weights=7, output=7)}"
    assert lost(again) == [("rate", 2)]


def test_in_how_many_parts_a_pass_is_told_is_no_difference() -> None:
    rows = [
        "read(unfinished)  read(samples=7+8+9,unfinished)  read(samples=1,steps=4)",
        "read(unfinished)  read(samples=7+8,unfinished)  read(samples=9+1,steps=4)",
    ]
    first, second = (run_of(f"{step(1)}  {row}  {step(2)}") for row in rows)
    assert repeated(first, second)[1] == []
    other = run_of(f"{step(1)}  {rows[1].replace('9+1', '9+2')}  {step(2)}")
    _, (difference,) = repeated(first, other)
    assert (difference.what, difference.name) == ("samples", "pass 1, sample 4")


def test_what_one_run_left_out_of_a_sample_is_no_difference() -> None:
    first = run_of(f"{step(1)}  read(contents=7+0+9)")
    second = run_of(f"{step(1)}  read(contents=7+8+0)")
    assert repeated(first, second)[1] == []


def test_samples_that_part_later_are_told_beside_what_parts_first() -> None:
    again = f"{READS}  {later(1, weights=7)}  {later(2, weights=8, input=9)}"
    assert lost(again) == [("weights", 2), ("input", 3)]


def test_what_has_no_cause_among_what_is_compared_is_told_as_such() -> None:
    assert lost(f"{READS}  {later(1, output=9)}") == [("output", 2)]


def test_random_state_is_told_with_the_first_thing_that_depends_on_it() -> None:
    whole = (
        f"{step(1, random=1)}  {step(2, random=2)}  {WRITES}  "
        f"{step(3, random=3)}  {step(4, random=4)}"
    )
    interrupted = f"{step(1, random=1)}  {step(2, random=2)}  {WRITES}"
    again = f"{READS}  {later(1, random=7, output=9)}  {later(2, random=8, weights=9)}"
    (one,) = resumed(*map(run_of, (whole, interrupted, again)))[1]
    assert (one.what, one.name, one.there) == ("random", "torch", "output in step 3")


def test_the_epoch_of_a_sampler_is_told_with_its_line() -> None:
    whole = WHOLE.replace(WRITES, f"{WRITES}  shuffled(epoch=1,length=9)")
    again = f"{READS}  shuffled(length=9)@t.py:7  {later(1, input=9)}"
    runs = run_of(whole), run_of(INTERRUPTED), run_of(again)
    (one,) = resumed(*runs)[1]
    assert (one.what, one.here, one.there, str(one.place)) == (
        "input",
        "1",
        "0",
        "t.py:7",
    )


def test_a_checkpoint_that_the_probes_did_not_see_written_is_known_by_its_weights() -> (
    None
):
    grown = [step(n, weights=n) for n in range(1, 6)]
    whole = f"{grown[0]}  {grown[1]}  {WRITES}  {'  '.join(grown[2:])}"
    parts = f"{grown[0]}  {grown[1]}  {WRITES}  {grown[2]}"
    again = f"opened(file=/copy,parts=model)  {later(1, weights=3)}"
    assert lost(again, whole, parts) == []


@pytest.mark.parametrize(
    ("again", "interrupted", "why"),
    [
        (later(1, weights=9), INTERRUPTED, "read no checkpoint"),
        (
            f"opened(file=/d,parts=model)  {later(1, weights=9)}",
            INTERRUPTED,
            "read d, which the interrupted job has not written",
        ),
        (READS, INTERRUPTED, "made no step behind the checkpoint at step 2"),
        (
            f"{READS}  {later(1)}",
            INTERRUPTED.replace("prints=1", "prints=4"),
            "does not repeat itself.*weights in step 1; --twice",
        ),
    ],
)
def test_what_cannot_be_compared_is_said(
    again: str, interrupted: str, why: str
) -> None:
    with pytest.raises(MissingEvidence, match=why):
        lost(again, interrupted=interrupted)


def test_a_job_is_interrupted_some_steps_behind_its_first_checkpoint() -> None:
    assert cut(run_of(WHOLE, WHOLE.replace(WRITES, ""))) == 4


@pytest.mark.parametrize(
    ("drawn", "why"),
    [
        (WRITES, "no rank made a step"),
        (f"{step(1)}  {step(2)}", "wrote no checkpoint in 2 steps"),
        (f"{step(1)}  {WRITES}", "too short: it made 1 steps"),
        (f"{WRITES}  {step(1)}  {step(2)}  {step(3)}", "after 0 of them"),
    ],
)
def test_a_job_that_cannot_be_interrupted_says_why(drawn: str, why: str) -> None:
    with pytest.raises(MissingEvidence, match=why):
        cut(run_of(drawn))


def finding_of(what: str) -> Any:
    compared = "compared(how=resume,steps=9,begun=4)"
    drawn = f"unrestored(step=4,what={what})@t.py:9"
    (finding,) = unequal(run_of(f"{compared}  {drawn}", drawn))
    return finding


def test_random_state_that_nothing_depends_on_is_noted() -> None:
    finding = finding_of("random,name=torch")
    assert finding.severity is Severity.NOTE
    assert "random state of torch was not restored" in finding.message
    assert "nothing else differs" in finding.message


def test_random_state_that_dropout_depends_on_is_an_error() -> None:
    finding = finding_of("random,name=torch,there=output%20of%20drop")
    assert finding.severity is None
    assert "the first thing computed that differs is output of drop" in finding.message


# --- files ---


def keep(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program that changes files, and have them put back."""
    keep = (
        "from distdoctor.probes.comparison import file_backup; file_backup.keep_files()"
    )
    source = f"{keep}\n{program}"
    with FileRestore(folder / "kept") as kept:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source)],
            cwd=folder / "work",
            env=os.environ | kept.environment | {"XDG_CACHE_HOME": str(folder / "c")},
            timeout=60,
            capture_output=True,
            text=True,
            check=False,
        )


def tree(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        text = "folder"
        if path.is_symlink():
            text = f"-> {path.readlink()}"
        elif path.is_file():
            text = path.read_text()
        found[str(path.relative_to(folder))] = text
    return found


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "runs").mkdir(parents=True)
    (folder / "last.pt").write_text("mine")
    (folder / "runs" / "old.pt").write_text("old")
    (folder / "latest").symlink_to("last.pt")
    return folder


@pytest.mark.parametrize(
    "program",
    [
        "open('last.pt', 'w').write('x'); open('new.pt', 'w').write('y')",
        "open('latest', 'a').write('x')",
        "import os; os.remove('latest'); os.symlink('runs/old.pt', 'latest')",
        "import os; os.rename('last.pt', 'last.bak')",
        "import os; open('t', 'w').write('x'); os.replace('t', 'last.pt')",
        "import shutil; shutil.rmtree('runs')",
        "import os; os.makedirs('a/b'); open('a/b/c', 'w').write('x')",
        "import os; os.mkdir('t'); open('t/c', 'w').write('x'); os.rename('t', 'k')",
        "import os, pathlib; os.chdir('runs'); pathlib.Path('old.pt').write_text('x')",
        "import os; os.truncate('last.pt', 1)",
        "open('last.pt', 'w').write('x'); import os; os.abort()",
    ],
)
def test_files_are_put_back_as_they_were(
    tmp_path: Path, work: Path, program: str
) -> None:
    before = tree(work)
    done = keep(tmp_path, f"{program}\nprint('DONE')")
    assert "DONE" in done.stdout or "abort" in program, done.stderr
    assert tree(work) == before
    assert not (tmp_path / "kept").exists()


def test_what_cannot_be_kept_is_not_changed(tmp_path: Path, work: Path) -> None:
    done = keep(tmp_path, "import os; os.rename('runs', 'other')")
    assert "distdoctor cannot keep the folder" in done.stderr
    assert (work / "runs" / "old.pt").exists()


def test_only_what_is_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEEP_VARIABLE, raising=False)
    file_backup.keep_files()
    assert not file_backup.KEEPER.on


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--twice", "--resume", "train.py"], "give one of them"),
        (["--twice", "--world-size", "8"], "--world-size simulates"),
        (["--resume", ""], "give a command"),
        (["--resume", "train.py 'a"], "No closing quotation"),
        (["--resume", "other.py"], "there is no script other.py"),
    ],
)
def test_proofs_that_cannot_be_are_refused(
    tmp_path: Path, options: list[str], sentence: str
) -> None:
    (tmp_path / "train.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "distdoctor", "check", "train.py", *options],
        cwd=tmp_path,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, sentence in done.stderr) == (2, True), done.stderr

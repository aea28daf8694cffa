"""What the command says to bad input: a sentence, and nothing is started."""

import subprocess
import sys

import pytest
from command_box import Box


def one_sentence(err: str) -> str:
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    assert "Traceback" not in err
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["check", "gone.py"], "no script gone.py"),
        (["check", "."], ". is a folder; give the script in it"),
        (["check", "train.ipynb"], "by `jupyter nbconvert --to script train"),
        (["check", "broken.py"], "broken.py, line 2"),
        (["check", "binary.py"], "is not Python source"),
        (["check"], "give a script"),
        (["check", "fine.py", "-n", "0"], "give the number of ranks, 1 or more"),
        (["check", "--", "no-such-program", "x"], "no program 'no-such-program'"),
        (["check", "fine.py", "--record", "full"], "full is not empty"),
        (["check", "fine.py", "--record", "fine.py/x"], "no folder for the record"),
        (["examine", "gone"], "gone is not a folder"),
        (["examine", "full"], "holds no run.json"),
        (["examine", "damaged"], "cannot be read"),
        (["examine", "future"], "use the release that wrote it"),
        (["explain", "DD999"], "no check is called DD999"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_bad_input_gets_one_clear_sentence(
    box: Box, arguments: list[str], sentence: str
) -> None:
    box.write("x = 1\nif:\n", "broken.py")
    (box.folder / "binary.py").write_bytes(b"\x00\x01\xff" * 50)
    box.write("print(1)\n", "fine.py")
    box.write("{}", "train.ipynb")
    for name, manifest in (
        ("full", None),
        ("damaged", "{"),
        (
            "future",
            '{"schema": "distdoctor.record/9", "distdoctor": "9", '
            '"launch": [], "directory": "/"}',
        ),
    ):
        (box.folder / name).mkdir()
        (box.folder / name / "file").touch()
        if manifest is not None:
            (box.folder / name / "run.json").write_text(manifest)
    status, out, err = box.run(*arguments)
    assert (status, out) == (2, "")
    assert sentence in one_sentence(err)
    assert not box.records()


def test_an_unknown_flag_is_a_usage_error(box: Box) -> None:
    status, _, err = box.run("check", "--no-such-flag")
    assert status == 2
    assert "No such option" in err
    assert "after `--`" in err


def test_a_script_without_a_command_is_told_which_is_for_it(box: Box) -> None:
    status, _, err = box.run("train.py")
    assert status == 2
    assert "give `check` before a script" in err


@pytest.mark.parametrize("name", ["--nproc-per-node", "--nproc_per_node"])
def test_the_number_of_ranks_has_torchruns_names_too(box: Box, name: str) -> None:
    box.write("print(1)\n")
    status, _, err = box.run("check", name, "0", "train.py")
    assert status == 2
    assert "No such option" not in err
    assert "ranks" in one_sentence(err)


def test_no_space_for_the_journals_is_said_before_anything_starts(box: Box) -> None:
    mount = box.folder / "small"
    mount.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        box.write("print(1)\n")
        status, _, err = box.run("check", "train.py", "--record", str(mount / "r"))
        assert status == 2
        assert "the journals of 2 ranks need" in one_sentence(err)
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_report_that_cannot_be_written_is_said_before_the_run(box: Box) -> None:
    box.write("print(1)\n")
    for output in ("gone/report.txt", "/proc/report.txt"):
        status, out, err = box.run("check", "train.py", "--output", output)
        assert (status, out) == (2, "")
        assert f"{output} cannot be written" in " ".join(err.split())
    assert not box.records()


def test_a_file_for_the_report_is_left_as_it_was(box: Box) -> None:
    box.write("old", "report.txt")
    for output in ("report.txt", "new.txt"):
        assert box.run("check", "gone.py", "--output", output)[0] == 2
    assert (box.folder / "report.txt").read_text() == "old"
    assert not (box.folder / "new.txt").exists()


@pytest.mark.parametrize("command", ["check train.py", "env", "examine x", "nccl x"])
def test_a_working_directory_that_is_gone_is_said(box: Box, command: str) -> None:
    (box.folder / "gone").mkdir()
    done = subprocess.run(
        f"cd gone && rmdir ../gone && {sys.executable} -m distdoctor {command}",
        shell=True,
        cwd=box.folder,
        env=box.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "working directory has been removed" in one_sentence(done.stderr)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_exit_status(box: Box, closed: str) -> None:
    for arguments, status in (("explain DD101", 0), ("explain DD999", 2)):
        done = subprocess.run(
            f"{sys.executable} -m distdoctor {arguments} {closed}",
            shell=True,
            env=box.environment,
            capture_output=True,
            check=False,
        )
        assert done.returncode == status
        assert b"Traceback" not in done.stderr


SETTINGS = {
    "[tool.distdoctor.check]\nrank = 4": "has no option --rank",
    "[tool.distdoctor.check]\nranks = ['4']": "--ranks takes one",
    "[tool.distdoctor.ignore]\nDD999 = 'x'": "there is no check DD999",
    "[tool.distdoctor.DD204]\nstuck = 1": "it has: stuck_after_s",
    "[tool.distdoctor": "cannot be read",
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_that_cannot_be_used_are_said(box: Box, settings: str) -> None:
    box.write("print(1)\n")
    box.write(settings, "pyproject.toml")
    status, out, err = box.run("check", "train.py")
    assert (status, out) == (2, "")
    assert SETTINGS[settings] in one_sentence(err)
    assert not box.records()


def test_settings_are_defaults_of_options(box: Box) -> None:
    box.write("print(1)\n")
    box.write("[tool.distdoctor.check]\nranks = 0\n", "pyproject.toml")
    assert "-n 0: give the number" in one_sentence(box.run("check", "train.py")[2])
    box.write("[tool.distdoctor.check]\nranks = 'x'\n", "pyproject.toml")
    status, _, err = box.run("check", "train.py")
    assert (status, "'x' is not a valid integer" in err) == (2, True)


def test_a_setting_that_may_be_given_several_times_may_be_one_or_a_list(
    box: Box,
) -> None:
    box.write("print(1)\n")
    for value in ("'yaml'", "['json=r.json', 'yaml']"):
        box.write(f"[tool.distdoctor.check]\nformat = {value}\n", "pyproject.toml")
        status, _, err = box.run("check", "train.py")
        assert (status, "'yaml' is no format; use one of text, json" in err) == (
            2,
            True,
        )

"""What the command says to bad input: a sentence, and nothing is started."""

import subprocess

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
        (["check", "."], "no script ."),
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

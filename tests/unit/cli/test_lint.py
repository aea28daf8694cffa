"""`distdoctor lint`: what it prints, in each form, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from distdoctor.cli import main
from distdoctor.report.schema import json_schema

LONELY = """\
import torch.distributed as dist
if dist.get_rank() == 0:
    dist.barrier()
"""
NOTHING = "import torch.distributed as dist\ndist.barrier()\n"
FORMS = ("full", "concise", "json", "sarif", "github")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(LONELY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    return tmp_path


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs it: exit status, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["distdoctor", "lint", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return run


def test_a_finding_is_told_with_its_line_and_cure(told: Any) -> None:
    status, out, err = told("train.py")
    assert (status, err) == (1, "")
    assert "train.py:3:5: DD108 rank 0 alone calls barrier" in out
    assert "▸    3 │     dist.barrier()" in out
    assert "= 2: here their ways part" in out
    assert "= cure: " in out
    assert "a text proves nothing" in out


def test_editors_get_a_line_each(told: Any) -> None:
    status, out, _ = told("train.py", "--format", "concise")
    assert status == 1
    assert out.startswith("train.py:3:5: DD108 ")
    assert out.count("\n") == 1


def test_machines_get_a_report_whose_verdict_is_unknown(told: Any) -> None:
    status, out, _ = told("train.py", "--format", "json")
    report = json.loads(out)
    jsonschema.validate(report, json_schema())
    assert (status, report["verdict"]) == (1, "unknown")
    (finding,) = report["findings"]
    assert (finding["code"], finding["certainty"]) == ("DD108", "likely")
    assert finding["evidence"] == ["source"]
    assert report["checks"]["well"] == []


def test_code_hosts_get_results_by_the_standard(told: Any) -> None:
    status, out, _ = told("train.py", "--format", "sarif")
    (run,) = json.loads(out)["runs"]
    (result,) = run["results"]
    assert (status, result["ruleId"], result["level"]) == (1, "DD108", "warning")
    (place,) = result["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "train.py"
    assert place["physicalLocation"]["region"]["startLine"] == 3


def test_github_gets_an_annotation_at_the_line(told: Any) -> None:
    status, out, _ = told("train.py", "--format", "github")
    (line,) = (one for one in out.splitlines() if one.startswith("::"))
    assert status == 1
    assert line.startswith("::warning ")
    assert "file=train.py" in line
    assert "line=3" in line


@pytest.mark.parametrize("form", FORMS)
def test_nothing_found_ends_with_zero_in_each_form(
    form: str, folder: Path, told: Any
) -> None:
    (folder / "train.py").write_text(NOTHING)
    status, out, err = told("train.py", "--format", form)
    assert (status, err) == (0, "")
    assert "well" not in out.replace('"well": []', "").replace("Well", "")


def test_what_could_not_be_read_ends_with_four_unless_something_is_found(
    folder: Path, told: Any
) -> None:
    (folder / "bad.py").write_text("import torch.distributed\ndef f(:\n")
    status, _, err = told("bad.py")
    assert status == 4
    assert err == (
        "distdoctor: bad.py was not read: it is no Python of this version: line 2, "
        "column 7: invalid syntax\n"
    )
    assert told(".")[0] == 1
    report = json.loads(told("bad.py", "--format", "json")[1])
    assert "bad.py" in {one["what"] for one in report["not_examined"]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere does not exist"),
        ([], "Missing argument"),
        (["train.py", "--select", "DD999"], "DD999 is not looked for"),
        (["train.py", "--ignore", "nonsense"], "NONSENSE is not looked for"),
        (["train.py", "--format", "xml"], "xml"),
        (["train.py", "--output", "."], "."),
        (["train.py", "--output", "no/such/folder/x"], "cannot be written"),
        (["train.py", "--output", "train.py/x"], "cannot be written"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_a_wrong_command_line_ends_with_two_and_a_sentence(
    arguments: list[str], said: str, told: Any
) -> None:
    status, out, err = told(*arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_path_that_is_not_there_spoils_all(told: Any) -> None:
    assert told("train.py", "nowhere")[0] == 2


def test_a_folder_without_python_has_nothing(folder: Path, told: Any) -> None:
    (folder / "empty").mkdir()
    status, out, err = told("empty")
    assert (status, err) == (0, "distdoctor: no Python file in empty\n")
    assert out == "nothing was read, so nothing was found\n"


def test_a_file_that_is_given_twice_is_told_once(told: Any) -> None:
    _, out, _ = told("train.py", "./train.py", ".", "--format", "concise")
    assert out.count("DD108") == 1


def test_codes_are_chosen(told: Any) -> None:
    assert told("train.py", "--select", "DD101")[0] == 0
    assert told("train.py", "--select", "dd101,dd108")[0] == 1
    assert told("train.py", "--ignore", "DD108")[0] == 0
    assert told("train.py", "--ignore", "DD101", "--ignore", "DD107")[0] == 1


ADVICE = """\
import horovod.torch as hvd
import torch

def make(model, args):
    hvd.init()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters())
"""


def test_advice_is_told_if_asked_for(folder: Path, told: Any) -> None:
    (folder / "train.py").write_text(ADVICE)
    plain = told("train.py", "--format", "concise")
    more = told("train.py", "--format", "concise", "--advice")
    assert (plain[0], plain[1]) == (0, "")
    assert more[0] == 1
    assert "DD531" in more[1]
    assert told("train.py", "--select", "DD531")[0] == 1  # who asks for it wants it


def test_settings_and_comments_ignore_with_a_reason(folder: Path, told: Any) -> None:
    (folder / "pyproject.toml").write_text(
        '[tool.distdoctor.ignore]\nDD108 = "rank 0 alone is there"\n'
    )
    status, out, _ = told("train.py")
    assert status == 0
    assert "1 ignored" in out
    report = json.loads(told("train.py", "--format", "json")[1])
    (ignored,) = report["ignored"]
    assert ignored["reason"] == "rank 0 alone is there"
    (folder / "pyproject.toml").unlink()
    sick = LONELY.replace("r()\n", "r()  # distdoctor: ignore[DD108]\n")
    (folder / "train.py").write_text(sick)
    status, _, err = told("train.py")
    assert status == 1
    assert "train.py:3 ignores nothing: it needs a reason" in err


def test_a_diff_is_all_that_fix_prints(folder: Path, told: Any) -> None:
    status, out, _ = told("train.py", "--fix")
    assert (status, out) == (1, "")
    (folder / "train.py").write_text(
        "def train(model, loader, optimizer):\n    for batch in loader:\n"
        "        model(batch).sum().backward()\n        optimizer.step()\n"
    )
    status, out, _ = told("train.py", "--fix")
    assert status == 1
    assert out.startswith("--- a/train.py\n+++ b/train.py\n")
    told("train.py", "--fix", "--output", "mends.diff")
    assert (folder / "mends.diff").read_text() == out


@pytest.mark.parametrize("form", FORMS)
def test_a_report_goes_to_a_file(form: str, folder: Path, told: Any) -> None:
    _, direct, _ = told("train.py", "--format", form)
    status, out, _ = told("train.py", "--format", form, "--output", "out")
    assert (status, out) == (1, "")
    assert (folder / "out").read_text() == direct


EVIL = "\x1b]0;owned\x07\x1b[31m\u202e::error::<script>"


@pytest.mark.parametrize("form", FORMS)
def test_hostile_names_and_texts_do_no_harm(form: str, folder: Path, told: Any) -> None:
    name = EVIL.replace("/", "_") + "\n::error::x.py"
    (folder / name).write_text(
        "import torch.distributed as dist\n"
        f"if dist.get_rank() == 0 and x != '{EVIL}':\n"
        f"    dist.barrier()  # {EVIL}\n"
    )
    (folder / f"bad{name}").write_text("import torch.distributed\ndef f(:\n")
    (folder / "train.py").unlink()
    status, out, err = told(".", "--format", form)
    assert status == 1
    assert "DD108" in out
    for text in (out, err):
        assert text.replace("\n", "").isprintable()
    assert not [line for line in (out + err).splitlines() if line.startswith("::error")]


def test_a_hostile_path_that_is_not_there_is_quoted(told: Any) -> None:
    status, _, err = told(EVIL)
    assert status == 2
    assert err.replace("\n", "").isprintable()


@pytest.mark.parametrize("form", [*FORMS, "--fix"])
def test_letters_that_the_output_does_not_know_are_no_end(
    form: str, folder: Path
) -> None:
    (folder / "train.py").write_text(
        "def train(model, größe, optimizer):\n    for batch in größe:\n"
        "        model(batch).größe().backward()\n        optimizer.step()\n"
    )
    options = [form] if form == "--fix" else ["--format", form]
    done = subprocess.run(
        [sys.executable, "-m", "distdoctor", "lint", "train.py", *options],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert b"Traceback" not in done.stderr


def test_reading_needs_neither_torch_nor_numpy() -> None:
    program = (
        "import sys\nsys.argv = ['distdoctor', 'lint', '.']\n"
        "import distdoctor.cli.lint\nfrom distdoctor.cli import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert ended.code == 1\n"
        "assert not {'torch', 'numpy'} & {*sys.modules}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_named_file_is_parsed_whatever_it_is_about(folder: Path, told: Any) -> None:
    (folder / "plain.py").write_text("x = 1\ndef f(:\n")
    status, out, err = told("plain.py")
    assert (status, out) == (4, "nothing was read, so nothing was found\n")
    assert "line 2, column 7" in err


def test_a_file_that_is_too_large_is_said_to_be(folder: Path, told: Any) -> None:
    (folder / "large.py").write_text("x = 1\n" * 100_000)
    status, _, err = told("large.py")
    assert status == 4
    assert err == (
        "distdoctor: large.py was not read: it is larger than 400,000 characters\n"
    )


def test_a_notebook_is_to_be_converted(folder: Path, told: Any) -> None:
    (folder / "nb.ipynb").write_text('{"cells": []}')
    status, _, err = told("nb.ipynb")
    assert status == 4
    assert err == (
        "distdoctor: nb.ipynb was not read: it is a notebook; make a script of it "
        "by `jupyter nbconvert --to script nb.ipynb`\n"
    )

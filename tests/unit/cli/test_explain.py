"""`distdoctor explain`: manuals with code, and what the signs of drawings mean."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from distdoctor.catalogue import code_named, manuals, names_by_code
from distdoctor.cli import explain
from distdoctor.errors import CheckUnknown
from distdoctor.model.drawing_legend import legend


def said(*arguments: str) -> str:
    done = CliRunner().invoke(explain.run, arguments)
    assert done.exit_code == 0
    return done.output


def section(text: str, title: str) -> str:
    return text.partition(f"\n{title}\n{'-' * len(title)}\n")[2].split("\n---")[0]


def test_code_with_the_disease_and_without_is_shown() -> None:
    text = said("DD208")
    bad, good = (section(text, f"Code that {has}") for has in ("has it", "does not"))
    assert "  ▸     size = math.ceil(part)\n" in bad
    assert "▸ the lines that matter" in bad
    assert "  ▸     size = math.floor(part)\n" in good
    assert "        start = dist.get_rank() * size\n" in good


def test_a_disease_that_no_program_has_is_explained_without_code() -> None:
    text = said("DD605")
    assert section(text, "Sick")
    assert "Code that" not in text


@pytest.mark.parametrize("code", manuals())
def test_every_manual_is_printed_with_its_signs(code: str) -> None:
    text = " ".join(said(code).split())
    assert text.count("Each line is a rank") == 1
    assert text.count("`?` nothing is known of the rank") == 1


def test_signs_are_told_below_the_first_drawings_that_have_them() -> None:
    text = said("DD208")
    sick, well = section(text, "Sick"), section(text, "Well")
    assert "`leave` called `destroy_process_group`" in sick
    assert "exit" not in sick
    assert "(`exit=…` the process ended with that status.)" in well
    assert "leave" not in well


def test_only_signs_of_a_drawing_are_told() -> None:
    drawing = """
        group tp | 0 1
        rank 0 | start=2  barrier/tp@t.py:3...  .  exit=137!
        rank 1 | read(samples=0)  fail=KeyError~^
        rank 2 | all_reduce(4:int64,op=max)@u.py:1<t.py:9&'...issued
    """
    drawing = "\n".join(line.strip() for line in drawing.strip().splitlines())
    signs = legend([drawing])
    assert {*signs} == {
        *("group … |", "start=…", "/…", "@…:7", "...", ".", "exit=…", "exit=…!"),
        *("read", "fail=…", "~", "^", "(4)", "<…:9", "&", "'", "...issued"),
    }
    assert signs["read"] == "a pass over a DataLoader began, went on, or ended"


@pytest.mark.parametrize(
    "name",
    [
        *("skipped-collective", "skipped collective", "Skipped_Collective", "dd108"),
        *("skip-coll", "skipped", " DD108 "),
    ],
)
def test_a_check_is_found_by_what_people_call_it(name: str) -> None:
    assert code_named(name) == "DD108"


def test_the_words_of_a_name_need_no_quotes() -> None:
    assert said("skipped", "collective").startswith("DD108  ")


@pytest.mark.parametrize("code", names_by_code())
def test_every_name_is_of_its_check(code: str) -> None:
    assert code_named(names_by_code()[code].replace(" ", "-")) == code


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("skiped-colective", "; skipped collective is close, and `distdoctor explain`"),
        ("unev-job", "no check is called unev-job; `distdoctor explain` lists them"),
        ("mismatched-d", None),
        ("mismatched-r", "DD104 mismatched reduce op, DD105 mismatched root; name one"),
        ("", "give a code, or a name"),
        ("hang", "no check is called hang; of it speak DD102 mismatched shape, DD103"),
    ],
)
def test_a_name_that_is_not_clear_is_refused_with_those_that_are_close(
    name: str, told: str | None
) -> None:
    if told is None:
        assert code_named(name) == "DD103"
        return
    with pytest.raises(CheckUnknown) as refusal:
        code_named(name)
    assert told in str(refusal.value)

"""Files are read together, whatever they hold: names of one lead into others."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdoctor.lint.code_base import CodeBase, Scope
from distdoctor.lint.linting import lint, lint_texts
from distdoctor.lint.source_files import SourceText

MEET = "import torch.distributed as dist\ndef meet():\n    dist.barrier()\n"
PARTED = "if rank == 0:\n    meet()\n"


def base(**texts: str) -> CodeBase:
    """Files by name, with `__` for the slash between folders."""
    return CodeBase(
        SourceText(f"{name.replace('__', '/')}.py", text)
        for name, text in texts.items()
    )


def seen_as(code: CodeBase, importing: str, name: str) -> Scope | None:
    """The function that a name leads to in a file."""
    (file,) = (one for one in code.files if one.file == importing)
    return code.function(file.imports[name], file)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from other import meet", "meet"),
        ("from other import meet as come", "come"),
        ("from .other import meet", "meet"),
        ("from . other import meet", "meet"),
        ("from pack.other import meet", "meet"),
    ],
)
def test_an_import_leads_to_the_function(line: str, name: str) -> None:
    code = base(pack__train=f"{line}\nrank = 0\n", pack__other=MEET)
    found = seen_as(code, "pack/train.py", name)
    assert found is not None
    assert (found.source.file, found.name) == ("pack/other.py", "meet")


def test_a_module_leads_to_its_functions() -> None:
    code = base(train=f"import other\nrank = 0\n{PARTED}", other=MEET)
    (file, _) = code.files
    found = code.function("other.meet", file)
    assert found is not None
    assert found.source.file == "other.py"


def test_a_package_hands_on_what_its_modules_define() -> None:
    code = CodeBase(
        [
            SourceText("train.py", "from pack import meet\nrank = 0\n"),
            SourceText("pack/__init__.py", "from .deep import meet  # rank\n"),
            SourceText("pack/deep.py", MEET),
        ]
    )
    found = seen_as(code, "train.py", "meet")
    assert found is not None
    assert found.source.file == "pack/deep.py"


def test_of_modules_of_one_name_that_in_the_same_folder_is_meant() -> None:
    other = MEET.replace("barrier()", "all_reduce(x)")
    code = base(
        a__train="from helpers import meet\nrank = 0\n",
        a__helpers=MEET,
        b__helpers=other,
    )
    found = seen_as(code, "a/train.py", "meet")
    assert found is not None
    assert found.source.file == "a/helpers.py"


def test_of_modules_of_one_name_far_away_none_is_meant() -> None:
    code = base(
        train="from helpers import meet\nrank = 0\n", a__helpers=MEET, b__helpers=MEET
    )
    assert seen_as(code, "train.py", "meet") is None


def test_packages_that_import_each_other_come_to_an_end() -> None:
    code = base(
        a="from b import meet\nrank = 0\n", b="from a import meet\nrank = 0\n", c=MEET
    )
    assert seen_as(code, "a.py", "meet") is None
    first, second, third = code.files
    assert code.around(first) == [first, second]
    assert code.around(third) == [third]


@pytest.mark.parametrize("names", [["a", "b"], ["b", "a"]])
def test_what_imports_a_file_is_around_it(names: list[str]) -> None:
    texts = {"a": "import b\nrank = 0\n", "b": MEET}
    code = base(**{name: texts[name] for name in names})
    for file in code.files:
        assert {one.file for one in code.around(file)} == {"a.py", "b.py"}


UNREADABLE = {
    "a syntax error": b"import torch.distributed\ndef f(:\n",
    "another encoding than it says": b"rank = '\xff\xfe'\n",
    "an encoding that is none": b"# -*- coding: klingon -*-\nrank = 0\n",
    "null bytes": b"rank = 0\n\0\0\n",
    "a depth that no parser takes": b"rank = " + b"(" * 5000 + b")" * 5000 + b"\n",
    "a size that no one wrote": b"rank = 0\n" * 60_000,
    "the other half of a pair": b"rank = '\xed\xa0\x80'\n",
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_file_is_not_read_for(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_bytes(content)
    (tmp_path / "good.py").write_text(MEET)
    found = lint([str(tmp_path)])
    ((file, why),) = found.unread
    assert file == str(tmp_path / "bad.py")
    assert why
    assert [*found.read] == [str(tmp_path / "good.py")]
    assert not found.findings


LONELY = (
    "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"
)

READABLE = {
    "a mark of its byte order": b"\xef\xbb\xbf" + LONELY.encode(),
    "an encoding that it says": ("# coding: latin-1\n# \xe4\n" + LONELY).encode(
        "latin-1"
    ),
    "other line ends": LONELY.replace("\n", "\r\n").encode(),
    "old line ends": LONELY.replace("\n", "\r").encode(),
    "no line end": LONELY.rstrip().encode(),
    "tabs": LONELY.replace("    ", "\t").encode(),
    "form feeds": b"\x0c\n" + LONELY.encode(),
    "a name that is no ASCII": ("größe = 1\n" + LONELY).encode(),
}


@pytest.mark.parametrize("content", READABLE.values(), ids=READABLE.keys())
def test_a_file_is_read_with(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(content)
    found = lint([str(tmp_path)])
    assert not found.unread
    (finding,) = found.findings
    assert finding.code == "DD108"
    (file,) = found.code.files
    assert "dist.barrier()" in file.lines[finding.at.line - 1]


@pytest.mark.parametrize(
    "text",
    [
        "rank = " + "-" * 900 + "1\n" + LONELY,
        "rank = x" + "".join(f" + x{n}" for n in range(900)) + "\n" + LONELY,
        "rank = x" + ".y" * 900 + "\n" + LONELY,
        "rank = x" + "()" * 900 + "\n" + LONELY,
        "if a == 0:\n    rank = 0\n"
        + "".join(f"elif a == {n}:\n    rank = 0\n" for n in range(900))
        + LONELY,
        "".join(f"{' ' * n}if rank == {n}:\n" for n in range(95))
        + " " * 95
        + "pass\n"
        + LONELY,
        "".join(f"{' ' * n}def f{n}(rank):\n" for n in range(95))
        + " " * 95
        + "pass\n"
        + LONELY,
    ],
    ids=["signs", "terms", "attributes", "calls", "elif", "if", "functions"],
)
def test_what_is_deep_is_no_end(text: str) -> None:
    found = lint_texts([SourceText("train.py", text)], advice=True)
    assert {one.code for one in found.findings} <= {"DD108"}


def test_a_file_is_read_once_whatever_leads_to_it(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(LONELY)
    (tmp_path / "link.py").symlink_to(file)
    found = lint([str(file), str(file), str(tmp_path), f"{tmp_path}/./train.py"])
    assert len(found.read) == len(found.findings) == 1


def test_folders_that_hold_nothing_of_the_user_are_left_out(tmp_path: Path) -> None:
    for name in (".venv", "site-packages", "build", "__pycache__", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(LONELY)
    assert [*lint([str(tmp_path)]).read] == [str(tmp_path / "mine" / "train.py")]
    assert len(lint([str(tmp_path / ".venv")]).read) == 1


def test_what_a_file_imports_from_beside_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("means.py").write_text(
        "import torch.distributed as dist\n\n\ndef mean(x):\n    dist.all_reduce(x)\n"
    )
    guarded = (
        "import torch.distributed as dist\n"
        "from means import mean\n\n\n"
        "def train(x):\n    if dist.get_rank() == 0:\n        mean(x)\n"
    )
    Path("first.py").write_text(guarded)
    Path("second.py").write_text(guarded)
    for paths in (["first.py"], ["first.py", "means.py"]):
        (one,) = lint(paths).findings
        assert (one.at.file, one.at.line) == ("first.py", 7)
    for paths in (["."], ["second.py", "first.py"], ["first.py", "second.py"]):
        found = {one.at.file for one in lint(paths).findings}
        assert found == {"first.py", "second.py"}
    assert lint(["first.py"]).read == ["first.py"]

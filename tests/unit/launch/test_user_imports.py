"""Which files of the user's a script imports."""

from pathlib import Path

import pytest

from distdoctor.launch.user_imports import imported


def read(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None


def names(top: Path, *begin: str, most: int = 64) -> list[str]:
    files = [top / name for name in begin]
    return [str(path.relative_to(top)) for path, _ in imported(files, top, read, most)]


def lay(top: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = top / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    "line",
    [
        "import tools.ranks",
        "from tools.ranks import is_main",
        "from tools import ranks",
        "def f():\n    from tools import ranks",
    ],
)
def test_a_helper_is_found_however_it_is_imported(tmp_path: Path, line: str) -> None:
    lay(tmp_path, train=f"import os\nimport torch\n{line}\n", tools__ranks="x = 1\n")
    assert names(tmp_path, "train.py") == ["tools/ranks.py"]


def test_what_is_imported_imports_in_turn_and_circles_end(tmp_path: Path) -> None:
    lay(
        tmp_path,
        src__train="from .tools import log\n",
        src__tools="from . import ranks\n",
        src__ranks="from .train import main\nfrom ...nowhere import x\n",
    )
    assert names(tmp_path, "src/train.py") == ["src/tools.py", "src/ranks.py"]


def test_installed_packages_and_broken_files_are_let_be(tmp_path: Path) -> None:
    lay(tmp_path, train="import a\nimport b\n", a="def (\n")
    inside = tmp_path / "site-packages" / "b.py"
    inside.parent.mkdir()
    inside.write_text("x = 1\n")
    assert names(tmp_path, "train.py") == ["a.py"]


def test_there_is_an_end_to_them(tmp_path: Path) -> None:
    lay(tmp_path, train="import m1, m2, m3\n", m1="", m2="", m3="")
    assert len(names(tmp_path, "train.py", most=2)) == 2

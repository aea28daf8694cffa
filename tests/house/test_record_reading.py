"""Files of records are opened in one way: no link is followed, nobody waited for."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

OPENING = {"open", "read_text", "read_bytes", "fromfile", "memmap", "load"}

MAY_OPEN = {
    "regular_files.py": {"os.open"},  # the one way
    "own_file.py": {"os.open"},  # what this process writes itself
    "writer.py": {"os.open"},  # likewise
    "folder.py": {"path.open"},  # `shrink`, which writes
}
"""By module of the journal, calls that open files in another way than `opened`."""


def openings(source: Path) -> set[str]:
    """Calls in a module that open files."""
    called = {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call)
    }
    return {name for name in called if name.rpartition(".")[2] in OPENING}


def test_files_of_records_are_opened_in_one_way() -> None:
    found = {
        source.name: calls
        for source in (ROOT / "distdoctor" / "journal").glob("*.py")
        if (calls := openings(source))
    }
    assert found == MAY_OPEN


def test_only_writers_read_their_files_themselves() -> None:
    """`shrink` alone opens a file by its path, and to write."""
    tree = ast.parse((ROOT / "distdoctor" / "journal" / "folder.py").read_text())
    opening = {
        function.name
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
        and any(
            isinstance(node, ast.Call) and ast.unparse(node.func) == "path.open"
            for node in ast.walk(function)
        )
    }
    assert opening == {"shrink"}

"""Files of records are opened in one way: no link is followed, nobody waited for."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

OPENING = {"open", "read_text", "read_bytes", "fromfile", "memmap", "load"}

MAY_OPEN = {
    "regular_files.py": {"os.open"},  # the one way
    "own_file.py": {"os.open"},  # /dev/null
    "private_files.py": {"open", "os.open"},  # what this process writes itself
    "trimming.py": {"open"},  # likewise
    "kept_records.py": {"os.open"},  # the head of what may be one, with the same flags
    "values_reader.py": {"np.load"},  # of what `opened` gave
    "record_lock.py": {"_BOOT.read_text", "Path(f'/proc/{pid}/stat').read_text"},
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

"""How files are written and read: privately, and never by code that a file holds."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent.parent / "distdoctor"

MAY_UNPICKLE = {
    # Both ends are processes of one session of pytest, of one user; they are joined by
    # a socket without a name, and what goes over it are the objects of the user's
    # tests: examples of hypothesis, and warnings.
    "pytest_plugin/wire.py": {"import pickle", "pickle.dumps", "pickle.loads"},
    "pytest_plugin/rank_plugin.py": {"import pickle", "pickle.loads"},
    # Dumps are pickled by torch: it reads plain data alone, and calls nothing.
    "postmortem/flight_recorder/unpickling.py": {"import pickle"},
    # Looks at the codes of such dumps, and runs none.
    "postmortem/flight_recorder/alike_files.py": {
        "import pickletools",
        "pickletools.genops",
    },
    # Share out work among processes of their own, and get back what these have read.
    "postmortem/flight_recorder/many_dumps.py": {"import multiprocessing"},
    "postmortem/columns/column_writing.py": {"import multiprocessing"},
    "postmortem/nccl_logs/log_pieces.py": {"import multiprocessing"},
    # Ask whether this process is a child of another's pool, or shares memory.
    "probes/membership.py": {"import multiprocessing"},
    "probes/gpu_emulation/mixed_devices.py": {"import multiprocessing"},
    # Plain arrays: it is told to unpickle nothing.
    "journal/values_reader.py": {"np.load", "allow_pickle"},
    # What the user's own functions save is loaded at once, from memory, in a test.
    "equivalence/resumption.py": {"torch.load", "torch.save"},
}
"""What may be done with pickles, by file, and why."""

CAN_RUN_CODE = re.compile(
    r"(?:c|_|cloud)?[pP]ickle(?:tools|share)?|dill|marshal|shelve|joblib"
)
UNSAFE_CALLS = {"torch.load", "torch.save", "numpy.load", "np.load", "np.save"}
PASSES_PICKLES = re.compile(r"multiprocessing(?:\.(?!resource_tracker|spawn).*)?")

WRITES_ELSEWHERE = {
    # The user's files are put back as they were, with their own modes.
    "launch/file_restore.py": {"mkdir"},
    # It makes what others of this package write by.
    "journal/private_files.py": {"os.mkdir", "open"},
    # Goes on with a file that was opened privately, by its number.
    "journal/trimming.py": {"open"},
}


def sources(*parts: str) -> Iterator[tuple[str, ast.Module]]:
    for part in parts or (".",):
        for path in (PACKAGE / part).rglob("*.py"):
            yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text())


def of_pickles(tree: ast.Module) -> Iterator[str]:
    """Imports and calls of what writes, or runs, code in data."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        for name in names:
            if CAN_RUN_CODE.fullmatch(name.partition(".")[0]):
                yield f"import {name}"
            if PASSES_PICKLES.fullmatch(name):
                yield f"import {name}"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if CAN_RUN_CODE.fullmatch(called.partition(".")[0]):
                yield called
            if called in UNSAFE_CALLS:
                yield called
            if any(word.arg == "allow_pickle" for word in node.keywords):
                yield "allow_pickle"


def test_nothing_of_ours_is_pickled_nor_unpickled() -> None:
    found = {file: set(of_pickles(tree)) for file, tree in sources()}
    assert {file: uses for file, uses in found.items() if uses} == MAY_UNPICKLE


@pytest.mark.parametrize(
    "line",
    [
        *(
            "import pickle",
            "from pickle import loads",
            "import cloudpickle",
            "dill.x()",
        ),
        *("torch.load(f)", "np.load(f, allow_pickle=True)", "import marshal"),
        *("from multiprocessing import Queue", "import multiprocessing.connection"),
    ],
)
def test_pickles_are_seen(line: str) -> None:
    assert list(of_pickles(ast.parse(line)))


def of_writes(tree: ast.Module) -> Iterator[str]:
    """Calls by which files and folders are made, or opened to be written."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        method = called.rpartition(".")[2]
        if method in {"mkdir", "makedirs", "write_text", "write_bytes"}:
            yield called if called.startswith("os.") else method
        elif called == "os.open":
            if "O_CREAT" in ast.unparse(node) or not node.args[1:]:
                yield called
        elif method == "open" and any(map(is_for_writing, node.args)):
            yield "open"


def is_for_writing(argument: ast.expr) -> bool:
    """Whether it is a mode of `open` in which a file is changed."""
    match argument:
        case ast.Constant(value=str(mode)):
            return re.fullmatch(r"[rb]*[wax+][bt+]*", mode) is not None
    return False


def test_records_are_written_privately() -> None:
    """What ranks and distdoctor write has its mode whatever the umask says."""
    found = {
        file: {*of_writes(tree)}
        for file, tree in sources("journal", "probes", "launch")
    }
    assert {file: calls for file, calls in found.items() if calls} == WRITES_ELSEWHERE

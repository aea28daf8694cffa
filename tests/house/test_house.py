"""The house keeps its shape: who imports whom, where files lie, how they are named."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from programs import FOLDERS, programs

from distdoctor.model.manual import HEADINGS, Manual

ROOT = Path(__file__).parent.parent.parent

MUST_STAND_AT_THE_TOP = {"distdoctor", "checks", "fixtures", "reference_jobs", "tests"}
MUST_STAND_AT_THE_TOP |= {"pyproject.toml", "README.md"}
MAY_STAND_AT_THE_TOP = {"benchmarks", "docs", ".ci", ".gitignore"}
MAY_STAND_AT_THE_TOP |= {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md"}
# Where mkdocs, GitHub, GitLab, pre-commit and Docker look for theirs.
MAY_STAND_AT_THE_TOP |= {"mkdocs.yml", "action.yml", "templates"}
MAY_STAND_AT_THE_TOP |= {".pre-commit-hooks.yaml", "Dockerfile", ".dockerignore"}
LEFT_BY_TOOLS = re.compile(
    r"\.git|\.venv|\.benchmarks|\..*_cache|\.hypothesis|build|dist|\S+egg-info"
)

# What a manual refers to: an address, or a file of another project.
A_SOURCE = re.compile(r"https://\S+$|^`[\w/]+\.\w+` \([\w-]+/[\w-]+\)")

# Who may import whom, from the ground up: a part may import itself and what is listed.
MAY_IMPORT = {
    "errors": "",
    "model": "errors",
    "analysis": "errors model",
    "checks": "errors model analysis",
    "catalogue": "errors model",
    "examination": "errors model analysis",
    "excerpts": "",
    "compiled": "",
    "journal": "compiled errors model",
    "probes": "compiled errors model journal",
    # It proves what the checks name.
    "launch": "compiled errors model journal probes analysis",
    "horovod_build": "errors launch",  # which ends processes, and asks Pythons
    "report": "errors model analysis journal examination",
    "lint": "errors model examination report",
    "postmortem": "errors model journal launch",  # it takes stacks by the same means
    "judging": "errors model journal catalogue examination report lint",
    # It proves as `launch` does, looks as an autopsy does, and writes as reports do.
    "watching": "errors model analysis journal postmortem report",
    # What the three ways in have in common.
    "checking": "errors analysis journal launch postmortem report judging",
    "cli": "errors model analysis journal launch horovod_build postmortem catalogue "
    "examination excerpts report judging watching lint checking",
    "pytest_plugin": "errors model journal probes launch catalogue report judging "
    "checking",
    # It judges by the same ways as the commands.
    "api": "errors model catalogue journal launch postmortem report checking",
    "testing": "model",
    "equivalence": "errors model journal probes",
    "__main__": "cli",
    "__init__": "api",
    "reference_jobs": "",
    "fixtures": "equivalence",  # which users import, too
}

# Who may import which package that is not Python's own.
MAY_USE = {
    "model": "numpy",
    "analysis": "numpy",
    "journal": "numpy msgspec",
    "launch": "msgspec psutil zmq",
    "horovod_build": "psutil",
    "postmortem": "numpy msgspec psutil fsspec duckdb",  # the last two are extras
    "lint": "rich",
    "report": "msgspec rich numpy jinja2 markupsafe",  # the last two are an extra
    "watching": "numpy msgspec psutil rich textual",  # the last is an extra
    "cli": "click rich",
    "api": "rich",
    "probes": "torch horovod xxhash",
    "reference_jobs": "torch horovod tensorboard tensorflow mpi4py accelerate "
    "deepspeed ray",
    "fixtures": "torch horovod numpy mpi4py tensorflow tensorboard accelerate "
    "deepspeed ray",
    "pytest_plugin": "pytest _pytest torch horovod hypothesis psutil",
    "testing": "torch",
    "equivalence": "torch hypothesis",
}


def sources() -> Iterator[Path]:
    for folder in ("distdoctor", "checks", "reference_jobs", "fixtures"):
        yield from (ROOT / folder).rglob("*.py")


def part(source: Path) -> str:
    """The row of the table a file belongs to."""
    inside = source.relative_to(ROOT).with_suffix("").parts
    return inside[1] if inside[0] == "distdoctor" else inside[0]


@functools.cache
def parsed(source: Path) -> ast.Module:
    """A file's syntax tree; several tests look at it."""
    return ast.parse(source.read_text())


def imported(source: Path) -> Iterator[str]:
    """Dotted names a file imports, wherever in the file it does so."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def names_of(paths: Iterable[Path]) -> list[str]:
    """Files as an assertion shows them."""
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def upward_imports(source: Path) -> set[str]:
    """Parts of the package that a file imports and may not."""
    here = part(source)
    allowed = {here, *MAY_IMPORT[here].split(), "__version__"}
    ours = [name.split(".") for name in imported(source) if name.startswith("distdoct")]
    return {name[1] for name in ours if name[1:]} - allowed


def foreign_packages(source: Path) -> set[str]:
    """Packages of others that a file imports and may not."""
    packages = {name.partition(".")[0] for name in imported(source)}
    foreign = packages - set(sys.stdlib_module_names) - {"distdoctor"}
    return foreign - set(MAY_USE.get(part(source), "").split())


def test_imports_point_downwards() -> None:
    found = {source: upward_imports(source) for source in sources()}
    assert {str(source): parts for source, parts in found.items() if parts} == {}


def test_other_packages_stay_in_their_rooms() -> None:
    found = {source: foreign_packages(source) for source in sources()}
    assert {str(source): names for source, names in found.items() if names} == {}


def test_the_probes_load_without_any_other_package() -> None:
    """The job's environment may be another than ours: Python and torch, no more."""
    ours = ("numpy", "msgspec", "psutil", "rich", "click", "xxhash")
    program = (
        "import sys\n"
        f"for name in {ours!r}: sys.modules[name] = None\n"
        "from distdoctor.probes import boot, call_sites, recorder\n"
        "from distdoctor.probes.collectives import board\n"
        "from distdoctor.model import operations\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
        "from distdoctor.probes import lifecycle\n"
        "from distdoctor.probes.fingerprints import exact\n"
        "from distdoctor.journal import notes\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["explain", "DD101"], ["env", "--help"], ["autopsy", "--help"]],
    ids=str,
)
def test_a_question_is_answered_without_torch_and_numpy(arguments: list[str]) -> None:
    program = (
        "import sys, contextlib\n"
        "from distdoctor import cli\n"
        f"sys.argv[1:] = {arguments!r}\n"
        "with contextlib.suppress(SystemExit): cli.main()\n"
        "slow = {'torch', 'numpy', 'fsspec', 'duckdb', 'zmq'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, capture_output=True
    )


CHECKS = [*(ROOT / "checks").glob("[!_]*.py")]


def test_a_check_stands_alone() -> None:
    others = {
        source: [name for name in imported(source) if ".checks" in name]
        for source in CHECKS
    }
    assert names_of(source for source in CHECKS if others[source]) == []


def test_a_manual_says_where_it_fails_and_whence_it_knows() -> None:
    for source in CHECKS:
        manual = Manual.parse(ast.get_docstring(parsed(source)) or "")
        references = re.split(r"^- ", manual.sections["References"], flags=re.MULTILINE)
        assert references.pop(0) == "", source
        assert 1 <= len(references) <= 3, source
        for reference in references:
            assert A_SOURCE.search(" ".join(reference.split())), reference
        assert manual.sections["Known problems"].endswith("."), source
        drawings = manual.drawings("Known problems") + manual.drawings("References")
        assert not drawings, source
        assert "TODO" not in "".join(manual.sections.values()), source


def is_named_for_its_disease(source: Path) -> bool:
    code = source.stem[:5].upper()
    tree = parsed(source)
    return (
        re.fullmatch(r"dd[1-7]\d\d(_[a-z0-9]+)+", source.stem) is not None
        and f"CODE = {code!r}" in map(ast.unparse, tree.body)
        and tuple(Manual.parse(ast.get_docstring(tree) or "").sections) == HEADINGS
    )


def test_a_check_is_named_for_its_disease() -> None:
    wrong = [source for source in CHECKS if not is_named_for_its_disease(source)]
    assert names_of(wrong) == []


# Diseases that only leavings of a job show, and no program of ours can have on a CPU.
OF_LEAVINGS = {
    "dd542_exposed_communication.py",
    "dd601_nccl_settings_differ.py",
    "dd602_transport_falls_back.py",
    "dd603_container_limits.py",
    "dd604_two_ranks_on_one_gpu.py",
    "dd605_network_error.py",
    "dd606_cuda_error_in_nccl.py",
    "dd607_missing_in_initialisation.py",
    "dd608_mismatch_in_nccl_log.py",
    "dd609_watchdog_abort.py",
    "dd611_debugging_switches.py",
}

# Diseases of how ranks are started, which one script on all ranks cannot have; see
# tests/live/test_environment_skew.py.
OF_STARTS = {"dd610_software_differs.py"}


def test_a_check_has_its_patient_and_a_patient_its_check() -> None:
    patients = {one.name for one in (ROOT / "fixtures" / "patients").glob("dd*.py")}
    assert patients == {source.name for source in CHECKS} - OF_LEAVINGS - OF_STARTS


def is_described(source: Path) -> bool:
    docstring = ast.get_docstring(parsed(source)) or ""
    return docstring.partition("\n")[0].endswith((".", "?"))


def test_a_module_says_what_it_is() -> None:
    assert names_of(one for one in sources() if not is_described(one)) == []


def test_programs_with_known_answers_are_in_their_format() -> None:
    """A finding has its line, and the code of a patient is that of its check.

    What a job leaves need not tell of lines.
    """
    known = {folder: programs(folder) for folder in FOLDERS}
    found = {path.parent.name for path in (ROOT / "fixtures").rglob("*.py")}
    assert found == set(FOLDERS)
    for patient in known["patients"]:
        assert patient.code == patient.name[:5].upper()
    sick = [one for folder in FOLDERS[:2] + FOLDERS[4:] for one in known[folder]]
    lineless = [
        one.path
        for one in sick
        if not one.leaves and not all(one.lines_of(code) for code in one.findings)
    ]
    assert names_of(lineless) == []
    assert not [one.name for one in known["near_misses"] if one.findings]
    assert all(one.ranks > 0 for some in known.values() for one in some)


def test_what_is_live_stands_in_its_folder() -> None:
    """The folder's conftest marks its tests, so that no file has to."""
    marking = {
        path
        for path in (ROOT / "tests").rglob("*.py")
        if "mark." + "live" in path.read_text()
    }
    assert names_of(marking) == ["tests/live/conftest.py"]


def test_only_what_belongs_stands_at_the_top() -> None:
    names = {path.name for path in ROOT.iterdir()}
    standing = {name for name in names if not LEFT_BY_TOOLS.fullmatch(name)}
    assert standing >= MUST_STAND_AT_THE_TOP
    assert standing <= MUST_STAND_AT_THE_TOP | MAY_STAND_AT_THE_TOP


def test_every_package_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    setuptools = settings["tool"]["setuptools"]
    moved = {path: name for name, path in setuptools["package-dir"].items()}
    found = set()
    for top in moved:
        for source in (ROOT / top).rglob("__init__.py"):
            inside = source.parent.relative_to(ROOT / top).parts
            found.add(".".join([moved[top], *inside]))
    assert found == set(setuptools["packages"])

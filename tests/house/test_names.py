"""A word means one thing, and a subject has the same name in every room."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent.parent / "distdoctor"
UNIT = PACKAGE.parent / "tests" / "unit"

TOPICS = {
    "accumulation",
    "amp",
    "checkpoints",
    "collectives",
    "communicators",
    "comparison",
    "data",
    "deadlock",
    "divergence",
    "environment",
    "failures",
    "gradients",
    "groups",
    "horovod",
    "learning_rate",
    "memory",
    "metrics",
    "nccl",
    "optimizer_step",
    "p2p",
    "processes",
    "rendezvous",
    "replicas",
    "rng",
}
"""What jobs, and what is said of them, are about."""

OF_PROBES = {"fingerprints", "gpu_emulation", "needle"}
OF_ANALYSIS = {"source"}
OF_OBSERVATIONS = {"__init__", "drawing_syntax", "equivalence"}
"""What is no topic: what a room does its work with."""

ROOMS = {
    "api",
    "benchmarks",
    "cli",
    "compiled",
    "equivalence",
    "examination",
    "horovod_build",
    "journal",
    "launch",
    "lint",
    "model",
    "postmortem",
    "probes",
    "pytest_plugin",
    "report",
    "watching",
}
"""Rooms that are about one thing have one folder of tests."""


def folders(place: Path) -> set[str]:
    return {one.name for one in place.iterdir() if one.is_dir()} - {"__pycache__"}


def modules() -> Iterator[tuple[str, Path]]:
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path


def test_the_same_topics_name_the_folders_of_each_room() -> None:
    observed = {path.stem for path in (PACKAGE / "model" / "observations").glob("*.py")}
    assert folders(PACKAGE / "probes") <= TOPICS | OF_PROBES
    assert folders(PACKAGE / "analysis") <= TOPICS | OF_ANALYSIS
    assert observed <= TOPICS | OF_OBSERVATIONS
    assert folders(UNIT) <= TOPICS | OF_PROBES | OF_ANALYSIS | ROOMS


def test_no_module_has_the_name_of_another() -> None:
    named = defaultdict(list)
    for _, path in modules():
        named[path.stem].append(str(path.relative_to(PACKAGE)))
    twice = {name: found for name, found in named.items() if len(found) > 1}
    assert twice.keys() <= TOPICS | {"__init__"}, twice


def test_no_public_class_has_the_name_of_another() -> None:
    named = defaultdict(list)
    for name, path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named[node.name].append(name)
    assert not {name: found for name, found in named.items() if len(found) > 1}


def test_modules_import_each_other_in_no_circle() -> None:
    """Those of types only, and those of the registry by name, are none."""
    paths = dict(modules())
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
        found = graph.setdefault(name, set())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    found.add(whole if whole in paths else node.module)
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        found &= paths.keys() - {name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None

"""Each probe is in the registry, and has what the registry tells it."""

import ast
import re
from pathlib import Path

from distdoctor.probes.registry import ENTRIES, LATE_IMPORTS, Stage

PROBES = Path(__file__).parent.parent.parent / "distdoctor" / "probes"


def modules_with(pattern: str) -> set[str]:
    """Modules whose text has something, by their names in the registry."""
    found = set()
    for path in PROBES.rglob("*.py"):
        if re.search(pattern, path.read_text(), re.MULTILINE):
            parts = path.relative_to(PROBES).with_suffix("").parts
            found.add(".".join(parts).removesuffix(".__init__"))
    return found


def test_each_probe_is_in_the_registry_once() -> None:
    listed = [entry.module for entry in ENTRIES]
    assert len(listed) == len(set(listed))
    assert set(listed) == modules_with(r"^PROBE = Probe\(")


def test_what_a_probe_remembers_it_can_forget() -> None:
    """A singleton, or module, that can be made as new is so for each run."""
    texts = {path: path.read_text() for path in PROBES.rglob("*.py")}
    everything = "".join(texts.values())
    for path, text in texts.items():
        body = ast.parse(text).body
        kinds = {
            node.name
            for node in body
            if isinstance(node, ast.ClassDef)
            and any(getattr(part, "name", "") == "reset" for part in node.body)
        }
        for node in body:
            if getattr(node, "name", "") == "reset" and path.name != "registry.py":
                assert "reset=reset" in text, path
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                made, name = ast.unparse(node.value.func), ast.unparse(node.targets[0])
                used = re.search(rf"\b{name}\.reset\b", everything)
                assert used or made not in kinds, (path, name)


def test_modules_that_late_probes_wait_for_are_surrounded_from_the_start() -> None:
    for entry in ENTRIES:
        if entry.stage is not Stage.PROGRAM:
            path = PROBES.joinpath(*entry.module.split("."))
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            imports = re.search(r"imports=\{\s*(.*?)\}", file.read_text(), re.DOTALL)
            names = re.findall(r'"([\w.]+)":', imports[1]) if imports else []
            assert set(names) <= {*LATE_IMPORTS}


def test_only_the_registry_puts_probes_in_place() -> None:
    """A line elsewhere that calls another module's `install` would be forgotten."""
    inside_emulation = "gpu_emulation"
    for path in PROBES.rglob("*.py"):
        if path.name == "registry.py" or inside_emulation in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            called = isinstance(node, ast.Call) and ast.unparse(node.func)
            assert not (called and called.endswith(".install")), path

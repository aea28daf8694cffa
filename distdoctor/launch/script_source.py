"""Reads from a script's source how it has to be started.

It is read and never run. The user's own modules that it imports are read with it:
arguments and set-up often live beside the script.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from distdoctor.errors import LaunchRefused
from distdoctor.launch.imported_names import bound_names, written
from distdoctor.model.source_text import LARGEST_SOURCE, syntax_tree

LAUNCHER_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})
"""What torchrun tells each rank."""

_SPAWNERS = {"spawn", "start_processes", "Process", "notebook_launcher"}
_OF_MODULES = {"spawn", "start_processes"}
"""Those of them that are functions of `torch.multiprocessing`."""

_COUNT = "nproc_per_node"
"""The argument of ignite's `Parallel` and torch's `LaunchConfig`: ranks to start."""

_MOST_MODULES = 60  # of the user's own; a project is not read as a whole
_MOST_RANKS = 16  # that are started because a script names so many


@dataclass(frozen=True, slots=True)
class Option:
    """An argument that a script's `argparse` takes.

    Attributes:
        names: All its spellings; a positional argument has one, without dashes.
        required: Without it the script ends.
    """

    names: tuple[str, ...]
    required: bool

    @property
    def is_positional(self) -> bool:
        """Whether it is a positional argument."""
        return not self.names[0].startswith("-")

    @property
    def plain(self) -> set[str]:
        """Its names without leading dashes and with `_` between words."""
        return {name.lstrip("-").replace("-", "_") for name in self.names}


@dataclass(frozen=True)
class ScriptSource:
    """A script and the user's own modules that it imports, parsed."""

    script: ast.Module
    modules: Sequence[ast.Module] = field(default=())

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All AST nodes, those of the script first."""
        return [
            node for tree in (self.script, *self.modules) for node in ast.walk(tree)
        ]

    @cached_property
    def spawns(self) -> bool:
        """Whether the script starts processes."""
        calls = [node for node in ast.walk(self.script) if isinstance(node, ast.Call)]
        return any(
            (_last_name(call.func) in _SPAWNERS and self._is_spawner(call.func))
            or (self._number(_keywords(call).get(_COUNT)) or 0) > 1
            for call in calls
        )

    def _is_spawner(self, function: ast.expr) -> bool:
        """Whether a function with the name of one that starts processes is one.

        Others have such names, too: numpy's seeds `spawn`, and a population may.
        """
        name = written(function)  # none of what a call has returned
        owner = name.rpartition(".")[0]
        if _last_name(function) not in _OF_MODULES:
            return owner != "psutil"
        bound = bound_names(self.nodes, "torch") | bound_names(
            self.nodes, "multiprocessing"
        )
        if name and not owner:
            return name in bound or not self._defines(name)
        meant = bound.get(owner, owner)
        return meant == "mp" or meant.rpartition(".")[2] == "multiprocessing"

    def _defines(self, name: str) -> bool:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return any(isinstance(node, kinds) and node.name == name for node in self.nodes)

    @cached_property
    def sets(self) -> set[str]:
        """Environment variables that the source assigns, whatever their value was."""
        return {
            name
            for node in self.nodes
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Subscript)
            for name in _texts([target.slice])
        }

    @cached_property
    def asks(self) -> set[str]:
        """Environment variables read in a way that allows them to be unset."""
        names: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Call):
                if _last_name(node.func) in {"get", "getenv"}:
                    names |= _texts(node.args[:1])
            elif isinstance(node, ast.Compare):
                names |= _texts([node.left])
        return names

    @cached_property
    def demands(self) -> set[str]:
        """Environment variables read in a way that requires them to be set."""
        return {
            name
            for node in self.nodes
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
            for name in _texts([node.slice])
        }

    @property
    def reads(self) -> set[str]:
        """Environment variables read in any way."""
        return self.asks | self.demands

    @cached_property
    def options(self) -> list[Option]:
        """The arguments of its `argparse` parsers, in order."""
        return [
            Option(tuple(names), _is_required(node, names))
            for node in self.nodes
            if isinstance(node, ast.Call) and _last_name(node.func) == "add_argument"
            if (names := _constants(node.args))
        ]

    @cached_property
    def gives_rank(self) -> bool:
        """Whether the script passes a rank to `init_process_group`."""
        return any("rank" in _keywords(node) for node in self._inits())

    @cached_property
    def world_size(self) -> int | None:
        """The world size, if `init_process_group` always gets a literal."""
        sizes = {
            self._number(_keywords(node).get("world_size")) for node in self._inits()
        }
        (size,) = sizes if len(sizes) == 1 else (None,)
        return size if size is not None and 1 < size <= _MOST_RANKS else None

    def _number(self, node: ast.expr | None) -> int | None:
        if isinstance(node, ast.Name):
            node = self._literals().get(node.id) or self._default(node)
        number = node.value if isinstance(node, ast.Constant) else None
        return number if isinstance(number, int) else None

    def _default(self, name: ast.Name) -> ast.expr | None:
        """What a parameter is where no caller gives it."""
        for function in self.nodes:
            if not isinstance(function, ast.FunctionDef):
                continue
            if not any(node is name for node in ast.walk(function)):
                continue
            names = [argument.arg for argument in function.args.args]
            defaults = dict(
                zip(reversed(names), reversed(function.args.defaults), strict=False)
            )
            if name.id in defaults and not any(
                len(call.args) > names.index(name.id) or name.id in _keywords(call)
                for call in self._calls_of(function.name)
            ):
                return defaults[name.id]
        return None

    def _calls_of(self, name: str) -> Iterator[ast.Call]:
        for node in self.nodes:
            if isinstance(node, ast.Call) and _last_name(node.func) == name:
                yield node

    def _inits(self) -> Iterator[ast.Call]:
        return self._calls_of("init_process_group")

    def _literals(self) -> dict[str, ast.expr]:
        """Names that the script gives one value, on its outermost level."""
        values: dict[str, ast.expr] = {}
        for node in self.script.body:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        values[target.id] = node.value
        return values


def read_source(script: Path) -> ScriptSource:
    """Parse a script and the modules beside it that it imports.

    Raises:
        LaunchRefused: The script cannot be read, or is no Python.
    """
    tree = parse(script)
    return ScriptSource(tree, list(_own_modules(tree, script.resolve())))


def parse(script: Path) -> ast.Module:
    """Parse a Python file.

    Returns:
        Its tree; one without statements if it is too large or too deep to be read.

    Raises:
        LaunchRefused: It cannot be read, or is no Python.
    """
    try:
        source = script.read_bytes()
        tree = syntax_tree(source)
        if tree is None and len(source) <= LARGEST_SOURCE:
            ast.parse(source, filename=str(script))  # which says why
        return tree or ast.Module([], [])
    except (RecursionError, MemoryError):  # Python will say so, where it is one
        return ast.Module([], [])
    except SyntaxError as error:
        if error.lineno is None:  # null bytes, or an encoding that does not fit
            raise LaunchRefused(f"{script} is not Python source: {error}") from error
        raise LaunchRefused(
            f"{script}, line {error.lineno}: {error.msg}; the script cannot be run"
        ) from error
    except ValueError as error:
        raise LaunchRefused(f"{script} is not Python source: {error}") from error
    except OSError as error:
        raise LaunchRefused(f"{script} cannot be read: {error.strerror}") from error


def _own_modules(tree: ast.Module, script: Path) -> Iterator[ast.Module]:
    """What a script imports from its own folder, and what that imports."""
    seen = {script}
    waiting = [(tree, script.parent)]
    while waiting:
        importer, folder = waiting.pop(0)
        for path in _imported(importer, script.parent, folder):
            if path in seen or len(seen) > _MOST_MODULES:
                continue
            seen.add(path)
            with suppress(LaunchRefused, OSError):
                if path.stat().st_size <= LARGEST_SOURCE:
                    module = parse(path)
                    waiting.append((module, path.parent))
                    yield module


def _imported(tree: ast.Module, top: Path, folder: Path) -> Iterator[Path]:
    """Files below `top` that a module in `folder` imports."""
    for node in ast.walk(tree):
        dotted: list[tuple[Path, str]] = []
        if isinstance(node, ast.Import):
            dotted = [(top, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = top
            if node.level:
                base = folder.joinpath(*[".."] * (node.level - 1)).resolve()
            module = node.module or ""
            dotted = [(base, module)] if module else []
            dotted += [
                (base, f"{module}.{alias.name}".strip(".")) for alias in node.names
            ]
        for base, name in dotted:
            path = base.joinpath(*name.split("."))
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file.is_file():
                    yield file


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _texts(nodes: Sequence[ast.expr]) -> set[str]:
    return set(_constants(nodes))


def _constants(nodes: Sequence[ast.expr]) -> list[str]:
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value
    ]


def _keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {word.arg: word.value for word in call.keywords if word.arg}


def _is_required(call: ast.Call, names: Sequence[str]) -> bool:
    given = _keywords(call)
    if not names[0].startswith("-"):
        optional = given.get("nargs")
        return not (isinstance(optional, ast.Constant) and optional.value in {"?", "*"})
    required = given.get("required")
    return isinstance(required, ast.Constant) and required.value is True

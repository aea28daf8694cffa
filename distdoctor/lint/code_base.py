"""Source files as one code base: what they import, define, assign and call."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import PurePath

from distdoctor.lint.source_files import SourceText
from distdoctor.model.source_text import syntax_tree, why_no_tree

MODULE = "<module>"
"""Name of what stands in a file outside of functions."""

_OF_INTEREST = re.compile(
    r"[dD]istributed|Parallel|horovod|deepspeed|accelerat|GradScaler|\bbackward\b"
    r"|set_epoch|state_dict"
)
"""A file without any of these words neither trains nor communicates."""


_BARE = frozenset({ast.Load, ast.Store, ast.Del})
"""Nodes that say nothing by themselves."""


@dataclass(eq=False, slots=True)
class Scope:
    """A function, or a file's lines outside of functions.

    Attributes:
        source: The file.
        name: Qualified, as tracebacks have it.
        node: The definition.
        owner: The class in whose body it is defined; None: in no class.
        outer: The function around it, whose variables it sees; None: the file's lines.
        calls: The calls in it, without those in functions defined inside.
        words: The names, attributes and texts in it, likewise.
        size: How many nodes it has, likewise.
    """

    source: ProgramFile
    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
    owner: str
    outer: Scope | None
    calls: list[ast.Call] = field(default_factory=list)
    words: set[str] = field(default_factory=set)
    size: int = 0

    @property
    def body(self) -> list[ast.stmt]:
        """Its statements."""
        return self.node.body

    @property
    def simple_name(self) -> str:
        """The name that calls use."""
        return self.name.rpartition(".")[2]

    @property
    def parameters(self) -> list[str]:
        """Names of parameters that can be given by position, in order."""
        if isinstance(self.node, ast.Module):
            return []
        arguments = self.node.args
        return [each.arg for each in (*arguments.posonlyargs, *arguments.args)]


class ProgramFile:
    """A file, parsed and indexed.

    Attributes:
        file: Its name.
        text: What it holds.
        scopes: Its own lines first, then each function.
        imports: By a name in the file, the dotted name of what it stands for.
        classes: By name, those defined in it.
        attributes: By class and attribute, what is assigned to it: `self.name = value`,
            with the function that does so; class "": to an attribute of anything else.
        globals: By name, what the file's own lines assign to it.
    """

    def __init__(self, source: SourceText, tree: ast.Module) -> None:
        self.file, self.text = source.file, source.text
        self.tree = tree
        self.scopes: list[Scope] = []
        self.imports: dict[str, str] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.attributes: dict[tuple[str, str], list[tuple[Scope, ast.expr]]] = (
            defaultdict(list)
        )
        self.globals: dict[str, list[ast.expr]] = defaultdict(list)
        self._dotted: dict[int, str] = {}  # by a node of the tree, which lives as long
        self._named: dict[str, list[Scope]] = defaultdict(list)
        module = Scope(self, MODULE, tree, "", None)
        self.scopes.append(module)
        self._index(tree.body, module, "", "")

    @property
    def module(self) -> Scope:
        """Its lines outside of functions."""
        return self.scopes[0]

    @cached_property
    def lines(self) -> list[str]:
        """Its lines, as Python counts them: a form feed ends none."""
        return re.split(r"\r\n|\r|\n", self.text)

    @cached_property
    def texts(self) -> Counter[str]:
        """How often each text, or keyword of a call, stands in it."""
        found: Counter[str] = Counter()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found[node.value] += 1
            elif isinstance(node, ast.keyword) and node.arg:
                found[node.arg] += 1
        return found

    def named(self, name: str) -> list[Scope]:
        """Functions of this simple name, methods included."""
        return self._named.get(name, [])

    def dotted(self, node: ast.expr) -> str:
        """What a name or an attribute stands for, by the file's imports; "" if neither.

        `dist.all_reduce` is `torch.distributed.all_reduce`.
        """
        found = self._dotted.get(id(node))
        if found is None:
            found = self._dotted[id(node)] = self._stands_for(node)
        return found

    def _stands_for(self, node: ast.expr) -> str:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self.imports.get(node.id, node.id))
        return ".".join(reversed(parts))

    def _index(
        self, body: Sequence[ast.stmt], scope: Scope, prefix: str, owner: str
    ) -> None:
        fresh: list[ast.AST] = [*reversed(body)]
        calls, words = scope.calls, scope.words
        while fresh:
            node = fresh.pop()
            kind = type(node)
            scope.size += 1
            if kind is ast.Name:
                words.add(node.id)  # type: ignore[attr-defined]
                continue
            if kind is ast.Constant:
                if type(node.value) is str:  # type: ignore[attr-defined]
                    words.add(node.value)  # type: ignore[attr-defined]
                continue
            if kind is ast.Attribute:
                words.add(node.attr)  # type: ignore[attr-defined]
                fresh.append(node.value)  # type: ignore[attr-defined]
                continue
            if kind is ast.Call:
                calls.append(node)  # type: ignore[arg-type]
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = Scope(self, prefix + node.name, node, owner, scope)
                self.scopes.append(inner)
                self._named[node.name].append(inner)
                fresh += [*node.decorator_list, *node.args.defaults]
                self._index(node.body, inner, f"{prefix}{node.name}.<locals>.", "")
                continue
            elif kind is ast.ClassDef:
                assert isinstance(node, ast.ClassDef)
                self.classes.setdefault(node.name, node)
                self._index(node.body, scope, f"{prefix}{node.name}.", node.name)
                continue
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, node.value, scope)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._assign(node.target, node.value, scope)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
                continue
            for name in reversed(node._fields):
                child = getattr(node, name, None)
                if type(child) is list:
                    fresh += [
                        one for one in reversed(child) if isinstance(one, ast.AST)
                    ]
                elif isinstance(child, ast.AST) and type(child) not in _BARE:
                    fresh.append(child)

    def _assign(self, target: ast.expr, value: ast.expr, scope: Scope) -> None:
        if isinstance(target, ast.Attribute):
            own = isinstance(target.value, ast.Name) and target.value.id == "self"
            owner = scope.owner if own else ""
            self.attributes[owner, target.attr].append((scope, value))
        elif isinstance(target, ast.Name) and scope is self.module:
            self.globals[target.id].append(value)
        elif (
            isinstance(target, ast.Tuple)
            and isinstance(value, ast.Tuple)
            and len(target.elts) == len(value.elts)
        ):
            for part, one in zip(target.elts, value.elts, strict=True):
                self._assign(part, one, scope)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for one in node.names:
                first = one.name.partition(".")[0]
                self.imports[one.asname or first] = one.name if one.asname else first
            return
        start = "." * node.level + (node.module or "")
        for one in node.names:
            joint = "" if start.endswith(".") or not start else "."
            self.imports[one.asname or one.name] = f"{start}{joint}{one.name}"


class CodeBase:
    """Files that are read together: names of one lead to functions of another.

    Attributes:
        files: Those that train or communicate.
        unread: Files that could not be read or are no Python, and why.
        lines: How many lines were read, of all files.
        read: Names of the files that were read.

    Args:
        sources: The texts.
    """

    def __init__(self, sources: Iterable[SourceText]) -> None:
        self.files: list[ProgramFile] = []
        self.unread: list[tuple[str, str]] = []
        self.read: list[str] = []
        self.lines = 0
        for source in sources:
            if source.why:
                self.unread.append((source.file, source.why))
                continue
            self.read.append(source.file)
            self.lines += source.text.count("\n")
            matters = _matters(source.text)
            if not (matters or source.is_named):
                continue
            tree = syntax_tree(source.text)
            if tree is None:
                self.unread.append((source.file, why_no_tree(source.text)))
                self.read.pop()
            elif matters:
                self.files.append(ProgramFile(source, tree))
        self._by_tail: dict[str, list[ProgramFile]] = defaultdict(list)
        for file in self.files:
            self._by_tail[_module_of(file.file)[-1]].append(file)

    def module(self, dotted: str, seen_from: ProgramFile) -> ProgramFile | None:
        """The file of a module that another file imports; None: it is not among ours.

        Args:
            dotted: As the importing file has it; dots before it are of its package.
            seen_from: The importing file.
        """
        name = dotted.lstrip(".")
        parts = tuple(filter(None, name.split(".")))
        if not parts:
            return None
        found = [
            file
            for file in self._by_tail.get(parts[-1], ())
            if _module_of(file.file)[-len(parts) :] == parts
        ]
        here = _module_of(seen_from.file)[:-1]

        def common(file: ProgramFile) -> int:
            there = _module_of(file.file)
            pairs = zip(here, there, strict=False)
            return next(
                (n for n, (a, b) in enumerate(pairs) if a != b),
                min(len(here), len(there)),
            )

        best = sorted(found, key=common)[-2:]
        if len(best) == 2 and common(best[0]) == common(best[1]):
            return None  # it may be either
        return best[-1] if best else None

    def function(self, dotted: str, seen_from: ProgramFile) -> Scope | None:
        """The function of another file that a name stands for; None: none of ours."""
        start, _, name = dotted.rpartition(".")
        if not start.strip("."):
            return None
        file = self.module(start, seen_from)
        for _ in range(3):  # a package hands on what its modules define
            if file is None:
                return None
            for one in file.named(name):
                if not one.owner and one.outer is file.module:
                    return one
            start = file.imports.get(name, "").rpartition(".")[0]
            file = self.module(start, file) if start else None
        return None

    def around(self, file: ProgramFile) -> list[ProgramFile]:
        """A file, what it imports and what imports it, over any number of files."""
        imports, importers = self._neighbours
        together = {file: None}
        for ways in (imports, importers):
            fresh = [file]
            while fresh:
                for other in ways[fresh.pop()]:
                    if other not in together:
                        together[other] = None
                        fresh.append(other)
        return [*together]

    def is_imported(self, file: ProgramFile) -> bool:
        """Whether another file imports it."""
        return bool(self._neighbours[1][file])

    @cached_property
    def _neighbours(self) -> tuple[_Ways, _Ways]:
        imports: _Ways = defaultdict(list)
        importers: _Ways = defaultdict(list)
        for file in self.files:
            found: dict[ProgramFile, None] = {}
            for dotted in dict.fromkeys(file.imports.values()):
                start = dotted.rpartition(".")[0]
                for name in filter(None, (dotted, start)):
                    other = self.module(name, file)
                    if other is not None and other is not file:
                        found[other] = None
            imports[file] = [*found]
            for other in found:
                importers[other].append(file)
        return imports, importers


def _matters(text: str) -> bool:
    return _OF_INTEREST.search(text) is not None or "rank" in text


_Ways = defaultdict[ProgramFile, list[ProgramFile]]


@cache
def _module_of(file: str) -> tuple[str, ...]:
    path = PurePath(file).with_suffix("")
    parts = path.parts[:-1] if path.name == "__init__" else path.parts
    return parts or ("",)

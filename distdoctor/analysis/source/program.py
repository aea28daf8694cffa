"""The user's files as one program: its functions, who calls them, what is assigned."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from distdoctor.analysis.source.syntax_trees import simple_name
from distdoctor.model.source_text import shallow_tree

MODULE = "<module>"
"""Name of what stands in a file outside of all functions."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of the program, or a file's lines outside of functions."""

    file: str
    name: str  # qualified, as tracebacks have it
    node: Definition
    outer: Function | None  # whose variables it sees; None: the file itself

    @property
    def simple_name(self) -> str:
        """The name that calls use."""
        return self.name.rpartition(".")[2]

    @property
    def is_method(self) -> bool:
        """Whether it is defined in the body of a class."""
        owner = self.name.rpartition(".")[0]
        return bool(owner) and not owner.endswith("<locals>")

    @property
    def parameters(self) -> list[str]:
        """Names of its parameters that can be given by position, in order."""
        if isinstance(self.node, ast.Module):
            return []
        arguments = self.node.args
        return [each.arg for each in [*arguments.posonlyargs, *arguments.args]]


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """A call, or a value that is stored, and the function it stands in."""

    function: Function
    node: ast.expr
    line: int


class Program:
    """Files of a user, parsed and indexed; what cannot be parsed is left out.

    Attributes:
        functions: All functions and files.
        calls: Calls by the simple name of what is called.
        stored: Values by the attribute they are assigned to: `x.name = value`.
        items: Values of items, by the attribute that has them: `x.name[key] = value`.
        keywords: Values by the keyword they are passed as: `call(name=value)`.
        assigned: Values by function and by the name of a variable.
        unpacked: Likewise, those that are one of several which a call gives at once.
        mentions: Where a name, or an attribute of that name, is read.

    Args:
        texts: Text of each file by its name.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.functions: list[Function] = []
        self.calls: dict[str, list[Use]] = defaultdict(list)
        self.stored: dict[str, list[Use]] = defaultdict(list)
        self.items: dict[str, list[Use]] = defaultdict(list)
        self.keywords: dict[str, list[Use]] = defaultdict(list)
        self.assigned: dict[tuple[Function, str], list[Use]] = defaultdict(list)
        self.unpacked: dict[tuple[Function, str], list[Use]] = defaultdict(list)
        self.mentions: dict[str, list[Use]] = defaultdict(list)
        self._named: dict[str, list[Function]] = defaultdict(list)
        self._bound: dict[Function, set[str]] = defaultdict(set)
        self._looped: dict[Function, set[str]] = defaultdict(set)
        self._libraries: dict[str, set[str]] = defaultdict(set)
        own = {PurePath(file).stem for file in texts}
        for file, text in sorted(texts.items()):
            tree = shallow_tree(text)
            if tree is None:
                continue
            module = Function(file, MODULE, tree, None)
            self._add(module)
            self._index(tree, module, "", {})
            self._libraries[file] = _libraries_of(tree, own)

    def named(self, name: str) -> list[Function]:
        """Functions of this simple name.

        Args:
            name: Without its class or module.

        Returns:
            The functions in all files, empty if none has the name.
        """
        return self._named.get(name, [])

    def at(self, file: str, line: int) -> Function | None:
        """The innermost function around a line.

        Args:
            file: The name of the file, as in `Place.file`.
            line: The line, from 1.

        Returns:
            The function, the whole file outside of functions, or None if the file is
            not known.
        """
        around = [
            function
            for function in self.functions
            if function.file == file
            and (
                isinstance(function.node, ast.Module)
                or function.node.lineno <= line <= (function.node.end_lineno or 0)
            )
        ]
        return max(around, key=_first_line, default=None)

    def module_of(self, file: str) -> Function | None:
        """What stands in a file outside of functions.

        Args:
            file: The name of the file, as in `Place.file`.

        Returns:
            The file's own lines, or None if the file is not known.
        """
        return next(
            (f for f in self.functions if f.file == file and f.name == MODULE), None
        )

    def binds(self, function: Function, name: str) -> bool:
        """Whether a name is a local one of a function, assigned in whatever way.

        Args:
            function: A function of the program.
            name: A simple name.

        Returns:
            Whether it is local to the function.
        """
        return name in self._bound.get(function, ())

    def is_looped(self, function: Function, name: str) -> bool:
        """Whether a loop of a function gives a name one value after the other.

        Args:
            function: A function of the program.
            name: A simple name.

        Returns:
            Whether a `for` of the function has it as its target.
        """
        return name in self._looped.get(function, ())

    def variables_called(self) -> list[Use]:
        """Calls of variables and attributes, as a module of torch is called.

        Returns:
            Each call with the function that it stands in.
        """
        return [
            use
            for name, uses in self.calls.items()
            if not self._named.get(name)
            for use in uses
            if isinstance(use.node, ast.Call)
            and (
                self.binds(use.function, name)
                if isinstance(use.node.func, ast.Name)
                else name in self.stored
            )
        ]

    def is_library(self, call: ast.Call, function: Function) -> bool:
        """Whether what is called belongs to a module that is none of the user's files.

        `torch.save(x)` is no call of a method `save` of the user's.

        Args:
            call: The call.
            function: The function it stands in.

        Returns:
            Whether the name before the first dot is that of an imported module.
        """
        root = call.func
        while isinstance(root, ast.Attribute):
            root = root.value
        if root is call.func or not isinstance(root, ast.Name):
            return False
        return root.id in self._libraries[function.file]

    def applied(self, function: Function) -> list[Use]:
        """Calls `Name.apply(…)` by which torch comes to the `forward` of class `Name`.

        Empty for all but the static `forward` of an autograd function.

        Args:
            function: A function of the program.

        Returns:
            The calls, each with the function that it stands in.
        """
        owner, _, name = function.name.rpartition(".")
        decorators = getattr(function.node, "decorator_list", [])
        static = any(ast.unparse(one) == "staticmethod" for one in decorators)
        if name != "forward" or not static:
            return []
        return [
            use
            for use in self.calls.get("apply", ())
            if isinstance(use.node, ast.Call)
            and isinstance(use.node.func, ast.Attribute)
            and ast.unparse(use.node.func.value) == owner.rpartition(".")[2]
        ]

    def _add(self, function: Function) -> None:
        self.functions.append(function)
        self._named[function.simple_name].append(function)

    def _index(
        self, node: ast.AST, function: Function, prefix: str, outside: dict[str, bool]
    ) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = Function(function.file, prefix + child.name, child, function)
                self._add(inner)
                names = {
                    name: True
                    for part in ast.walk(child)
                    if isinstance(part, ast.Global)
                    for name in part.names
                }
                self._bound[inner].update(_all_parameters(child))
                for part in (*child.decorator_list, child.args):
                    self._index(part, function, prefix, outside)
                    self._note(part, function, outside)
                locals_ = f"{prefix}{child.name}.<locals>."
                body = ast.Module(child.body, [])  # whose children they are
                self._index(body, inner, locals_, names)
            elif isinstance(child, ast.ClassDef):
                self._index(child, function, f"{prefix}{child.name}.", outside)
            else:
                self._note(child, function, outside)
                self._index(child, function, prefix, outside)

    def _note(
        self, node: ast.AST, function: Function, outside: dict[str, bool]
    ) -> None:
        match node:
            case ast.Call():
                if name := called(node):
                    self.calls[name].append(Use(function, node, node.lineno))
                for keyword in node.keywords:
                    if keyword.arg:
                        use = Use(function, keyword.value, keyword.value.lineno)
                        self.keywords[keyword.arg].append(use)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, function, outside)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, function, outside)
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, value, function, outside)
            case ast.AugAssign(target=target, op=op, value=value):
                self._change(target, op, value, function, outside)
            case ast.For(target=target) | ast.AsyncFor(target=target):
                self._looped[function].update(_names(target))
            case ast.comprehension(target=target):
                self._looped[function].update(_names(target))
            case ast.Name(id=name, ctx=ast.Store()):
                self._bound[function].add(name)
            case ast.Name(id=name) | ast.Attribute(attr=name, ctx=ast.Load()):
                self.mentions[name].append(Use(function, node, node.lineno))

    def _change(
        self,
        target: ast.expr,
        op: ast.operator,
        value: ast.expr,
        function: Function,
        outside: dict[str, bool],
    ) -> None:
        """Note `target op= value`: a value that rests on itself."""
        if isinstance(target, ast.Name | ast.Attribute):
            changed = ast.BinOp(left=target, op=op, right=value)
            ast.copy_location(changed, value)
            self._assign(target, changed, function, outside)

    def _assign(
        self,
        target: ast.expr,
        value: ast.expr,
        function: Function,
        outside: dict[str, bool],
    ) -> None:
        match target:
            case ast.Name(id=name):
                scope = function
                if name in outside:
                    scope = self.module_of(function.file) or function
                self.assigned[scope, name].append(Use(function, value, target.lineno))
            case ast.Attribute(attr=name):
                self.stored[name].append(Use(function, value, target.lineno))
            case ast.Subscript(value=ast.Attribute(attr=name)):
                self.items[name].append(Use(function, value, target.lineno))
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                values = value.elts if isinstance(value, ast.Tuple | ast.List) else ()
                if len(values) == len(parts):
                    for part, one in zip(parts, values, strict=True):
                        self._assign(part, one, function, outside)
                elif not values:
                    self._unpack(parts, value, function)

    def _unpack(
        self, parts: list[ast.expr], value: ast.expr, function: Function
    ) -> None:
        """Note `a, b = value`, as items of the value."""
        for n, part in enumerate(parts):
            if isinstance(part, ast.Starred):
                return
            if not isinstance(part, ast.Name | ast.Attribute):
                continue
            item = ast.copy_location(ast.Constant(n), value)
            one = ast.Subscript(value=value, slice=item, ctx=ast.Load())
            ast.copy_location(one, value)
            use = Use(function, one, part.lineno)
            if isinstance(part, ast.Name):
                self.unpacked[function, part.id].append(use)
            else:
                self.stored[part.attr].append(use)


def _libraries_of(tree: ast.Module, own: set[str]) -> set[str]:
    """Names by which a file knows modules, or parts of them, that are not the user's.

    Args:
        tree: The file.
        own: Names of the user's modules.
    """
    return {
        one.asname or one.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for one in node.names
        if own.isdisjoint(
            [*one.name.split("."), *(getattr(node, "module", None) or "").split(".")]
        )
    }


def called(call: ast.Call) -> str:
    """The simple name of what is called; "" if it has none.

    Args:
        call: The call.

    Returns:
        The last name before the brackets.
    """
    return simple_name(call.func)


def calls_in(function: Function) -> Iterator[ast.Call]:
    """The calls in a function, without those in functions defined inside.

    Args:
        function: A function of the program.

    Yields:
        The calls, from outside to inside.
    """
    for node in own_nodes(function.node):
        if isinstance(node, ast.Call):
            yield node


def names_called(function: Function, line: int) -> set[str]:
    """Simple names of what a function calls on a line.

    Args:
        function: A function of the program.
        line: The line, from 1; a call may stretch over several.

    Returns:
        The names, without those of calls that have none.
    """
    return {
        called(call)
        for call in calls_in(function)
        if call.lineno <= line <= (call.end_lineno or 0)
    } - {""}


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes inside, without those of functions defined inside.

    Args:
        node: A function, a file, or any part of one.

    Yields:
        The nodes, each before those inside of it.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield child
        yield from own_nodes(child)


def _names(target: ast.expr) -> Iterator[str]:
    yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))


def _all_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    yield from (each.arg for each in every)


def all_parameters(function: Function) -> set[str]:
    """Names of the parameters of a function, however they are given.

    Args:
        function: A function of the program.

    Returns:
        The names, those of `*args` and `**kwargs` included; empty for a file.
    """
    if isinstance(function.node, ast.Module):
        return set()
    return set(_all_parameters(function.node))


def defaults_of(function: Function) -> dict[str, ast.expr]:
    """The defaults of its parameters.

    Args:
        function: A function of the program.

    Returns:
        The expressions by the names of the parameters that have one; empty for a file.
    """
    if isinstance(function.node, ast.Module):
        return {}
    arguments = function.node.args
    every = [*arguments.posonlyargs, *arguments.args]
    last = every[len(every) - len(arguments.defaults) :]
    found = {
        each.arg: value for each, value in zip(last, arguments.defaults, strict=True)
    }
    for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if value is not None:
            found[each.arg] = value
    return found


def _first_line(function: Function) -> int:
    node = function.node
    return 0 if isinstance(node, ast.Module) else node.lineno

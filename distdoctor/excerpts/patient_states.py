"""Makes two programs of a patient in `fixtures`: the sick one and the well one.

A patient asks `state == "sick"` where the two differ. Here every such question is
answered, and what is left is the program that runs in that state: nothing else of the
text is changed, so that comments and the form of lines stay.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_UNKNOWN = object()
"""The value of what depends on more than the state."""

_CULPRIT = re.compile(r"[ \t]*# culprit(?: DD\d{3})?$", re.MULTILINE)


class StateUnreadable(Exception):
    """A patient asks for its state in a way that is not understood."""


_Node = ast.stmt | ast.expr | ast.arg | ast.keyword
"""What has a place in the source."""


@dataclass(frozen=True, slots=True)
class _Edit:
    begin: int
    end: int
    text: str


def in_state(source: str, state: str) -> str:
    """A patient's program in one state.

    Args:
        source: Of the patient.
        state: "sick" or "well".

    Returns:
        The program, with its `# culprit` marks.

    Raises:
        StateUnreadable: It asks for its state in a way that is not understood.
    """
    answered = _Answering(source, state).text()
    bare = _Removing(answered).text()
    result = bare if _knows_all_its_names(bare) else answered
    ast.parse(result)
    return _tidy(result)


def without_marks(source: str) -> str:
    """A program without its `# culprit` marks."""
    return _CULPRIT.sub("", source)


def marked_lines(source: str) -> list[int]:
    """The numbers of lines that have a `# culprit` mark."""
    lines = source.splitlines()
    return [number for number, line in enumerate(lines, 1) if _CULPRIT.search(line)]


class _Text:
    """A source, its tree, and the edits to be made in it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tree = ast.parse(source)
        lines = source.encode().splitlines(keepends=True)
        self._raw = source.encode()
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))

    def begin(self, node: _Node) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: _Node) -> int:
        return self._starts[_last(node) - 1] + (node.end_col_offset or 0)

    def line_begin(self, node: _Node) -> int:
        return self._starts[node.lineno - 1]

    def line_end(self, node: _Node) -> int:
        return self._starts[_last(node)]

    def between(self, begin: int, end: int) -> str:
        return self._raw[begin:end].decode()

    def edited(self, begin: int, end: int, edits: list[_Edit]) -> str:
        """A part of the source, with those edits that lie in it."""
        parts, at = [], begin
        for edit in sorted(edits, key=lambda one: (one.begin, -one.end)):
            if edit.begin < at or edit.end > end:
                continue  # inside of another one, or elsewhere
            parts += [self.between(at, edit.begin), edit.text]
            at = edit.end
        return "".join([*parts, self.between(at, end)])


def _last(node: _Node) -> int:
    return node.end_lineno or node.lineno


class _Answering(_Text):
    """Answers all questions for the state."""

    def __init__(self, source: str, state: str) -> None:
        super().__init__(source)
        self._state = state
        self._edits: list[_Edit] = []
        self._parents = {
            child: node
            for node in ast.walk(self.tree)
            for child in ast.iter_child_nodes(node)
        }

    def text(self) -> str:
        self._in_body(self.tree)
        return self.edited(0, len(self._raw), self._edits)

    def _in_body(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If):
                self._if(child)
            elif isinstance(child, ast.expr):
                self._expression(child)
            else:
                self._in_body(child)

    def _if(self, node: ast.If) -> None:
        value = self._value(node.test)
        if value is _UNKNOWN:
            self._in_body(node)
            return
        if self.between(self.begin(node), self.begin(node) + 4) == "elif":
            raise StateUnreadable(
                f"line {node.lineno}: an elif that asks for the state"
            )
        taken = node.body if value else node.orelse
        for child in taken:
            if isinstance(child, ast.If):
                self._if(child)
            else:
                self._in_body(child)
        self._edits.append(
            _Edit(self.line_begin(node), self.line_end(node), self._taken(node, taken))
        )

    def _taken(self, node: ast.If, taken: list[ast.stmt]) -> str:
        """The lines of the branch that is taken, moved to where the question stood."""
        if not taken:
            parent: Any = self._parents[node]
            alone = any(
                getattr(parent, name, None) == [node] for name in ("body", "orelse")
            )
            return " " * node.col_offset + "pass\n" if alone else ""
        first, last = taken[0], taken[-1]
        begin, end = self.line_begin(first), self.line_end(last)
        # Comments above the first statement are of the branch.
        lines = self.between(self.line_begin(node), begin).splitlines(keepends=True)
        while len(lines) > 1 and lines[-1].lstrip().startswith("#"):
            begin -= len(lines.pop().encode())
        text = self.edited(begin, end, [*self._edits])
        spare = first.col_offset - node.col_offset
        if self.between(self.begin(first), self.begin(first) + 4) == "elif":
            text = text.replace("elif", "if", 1)
            spare = 0
        return re.sub(rf"^ {{{spare}}}", "", text, flags=re.MULTILINE)

    def _expression(self, node: ast.expr) -> None:
        if isinstance(node, ast.JoinedStr):
            return  # before Python 3.12 nobody tells where its parts stand
        value = self._value(node)
        if value is not _UNKNOWN and not self._is_the_state(node):
            if not isinstance(node, ast.Constant):
                self._replace(node, repr(value))
            return
        if isinstance(node, ast.IfExp):
            test = self._value(node.test)
            if test is not _UNKNOWN:
                chosen = node.body if test else node.orelse
                self._expression(chosen)
                begin, end = self.begin(chosen), self.end(chosen)
                self._replace(node, self.edited(begin, end, self._edits))
                return
        if isinstance(node, ast.BoolOp):
            asked = [one for one in node.values if self._value(one) is not _UNKNOWN]
            left = [one for one in node.values if one not in asked]
            if asked:
                word = " and " if isinstance(node.op, ast.And) else " or "
                texts = [self.between(self.begin(o), self.end(o)) for o in left]
                self._replace(node, word.join(texts))
                return
        if isinstance(node, ast.Subscript) and self._is_the_state(node.slice):
            self._replace(node.slice, f'"{self._state}"')
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._expression(child)
            else:
                self._in_body(child)

    def _replace(self, node: ast.expr, text: str) -> None:
        begin, end = self.begin(node), self.end(node)
        inside = isinstance(self._parents[node], (ast.Compare, ast.BinOp, ast.Starred))
        around = self.between(begin - 1, begin) + self.between(end, end + 1)
        if inside and around == "()" and re.fullmatch(r"[\w.]+", text):
            begin, end = begin - 1, end + 1
        self._edits.append(_Edit(begin, end, text))

    def _is_the_state(self, node: ast.expr) -> bool:
        return ast.unparse(node) in {"state", "self.state", "sys.argv[1]", "STATE"}

    def _value(self, node: ast.expr) -> Any:
        """What an expression is in this state, if the state alone tells."""
        if self._is_the_state(node):
            return self._state
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self._value(node.operand)
            return _UNKNOWN if value is _UNKNOWN else not value
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            sides = (self._value(node.left), self._value(node.comparators[0]))
            if self._state in sides and _UNKNOWN not in sides:
                equal = sides[0] == sides[1]
                return equal if isinstance(node.ops[0], ast.Eq) else not equal
        if isinstance(node, ast.BoolOp):
            values = [self._value(one) for one in node.values]
            decides = isinstance(node.op, ast.Or)
            if any(one is decides for one in values):
                return decides
            if _UNKNOWN not in values:
                return not decides
        return _UNKNOWN


class _Removing(_Text):
    """Takes out what only passes the state on: parameters, arguments, assignments."""

    def text(self) -> str:
        edits = [*self._edits()]
        return self.edited(0, len(self._raw), edits)

    def _edits(self) -> Iterator[_Edit]:
        ours = {
            one.name
            for one in ast.walk(self.tree)
            if isinstance(one, (ast.FunctionDef, ast.ClassDef))
        }
        alone = {
            body[0]
            for one in ast.walk(self.tree)
            if isinstance(body := getattr(one, "body", None), list) and len(body) == 1
        }
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef):
                yield from self._without(
                    node.args.args, [one.arg == "state" for one in node.args.args]
                )
            elif isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else ""
                if name in ours:
                    given: list[Any] = [*node.args, *node.keywords]
                    yield from self._without(given, [_hands_on(one) for one in given])
            elif isinstance(node, ast.Tuple):
                hand_on = [_hands_on(one) for one in node.elts]
                if hand_on == [False, True]:  # a tuple of one keeps its comma
                    yield _Edit(self.end(node.elts[0]), self.end(node.elts[1]), ",")
                else:
                    yield from self._without([*node.elts], hand_on)
            elif isinstance(node, ast.Assign) and (
                _hands_on(node.value) or ast.unparse(node.targets[0]) == "STATE"
            ):
                nothing = " " * node.col_offset + "pass\n" if node in alone else ""
                yield _Edit(self.line_begin(node), self.line_end(node), nothing)

    def _without(self, row: list[Any], gone: list[bool]) -> Iterator[_Edit]:
        """A row of arguments without one."""
        if True not in gone:
            return
        at = gone.index(True)
        if at + 1 < len(row):
            yield _Edit(self.begin(row[at]), self.begin(row[at + 1]), "")
        elif at:
            yield _Edit(self.end(row[at - 1]), self.end(row[at]), "")
        else:
            yield _Edit(self.begin(row[at]), self.end(row[at]), "")


def _hands_on(node: Any) -> bool:
    value = node.value if isinstance(node, ast.keyword) else node
    if not isinstance(value, ast.expr):
        return False
    return ast.unparse(value) in {"state", "self.state", "sys.argv[1]"}


def _knows_all_its_names(source: str) -> bool:
    """Whether nothing asks for a state any more."""
    text = ast.unparse(ast.parse(source))
    return not re.search(
        r"(?<!\.)\b(state|STATE)\b|self\.state\b", _without_strings(text)
    )


def _without_strings(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.unparse(tree)


def _tidy(source: str) -> str:
    """Without imports that nobody uses any more, as of `sys`."""
    used = {
        node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)
    }
    if "sys" not in used:
        source = re.sub(r"^import sys\n", "", source, flags=re.MULTILINE)
    return source

"""What a function does to train: backward, steps, clearing, clipping, scaling."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from distdoctor.lint.code_base import ProgramFile, Scope


class TrainingAct(StrEnum):
    """A part of a training step."""

    BACKWARD = "backward"
    STEP = "step"
    CLEAR = "clear"  # the gradients
    CLIP = "clip"
    SCALED_STEP = "scaled step"  # by a GradScaler
    UNSCALE = "unscale"
    UPDATE = "update"  # of a GradScaler


@dataclass(frozen=True, slots=True)
class Branch:
    """A compound statement that something stands in, and in which part of it."""

    node: ast.AST
    part: str


@dataclass(frozen=True, slots=True)
class Done:
    """An act of training, and where it stands.

    Attributes:
        act: Which.
        call: The call.
        statement: That it is in.
        of: What it is called on, as text: "optimizer".
        path: The compound statements around it, outermost first.
        is_scaled: Of a backward: the loss goes through a GradScaler.
    """

    act: TrainingAct
    call: ast.Call
    statement: ast.stmt
    of: str
    path: tuple[Branch, ...]
    is_scaled: bool = False

    @property
    def line(self) -> int:
        """Its line, from 1."""
        return self.call.lineno

    def loops(self) -> Iterator[ast.AST]:
        """The loops around it, innermost first."""
        for branch in reversed(self.path):
            if isinstance(branch.node, ast.For | ast.While | ast.AsyncFor):
                yield branch.node

    def tests_within(self, loop: ast.AST) -> list[ast.If]:
        """The tests between a loop and it, outermost first."""
        inside = False
        found = []
        for branch in self.path:
            if branch.node is loop:
                inside = True
            elif inside and isinstance(branch.node, ast.If):
                found.append(branch.node)
        return found

    def goes_with(self, other: Done) -> bool:
        """Whether one run of the function may do both: no test parts them."""
        parts = {id(branch.node): branch.part for branch in other.path}
        return all(
            parts.get(id(branch.node), branch.part) == branch.part
            for branch in self.path
            if isinstance(branch.node, ast.If | ast.Try)
        )


def backwards_in(loop: ast.AST | None, acts: Iterable[Done], step: Done) -> list[Done]:
    """The backward passes in a loop that a run of the function may do beside a step.

    Args:
        loop: The loop, or one around it.
        acts: Of a function.
        step: Of an optimizer.
    """
    return [
        one
        for one in acts
        if one.act is TrainingAct.BACKWARD
        and one.goes_with(step)
        and loop in [*one.loops()]
    ]


def acts_of(scope: Scope) -> list[Done]:
    """What a function does to train, in the order of its lines."""
    found: list[Done] = []
    _gather(scope.source, scope.body, (), found)
    return sorted(found, key=lambda done: (done.line, done.call.col_offset))


def files_that_train(files: Sequence[ProgramFile]) -> Iterator[ProgramFile]:
    """Those with a backward pass in them."""
    return (file for file in files if ".backward(" in file.text)


def _gather(
    source: ProgramFile,
    body: Sequence[ast.stmt],
    path: tuple[Branch, ...],
    found: list[Done],
) -> None:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        compound = False
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(statement, name, None)
            if isinstance(inner, list):
                compound = True
                around = (*path, Branch(statement, name))
                for one in inner:
                    if isinstance(one, ast.ExceptHandler | ast.match_case):
                        _gather(source, one.body, around, found)
                    elif isinstance(one, ast.stmt):
                        _gather(source, [one], around, found)
        if not compound:
            for node in ast.walk(statement):
                if isinstance(node, ast.Call):
                    done = _act(source, node, statement, path)
                    if done is not None:
                        found.append(done)


def _act(
    source: ProgramFile,
    call: ast.Call,
    statement: ast.stmt,
    path: tuple[Branch, ...],
) -> Done | None:
    func = call.func
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    if name in {"clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"}:
        return Done(TrainingAct.CLIP, call, statement, "", path)
    if not isinstance(func, ast.Attribute):
        return None
    of = func.value
    match name:
        case "backward":
            # Gradients of torch.distributed.autograd are of a context, and go with it.
            if ast.unparse(of) == "ctx" or source.dotted(of).endswith("autograd"):
                return None
            scaled = (
                isinstance(of, ast.Call)
                and isinstance(of.func, ast.Attribute)
                and of.func.attr == "scale"
            )
            return Done(
                TrainingAct.BACKWARD, call, statement, ast.unparse(of), path, scaled
            )
        case "zero_grad":
            return Done(TrainingAct.CLEAR, call, statement, ast.unparse(of), path)
        case "step" | "update" | "unscale_":
            text = ast.unparse(of)
            last = text.rpartition(".")[2].lower()
            if "scaler" in last:
                act = {"step": TrainingAct.SCALED_STEP, "update": TrainingAct.UPDATE}
                return Done(
                    act.get(name, TrainingAct.UNSCALE), call, statement, text, path
                )
            if name == "step" and "opt" in last and "sched" not in last:
                return Done(TrainingAct.STEP, call, statement, text, path)
    return None

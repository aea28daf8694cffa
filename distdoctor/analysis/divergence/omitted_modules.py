"""By which branch of the source a part of a model was left out of a forward pass.

Parameters without a gradient have the path of their module as a name. Where the user's
source calls that module in one place alone, as an attribute of `self` in the class that
holds it, the conditions of that line, and of its callers up to `forward`, are the ways
to leave it out; of those, the ones that may be another in each batch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from distdoctor.analysis.causes import pointers
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.source.call_chains import chains_to
from distdoctor.analysis.source.conditions import Condition, ConditionKind, conditions
from distdoctor.analysis.source.program import Function, Program, Use, called
from distdoctor.analysis.source.rank_origins import asked_for
from distdoctor.analysis.source.rank_variation import Nature, nature_of
from distdoctor.model.events import Place
from distdoctor.model.findings import Location
from distdoctor.model.run import Run

_MOST = 2  # with more conditions a list says nothing


def omitted(
    run: Run, parameters: Sequence[str], ranks: Sequence[int]
) -> tuple[tuple[Location, ...], str]:
    """The lines by which these parameters' module was left out, and a sentence of it.

    Args:
        run: Holds the sources.
        parameters: Their names in the model, such as `head.box.weight`.
        ranks: Who left them out.

    Returns:
        Locations and a sentence; both empty if the source does not tell.
    """
    if not parameters or not run.sources:
        return (), ""
    program = program_of(run)
    use = _only_call(program, parameters)
    if use is None:
        return (), ""
    at = Place(use.function.file, use.line, use.function.name)
    found = list(dict.fromkeys(_deciding(program, at)))
    if not 0 < len(found) <= _MOST:
        return (), ""
    lines: tuple[Location, ...] = ()
    for condition in found:
        lines += pointers([condition.place], ranks, str(condition))
    for condition in found:
        if condition.leaves and condition.leaves_at != condition.line:
            leaves = replace(condition.place, line=condition.leaves_at)
            lines += pointers([leaves], ranks, f"leaves by {condition.leaves}")
    known = {line.place for line in lines}
    for condition in found:
        made = [one for one in asked_for(program, condition) if one not in known]
        lines += pointers(made, ranks, "makes what is asked there")
    words = " or ".join(f"`{each}` ({each.place})" for each in found)
    lines += pointers([at], ranks, "the call that was left out")
    return lines, f" Most likely {words} led around the call of the module at {at}."


def _only_call(program: Program, parameters: Sequence[str]) -> Use | None:
    """The one line that calls the innermost module that has all these parameters."""
    paths = [name.split(".")[:-1] for name in parameters]
    path = [
        steps[0]
        for steps in takewhile(
            lambda steps: len(set(steps)) == 1, zip(*paths, strict=False)
        )
    ]
    while path:
        name = path.pop()
        if name.isidentifier() and (owner := _owner(program, path, name)):
            uses = [
                use
                for use in program.calls.get(name, [])
                if _is_own(use.node, name) and _class_of(use.function) == owner
            ]
            mentions = _mentions(program, owner, name)
            if uses or mentions:
                return uses[0] if len(uses) == 1 == mentions else None
    return None


def _owner(program: Program, path: Sequence[str], name: str) -> str:
    """The one class that keeps a module under this name; "" if that is not clear."""
    owners = {_class_of(use.function) for use in program.stored.get(name, [])} - {""}
    if len(owners) > 1 and path:
        made = {
            called(use.node)
            for use in program.stored.get(path[-1], [])
            if isinstance(use.node, ast.Call)
        }
        owners = {one for one in owners if one.rpartition(".")[2] in made}
    return owners.pop() if len(owners) == 1 else ""


def _class_of(function: Function) -> str:
    return function.name.rpartition(".")[0] if function.is_method else ""


def _is_own(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=attr)):
            return attr == name
    return False


def _mentions(program: Program, owner: str, name: str) -> int:
    """How often a class reads an attribute: who hands it on may call it elsewhere."""
    return sum(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.ctx, ast.Load)
        for function in program.functions
        if _class_of(function) == owner
        for node in ast.walk(function.node)
    )


def _deciding(program: Program, at: Place) -> Iterator[Condition]:
    """Conditions of a line and of its callers that may be another in each batch."""
    ways = chains_to(program, at)
    if len(ways) != 1:
        ways = [(at,)]
    for place in reversed(ways[0]):
        function = program.at(place.file, place.line)
        if function is None or not function.is_method:
            return
        for condition in reversed(conditions(function, place.line)):
            if condition.kind is ConditionKind.HANDLER or condition.leaves == "raise":
                continue
            found = nature_of(program, condition)
            if found is Nature.LOCAL or (
                found is Nature.OPEN and _asks_its_input(program, condition)
            ):
                yield condition
        if function.simple_name == "forward":
            return


def _asks_its_input(program: Program, condition: Condition) -> bool:
    """Whether a test looks at more than at attributes of the module: those are set."""
    function = condition.function
    return any(
        isinstance(part, ast.Name)
        and part.id != "self"
        and program.binds(function, part.id)
        for test, _ in condition.tests
        for part in ast.walk(test)
    )

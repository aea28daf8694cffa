"""Where attributes have their values from: modules, and objects of the user's classes.

An object's attribute is what its class gives it, a method sets it to, or, in a
dataclass or a named tuple, the call that made the object.
"""

from __future__ import annotations

import ast

from distdoctor.analysis.source.classes import Class, is_decorated, is_own
from distdoctor.analysis.source.namespaces import is_changed, of_made
from distdoctor.analysis.source.program import MODULE, Use, called, own_nodes
from distdoctor.analysis.source.search_effort import SearchStep
from distdoctor.analysis.source.value_spots import (
    Scene,
    Spot,
    given_by,
    item_of,
    spot_of,
)
from distdoctor.model.events import Place


class Attributes(SearchStep):
    """The attributes of a program, as one rank would look for their values."""

    def before(
        self, node: ast.Attribute, scene: Scene, trail: list[Place]
    ) -> Spot | None:
        """Where the value of an attribute was before; None: nobody knows.

        Args:
            node: The attribute, where it is used.
            scene: The function in which it is.
            trail: Is given the lines that lie between.

        Returns:
            The spot, or None.
        """
        if self.is_module(node.value):
            return self._of_module(node)
        base = Spot(node.value, scene)
        end = self._end(base)
        if isinstance(end.node, ast.Call):
            found = of_made(self._program, end.node, end.scene, node.attr)
            if found is not None:
                return found
        owner = self.class_of(end)
        return None if owner is None else self._of_class(owner, base, end, node, trail)

    def is_module(self, node: ast.expr) -> bool:
        """Whether a name is that of one of the user's files.

        Args:
            node: The expression.

        Returns:
            Whether it is.
        """
        return isinstance(node, ast.Name) and any(
            function.file.endswith((f"/{node.id}.py", f"\\{node.id}.py"))
            or function.file == f"{node.id}.py"
            for function in self._program.functions
        )

    def class_of(self, spot: Spot) -> Class | None:
        """The class of the user's that an expression is, or is an object of.

        Args:
            spot: The expression, and the function it stands in.

        Returns:
            The class, or None if it is none, or nobody knows.
        """
        end = self._end(spot)
        node, scene = end.node, end.scene
        if isinstance(node, ast.Call):
            node = node.func
            if isinstance(node, ast.Name):
                inner = self._end(Spot(node, scene))
                node, scene = inner.node, inner.scene
        if not isinstance(node, ast.Name):
            return None
        if is_own(scene.function, node.id):
            return self._classes.of(scene.function)
        return self._classes.named(node.id)

    def _of_module(self, node: ast.Attribute) -> Spot | None:
        assert isinstance(node.value, ast.Name)
        found = [
            use
            for module in self._program.functions
            if module.name == MODULE and module.file.endswith(f"{node.value.id}.py")
            for use in self._program.assigned.get((module, node.attr), ())
        ]
        return (
            Spot(found[0].node, Scene(found[0].function)) if len(found) == 1 else None
        )

    def _of_class(
        self,
        owner: Class,
        base: Spot,
        end: Spot,
        node: ast.Attribute,
        trail: list[Place],
    ) -> Spot | None:
        """An attribute of an object of the user's, or of a class."""
        name = node.attr
        method = owner.method(name)
        if method is not None:
            if not is_decorated(method, "property"):
                return None
            first = method.parameters[:1]
            here = Scene(method, dict.fromkeys(first, base))
            left = [
                one.value
                for one in own_nodes(method.node)
                if isinstance(one, ast.Return) and one.value is not None
            ]
            return Spot(left[0], here) if len(left) == 1 else None
        if is_changed(self._program, name):
            return None
        made = self._making(owner, end)
        stored = [
            use
            for use in self._program.stored.get(name, ())
            if owner.derives(use.function)
        ]
        if stored:
            return self._stored(owner, stored, made)
        if owner.method("__init__") is None and made is not None:
            return _field(owner, made, name, trail)
        value = owner.value(name)
        return None if value is None else Spot(value, Scene(owner.scope))

    def _making(self, owner: Class, end: Spot) -> Spot | None:
        """The call that made an object, if there can be only one."""
        if isinstance(end.node, ast.Call):
            return end
        uses = self._program.calls.get(owner.node.name, [])
        calls = [Spot(use.node, Scene(use.function)) for use in uses]
        calls += [Spot(call, Scene(method)) for call, method in owner.makings()]
        return calls[0] if len(calls) == 1 else None

    def _stored(
        self, owner: Class, stored: list[Use], made: Spot | None
    ) -> Spot | None:
        """What the methods of a class set an attribute to."""
        init = owner.method("__init__")
        given = None
        if init is not None and made is not None and isinstance(made.node, ast.Call):
            given = given_by(made.node, made.scene, init)
        scenes = {
            use.function: Scene(use.function, given if use.function is init else None)
            for use in stored
        }
        of_init = [use for use in stored if use.function is init]
        later = [use for use in stored if use.function is not init]
        if later:
            return spot_of(later[0], scenes[later[0].function]) if not of_init else None
        left = self._reading.reached(of_init, scenes[of_init[0].function])
        return Spot(left[0].node, scenes[left[0].function]) if len(left) == 1 else None


def _field(owner: Class, made: Spot, name: str, trail: list[Place]) -> Spot | None:
    """A field of a dataclass or a named tuple, as its call gives it."""
    call = made.node
    fields = owner.fields()
    if name not in fields:
        value = owner.value(name)
        return None if value is None else Spot(value, Scene(owner.scope))
    assert isinstance(call, ast.Call)
    if any(isinstance(part, ast.Starred) for part in call.args):
        return None
    for keyword in call.keywords:
        if keyword.arg == name:
            return Spot(keyword.value, made.scene)
    position = list(fields).index(name)
    if position < len(call.args):
        return Spot(call.args[position], made.scene)
    for keyword in call.keywords:
        if keyword.arg is None:
            return Spot(item_of(keyword.value, name), made.scene)
    default = fields[name]
    if default is None:
        return None
    trail.append(made.place)
    match default:
        case ast.Call(keywords=keywords) if called(default) == "field":
            for keyword in keywords:
                match keyword:
                    case ast.keyword(arg="default", value=value):
                        default = value
                    case ast.keyword(
                        arg="default_factory", value=ast.Lambda(body=body)
                    ):
                        default = body
    return Spot(default, Scene(owner.scope))

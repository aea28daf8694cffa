"""Calls of wrapped models in which all ranks communicate, though no text says so."""

from __future__ import annotations

import ast
from collections.abc import Callable

from distdoctor.lint.communication import Communication, Deed
from distdoctor.lint.rank_values import Kind, MadeThing, Value


def model_call(
    call: ast.Call, value_of: Callable[[ast.expr], Value]
) -> Communication | None:
    """What a call of a wrapped model, or of a method of one, communicates.

    Args:
        call: In a program whose ranks average gradients.
        value_of: What an expression is on the rank that walks.

    Returns:
        A forward pass, or a state that all ranks load or gather; None: nothing.
    """
    func = call.func
    if isinstance(func, ast.Name | ast.Attribute):
        kind = _kind(value_of(func))
        if kind in {Kind.REPLICATED, Kind.SHARDED}:
            sharded = ", which is sharded" if kind is Kind.SHARDED else ""
            name = f"forward of {ast.unparse(func)}{sharded}"
            return Communication(Deed.FORWARD, name)
    if not isinstance(func, ast.Attribute):
        return None
    owner = func.value
    if func.attr == "load_state_dict":
        inner = owner
        if isinstance(inner, ast.Attribute) and inner.attr == "module":
            inner = inner.value
        if _kind(value_of(inner)) is Kind.REPLICATED:
            name = f"load_state_dict of {ast.unparse(owner)}"
            return Communication(Deed.LOAD, name)
    if func.attr == "state_dict" and _kind(value_of(owner)) is Kind.SHARDED:
        name = f"state_dict of {ast.unparse(owner)}, which is sharded"
        return Communication(Deed.FORWARD, name)
    return None


def _kind(value: Value) -> Kind | None:
    return value.kind if isinstance(value, MadeThing) else None

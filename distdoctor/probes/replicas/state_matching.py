"""Compares a model with a state dict: whether memory is shared, and names match."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name; no hook of `state_dict` is called for them."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def plain(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Parameters and buffers whose values can be read without communication."""
    for name, tensor in tensors(model).items():
        if type(tensor) in {torch.Tensor, nn.Parameter} and not tensor.is_meta:
            yield name, tensor


def is_own(model: nn.Module, state: Mapping[str, Any]) -> bool:
    """Whether all matching tensors of a state dict share the model's memory."""
    mine = {name: tensor.data_ptr() for name, tensor in plain(model) if tensor.numel()}
    both = [name for name in mine if isinstance(state.get(name), torch.Tensor)]
    return bool(both) and all(
        state[name].numel() and state[name].data_ptr() == mine[name] for name in both
    )


def explain(lacked: set[str], strange: set[str]) -> tuple[str, str, int]:
    """The prefixes by which names of a state dict and a model differ, and how often."""
    best = ("", "", 0)
    for prefix, lacking in sorted(_candidates(lacked, strange)):
        size = len(prefix)
        count = sum(
            name.startswith(prefix) and lacking + name[size:] in lacked
            for name in strange
        )
        if count > best[2]:
            best = (prefix, lacking, count)
    return best


def _candidates(lacked: set[str], strange: set[str]) -> set[tuple[str, str]]:
    found = set()
    for name in sorted(strange)[:8]:
        for wanted in lacked:
            if name != wanted and name.endswith(f".{wanted}"):
                found.add((name.removesuffix(wanted), ""))
            elif name != wanted and wanted.endswith(f".{name}"):
                found.add(("", wanted.removesuffix(name)))
    for prefix in ("module.", "_orig_mod."):
        for other in ("module.", "_orig_mod."):
            if prefix != other:
                found.add((prefix, other))
    return found

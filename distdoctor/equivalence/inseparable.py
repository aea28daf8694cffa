"""Refuses models and losses that couple samples, for which no property can hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from distdoctor.equivalence.capturing import Trial
from distdoctor.errors import NotEquivalentByNature

_FIRST = 3  # layers that are named


def refuse(trial: Trial, random: frozenset[str], what: str) -> None:
    """Raise NotEquivalentByNature if samples of a batch act on each other.

    To be called where a difference was found: a layer may couple them and be harmless.

    Args:
        trial: Result of the step.
        random: Operations of the step that drew random numbers.
        what: What is compared, as a message begins.

    Raises:
        NotEquivalentByNature: A layer normalizes batches, or random numbers are drawn.
    """
    if trial.normalizing:
        raise NotEquivalentByNature(
            f"{what} is not equivalent by nature: {_listed(trial.normalizing)} "
            "normalizes each batch by its own mean and variance, which are others for "
            "its parts; compare with the layer in eval mode, or with GroupNorm or "
            "LayerNorm in its place"
        )
    if random:
        drawn = trial.dropping or sorted(random)
        raise NotEquivalentByNature(
            f"{what} is not equivalent by nature: {_listed(drawn)} draws other random "
            "numbers for a whole batch than for its parts; compare without them, as "
            "with model=lambda: without_dropout(make_model())"
        )


def refuse_inseparable(what: str) -> None:
    """Raise NotEquivalentByNature: the whole is no weighted sum of its parts."""
    raise NotEquivalentByNature(
        f"{what} is not equivalent by nature: no weighting of the micro-batches' "
        "gradients gives that of the whole batch, so its samples act on each other, as "
        "in a contrastive loss or in batch normalization, or gradients are changed one "
        "by one before the step, as clipping by value does"
    )


def normalizing(model: nn.Module) -> Iterator[str]:
    """Layers that normalize a batch by its own statistics."""
    # InstanceNorm normalizes each sample by itself, and its running statistics do not
    # enter the gradient while it trains: it is equivalent.
    for name, module in model.named_modules():
        own = module.training or getattr(module, "running_mean", None) is None
        if own and isinstance(module, nn.modules.batchnorm._BatchNorm):
            yield f"{name} ({type(module).__name__})"


def dropping(model: nn.Module) -> Iterator[str]:
    """Layers that drop values at random."""
    for name, module in model.named_modules():
        if not module.training:
            continue
        share = getattr(module, "p", 0.0)
        share = share if isinstance(module, nn.modules.dropout._DropoutNd) else 0.0
        inner = getattr(module, "dropout", 0.0)
        if share > 0 or (isinstance(inner, float) and inner > 0):
            yield f"{name} ({type(module).__name__})"


def _listed(named: Sequence[str]) -> str:
    more = len(named) - _FIRST
    text = ", ".join(named[:_FIRST])
    return f"{text} and {more} more" if more > 0 else text

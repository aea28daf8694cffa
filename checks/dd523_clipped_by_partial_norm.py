"""Each rank clips by the norm of the part of the model that it holds.

What it is
----------
The parameters lie in parts on several ranks, as with FSDP and with tensor parallelism.
`torch.nn.utils.clip_grad_norm_` is called on each rank for what lies there, and computes
the norm of that alone. Each rank divides by another number.

Why it matters
--------------
The norm of all gradients is longer than that of each part, so that less is clipped than
the bound says, and parts are scaled against each other: the step points elsewhere, and
it changes with the number of ranks. Parameters of which each rank has a copy are scaled
differently on each, and drift apart.

Sick
----
FSDP has a part of each parameter on each rank, and the norms differ:

    rank 0 | wrap=fsdp:w  holds(names=w,sizes=4)  norm_clip(norm=3.0,bound=1.0,sharded)@t.py:9
    rank 1 | wrap=fsdp:w  holds(names=w,sizes=4)  norm_clip(norm=2.0,bound=1.0,sharded)@t.py:9

No part is longer than the bound, and both together are:

    rank 0 | wrap=fsdp:w  holds(names=w,sizes=4)  norm_clip(norm=.8,bound=1.0,sharded)@t.py:9
    rank 1 | wrap=fsdp:w  holds(names=w,sizes=4)  norm_clip(norm=.9,bound=1.0,sharded)@t.py:9

They share the work of a forward pass on the same samples:

    rank 0 | fed(step=1,inputs=3)  all_reduce(32)  within  holds(names=w,sizes=4)  norm_clip(norm=3.0,bound=1.0)@t.py:9
    rank 1 | fed(step=1,inputs=3)  all_reduce(32)  within  holds(names=w,sizes=4)  norm_clip(norm=2.0,bound=1.0)@t.py:9

Clipped by hand, before each step that was looked at: the factors are such that norm
times factor is one bound:

    rank 0 | wrap=fsdp:w  holds(names=w,sizes=4)  scaled_shards(step=1,norm=4,factor=.25)@t.py:9  scaled_shards(step=2,norm=2,factor=.5)@t.py:9
    rank 1 | wrap=fsdp:w  holds(names=w,sizes=4)  scaled_shards(step=1,norm=2,factor=.5)@t.py:9  scaled_shards(step=2,norm=.5,factor=1)@t.py:9

The bound moves, and each rank has its own; what is longer is shortened:

    rank 0 | wrap=fsdp:w  holds(names=w,sizes=4)  reduce_scatter(4)  scaled_shards(step=1,norm=4,factor=.75)@t.py:9  scaled_shards(step=2,norm=2,factor=1)@t.py:9  scaled_shards(step=3,norm=5,factor=.7)@t.py:9
    rank 1 | wrap=fsdp:w  holds(names=w,sizes=4)  reduce_scatter(4)  scaled_shards(step=1,norm=2,factor=1)@t.py:9  scaled_shards(step=2,norm=3,factor=.8)@t.py:9  scaled_shards(step=3,norm=1,factor=1)@t.py:9

Well
----
The bound moves, and is one of all ranks:

    rank 0 | wrap=fsdp:w  holds(names=w,sizes=4)  scaled_shards(step=1,norm=4,factor=.75)@t.py:9  scaled_shards(step=2,norm=2,factor=1)@t.py:9  scaled_shards(step=3,norm=5,factor=.7)@t.py:9
    rank 1 | wrap=fsdp:w  holds(names=w,sizes=4)  scaled_shards(step=1,norm=2,factor=.75)@t.py:9  scaled_shards(step=2,norm=3,factor=1)@t.py:9  scaled_shards(step=3,norm=1,factor=.7)@t.py:9

Each rank trains a model of its own, and clips as its bound moves:

    rank 0 | wrap=fsdp:w  holds(names=w,sizes=4)  scaled_shards(step=1,norm=4,factor=.75)@t.py:9  scaled_shards(step=2,norm=2,factor=1)@t.py:9  scaled_shards(step=3,norm=5,factor=.7)@t.py:9
    rank 1 | wrap=fsdp:w  holds(names=w,sizes=4)  scaled_shards(step=1,norm=2,factor=1)@t.py:9  scaled_shards(step=2,norm=3,factor=.8)@t.py:9  scaled_shards(step=3,norm=1,factor=1)@t.py:9

Clipped by hand, by the norm of all:

    rank 0 | wrap=fsdp:w  holds(names=w,sizes=4)  scaled_shards(step=1,norm=4,factor=.2)@t.py:9  scaled_shards(step=2,norm=2,factor=.4)@t.py:9
    rank 1 | wrap=fsdp:w  holds(names=w,sizes=4)  scaled_shards(step=1,norm=3,factor=.2)@t.py:9  scaled_shards(step=2,norm=1,factor=.4)@t.py:9

Multiplied by something else that is each rank's own:

    rank 0 | wrap=fsdp:w  holds(names=w,sizes=4)  scaled_shards(step=1,norm=4,factor=.5)@t.py:9  scaled_shards(step=2,norm=2,factor=.5)@t.py:9
    rank 1 | wrap=fsdp:w  holds(names=w,sizes=4)  scaled_shards(step=1,norm=2,factor=.7)@t.py:9  scaled_shards(step=2,norm=1,factor=.7)@t.py:9

FSDP's own method clips, or nobody does:

    rank 0 | wrap=fsdp:w  holds(names=w,sizes=4)
    rank 1 | wrap=fsdp:w  holds(names=w,sizes=4)

Each rank has the whole of the parameters, as with NO_SHARD:

    rank 0 | wrap=fsdp:w  holds(names=w,sizes=4)  norm_clip(norm=3.0,bound=1.0,sharded)@t.py:9
    rank 1 | wrap=fsdp:w  holds(names=w,sizes=4)  norm_clip(norm=3.0,bound=1.0,sharded)@t.py:9

All together are shorter than the bound:

    rank 0 | wrap=fsdp:w  holds(names=w,sizes=4)  norm_clip(norm=.3,bound=1.0,sharded)@t.py:9
    rank 1 | wrap=fsdp:w  holds(names=w,sizes=4)  norm_clip(norm=.2,bound=1.0,sharded)@t.py:9

Ranks have models of their own, and exchange what these compute:

    rank 0 | fed(step=1,inputs=3)  all_gather(32)  within  holds(names=w,sizes=4)  norm_clip(norm=3.0,bound=1.0)@t.py:9
    rank 1 | fed(step=1,inputs=4)  all_gather(32)  within  holds(names=w,sizes=4)  norm_clip(norm=2.0,bound=1.0)@t.py:9

Unknown
-------
A rank without a journal may have another norm:

    rank 0 | wrap=fsdp:w  holds(names=w,sizes=4)  norm_clip(norm=3.0,bound=1.0,sharded)@t.py:9
    rank 1 | ?

Remedy
------
With FullyShardedDataParallel call its own method, `model.clip_grad_norm_(bound)`. With
`fully_shard` and DTensor, torch's function knows of the parts. By hand, add up the
squares of the norms over the ranks (those of parameters that all ranks have count once),
take the root, and clip with `torch.nn.utils.clip_grads_with_norm_`.

Known problems
--------------
Only the first clips are looked at. What is clipped by hand is seen where a rank has but
shards, and all of them are multiplied by one factor; the line is then read from the
source, or that of the step. Ranks that share a model by hand are compared where they
exchange something by collectives within the forward pass and get the same samples;
stages of a pipeline are not.

References
----------
- PyTorch: FullyShardedDataParallel.clip_grad_norm_ –
  https://pytorch.org/docs/stable/fsdp.html
- `megatron/core/optimizer/clip_grads.py` (NVIDIA/Megatron-LM), which sums norms over
  model-parallel ranks and leaves out duplicates
"""  # noqa: E501 - a rank is drawn on one line

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.partial_norms import partial_norms
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.gradients import Holds
from distdoctor.model.run import Run, named

CODE = "DD523"
SEVERITY = Severity.ERROR
NEEDS = (Holds,)

_MOST_NORMS = 8


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that share a model and divide by different norms."""
    for one in partial_norms(run):
        who = capital(named(one.ranks))
        norms = ", ".join(f"{norm:.3g}" for norm in one.norms[:_MOST_NORMS])
        more = ", …" if len(one.ranks) > _MOST_NORMS else ""
        part = "its shard" if one.sharded else "its part of the model"
        looks = f"{one.of} {'steps' if one.factors else 'clips'}"
        often = f"differed in {one.times} of {looks} that were looked at"
        if one.bound is None:
            factors = ", ".join(f"{each:.3g}" for each in one.factors[:_MOST_NORMS])
            story = (
                f"{who} shorten the shards of one gradient each by a factor of its own "
                f"({factors}{more} at first, for norms of {norms}{more}), as a clip by "
                f"the norm of {part} alone does; they {often}"
            )
        else:
            story = (
                f"{who} clip gradients to {one.bound:.3g}, each by the norm of {part} "
                f"alone: these were {norms}{more} at first, and {often}"
            )
        yield Finding(
            message=story,
            exhibits=one.seen,
            locations=tuple(
                Location(place, one.ranks, Role.CULPRIT, "clips")
                for place in one.places
            ),
            certainty=Certainty.LIKELY if one.bound is None else Certainty.PROVED,
            details={"bound": one.bound, "norms": [*one.norms]},
        )
    require_whole(run)

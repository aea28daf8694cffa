"""By what an exception of torch tells that a peer, or the connection to it, is gone."""

from __future__ import annotations

import re

PEER_IS_GONE = re.compile(
    r"gloo/transport|[Cc]onnection (?:was )?(?:closed|reset|refused)|[Tt]imed? ?out"
    r"|[Bb]roken pipe|remote process (?:has )?exited|ncclRemoteError|[Aa]borted"
    r"|failed to pass monitoredBarrier|connection to peer|Horovod has been shut down"
    r"|^Mismatched "
)
"""In the text of such an exception: gloo, NCCL and the stores as in torch 2.13.

And Horovod 0.28.1 (common/common.h, common/controller.cc): all ranks of an operation
get the error that their calls do not match, or that one of them has left.
"""

COMMUNICATING = (
    *("torch/distributed", "torch/autograd", "torch/nn/parallel"),
    *("horovod/torch", "horovod/tensorflow"),
)
"""Folders of torch and Horovod whose code communicates for the user."""

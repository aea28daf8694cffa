"""By what an exception of torch tells that a peer, or the connection to it, is gone."""

from __future__ import annotations

import re

PEER_IS_GONE = re.compile(
    r"gloo/transport|[Cc]onnection (?:was )?(?:closed|reset|refused)|[Tt]imed? ?out"
    r"|[Bb]roken pipe|remote process (?:has )?exited|ncclRemoteError|[Aa]borted"
    r"|failed to pass monitoredBarrier|connection to peer"
)
"""In the text of such an exception: gloo, NCCL and the stores as in torch 2.13."""

COMMUNICATING = ("torch/distributed", "torch/autograd", "torch/nn/parallel")
"""Folders of torch whose code communicates for the user."""

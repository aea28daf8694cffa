"""Keeps torch.compile from tracing the probes: graph breaks would slow the job."""

from __future__ import annotations

from typing import Any

from distdoctor.probes.probe import Probe


def _leave_out(rules: Any) -> None:
    """Have it run the probes as they are.

    It compiles whatever Python runs in between, but for libraries it was told of.
    """
    for package in ("distdoctor.probes", "distdoctor.journal"):
        rules.add(package)


PROBE = Probe(imports={"torch._dynamo.trace_rules": _leave_out})

"""Ranks of lost nodes that others may have gone on without: nothing tells of those.

A job that is only recorded goes on when a node's connection is lost. What ranks of that
node had done by then is a beginning, and what others did later looks as if these had
stood still. So they count only if nobody went on behind what the node has told.
"""

from __future__ import annotations

from collections.abc import Mapping

from distdoctor.journal.folder import Manifest


def left_behind(manifest: Manifest, last_ns: Mapping[int, int]) -> dict[int, str]:
    """Processes of lost nodes that say nothing of how their ranks stood in the end.

    Args:
        manifest: Tells which nodes were lost, and up to when they had told all.
        last_ns: By process, the time of the last that its rank has told.

    Returns:
        By process, why.
    """
    if not manifest.recorded:
        return {}  # the job was ended as soon as a node was lost
    found = {}
    for node in manifest.lost_nodes:
        own = set(node.pids)
        others = (at for pid, at in last_ns.items() if pid not in own)
        if max(others, default=0) > node.told_ns:
            why = (
                f"what became of it is not known, for its node {node.host} was lost "
                f"while other ranks went on: {node.why}"
            )
            found.update(dict.fromkeys(own, why))
    return found

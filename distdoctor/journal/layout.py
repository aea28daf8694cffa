"""Where things lie in a record folder: names of its files and folders."""

from __future__ import annotations

LOCK_FILE = "running.lock"
"""Held by distdoctor while a run may still write its record; removed at its end."""

MASK_KEY_FILE = "mask.key"
"""The key under which secrets are hashed; it goes when the run is over."""

BOARDS_FOLDER = "boards"
"""Folder, in that of the record, in which ranks compare their calls."""

PORTS_FOLDER = "ports"
"""Folder, in that of the record, of the ports that stand for those of the script."""

VALUES_FOLDER = "values"
"""Folder, in that of the record, of what simulated ranks agreed on."""

REFERENCE_FOLDER = "reference"
"""Folder, in that of the record, of tensors before each of the first steps."""

EXITS_FILE = "exits.jsonl"
"""Ends of processes as their parents saw them: lines of JSON, `pid` and `status`."""

SHELLS_FILE = "shells.jsonl"
"""Ranks that a shell of horovodrun's waits for: lines of JSON, `pid` and `shell`."""

SUBSTITUTES_FILE = "substitutes.jsonl"
"""What took the place of CUDA in each process: lines of JSON, `pid` and `kind`."""

KEPT_FOLDER = "kept"
"""Folder, in that of the record, of files that runs which are compared have changed."""

KEPT_FILE = "kept.jsonl"
"""In that folder, what was there before: lines of JSON, `path`, `was` and `link`."""

COMPARISON_FILE = "comparison.json"
"""How another run of the job differed from this one."""

STREAMS_FILE = "streams.jsonl"
"""What loaders' workers drew: lines of JSON, `by`, `pid`, `site` and `drawn`."""

CHILDREN_FILE = "children.jsonl"
"""Calls in forked processes: lines of JSON, `by`, `pid`, `site`, `op`, `worker`."""

NCCL_FOLDER = "nccl"
"""Folder, in that of the record, of the logs of NCCL that the probes asked for."""

NCCL_LOGS_FILE = "nccl-logs.jsonl"
"""Logs of NCCL that the user asked for: lines of JSON, `path`."""

LOSSES_FILE = "losses.jsonl"
"""First error of a probe in each process: a line of JSON each, `pid`, `rank`, `why`."""

MEETINGS_FILE = "meetings.jsonl"
"""Where workers of Ray met that are watched: lines of JSON, `pid`, `address`."""

CLUSTERS_FILE = "clusters.jsonl"
"""Clusters of Ray that programs joined: lines of JSON, `pid`, `address`, `ours`."""

GROUPS_FILE = "groups.json"
"""Groups of Ray's workers: which is `watched`, its `pids`, and which were `apart`."""

RAY_FILE = "ray.folder"
"""Names the folder that Ray was given for what it keeps; there while the job runs."""

NODE_LOCK_FILE = "node.lock"
"""Held by whoever looks for the supervisor of a node; there in jobs over several."""

NODE_FILE = "node.json"
"""What the supervisor of a node says of itself: `pid`, and `ahead_ns` of its clock."""


def journal_name(rank: int, incarnation: int) -> str:
    """Name of the journal of the n-th process (from 0) that plays a rank, or none.

    Args:
        rank: The global rank; negative: the process never had one.
        incarnation: How many processes played it before, from 0.

    Returns:
        The file's name, without its folder.
    """
    player = "unranked" if rank < 0 else f"rank-{rank}"
    return f"{player}.{incarnation}.journal"

"""What distdoctor and the processes of a job tell each other: variables, a signal."""

from __future__ import annotations

import signal

FOLDER_VARIABLE = "DISTDOCTOR_RUN"
"""Environment variable that names the record folder; without it, no probe starts."""

LAUNCHER_VARIABLE = "DISTDOCTOR_LAUNCHER"
"""Set for a first process that only starts others, which takes it away from them."""

SIZE_VARIABLE = "DISTDOCTOR_JOURNAL_BYTES"
"""Environment variable with the size of a journal."""

SUPERVISOR_VARIABLE = "DISTDOCTOR_SUPERVISOR"
"""Environment variable with the supervisor's process number."""

BUDGET_VARIABLE = "DISTDOCTOR_BUDGET_NS"
"""Environment variable with begin and end of the budget, as `begin-end`.

They are times of the monotonic clock. It is set where passes over loaders may be
shortened to keep to them.
"""

OWNER_VARIABLE = "DISTDOCTOR_OWNER"
"""Environment variable with the process that plays the rank named in RANK."""

PORTS_VARIABLE = "DISTDOCTOR_PORTS"
"""Environment variable of a job on one machine, whose ranks may meet at other ports.

"own": distdoctor chose how to start it; "given": the user did.
"""

OUTPUT_VARIABLE = "DISTDOCTOR_OUTPUT"
"""Environment variable that tells ranks which pipe or pseudo-terminal to write to.

`PID OUT ERR OUT0 ERR0 OUT1 ERR1 …`: the supervisor's process; what the job has for
stdout and stderr, as `DEVICE:INODE` or as "any"; and for each rank what it is to put
there instead, as `FD:DEVICE:INODE` with the number of a descriptor of the supervisor.
"""

LOOPBACK_VARIABLE = "DISTDOCTOR_LOOPBACK"
"""Set for a job that distdoctor chose how to start: nothing of its stores and launchers
is to be reached from other machines."""

SIMULATION_VARIABLE = "DISTDOCTOR_SIMULATE"
"""Environment variable of a process that plays a rank of a job without the others.

"common": ranks of a group get the same values for what all of them would receive;
"varied": other values, to see which calls change with them.
"""

DEVICE_VARIABLE = "DISTDOCTOR_DEVICE"
"""What stands in for GPUs: "cpu", or "auto": the CPU where there are none."""

RANKS_VARIABLE = "DISTDOCTOR_RANKS"
"""How many GPUs a script is to find that starts its own ranks."""

MASK_KEY_VARIABLE = "DISTDOCTOR_MASK_KEY"
"""Environment variable with the key under which secrets are hashed."""

TRACE_VARIABLE = "DISTDOCTOR_TRACE"
"""Set where two runs are to be compared: fingerprints are written at each step."""

VALUES_VARIABLE = "DISTDOCTOR_VALUES"
"""Set where a run is to be compared with one of fewer ranks: values are written.

"as they are"; or "moved": all weights are moved by a rounding before the first step.
"""

RECORD_VARIABLE = "DISTDOCTOR_RECORD"
"""Set where a job is only recorded: by the probes that cost next to nothing."""

NCCL_LOG_VARIABLE = "DISTDOCTOR_NCCL_LOG"
"""Set where NCCL is to write its debug log into the record, if ranks use it."""

STEPS_VARIABLE = "DISTDOCTOR_STEPS"
"""After so many steps of optimizers the job is ended, and ranks wait for that."""

PAUSE_VARIABLE = "DISTDOCTOR_PAUSE"
"""After so many steps of optimizers a rank goes no further, until it is ended.

It counts one step more then, to tell that it stands.
"""

KEEP_VARIABLE = "DISTDOCTOR_KEEP"
"""Folder for copies of the files that the job is about to change; see `file_backup`."""

HEAD_VARIABLE = "DISTDOCTOR_HEAD"
"""Set for a job over several nodes: where the head listens, and which machine it is.

`ADDRESS PLACE PYTHON`, see `head_text`. Ranks of other nodes look for their node's own
record folder then, and start what forwards it.
"""

RAY_VARIABLE = "DISTDOCTOR_RAY"
"""What a node is told that joins a job of Ray: the folder that Ray is given there."""

TOKEN_VARIABLE = "DISTDOCTOR_TOKEN"  # noqa: S105 - its name
"""Environment variable with the secret by which nodes and the head know each other."""

NODE_VARIABLE = "DISTDOCTOR_NODE"
"""Set, to the node's own record folder, for processes that have found it."""

CLOCK_VARIABLE = "DISTDOCTOR_CLOCK_NS"
"""By how much the monotonic clock of the node is ahead of that of the head."""

STACK_SIGNAL_FROM_LAST = 2
"""Offset below SIGRTMAX of the signal that makes a rank write its stacks."""

STACKS_AS_SHELL = 128 + signal.SIGRTMAX - STACK_SIGNAL_FROM_LAST
"""Exit status, as a shell tells it, of a process that this signal has ended."""

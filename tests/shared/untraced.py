"""Runs a command that may trace no process, as in a container without that right.

    python untraced.py COMMAND...

A filter of system calls (seccomp, see `man 2 seccomp`) refuses ptrace,
process_vm_readv and process_vm_writev, for the command and all that it starts.
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator

NUMBERS = {  # of the three calls; asm/unistd_64.h and asm-generic/unistd.h
    "x86_64": (0xC000003E, (101, 310, 311)),
    "aarch64": (0xC00000B7, (117, 270, 271)),
}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER = 22, 38, 2
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # the latter with EPERM


class Program(ctypes.Structure):
    """A `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def steps() -> Iterator[bytes]:
    """The filter: of another architecture, and of other calls, all are allowed."""
    architecture, refused = NUMBERS[platform.machine()]
    yield struct.pack("HBBI", LOAD, 0, 0, 4)
    yield struct.pack("HBBI", IF_EQUAL, 1, 0, architecture)
    yield struct.pack("HBBI", RETURN, 0, 0, ALLOW)
    yield struct.pack("HBBI", LOAD, 0, 0, 0)
    for number in refused:
        yield struct.pack("HBBI", IF_EQUAL, 0, 1, number)
        yield struct.pack("HBBI", RETURN, 0, 0, REFUSE)
    yield struct.pack("HBBI", RETURN, 0, 0, ALLOW)


def main() -> None:
    """Become the command."""
    instructions = list(steps())
    text = ctypes.create_string_buffer(b"".join(instructions))
    program = Program(len(instructions), ctypes.addressof(text))
    system = ctypes.CDLL(None, use_errno=True)
    if system.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or system.prctl(
        PR_SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0
    ):
        sys.exit(f"no filter: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()

"""What ranks print under watch: as it comes, on no disk, as behind the user's shell."""

import os
import pty
import re
import subprocess
import sys
import termios
from contextlib import suppress

import pytest
from command_box import DEADLINE_S, Box

HEAD = """
import os, re, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()

def of_the_supervisor():
    status = open(f"/proc/{os.environ['DISTDOCTOR_SUPERVISOR']}/status").read()
    return int(re.search(r"VmHWM:\\s+(\\d+)", status)[1])
"""

END = """
dist.barrier()
dist.destroy_process_group()
"""

MOST_GROWTH_KIB = 128 * 1024  # of 192 MiB; checks are loaded meanwhile


def checked(box: Box, *options: str, given: bytes = b"") -> tuple[int, bytes]:
    """The exit status of `check`, and stdout and stderr together."""
    command = [sys.executable, "-m", "distdoctor", "check", "train.py", *options]
    done = subprocess.run(
        command,
        cwd=box.folder,
        env=box.environment,
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, done.stdout


def test_output_keeps_its_order_takes_no_memory_and_lies_on_no_disk(box: Box) -> None:
    box.write(
        HEAD
        + "for n in range(100):\n"
        + "    print('out', n)\n"
        + "    print('err', n, file=sys.stderr)\n"
        + "before = of_the_supervisor()\n"
        + "for n in range(1536 * (rank == 0)):\n"
        + "    os.write(1, b'y' * 131072)\n"
        + "print()\n"
        + "time.sleep(1)\n"
        + "print('grew by', of_the_supervisor() - before)\n"
        + END
    )
    status, out = checked(box, "--record", "kept")
    assert status == 0, out[-2000:]
    for rank in range(2):
        own = re.findall(rb"^\[rank%d\]:((?:out|err) \d+)$" % rank, out, re.MULTILINE)
        assert own == [
            b"%s %d" % (stream, n) for n in range(100) for stream in (b"out", b"err")
        ]
    # Whole, though a line of another rank may stand in between.
    assert 0 <= out.count(b"y") - 131_072 * 1536 < 1000
    grew = [int(number) for number in re.findall(rb"grew by (\d+)", out)]
    assert len(grew) == 2
    assert max(grew) < MOST_GROWTH_KIB
    kept = [path for path in (box.folder / "kept").rglob("*") if path.is_file()]
    assert not [path for path in kept if b"out 99" in path.read_bytes()]


def on_a_terminal(box: Box, columns: int) -> str:
    """What `check` writes to a terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    with subprocess.Popen(
        [sys.executable, "-m", "distdoctor", "check", "train.py"],
        cwd=box.folder,
        env=box.environment | {"TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        out = b""
        with suppress(OSError):  # so a terminal ends
            while text := os.read(ours, 65_536):
                out += text
        process.wait(DEADLINE_S)
    os.close(ours)
    return out.decode()


def test_ranks_find_the_users_terminal_and_their_bars_move(box: Box) -> None:
    box.write(
        HEAD
        + "print(sys.stdout.isatty(), sys.stderr.isatty())\n"
        + "print('columns', os.get_terminal_size(2).columns)\n"
        + "for n in range(0, 101, 25):\n"
        + "    sys.stderr.write(f'\\r{n}% done')\n"
        + "    sys.stderr.flush()\n"
        + "    time.sleep(0.5)\n"
        + "sys.stderr.write('\\n')\n"
        + END
    )
    out = on_a_terminal(box, 90)
    for rank in range(2):
        assert f"[rank{rank}]:True True\r\n" in out
        assert f"[rank{rank}]:columns 82\r\n" in out
        states = re.findall(rf"\[rank{rank}\]:(\d+)% done", out)
        assert {"25", "50", "75"} <= set(states)
        assert f"[rank{rank}]:100% done\r\n" in out


@pytest.mark.parametrize(
    ("ranks", "status", "said"),
    [
        ("1", 4, "[rank0]:hello Anna"),
        ("2", 4, "the job asked for a line of input, and several ranks have none"),
    ],
)
def test_one_rank_has_our_input_and_several_are_said_to_have_none(
    box: Box, ranks: str, status: int, said: str
) -> None:
    box.write(HEAD + "print('hello', input())\n" + END)
    code, out = checked(box, "-n", ranks, given=b"Anna\n")
    assert said in " ".join(out.decode().split())
    assert code == status

"""Two hosts on one machine: namespaces, each with its network, files and processes.

They see the files of this machine, but for a folder that each has for itself, with the
user's cache and temporary files. Their clocks differ, and a wire that can be cut joins
them. Each has a first process that takes leave of orphans, as that of a machine does.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ADDRESSES = ("10.77.0.1", "10.77.0.2")
NAMES = ("hosta", "hostb")
AHEAD_S = 5000  # the monotonic clock of the second, which began at another time

_INIT = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
print("up", flush=True)
while True:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        signal.sigtimedwait([signal.SIGCHLD], 0.1)
"""

_SET_UP = """
set -e
hostname {name}
mount --bind {hosts} /etc/hosts
mount --bind /dev/null /etc/resolv.conf
mount -t tmpfs none {own}
ip link set lo up
exec {python} -c "$INIT"
"""


_BOX = """
mount -t tmpfs none {own}
mount -t tmpfs -o ro none /mnt
cd /mnt
exec env -i "$@" <&-
"""
_KEPT = ("PATH", "PYTHONPATH")


class Host:
    """One of the hosts; `run` and `start` take a command as `subprocess` does."""

    def __init__(self, number: int, folder: Path) -> None:
        self.address, self.name = ADDRESSES[number], NAMES[number]
        self.wire = f"wire{number}"
        lines = zip(ADDRESSES, NAMES, strict=True)
        hosts = folder / f"hosts-{number}"
        hosts.write_text(
            "127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for a, n in lines)
        )
        self.own = folder / "own"
        self.own.mkdir(exist_ok=True)
        set_up = _SET_UP.format(
            name=self.name,
            hosts=hosts,
            own=self.own,
            python=sys.executable,
        )
        spaces = ["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child"]
        spaces += ["--time", "--monotonic", str(number * AHEAD_S)]
        self._outer = subprocess.Popen(
            ["unshare", *spaces, "--mount-proc", "sh", "-c", set_up],
            env={**os.environ, "INIT": _INIT},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._outer.stdout is not None
        if self._outer.stdout.readline() != "up\n":
            raise OSError(f"{self.name} did not come up")
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        self.pid = int(children.read_text().split()[0])

    def inside(self, command: Sequence[str | Path]) -> list[str]:
        """The command, to be run on this host."""
        spaces = ["--net", "--mount", "--uts", "--pid", "--time", f"--wd={Path.cwd()}"]
        enter = ["nsenter", "--target", str(self.pid), *spaces, "--"]
        return [*enter, *map(str, command)]

    def start(
        self, command: Sequence[str | Path], **variables: str
    ) -> "subprocess.Popen[str]":
        """Start a command, whose output can be read."""
        own = {"TMPDIR": str(self.own), "XDG_CACHE_HOME": str(self.own)}
        interface = {"GLOO_SOCKET_IFNAME": self.wire, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            self.inside(command),
            env={**os.environ, **own, **interface, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def start_boxed(
        self, command: Sequence[str | Path], **variables: str
    ) -> "subprocess.Popen[str]":
        """Start a command as the first process of a container on this host.

        It has processes, mounts, a name and files of its own, no home, no input, next
        to no variables, and a working directory that cannot be written.
        """
        spaces = ["--pid", "--fork", "--mount", "--mount-proc", "--uts", "--ipc"]
        own = {"TMPDIR": str(self.own), "GLOO_SOCKET_IFNAME": self.wire}
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        told = [f"{n}={value}" for n, value in {**kept, **own, **variables}.items()]
        box = [
            "unshare",
            *spaces,
            "--kill-child",
            "sh",
            "-c",
            _BOX.format(own=self.own),
        ]
        return subprocess.Popen(
            self.inside([*box, "sh", *told, *map(str, command)]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def said(self, *command: str) -> str:
        """What a command says."""
        return subprocess.run(
            self.inside(command), capture_output=True, text=True, check=False
        ).stdout

    def processes(self) -> list[str]:
        """Command lines of what runs there, but for the first process."""
        listed = self.said("ps", "-ww", "-eo", "pid=,stat=,args=").splitlines()
        lines = [line.split(maxsplit=2) for line in listed]
        return [
            " ".join(words[2:])
            for words in lines
            if words[0] != "1"
            and "Z" not in words[1]
            and not words[2].startswith("ps -ww")
        ]

    def left_over(self) -> list[str]:
        """Processes and temporary folders of ours, some seconds after a job."""
        end = time.monotonic() + 8
        while time.monotonic() < end:
            folders = self.said("find", str(self.own), "-maxdepth", "1", "-name", "*-*")
            left = self.processes() + folders.splitlines()
            if not left:
                return []
            time.sleep(0.2)
        return left

    def kill_by_name(
        self, words: str, number: int = signal.SIGKILL, *, of_module: bool = True
    ) -> int:
        """Send a signal to those that run a command; how many there were."""
        found = 0
        for line in self.said("ps", "-ww", "-eo", "pid=,args=").splitlines():
            pid, _, arguments = line.strip().partition(" ")
            if ("-m " * of_module + words) in arguments and "nsenter" not in arguments:
                self.said("kill", f"-{int(number)}", pid)
                found += 1
        return found

    def end_all(self) -> None:
        """Kill what runs there, but for the first process."""
        self.said("sh", "-c", f"kill -9 -1; rm -rf {self.own}/*")

    def cut(self) -> None:
        """Cut the wire."""
        subprocess.run(
            self.inside(["ip", "link", "set", self.wire, "down"]), check=True
        )

    def mend(self) -> None:
        """Mend it."""
        subprocess.run(self.inside(["ip", "link", "set", self.wire, "up"]), check=True)

    def close(self) -> None:
        """End all that runs there, and the host with it."""
        self._outer.kill()
        self._outer.wait()
        if self._outer.stdout is not None:
            self._outer.stdout.close()


@contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Host, Host]]:
    """Two hosts.

    Raises:
        OSError: They cannot be made.
    """
    hosts: list[Host] = []
    try:
        hosts.extend(Host(number, folder) for number in (0, 1))
        a, b = hosts
        made = ["ip", "link", "add", a.wire, "netns", str(a.pid), "type", "veth"]
        subprocess.run([*made, "peer", "name", b.wire, "netns", str(b.pid)], check=True)
        for host in hosts:
            add = ["ip", "addr", "add", f"{host.address}/24", "dev", host.wire]
            subprocess.run(host.inside(add), check=True)
            host.mend()
        yield a, b
    except subprocess.CalledProcessError as error:
        raise OSError(str(error)) from error
    finally:
        for host in hosts:
            host.close()

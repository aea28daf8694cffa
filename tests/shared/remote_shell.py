"""A shell on another host, for launchers that start their parts by ssh.

remote_shell.py serve ADDRESS         runs what it is sent, for whoever is connected
remote_shell.py ADDRESS command ...   has a command run there, and copies its output
"""

import socket
import subprocess
import sys
import threading

PORT = 5140


def serve(address: str) -> None:
    """Run what each connection sends in its first line."""
    listening = socket.create_server((address, PORT))
    sys.stdout.write("up\n")
    sys.stdout.flush()
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=_run, args=(connection,), daemon=True).start()


def _run(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as lines:
        command = lines.readline().decode().strip()
        subprocess.run(
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=connection.fileno(),
            stderr=connection.fileno(),
            cwd="/",
            check=False,
        )


def ask(address: str, command: str) -> None:
    """Have a command run there."""
    with socket.create_connection((address, PORT)) as connection:
        connection.sendall(f"{command}\n".encode())
        while data := connection.recv(1 << 16):
            sys.stdout.buffer.write(data)
            sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        ask(sys.argv[1], " ".join(sys.argv[2:]))

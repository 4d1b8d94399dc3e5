"""Bait for escapes: files, processes, sockets and memory of the host that contain a secret."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_IPC_CREAT, _IPC_RMID = 0o1000, 0


@contextmanager
def bait() -> Iterator[dict[str, Any]]:
    """Place the bait, readable for all users of the host, and yield the facts that attempts get. Remove all of it
    afterwards."""
    secret, name = f"secret-{secrets.token_hex(12)}", f"woodshed-bait-{secrets.token_hex(6)}"
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="woodshed-bait-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        (folder / "file").write_text(secret)
        (folder / "file").chmod(0o644)
        shared = Path("/dev/shm") / name
        with contextlib.suppress(OSError):
            shared.write_text(secret)
            shared.chmod(0o644)
            stack.callback(shared.unlink, missing_ok=True)
        code = "import time; time.sleep(3600)"
        os.environ[name] = secret
        stack.callback(os.environ.pop, name, None)
        process = stack.enter_context(subprocess.Popen([sys.executable, "-I", "-c", code, secret]))
        stack.callback(process.kill)
        tcp = _listener(socket.AF_INET, ("0.0.0.0", 0))
        path = folder / "socket"
        for listener in (tcp, _listener(socket.AF_UNIX, "\0" + name), _listener(socket.AF_UNIX, str(path))):
            stack.callback(_speak(listener, secret.encode()))
        path.chmod(0o777)
        stack.callback(_reply(tcp.getsockname()[1], secret.encode()))
        yield {
            "secret": secret,
            "name": name,
            "folder": str(folder),
            "path": str(folder / "file"),
            "pid": process.pid,
            "port": tcp.getsockname()[1],
            "address": _own_address(),
            "socket": str(path),
            "disk": _disk(),
            "uid": os.getuid() or 1,
            "segment": _segment(secret.encode(), stack),
        }


def _listener(family: int, place: Any) -> socket.socket:
    listener = socket.socket(family)
    listener.bind(place)
    listener.listen()
    return listener


def _speak(listener: socket.socket, text: bytes) -> Callable[[], None]:
    """Send ``text`` to every client that connects, in a thread; return a function that ends it."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(text)

    threading.Thread(target=serve, daemon=True).start()

    def end() -> None:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()

    return end


def _reply(port: int, text: bytes) -> Callable[[], None]:
    """Answer datagrams to ``port`` with ``text``, in a thread; return a function that ends it."""
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.bind(("0.0.0.0", port))
    out.settimeout(0.2)  # closing the socket would not wake the thread
    ended = threading.Event()

    def serve() -> None:
        with out:
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    _, sender = out.recvfrom(256)
                    out.sendto(text, sender)

    threading.Thread(target=serve, daemon=True).start()
    return ended.set


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        try:
            out.connect(("192.0.2.1", 9))  # a datagram socket sends nothing by this
            return str(out.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _disk() -> tuple[int, int]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        row = Path("/proc/partitions").read_text().splitlines()[2].split()
        return int(row[0]), int(row[1])
    return 8, 0


def _segment(text: bytes, stack: contextlib.ExitStack) -> int:
    """Create a System V memory segment with ``text`` and return its key. If the kernel does not support segments,
    return a key that has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    key = secrets.randbelow(1 << 30) + 1
    number = libc.shmget(ctypes.c_int(key), ctypes.c_size_t(4096), ctypes.c_int(_IPC_CREAT | 0o666))
    if number >= 0:
        stack.callback(libc.shmctl, number, _IPC_RMID, None)
        place = libc.shmat(number, None, 0)
        ctypes.memmove(place, text, len(text))
        libc.shmdt(ctypes.c_void_p(place))
    return key

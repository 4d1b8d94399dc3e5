"""Resources that the kernel limits per host user or for the whole machine: one box takes all that it can get."""

from __future__ import annotations

import array
import ctypes
import fcntl
import mmap
import os
import pty
import select
import signal
import socket
import threading
import time
from pathlib import Path

from .base import HELD, check, in_children, libc, pair, syscall, until_refused

_MANY = 200_000
_PIPE = 1 << 16


class _Descriptor:
    """A descriptor that is closed when this object is deleted."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


def _send(through: socket.socket, descriptors: list[int]) -> None:
    through.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])


def _descriptors() -> object:
    ours, theirs = socket.socketpair()
    file = os.open("/dev/null", os.O_RDONLY)
    _send(ours, [file] * 8)
    _, received, _, _ = socket.recv_fds(theirs, 1, 8)
    return len(received)


@pair("leave no room for descriptors that wait in messages", _descriptors)
def descriptors_in_flight() -> object:
    file = os.open("/dev/null", os.O_RDONLY)

    def one() -> object:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        HELD.append(ends)
        for _ in range(8):
            _send(ends[0], [file] * 250)
        return ends

    return until_refused(one, 400)


def _pipes() -> object:
    read, write = os.pipe()
    usual = fcntl.fcntl(write, fcntl.F_GETPIPE_SZ)
    os.write(write, bytes(min(usual, _PIPE)))
    try:
        larger = fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4 * _PIPE)
    except OSError as error:
        larger = -(error.errno or 0)
    os.close(read)
    return usual, larger


def _pipe() -> object:
    return [_Descriptor(fd) for fd in os.pipe()]


@pair("hold pipes until there are no pages for those of others", _pipes)
def pipe_buffers() -> object:
    return in_children(12, lambda: until_refused(_pipe, 4096))


@pair("hold large pipes until there are no pages for those of others", _pipes)
def large_pipes() -> object:
    def one() -> object:
        ends = [_Descriptor(fd) for fd in os.pipe()]
        fcntl.fcntl(ends[1].fd, fcntl.F_SETPIPE_SZ, 1 << 20)
        return ends

    return in_children(4, lambda: until_refused(one, 4096))


def _queue_signal() -> None:
    check(libc.sigqueue(os.getpid(), signal.SIGRTMIN, ctypes.c_void_p(0)))


def _signals() -> object:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
    for _ in range(20):
        _queue_signal()
    return sum(signal.sigtimedwait([signal.SIGRTMIN], 0) is not None for _ in range(20))


@pair("leave no room for signals that wait", _signals)
def pending_signals() -> object:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
    return until_refused(_queue_signal, _MANY)


def _timer() -> int:
    timer = ctypes.c_void_p()
    check(libc.timer_create(time.CLOCK_MONOTONIC, None, ctypes.byref(timer)))
    return timer.value or 0


def _timers() -> object:
    return len([_timer() for _ in range(10)])


@pair("make timers until others get none", _timers)
def timers() -> object:
    return until_refused(_timer, _MANY)


def _watch(instance: int, path: str) -> int:
    return check(libc.inotify_add_watch(instance, path.encode(), 0xFFF))


def _watching() -> object:
    instance = check(libc.inotify_init1(os.O_NONBLOCK))
    os.makedirs("watched", exist_ok=True)
    for number in range(4):
        Path(f"watched/{number}").write_text("")
        _watch(instance, f"watched/{number}")
    Path("watched/0").write_text("changed")
    return bool(os.read(instance, 4096))


@pair("make every instance of inotify that there is", _watching)
def watch_instances() -> object:
    return until_refused(lambda: _Descriptor(check(libc.inotify_init1(0))), 100_000)


@pair("watch files until others can watch none", _watching)
def watches() -> object:
    os.makedirs("many", exist_ok=True)
    for number in range(4000):
        Path(f"many/{number}").touch()

    def all_of_them() -> object:
        instance = check(libc.inotify_init1(0))
        return until_refused_in_turn(instance)

    def until_refused_in_turn(instance: int) -> object:
        for number in range(4000):
            _watch(instance, f"many/{number}")
        return instance

    return until_refused(all_of_them, 64)


def _polling() -> object:
    poll = select.epoll()
    pairs = [socket.socketpair() for _ in range(50)]
    for ends in pairs:
        poll.register(ends[0].fileno(), select.EPOLLIN)
    pairs[0][1].send(b"x")
    return len(poll.poll(5))


@pair("register with epoll until others cannot", _polling)
def polled_files() -> object:
    files = [socket.socketpair()[0].detach() for _ in range(300)]

    def one() -> object:
        poll = select.epoll()
        for fd in files:
            poll.register(fd, 0)
        return poll

    return in_children(4, lambda: until_refused(one, 300))


def _children() -> object:
    pids = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        pids.append(pid)
    return [os.waitpid(pid, 0)[1] for pid in pids]


@pair("fork until nobody can", _children)
def processes() -> object:
    return in_children(600, lambda: "stays")


def _threads() -> object:
    done: list[int] = []
    threads = [threading.Thread(target=done.append, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(done)


@pair("start threads until nobody can", _threads)
def threads() -> object:
    threading.stack_size(1 << 16)
    event = threading.Event()

    def one() -> object:
        thread = threading.Thread(target=event.wait, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise OSError(11, str(error)) from None
        return thread

    return until_refused(one, 4000)


def _message_queue(name: str) -> int:
    rt = ctypes.CDLL("librt.so.1", use_errno=True)
    return check(rt.mq_open(name.encode(), os.O_RDWR | os.O_CREAT, 0o600, None))


@pair("make message queues until others get none", lambda: _message_queue("/mine") >= 0)
def message_queues() -> object:
    names = iter(range(_MANY))
    return until_refused(lambda: _Descriptor(_message_queue(f"/taken-{next(names)}")), 5000)


def _key(name: str) -> int:
    return syscall(248, 217, b"user", name.encode(), bytes(1000), ctypes.c_size_t(1000), ctypes.c_int(-2))


@pair("keep keys in the kernel until others can keep none", lambda: _key("mine") > 0)
def keys() -> object:
    names = iter(range(_MANY))
    return until_refused(lambda: _key(f"taken-{next(names)}"), 5000)


def _async_requests(count: int) -> int:
    context = ctypes.c_ulong(0)
    syscall(206, 0, ctypes.c_uint(count), ctypes.byref(context))
    return context.value


@pair("reserve all asynchronous requests of the machine", lambda: _async_requests(16) > 0)
def async_requests() -> object:
    return until_refused(lambda: _async_requests(1024), 500)


def _terminal() -> object:
    master, slave = pty.openpty()
    os.write(slave, b"x")
    said = os.read(master, 1)
    os.close(master)
    os.close(slave)
    return said


@pair("open terminals until others get none", _terminal)
def terminals() -> object:
    return until_refused(lambda: [_Descriptor(fd) for fd in pty.openpty()], 5000)


@pair("open files until the machine's table is full", lambda: len([open("/dev/null") for _ in range(200)]))  # noqa: SIM115
def open_files() -> object:
    return in_children(20, lambda: until_refused(lambda: open("/dev/null"), 100_000))


def _lock_memory(size: int) -> object:
    memory = mmap.mmap(-1, size)
    at = (ctypes.c_char * size).from_buffer(memory)
    check(libc.mlock(ctypes.byref(at), ctypes.c_size_t(size)))
    return memory, at


@pair("lock memory until others can lock none", lambda: bool(_lock_memory(1 << 16)))
def locked_memory() -> object:
    return in_children(4, lambda: until_refused(lambda: _lock_memory(1 << 20), 64))


def _namespace() -> None:
    check(libc.unshare(0x10000000))


@pair("make user namespaces until others can make none", _namespace)
def user_namespaces() -> object:
    return in_children(20, _namespace)


def _exchange() -> object:
    ours, theirs = socket.socketpair()
    sender = threading.Thread(target=ours.sendall, args=(bytes(1 << 18),))
    sender.start()
    got = 0
    while got < 1 << 18:
        got += len(theirs.recv(1 << 16))
    sender.join()
    return got


@pair("leave so much unread in sockets that others have no buffers", _exchange)
def socket_buffers() -> object:
    def one() -> object:
        ends = socket.socketpair()
        ends[0].setblocking(False)
        try:
            while True:
                ends[0].send(bytes(1 << 14))
        except BlockingIOError:
            return ends

    return until_refused(one, 200)


def _write_shared() -> object:
    with open("/dev/shm/mine", "wb") as file:
        file.write(bytes(1 << 20))
    size = os.path.getsize("/dev/shm/mine")
    os.unlink("/dev/shm/mine")
    return size


@pair("fill what memory there is for files", _write_shared)
def files_in_memory() -> object:
    said = []
    for place in ("/dev/shm", "/tmp", "."):
        fd = os.open(f"{place}/filler", os.O_WRONLY | os.O_CREAT)
        said.append(until_refused(lambda fd=fd: os.write(fd, bytes(1 << 20)), 4096))  # type: ignore[misc]
        HELD.append(_Descriptor(fd))
        os.truncate(f"{place}/filler", max(0, os.path.getsize(f"{place}/filler") - (1 << 16)))
    return said


def _lock_file() -> object:
    with open("own-lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True


@pair("lock so many parts of a file that others can lock none", _lock_file)
def file_locks() -> object:
    file = open("locked", "w+b")  # noqa: SIM115
    file.truncate(1 << 20)
    HELD.append(file)
    places = iter(range(0, 1 << 20, 2))
    return until_refused(lambda: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, next(places)), 4000)

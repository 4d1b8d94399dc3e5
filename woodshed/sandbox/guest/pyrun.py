"""Runs Python source as ``__main__`` in a forked child of PID 1, without the start-up time of an interpreter.

It behaves like ``python -I -c SOURCE``: isolated (neither the working folder nor PYTHON* variables affect its path), in
a session of its own, with the usual exit codes and tracebacks. Nothing that it changes outlives it.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import types
from typing import Any, NoReturn

_kept: list[types.ModuleType] = []
_streams: list[io.TextIOWrapper] = []


def prepare_streams() -> None:
    """Make the standard streams of all later interpreters, once, in the fork server.

    A stream examines its descriptor when it is made, so 0 to 2 are pipes meanwhile and restored afterwards.
    """
    saved = [os.dup(number) for number in (0, 1, 2)]
    read, write = os.pipe()
    for number, fd in ((0, read), (1, write), (2, write)):
        os.dup2(fd, number)
    reader = io.BufferedReader(io.FileIO(0, "r", closefd=False))
    _streams[:] = [
        io.TextIOWrapper(reader, "utf-8", "surrogateescape"),
        _text(1, "surrogateescape"),
        _text(2, "backslashreplace", line_buffering=True),
    ]
    for number, fd in enumerate(saved):
        os.dup2(fd, number)
    for fd in (*saved, read, write):
        os.close(fd)


def prepare(search_path: list[str]) -> list[Any]:
    """Prepare PID 1 to look like a fresh interpreter; return the import system's finders, which are removed.

    Without finders PID 1, which must never run a file of the box, cannot import anything; ``run`` restores them in a
    child.
    """
    sys.path[:] = search_path
    sys.path_importer_cache.clear()
    sys.argv[:] = ["-c"]
    sys.dont_write_bytecode = True
    ours = __name__.partition(".")[0]
    for name in [n for n in sys.modules if n == ours or n.startswith(ours + ".")]:
        _kept.append(sys.modules.pop(name))
    sys.stdin, sys.stdout, sys.stderr = _streams
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = _streams  # type: ignore[misc]
    sys.modules["__main__"] = types.ModuleType("__main__")
    finders = list(sys.meta_path)
    sys.meta_path[:] = []
    return finders


def run(source: str, finders: list[Any]) -> NoReturn:
    """Run ``source`` on descriptors 0 to 2 and exit with its status; called in a child."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.meta_path[:] = finders
    gc.enable()
    os._exit(_finish(_execute(source, sys.modules["__main__"].__dict__)))


def _execute(source: str, namespace: dict[str, Any]) -> int:
    try:
        exec(compile(source, "<string>", "exec"), namespace)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 0xFF
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__.tb_next if error.__traceback__ else None  # without our own frame
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def _finish(code: int) -> int:
    """Shut down as an interpreter does: wait for threads, run exit functions, flush."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        if "atexit" in sys.modules:
            sys.modules["atexit"]._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        return code or 120
    return code


def _text(fd: int, errors: str, line_buffering: bool = False) -> io.TextIOWrapper:
    raw = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
    return io.TextIOWrapper(raw, "utf-8", errors, line_buffering=line_buffering)

"""What a mock that an install adds has no need of: it runs beside the tests, and no held-out values judge it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from woodshed.grading.pytest_screen import screen
from woodshed.grading.python_names import Names
from woodshed.grading.python_source import UnreadableError, parse


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MODULES = _words(
    "pytest _pytest pluggy unittest gc ctypes _ctypes atexit signal faulthandler site sitecustomize mmap _testcapi "
    "_testinternalcapi tracemalloc subprocess multiprocessing socket pty resource dis marshal inspect"
)
_USES = _words(
    "sys._getframe sys._current_frames sys.settrace sys.setprofile sys.meta_path sys.path_hooks sys.modules sys.exit "
    "os._exit os.abort os.fork os.execv os.execve os.kill os.dup2 builtins.exec builtins.eval builtins.compile "
    "builtins.__import__ builtins.breakpoint builtins.exit builtins.quit builtins.SystemExit importlib.import_module"
)


def needless(added: Mapping[str, bytes]) -> list[str]:
    """Constructs of added Python files, as ``path: construct``."""
    found = screen(added)
    for path, data in sorted(added.items()):
        if path.endswith(".py"):
            found += [f"{path}: {use}" for use in dict.fromkeys(_uses(data))]
    return found


def _uses(data: bytes) -> Iterator[str]:
    try:
        names = Names(parse(data))
    except UnreadableError:
        return  # which the screen says
    for module in names.imports:
        if module.partition(".")[0] in _MODULES or module in _USES:
            yield f"import {module}"
    for node in names.nodes:
        for origin in names.origins(node):
            if origin in _USES:
                yield f"use of {origin}"

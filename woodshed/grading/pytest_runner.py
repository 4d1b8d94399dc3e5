"""Runs inside the box: pytest over given files, one framed line per test on a separate channel.

Standalone source (started as ``python -I -c SOURCE`` with a JSON request on stdin) that imports nothing of Woodshed.
The request is read before any code of the submission is imported. The result channel is a duplicate of the original
stdout, while fd 1 points to /dev/null, and a line counts only with the nonce of this run.

Altered tests (``pytest_alter.py``) call ``woodshed_seen`` and ``woodshed_truth`` with values, which are reported in the
request's encoding.
"""

import builtins
import gc
import importlib
import importlib.metadata
import itertools
import json
import operator
import os
import signal
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from types import FunctionType, ModuleType
from typing import Any

_MOST_VALUES = 400
"""Maximum number of values that one test records."""
_LONGEST = 4096
"""Maximum characters of a value's text; for a longer text, its digest is recorded."""


def main() -> None:
    serve(json.loads(sys.stdin.buffer.read()))


def load(path: list[str], workdir: str) -> None:
    """Import pytest and the plugins that ``workdir/pytest.ini`` names; ``path``: entries of ``sys.path``, the one with
    pytest first."""
    sys.path = [path[0], *(p for p in sys.path if p), *path[1:]]
    sys.dont_write_bytecode = True
    os.environ.update(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTHONDONTWRITEBYTECODE="1", PYTHONHASHSEED="0")

    from _pytest.config import default_plugins

    for name in default_plugins:  # loaded now, so that they are watched before a conftest imports the submission
        importlib.import_module(f"_pytest.{name}")
    _load_plugins(workdir + "/pytest.ini")
    gc.collect()
    gc.freeze()  # pytest collects garbage five times after a run and would scan all that is loaded here


def serve(request: dict[str, Any]) -> None:
    """Do one run and end this process. Calls ``load`` unless pytest is loaded already."""
    channel = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    if "pytest" not in sys.modules:
        load(request["path"], request["workdir"])
    sys.dont_write_bytecode = not request.get("bytecode")
    os.chdir(request["workdir"])

    import pytest

    plugin = _plugin(request, channel, pytest)
    # The duration of a run must not depend on where its temporary files are kept.
    arguments = ["-q", "-p", "no:cacheprovider", "-c", request["workdir"] + "/pytest.ini", "--capture=sys"]
    arguments += ["--rootdir", request["workdir"], "--tb=short", "--color=no", "--continue-on-collection-errors"]
    arguments += request["files"]
    status = int(pytest.main(arguments, plugins=[plugin]))
    plugin.finish(status)
    os._exit(status)  # no handler of the submission runs after the last line


def _starved_clock() -> Callable[[], float]:
    """Return a clock of the seconds for which the main thread waits for a processor; 0 where the kernel does not say.

    It looks up nothing that a test may have replaced.
    """
    try:
        file = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return lambda: 0.0
    read, number, errors = os.pread, int, (OSError, ValueError, IndexError)

    def starved() -> float:
        try:
            return number(read(file, 100, 0).split()[1]) / 1e9
        except errors:  # a test closed the file
            return 0.0

    return starved


def _plugin(request: dict[str, Any], channel: int, pytest: ModuleType) -> Any:
    nonce = request["nonce"]
    wanted = None if request["ids"] is None else frozenset(request["ids"])
    limit = request["test_timeout"]
    most_starved = limit * (request.get("busy", 1) - 1)
    roots, stop_at = tuple(request["trace"]), request.get("stop_at")
    values = _record_values(request["encoder"]) if request["encoder"] else None
    write, perf, dumps, setitimer = os.write, time.perf_counter, json.dumps, signal.setitimer
    starved = _starved_clock() if most_starved else lambda: 0.0
    processor = time.process_time
    watched = _watch()
    # pytest replaces a few of its own methods for py.path compatibility, after its configuration is read.
    _OWN_PATCHES.update(v for v in vars(sys.modules["_pytest.legacypath"]).values() if isinstance(v, FunctionType))

    def emit(record: dict[str, Any]) -> None:
        data = f"\n{nonce} {dumps(record)}\n".encode()
        while data:
            data = data[write(channel, data) :]

    def places(seen: set[Any]) -> list[Any]:
        return [[c.co_filename, c.co_qualname, c.co_firstlineno] for c in seen if c.co_filename.startswith(roots)]

    class TimeLimit(BaseException):
        """Not an Exception, so that code under test does not catch it by accident."""

    began = starved_before = 0.0  # of the current test

    def on_alarm(signum: int, frame: Any) -> None:
        if most_starved:
            left = limit + min(most_starved, starved() - starved_before) - (perf() - began)
            if left > 0.001:
                setitimer(signal.ITIMER_REAL, left)
                return
        setitimer(signal.ITIMER_REAL, 0.1)  # once more, in case this one is swallowed
        raise TimeLimit(f"test ran longer than {limit} s")

    class Reporter:
        def __init__(self) -> None:
            self.status: dict[str, str] = {}
            self.text: dict[str, str] = {}
            self.collected = 0
            self.imported: set[Any] = set()
            if roots:
                sys.settrace(_tracer(self.imported))  # until the first test

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, session: Any, config: Any, items: list[Any]) -> None:
            self.collected = len(items)
            if wanted is not None:
                left_out = [i for i in items if not wanted & {i.nodeid, i.nodeid.partition("[")[0]}]
                config.hook.pytest_deselected(items=left_out)
                items[:] = [i for i in items if wanted & {i.nodeid, i.nodeid.partition("[")[0]}]
            if request["reverse"]:
                items.reverse()
            for item in items:
                # A formatted traceback costs more than most tests. The second method formats errors of fixtures.
                item.repr_failure = item._repr_failure_py = _brief

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                emit({"collect": report.nodeid, "text": str(report.longrepr)[-600:]})

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Any:
            nonlocal began, starved_before
            start, start_cpu = perf(), processor()
            began, starved_before = start, starved()
            seen: set[Any] = set()
            if roots:
                sys.settrace(_tracer(seen))
            if values is not None:
                values.clear()
            signal.signal(signal.SIGALRM, on_alarm)
            setitimer(signal.ITIMER_REAL, limit)
            try:
                result = yield
            except TimeLimit:
                self.status[item.nodeid], self.text[item.nodeid] = "failed", "TimeLimit"
                result = True
            finally:
                setitimer(signal.ITIMER_REAL, 0)
                if roots:
                    sys.settrace(None)
            status = self.status.get(item.nodeid, "missing")
            if (changed := _changed(watched)) is not None:
                status = "error"
                self.text[item.nodeid] = f"the test framework was changed: {changed}"
            record = {"test": item.nodeid, "status": status, "seconds": round(perf() - start, 6)}
            record["cpu"] = round(processor() - start_cpu, 6)
            if text := self.text.get(item.nodeid):
                record["text"] = text
            if values is not None:
                record["seen"] = values.copy()
            if roots:
                record["covered"] = places(seen)
            emit(record)
            failed = status in ("failed", "error")
            if (stop_at == "failure" and failed) or (stop_at == "hang" and "TimeLimit" in record.get("text", "")):
                item.session.shouldstop = "what follows is not needed"
            return result

        def pytest_runtest_logreport(self, report: Any) -> None:
            before = self.status.get(report.nodeid)
            status = report.outcome
            if status == "failed" and report.when != "call":
                status = "error"
            elif status == "passed" and report.when != "call":
                return
            if before in ("failed", "error"):
                return
            self.status[report.nodeid] = status
            if status in ("failed", "error"):
                self.text[report.nodeid] = str(report.longrepr)[:2000]

        def finish(self, status: int) -> None:
            if roots:
                sys.settrace(None)
            emit({"end": status, "collected": self.collected, "imported": places(self.imported)})

    return Reporter()


def _brief(excinfo: Any, style: Any = None) -> str:
    """Return the error message without the traceback; only the type's name if making the message fails."""
    try:
        if excinfo.typename == "FixtureLookupError":  # pytest's own, with a readable text
            return str(excinfo.value.formatrepr())
        return str(excinfo.exconly(tryshort=True))
    except BaseException:
        return f"{excinfo.typename} (its message cannot be shown)"


def _record_values(encoder: str) -> list[str]:
    """Define ``woodshed_seen``, ``woodshed_truth`` and ``woodshed_step``; return the list that they fill.

    ``woodshed_truth`` also records whether a value is true, as ``true=`` or ``false=`` before the text of one that is
    no bool. Otherwise, values without data are recorded as ``?``, and so are intermediate values (``woodshed_step``)
    that are not plain: how those are built is an internal detail of the code under test.
    """
    scope: dict[str, Any] = {"__name__": "encoder"}
    exec(encoder, scope)
    encode, plain, rounded = scope["encode"], scope["plain"], scope["rounded"]
    seen: list[str] = []

    def text_of(value: Any) -> str:
        try:
            return str(encode(value))
        except Exception:
            return "?"

    def note(text: str, truth: str = "") -> None:
        if len(seen) < _MOST_VALUES:
            short = text if len(text) <= _LONGEST else f"long {sha256(rounded(text).encode()).hexdigest()}"
            seen.append(truth + short)

    def woodshed_seen(*values: Any) -> None:
        for value in values:
            note(text_of(value))

    def woodshed_truth(*values: Any) -> None:
        for value in values:
            text = text_of(value)
            try:
                truth = "true" if value else "false"
            except Exception:  # the test itself would have failed here
                truth = text
            if text in ("?", truth):
                note(truth)
            else:
                note(text, f"{truth}=")

    def woodshed_step(value: Any) -> Any:
        try:
            known = plain(value)
        except Exception:
            known = False
        text = text_of(value) if known else "?"
        note(f"[{text[1:-1]}]" if text.startswith("(") else text)  # a test that unpacks a sequence accepts a list
        return value

    vars(builtins).update(woodshed_seen=woodshed_seen, woodshed_truth=woodshed_truth, woodshed_step=woodshed_step)
    return seen


def _tracer(seen: set[Any]) -> Any:
    """Return a global trace function that collects the entered code objects and traces no lines."""
    add = seen.add

    def trace(frame: Any, event: str, argument: Any) -> None:
        add(frame.f_code)

    return trace


_WATCHED = ["_pytest.", "pluggy", "unittest.case", "builtins", "signal", "json"]


def _load_plugins(ini: str) -> None:
    """Import the plugins that the grader's configuration names, and watch their modules like those of pytest."""
    if not os.path.exists(ini):
        return  # pytest itself reports that
    with open(ini) as file:
        options = next((line for line in file if line.startswith("addopts")), "").split()
    named = {name for option, name in itertools.pairwise(options) if option == "-p" and not name.startswith("no:")}
    for point in importlib.metadata.entry_points(group="pytest11") if named else ():
        if point.name in named:
            importlib.import_module(point.module)
            _WATCHED.append(point.module)


_OWN_PATCHES: set[FunctionType] = set()
_CODE = operator.attrgetter("__code__")


class _Watched:
    """The watched ``keys`` of a namespace with their values, and the functions among the values with their code."""

    def __init__(self, namespace: Any, values: dict[str, Any]) -> None:
        self.namespace, self.keys, self.values = namespace, [*values], [*values.values()]
        self.functions = [v for v in self.values if isinstance(v, FunctionType)]
        self.codes = [function.__code__ for function in self.functions]


def _watch() -> list[_Watched]:
    """Return the functions and classes that decide a test result."""
    found: list[_Watched] = []
    for name, module in list(sys.modules.items()):
        if not name.startswith(tuple(_WATCHED)):
            continue
        own = {k: v for k, v in vars(module).items() if isinstance(v, (FunctionType, type))}
        if name == "builtins":
            own = {k: v for k, v in vars(module).items() if callable(v)}
        found.append(_Watched(module, own))
        for value in own.values():
            if isinstance(value, type) and value.__module__ == name and name != "builtins":
                methods = {k: v for k, v in vars(value).items() if isinstance(v, FunctionType)}
                found.append(_Watched(value, methods))
    return found


def _changed(watched: list[_Watched], all: Any = all, map: Any = map, same: Any = operator.is_) -> str | None:
    """Return the first watched object that was replaced, or None. The defaults bind functions before a submission can
    replace them."""
    for at in watched:  # runs after every test, so the usual case has no inner loop in Python
        found = at.namespace.__dict__.get
        if not all(map(same, map(found, at.keys), at.values)):
            for key, value in zip(at.keys, at.values):
                if (now := found(key)) is not value and not (isinstance(now, FunctionType) and now in _OWN_PATCHES):
                    return f"{at.namespace.__name__}.{key}"
        if not all(map(same, map(_CODE, at.functions), at.codes)):
            other = next(f for f, code in zip(at.functions, at.codes) if f.__code__ is not code)
            return f"{at.namespace.__name__}.{other.__name__}"
    return None


if __name__ == "__main__":
    main()

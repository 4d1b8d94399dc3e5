"""What several folders of tests share: one real smoke run, one S3 server."""

from __future__ import annotations

import dataclasses
import faulthandler
import fcntl
import os
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from real_runs import SmokeRun, make_smoke_run
from s3 import s3  # noqa: F401  (a fixture)
from xdist.scheduler import LoadFileScheduling

from woodshed.sandbox.backends.namespace.backend import probe_namespace

# Tests assert no times: the machine may be busy.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")


_GRACE = 120.0
"""Seconds beyond its own time limit after which a test that still does not end takes its whole process with it."""
_errors: list[int] = []


TOGETHER = (
    "tests/tasks/sources/",
    "tests/tasks/install/",
    "tests/tasks/packages/",
    "tests/tasks/refresh/",
    "tests/tasks/node/",
    "tests/evaluate/builder/",
)
"""Folders whose tests share what took long to build: one worker has all of them, from the beginning."""


def _together(nodeid: str) -> str:
    return next((folder for folder in TOGETHER if nodeid.startswith(folder)), "")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not _together(item.nodeid))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Start one worker more than cores for ``-n auto``: tests of servers, boxes and clients wait half of the time."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None

    class ByFolder(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _together(nodeid) or super()._split_scope(nodeid)

    return ByFolder(config, log)


def pytest_configure(config: pytest.Config) -> None:
    _errors.append(os.dup(2))  # not yet captured


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Where an exception cannot get through (a call that waits in C, a clean-up that waits for ever), the process ends
    with the stacks of its threads, so that the suite goes on without it and names the test."""
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0] if marker else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(limit + _GRACE, exit=True, file=_errors[0])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> SmokeRun:
    probe = probe_namespace(None)
    if not probe.ok:
        pytest.skip("; ".join(probe.reasons))
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own  # made once for all workers
    record = shared / "smoke.pickle"
    with (shared / "smoke.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not record.exists():
            folder = Path(tempfile.mkdtemp(prefix="smoke-", dir=shared))
            record.write_bytes(pickle.dumps(make_smoke_run(folder)))
        run: SmokeRun = pickle.loads(record.read_bytes())
    scratch = tmp_path_factory.mktemp("smoke-scratch")  # no other worker's temporary files are seen here
    return dataclasses.replace(run, scratch=scratch)

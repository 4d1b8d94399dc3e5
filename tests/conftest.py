"""What several folders of tests share: one real smoke run, one S3 server."""

from __future__ import annotations

import fcntl
import os
import pickle
import tempfile
from pathlib import Path

import hypothesis
import pytest
from real_runs import SmokeRun, make_smoke_run
from s3 import s3  # noqa: F401  (a fixture)

from woodshed.sandbox.probe import probe_namespace

# Tests assert no times: the machine may be busy.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")


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
    return run

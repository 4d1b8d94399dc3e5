"""What several folders of tests share: one real smoke run."""

from __future__ import annotations

import signal

import hypothesis
import pytest
from real_runs import SmokeRun, make_smoke_run

from woodshed.sandbox.probe import probe_namespace

# Tests assert no times: the machine may be busy.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")

# A shell starts what it puts in the background with SIGINT ignored, and every child of ours would inherit that; some
# tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> SmokeRun:
    probe = probe_namespace(None)
    if not probe.ok:
        pytest.skip("; ".join(probe.reasons))
    return make_smoke_run(tmp_path_factory.mktemp("smoke"))

"""What several folders of tests share: one real smoke run."""

from __future__ import annotations

import pytest
from real_runs import SmokeRun, make_smoke_run

from woodshed.sandbox.probe import probe_namespace


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> SmokeRun:
    probe = probe_namespace(None)
    if not probe.ok:
        pytest.skip("; ".join(probe.reasons))
    return make_smoke_run(tmp_path_factory.mktemp("smoke"))

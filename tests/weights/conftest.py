"""Chains in a folder and in a bucket of a real S3 server: tests run on both."""

import uuid
from pathlib import Path

import pytest

from woodshed.weights.store import Store, open_store


@pytest.fixture(params=["folder", "s3"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty chain."""
    if request.param == "folder":
        return str(tmp_path / "chain")
    request.getfixturevalue("s3")
    return f"s3://woodshed/{uuid.uuid4().hex}"


@pytest.fixture
def store(where: str) -> Store:
    return open_store(where, fsync=False)

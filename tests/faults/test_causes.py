"""What fails counts as what it is of: each cause tried for real, and the table that lists them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from woodshed.sandbox.backends.namespace.backend import probe_namespace
from woodshed.sandbox.layers import LayerStore

from .causes import CAUSES, attempt
from .ground import UNTRIED

TABLE = Path(__file__).parent.parent.parent / "docs" / "errors.md"


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> LayerStore:
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))
    return LayerStore(tmp_path_factory.mktemp("layers") / "store")


@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_counts_as_what_it_is_of(name: str, layers: LayerStore, tmp_path: Path) -> None:
    cause = CAUSES[name]
    found, _ = asyncio.run(attempt(cause, tmp_path, layers))
    if found.state == UNTRIED:
        pytest.skip(found.detail)
    assert (found.source, found.state in cause.states) == (cause.source, True), found


def test_the_table_lists_every_cause() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| .* \| (\w+) \| (.+) \|$", TABLE.read_text("utf-8"), re.MULTILINE)
    listed = {name: (by, source, states) for name, by, source, states in rows}
    assert listed == {c.name: (c.by, c.source, " or ".join(c.states)) for c in CAUSES.values()}
    assert len(CAUSES) >= 20

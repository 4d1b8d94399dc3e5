"""A place to build in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tasks.sources.place import Place, place_in


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_in(tmp_path_factory.mktemp("node")) as found:
        yield found

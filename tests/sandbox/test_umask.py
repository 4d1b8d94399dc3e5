"""Whatever file modes the user's shell gives new files, boxes are the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from woodshed.sandbox.backends.gvisor.backend import probe_gvisor
from woodshed.sandbox.backends.namespace.backend import probe_namespace

PROBES = {"namespace": probe_namespace, "gvisor": probe_gvisor}
_BOX = """
import asyncio, sys
from pathlib import Path
from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import BoxSpec, Limits

def fill(folder):
    (folder / "opt/site-packages").mkdir(parents=True)
    (folder / "opt/site-packages/layered.py").write_text("value = 7")

async def main():
    store = LayerStore(Path(sys.argv[2]))
    layer = store.path(store.add("umask", fill))
    backend = open_backend(sys.argv[1])
    try:
        files = {"a.py": b"import layered; print(layered.value)"}
        spec = BoxSpec(layers=(layer,), files=files, limits=Limits(memory=1 << 30))
        box = await backend.create(spec)
        [fork] = await backend.fork(await box.snapshot("fs"))
        for each in (box, fork):
            for command in (["python3", "a.py"], ["sh", "-c", "umask; stat -c %a . a.py"]):
                done = await each.exec(command)
                print((done.stdout + done.stderr).decode().split())
    finally:
        await backend.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("name", sorted(PROBES))
def test_a_strict_umask_closes_nothing_to_a_box(name: str, tmp_path: Path) -> None:
    probe = PROBES[name](None)
    if not probe.ok:
        pytest.skip("; ".join(probe.reasons))
    said = {}
    for umask in (0o022, 0o077):
        command = [sys.executable, "-c", _BOX, name, str(tmp_path / f"layers-{umask:o}")]
        done = subprocess.run(command, capture_output=True, text=True, umask=umask)
        assert done.returncode == 0, done.stderr
        said[umask] = done.stdout
    assert said[0o077] == said[0o022] and said[0o022].startswith("['7']\n['0022', "), said

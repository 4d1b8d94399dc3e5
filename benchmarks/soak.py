"""Send ten thousand trajectories through a gateway and two engines and measure the growth of their memory.

    python benchmarks/soak.py [--trajectories 10000] [--engines 2] [--out benchmarks/results/soak.json]

Real processes with a tiny policy. Trajectories have one to four turns; some clients disconnect in the middle of a
stream, some edit their history, some never finish; new weights are published all the time. The memory (resident set) of
every process is sampled throughout. ``growth_mib_per_10000`` is the slope of a line through the last two thirds of the
samples, for the process that grows most; ``journal_mib`` is the size of the gateway's journal at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from result import write_result
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from gateway.parts import COMPACT
from gateway.soaking import soak

from woodshed.cluster.supervisor import free_ports
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, save_policy
from woodshed.policy.state import hf_state
from woodshed.weights.chain import Publisher

KEY = "admin-key-of-the-soak"


CONFIG = DecoderConfig(
    vocab_size=COMPACT.vocab_size, d_model=32, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16, d_ff=64,
    max_positions=512,
)  # fmt: skip


def memory(pid: int) -> float:
    """Return the resident set size of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def launch(stack: ExitStack, folder: Path, name: str, module: str, settings: dict[str, Any]) -> int:
    """Start a server and wait until it is ready; return its pid."""
    path, ready = folder / f"{name}.json", folder / f"{name}.ready"
    path.write_text(json.dumps({**settings, "ready_file": str(ready)}))
    environment = {**os.environ, "WOODSHED_ADMIN_KEY": KEY, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", module, "--settings", str(path)], env=environment)
    stack.callback(process.wait)
    stack.callback(process.kill)
    while not ready.exists():
        if process.poll() is not None:
            raise SystemExit(f"{name} did not start")
        time.sleep(0.05)
    return process.pid


def slope(samples: list[tuple[int, float]]) -> float:
    """Return the growth in MiB per 10,000 trajectories, over the last two thirds of the samples."""
    late = samples[len(samples) // 3 :]
    count, size = zip(*late)
    return float(np.polyfit(count, size, 1)[0] * 10_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--engines", type=int, default=2, help="0 has the engine in the gateway (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    every = max(1, given.trajectories // 100)
    with tempfile.TemporaryDirectory(prefix="woodshed-soak-") as place, ExitStack() as stack:
        folder = Path(place)
        start = Decoder(CONFIG, seed=0)
        save_policy(Policy(start, COMPACT, get_format("compact"), CONFIG), folder / "policy")
        chain = Publisher(folder / "weights", fsync=False, keep_anchors=2)
        chain.publish(0, hf_state(start))
        ports = free_ports(1 + given.engines)
        shared = {
            "policy": str(folder / "policy"),
            "weights": str(folder / "weights"),
            "engine": {"threads": 1, "max_sessions": 64},
        }
        pids = {
            f"engine_{n}": launch(stack, folder, f"e{n}", "woodshed.engine.remote.service", {**shared, "port": port})
            for n, port in enumerate(ports[1:])
        }
        server = {**shared, "port": ports[0], "journal": str(folder / "journal"), "max_tokens": 24}
        server["engines"] = [f"http://127.0.0.1:{port}" for port in ports[1:]]
        pids["gateway"] = launch(stack, folder, "gateway", "woodshed.gateway.serve", server)
        samples: dict[str, list[tuple[int, float]]] = {name: [] for name in pids}
        version, began = 0, time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns) as progress:
            bar = progress.add_task("trajectories", total=given.trajectories)

            def done(count: int) -> None:
                nonlocal version
                if count % every:
                    return
                version += 1
                chain.publish(version, hf_state(Decoder(CONFIG, seed=version)))
                for name, pid in pids.items():
                    samples[name].append((count, memory(pid)))
                shown = ", ".join(f"{name} {sizes[-1][1]:.0f} MiB" for name, sizes in samples.items())
                progress.update(bar, completed=count, description=shown)

            url = f"http://127.0.0.1:{ports[0]}"
            asyncio.run(soak(url, KEY, given.trajectories, seed=given.seed, done=done))
        seconds = time.monotonic() - began
        slopes = {name: slope(sizes) for name, sizes in samples.items()}
        figures: dict[str, float | None] = {
            "trajectories": given.trajectories,
            "growth_mib_per_10000": max(slopes.values()),
            "largest_mib": max(size for sizes in samples.values() for _, size in sizes),
            "journal_mib": (folder / "journal" / "open.journal").stat().st_size / 2**20,
            "trajectories_per_second": given.trajectories / seconds,
        }
        detail = {"growth_mib_per_10000": slopes, "versions": version, "mib": samples}
    write_result("soak", figures, detail, given.out)


if __name__ == "__main__":
    main()

"""Start vLLM with the flags that its client needs.

Usage: ``python -m woodshed.engine.vllm.start POLICY --python VENV/bin/python``. Arguments after ``--`` are passed to
``vllm serve`` unchanged (``--tensor-parallel-size 4``). vLLM has its own environment, in which woodshed need not be
installed: its workers import ``woodshed.weights`` from this installation's source, and need the packages ``zstandard``
and ``xxhash`` (``obstore`` for chains in S3).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import woodshed
from woodshed.cluster.service import read_admin_key
from woodshed.engine.protocol import MOST_TOP_LOGPROBS

EXTENSION = "woodshed.engine.vllm.worker.ChainWorker"


def command(python: str, policy: Path | str, *, port: int, more: Sequence[str] = ()) -> list[str]:
    """Command line of ``vllm serve``; it listens on the loopback address because its RL routes need no key."""
    return [
        python,
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        str(policy),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--enable-scale-out",
        "--skip-tokenizer-init",
        "--logprobs-mode",
        "processed_logprobs",
        "--max-logprobs",
        str(MOST_TOP_LOGPROBS + 1),  # the sampled token counts as one of them
        "--enable-prompt-tokens-details",
        "--worker-extension-cls",
        EXTENSION,
        "--weight-transfer-config",
        '{"backend": "woodshed"}',
        *more,
    ]


def environment(key: str) -> dict[str, str]:
    """Environment variables of this process, plus those for vLLM's RL routes, its key, and woodshed's source."""
    source = str(Path(woodshed.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_API_KEY": key,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


@contextlib.contextmanager
def serving(python: str, policy: Path, key: str, log: Path, more: Sequence[str], seconds: float = 600) -> Iterator[str]:
    """Run a vLLM server for the duration of the block; yields its URL. Its output goes to ``log``. Raises RuntimeError
    with the end of the log if it does not answer within ``seconds``."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + seconds
    with log.open("wb") as output:
        process = subprocess.Popen(
            command(python, policy, port=port, more=more),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(key),
            start_new_session=True,
        )
    try:
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"vLLM did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(1)
        yield url
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):  # vLLM's engine is a separate process, which may still run
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url + "/health", timeout=5).close()
    except OSError:
        return False
    return True


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="woodshed.engine.vllm.start", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("policy", type=Path, help="directory of the policy in Hugging Face layout")
    parser.add_argument("--python", required=True, help="interpreter of the environment that has vLLM")
    parser.add_argument("--port", type=int, default=8765, help="port to listen on (default %(default)s)")
    parser.add_argument(
        "--admin-key-file", type=Path, default=None, help="file with the admin key; default: WOODSHED_ADMIN_KEY"
    )
    at = list(arguments).index("--") if "--" in arguments else len(arguments)
    given, more = parser.parse_args(arguments[:at]), arguments[at + 1 :]
    if not (given.policy / "config.json").is_file():
        parser.error(f"{given.policy}: no config.json there; name the directory of a policy")
    try:
        key = read_admin_key(given.admin_key_file)
        line = command(given.python, given.policy, port=given.port, more=more)
        os.execvpe(line[0], line, environment(key))
    except (ValueError, OSError) as problem:
        parser.error(str(problem))


if __name__ == "__main__":
    main(sys.argv[1:])

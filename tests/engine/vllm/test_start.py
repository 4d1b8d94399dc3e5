"""The program that starts vLLM: what it hands over, without vLLM."""

import json
import os
import stat
import subprocess
import sys
import urllib.request

from waiting import wait_until

from tests.engine.served import KEY
from woodshed.engine.vllm.start import serving


def test_it_hands_over_flags_key_and_source(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$VLLM_SERVER_DEV_MODE $VLLM_API_KEY $PYTHONPATH"\necho "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "config.json").write_text(json.dumps({}))
    line = [sys.executable, "-m", "woodshed.engine.vllm.start", str(tmp_path), "--python", str(python)]
    environment = {**os.environ, "WOODSHED_ADMIN_KEY": KEY}
    ran = subprocess.run(
        [*line, "--port", "7", "--", "--dtype", "float32"], env=environment, capture_output=True, text=True, check=True
    )
    first, flags = ran.stdout.splitlines()
    mode, key, path = first.split(" ", 2)
    assert (mode, key) == ("1", KEY) and os.path.isdir(os.path.join(path.split(os.pathsep)[0], "woodshed"))
    assert "--logprobs-mode processed_logprobs" in flags and flags.endswith("--dtype float32") and "--port 7" in flags
    empty = subprocess.run([*line[:3], str(tmp_path / "none"), "--python", "x"], capture_output=True, text=True)
    assert empty.returncode == 2 and "no config.json" in empty.stderr


SERVER = """#!{python}
import http.server, os, signal, subprocess, sys
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn])
open("{home}/child", "w").write(str(child.pid))
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""


def test_nothing_of_a_server_of_our_own_is_left(tmp_path):
    python = tmp_path / "python"
    python.write_text(SERVER.format(python=sys.executable, home=tmp_path))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    with serving(str(python), tmp_path, KEY, tmp_path / "log", []) as url:
        assert urllib.request.urlopen(url + "/health").status == 200
        child = int((tmp_path / "child").read_text())
        assert alive(child)
    wait_until(lambda: not alive(child), "the child to end")


def alive(pid):
    """A zombie that nobody has reaped yet is dead."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

"""What a policy may do to its box, and say, so that its episode should not count. It counts, on its merits."""

from __future__ import annotations

import os
import resource
import signal

from tests.limits import soft_limit
from woodshed.harness.settings import HarnessSettings, LimitSettings
from woodshed.sandbox.host import box as boxes
from woodshed.sandbox.protocol import BoxSpec, Egress

from .ground import LIMITS, MEND, Found, Ground, call, cause, descriptors, first_process, replaced, run

PATIENT = HarnessSettings(limits=LimitSettings(wall_seconds=300.0, bad_turns=100))
DETACHED = "setsid python3 -c '%s' > /dev/null 2>&1 < /dev/null & sleep 0.3"


def python(source: str, timeout: float = 30.0) -> str:
    return run(f"python3 - <<'END'\n{source}\nEND", timeout)


@cause("box", "rewarded", "not rewarded")
async def stop_loop(at: Ground) -> Found:
    """a detached loop stops every process that it can signal, from before the submission is taken"""
    loop = "import os, signal\nwhile 1:\n try: os.kill(-1, signal.SIGSTOP)\n except ProcessLookupError: pass"
    return await at.episode(run(MEND), run(DETACHED % loop.replace("'", '"'), 3.0), run("true", 1.0))


@cause("box", "rewarded", "not rewarded")
async def fork_bomb(at: Ground) -> Found:
    """processes fork without end"""
    bomb = "import os\\nwhile True:\\n try: os.fork()\\n except OSError: pass"
    return await at.episode(
        run(MEND), run(f"printf '{bomb}' > /tmp/b; setsid python3 /tmp/b & sleep 1", 5.0), run("true")
    )


@cause("box", "rewarded")
async def output_flood(at: Ground) -> Found:
    """a command prints without end, and so does what it leaves behind"""
    return await at.episode(run(MEND), run("(setsid yes &) ; yes", 5.0))


@cause("box", "rewarded", "not rewarded")
async def all_memory(at: Ground) -> Found:
    """processes take all memory that they can get"""
    hog = "import os\nfor _ in range(4): os.fork()\nkept = []\nwhile True: kept.append(b'x' * (1 << 24))"
    return await at.episode(run(MEND), python(hog))


@cause("box", "rewarded")
async def full_disk(at: Ground) -> Found:
    """no byte is left on the box's disk"""
    return await at.episode(run(MEND), run("head -c 1G /dev/zero > /workspace/a; head -c 1G /dev/zero > /workspace/b"))


@cause("box", "rewarded")
async def no_inodes(at: Ground) -> Found:
    """no file can be made any more: tens of thousands lie in a folder of the submission"""
    make = (
        "import os\nos.mkdir('shapes/d')\ntry:\n for n in range(60000): open('shapes/d/%d' % n, 'x').close()\n"
        "except OSError: pass"
    )
    return await at.episode(run(MEND), python(make))


@cause("box", "rewarded", "not rewarded")
async def deep_tree(at: Ground) -> Found:
    """tens of thousands of folders below a chain of 1,900 in a folder of the submission"""
    deep = (
        "import os\nos.chdir('shapes')\nfor _ in range(1900): os.mkdir('d'); os.chdir('d')\n"
        "for n in range(30000):\n try: os.mkdir('x%d' % n)\n except OSError: break"
    )
    return await at.episode(run(MEND), python(deep, 60.0))


@cause("box", "rewarded")
async def strange_names(at: Ground) -> Found:
    """names that are no text, of 255 bytes, with line breaks, in chains longer than a path may be"""
    names = (
        "import os\nos.chdir('shapes')\nopen(b'bad-\\xff.py', 'w').close()\nopen('a\\nb.py', 'w').close()\n"
        "for n in range(19): os.mkdir('d' * 250); os.chdir('d' * 250); open('f' * 200 + '.py', 'w').close()"
    )
    return await at.episode(run(MEND), python(names))


@cause("box", "rewarded")
async def odd_files(at: Ground) -> Found:
    """FIFOs, sockets, links to devices and to /proc stand among the files of the submission"""
    odd = (
        "import os, socket\nos.chdir('shapes')\nos.mkfifo('fifo.py')\nsocket.socket(socket.AF_UNIX).bind('sock.py')\n"
        "for n, p in enumerate(['/dev/zero', '/proc/self/mem', '/proc/1/environ', 'self2.py', '/dev/ptmx', '/']): "
        "os.symlink(p, 'link%d.py' % n)\nos.symlink('self2.py', 'self2.py')"
    )
    return await at.episode(
        run(MEND),
        python(odd),
        call("read_file", path="shapes/fifo.py"),
        call("read_file", path="shapes/link0.py"),
        call("grep", pattern="x"),
    )


@cause("box", "not rewarded")
async def sparse_giants(at: Ground) -> Found:
    """sparse files far larger than can be handed in"""
    return await at.episode(run(MEND), run("cd shapes && for n in $(seq 40); do truncate -s 100M big$n.py; done"))


@cause("box", "rewarded", "not rewarded")
async def changing_files(at: Ground) -> Found:
    """files change, grow and turn into folders while they are collected"""
    change = (
        'import os\nos.chdir("/workspace/shapes")\nn = 0\nwhile True:\n n += 1\n try:\n  os.mkdir("m.py"); '
        'os.rmdir("m.py"); open("m.py", "w").write("x = 1\\n" * (n % 9999)); os.rename("m.py", "k.py"); '
        'os.unlink("k.py")\n except OSError: pass'
    )
    return await at.episode(run(MEND), run(DETACHED % change, 5.0))


@cause("box", "not rewarded")
async def no_workspace(at: Ground) -> Found:
    """the workspace is a file in the end"""
    return await at.episode(
        run(MEND),
        run("cd / && rm -rf /workspace; touch /workspace"),
        run("true"),
        call("read_file", path="a"),
        call("list_dir", path="."),
    )


@cause("box", "not rewarded", backends=("namespace",))
async def silence(at: Ground) -> Found:
    """the first process of the box does not answer any more"""

    def stop(number: int) -> None:
        if number == 1:
            os.kill(first_process(at.backend), signal.SIGSTOP)

    with replaced(boxes, "_PATIENCE", 0.5):
        return await at.episode(run(MEND), run("true", 1.0), turn=stop)


@cause("box", "as it was", backends=("namespace",))
async def workspace_before_a_fork(at: Ground) -> Found:
    """the workspace is a file when a snapshot is taken of its box and forked"""
    box = await at.backend.create(BoxSpec(limits=LIMITS))
    await box.exec("cd / && rmdir /workspace && touch /workspace", cwd="/")
    snapshot = await box.snapshot()
    (fork,) = await at.backend.fork(snapshot)
    for each in (box, fork):
        done = await each.exec("test -f /workspace && echo yes", cwd="/")
        if done.stdout != b"yes\n":
            return Found("box", "changed", done.stderr.decode())
        await each.close()
    return Found("box", "as it was")


HOLD = """
import socket, sys, time
held = []
for _ in range(700):
    try:
        held.append(socket.create_connection(("127.0.0.1", 7000), 5))
        held[-1].send(b"GET /health HTTP/1.1\\r\\n")
    except OSError: pass
print("held", flush=True)
time.sleep(600)
"""


@cause("box", "rewarded", backends=("namespace",))
async def held_connections(at: Ground) -> Found:
    """hundreds of connections to what it may reach are opened and held, while others need descriptors"""
    egress = Egress(routes={7000: at.url.removeprefix("http://")})
    start = "(setsid python3 /tmp/h > /tmp/out &); until grep -q held /tmp/out; do sleep 0.1; done"
    hold = f"cat > /tmp/h <<'END'{HOLD}END\n{start}"
    with soft_limit(resource.RLIMIT_NOFILE, descriptors() + 600):
        return await at.episode(run(MEND), run(hold, 120.0), egress=egress, limits=LIMITS)


@cause("box", "not rewarded")
async def tokens_that_are_no_calls(at: Ground) -> Found:
    """the policy's tokens: nested without end, numbers of 6,000 digits, halves of characters, names of other kinds"""
    deep, number = "[" * 20_000 + "]" * 20_000, "9" * 6000
    values = (deep, number, '"\\ud800"')
    arguments = [deep, *(f'{{"command": {value}}}' for value in values), "1e999", "null", '"x"']
    said = [f'<tool_call>\n{{"name": "run_command", "arguments": {a}}}\n</tool_call>' for a in arguments]
    said += ['<tool_call>\n{"name": ["\\udcff"], "arguments": {}}\n</tool_call>', "<tool_call>" * 500, "\u2028\x85"]
    return await at.episode(*said, harness=PATIENT)


@cause("box", "not rewarded")
async def arguments_that_no_tool_takes(at: Ground) -> Found:
    """well-formed calls with NUL, lone surrogates, patterns of 5,000 brackets, paths out of the workspace"""
    return await at.episode(
        call("run_command", command="\0"),
        call("read_file", path="\udcff"),
        call("read_file", path="../../proc/1/mem"),
        call("grep", pattern="(" * 5000),
        call("glob", pattern="[" * 5000),
        call("list_dir", path="a/" * 600),
        call("write_file", path="x" * 300, content="\ud800"),
        run("true", 1e308),
        run("exit 1; " * 4000),
        harness=PATIENT,
    )


@cause("box", "not rewarded", backends=("namespace",))
async def slow_on_purpose(at: Ground) -> Found:
    """commands sleep until the episode's time is up"""
    harness = HarnessSettings(limits=LimitSettings(wall_seconds=3.0))
    return await at.episode(*[run("sleep 600", 600.0)] * 3, harness=harness)

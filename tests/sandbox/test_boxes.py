"""Files, warm Python, snapshots and forks of the namespace backend."""

from __future__ import annotations

import asyncio

import pytest

from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import BoxSpec, Limits, SandboxError, Snapshot, Unsupported


def test_files_travel_both_ways(with_backend):
    async def body(backend):
        files = {"a.py": b"1", "pkg/b.py": bytes(range(256)), "/opt/run": b"#!/bin/sh\necho ran $GREETING"}
        box = await backend.create(BoxSpec(files=files, env={"GREETING": "hello"}))
        assert await box.get(["**/*.py"]) == {"a.py": b"1", "pkg/b.py": bytes(range(256))}
        assert await box.get(["*.py", "pkg/?.tx[tx]"]) == {"a.py": b"1"}
        assert (await box.exec(["/opt/run"])).stdout == b"ran hello\n"
        await box.write("a.py", b"shorter"[:3])
        assert (await box.exec("cat a.py")).stdout == b"sho"
        assert await box.read("pkg/b.py", max_bytes=3) == b"\0\1\2"
        assert await box.list() == [("a.py", "file", 3), ("pkg", "dir", 60)]
        await box.delete("pkg")
        assert [name for name, _, _ in await box.list(recursive=True)] == ["a.py"]
        big = bytes(5 << 20)
        assert (await box.exec("wc -c; cat $0 >&2; echo $GREETING", stdin=big, env={"GREETING": "x"})).stdout == (
            b"5242880\nx\n"
        )

    with_backend(body)


def test_warm_python_behaves_as_python_and_forgets(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec(preload=("json", "xml.dom")))
        change = "import builtins, json, os, sys; builtins.x = json.x = 1; os.environ['X'] = '1'; os.chdir('/')"
        assert (await box.exec_python(change)).returncode == 0
        head = "import builtins as b, json, os\n"
        check = head + "print(hasattr(b, 'x'), hasattr(json, 'x'), 'X' in os.environ, os.getcwd())"
        assert (await box.exec_python(check)).stdout == b"False False False /workspace\n"
        main = "import sys; print(__name__, sys.modules['__main__'].__dict__ is globals(), sys.argv, input())"
        assert (await box.exec_python(main, stdin="grüße\n".encode())).stdout.decode() == "__main__ True ['-c'] grüße\n"
        assert (await box.exec_python("import sys; sys.exit(7)")).returncode == 7
        stopped = await box.exec_python("raise SystemExit('because')")
        assert (stopped.returncode, stopped.stderr) == (1, b"because\n")
        broken = await box.exec_python("def f(): return 1 / 0\nf()")
        assert broken.returncode == 1
        assert broken.stderr.decode().splitlines()[:2] == [
            "Traceback (most recent call last):",
            '  File "<string>", line 2, in <module>',
        ]
        assert b"SyntaxError" in (await box.exec_python("def")).stderr
        late = "import atexit, threading, time\natexit.register(print, 'exit')\n"
        late += "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()"
        assert (await box.exec_python(late)).stdout == b"thread\nexit\n"
        with pytest.raises(SandboxError, match="standard library"):
            await backend.create(BoxSpec(preload=("numpy",)))

    with_backend(body)


def test_fork_and_snapshot_semantics(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec(files={"keep": b"1", "gone": b"2", "dir/x": b"3"}))
        await box.exec("sleep 99 & rm gone; rm -r dir; mkdir dir; echo t > /tmp/t; rm /etc/hosts; echo n > dir/n")
        first = await box.snapshot()
        assert first.kind == "fs" and first.parent is None and first.bytes > 0
        assert (await box.usage())["processes"] == 0
        await box.write("keep", b"later")
        forks = await backend.fork(first, 3)
        for n, fork in enumerate(forks):
            assert await fork.get(["**"]) == {"keep": b"1", "dir/n": b"n\n"}
            assert (await fork.exec("cat /tmp/t; test -e /etc/hosts")).returncode == 1
            await fork.write("mine", str(n).encode())
        assert [await fork.read("mine") for fork in forks] == [b"0", b"1", b"2"]
        assert await box.read("keep") == b"later"
        second = await forks[0].snapshot()
        assert second.parent == first.id
        await backend.drop(first)
        await box.close()
        [grandchild] = await backend.fork(second)
        assert await grandchild.get(["**"]) == {"keep": b"1", "dir/n": b"n\n", "mine": b"0"}
        await grandchild.exec("rm -r dir keep")
        third = await grandchild.snapshot()
        [last] = await backend.fork(third)
        assert await last.get(["**"]) == {"mine": b"0"}
        for unknown in (first, Snapshot("s1", "fs", "gvisor")):
            with pytest.raises(SandboxError, match="dropped"):
                await backend.fork(unknown)
        with pytest.raises(Unsupported, match="memory"):
            await box.snapshot("full")

    with_backend(body)


def test_many_snapshots_in_a_row_then_a_clear_end(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec(limits=Limits(disk=1 << 20)))
        with pytest.raises(Unsupported, match="fresh box"):
            for n in range(99):
                await box.write(f"f{n}", b"x")
                last = await box.snapshot()
        [fork] = await backend.fork(last)
        assert len(await fork.list()) == 40

    with_backend(body)


def test_layers_stack_in_order_and_stay_unchanged(with_backend, tmp_path):
    store = LayerStore(tmp_path / "closed" / "layers")
    tmp_path.joinpath("closed").mkdir(mode=0o700)  # boxes' user cannot walk there by itself

    def fill(text):
        def write(folder):
            (folder / "workspace").mkdir()
            (folder / "workspace" / "name").write_text(text)
            (folder / "workspace" / text).write_text(text)
            (folder / "workspace" / text).chmod(0o600)

        return write

    low, high = store.add("low", fill("low")), store.add("high", fill("high"))
    assert store.add("low", fill("low")) == low and store.names() == sorted([low, high])

    async def body(backend):
        layers = (store.path(low), store.path(high))
        box = await backend.create(BoxSpec(layers=layers, files={"name2": b"file"}))
        assert await box.get(["*"]) == {"name": b"high", "low": b"low", "high": b"high", "name2": b"file"}
        assert (await box.exec("rm low && echo changed > name")).returncode == 0
        other = await backend.create(BoxSpec(layers=layers))
        assert await other.read("low") == b"low" and await other.read("name") == b"high"
        with pytest.raises(SandboxError, match="no such folder"):
            await backend.create(BoxSpec(layers=(tmp_path / "missing",)))

    with_backend(body)
    assert (store.path(high) / "workspace" / "name").read_text() == "high"
    with pytest.raises(SandboxError, match="not in"):
        store.path("../closed")


def test_64_boxes_at_once(with_backend):
    async def one(backend, n):
        box = await backend.create(BoxSpec(files={"n": str(n).encode()}))
        shell, python = await asyncio.gather(box.exec("cat n; sleep 0.05"), box.exec_python("print(open('n').read())"))
        assert shell.stdout == str(n).encode() and python.stdout == f"{n}\n".encode()
        return box

    async def body(backend):
        boxes = await asyncio.gather(*(one(backend, n) for n in range(64)))
        assert len({box.id for box in boxes}) == 64
        await asyncio.gather(*(box.close() for box in boxes))

    with_backend(body)


def test_errors_are_typed_and_clear(with_backend):
    async def body(backend):
        with pytest.raises(SandboxError, match="first files"):
            await backend.create(BoxSpec(files={"big": bytes(2 << 20)}, limits=Limits(disk=1 << 20)))
        box = await backend.create(BoxSpec())
        await box.close()
        await box.close()
        with pytest.raises(SandboxError, match="closed"):
            await box.exec("true")

    with_backend(body)
    with pytest.raises(Unsupported, match="namespace"):
        open_backend("chroot")


def test_an_edit_of_equal_length_within_a_second_runs_the_new_code(with_backend):
    """Bytecode files are believed by whole seconds and size; no command may leave any behind."""

    async def body(backend):
        box = await backend.create(BoxSpec(files={"m.py": b"x = 1\n"}))
        for value in (b"1", b"2", b"3"):
            await box.put({"m.py": b"x = " + value + b"\n"})
            assert (await box.exec("python3 -c 'import m; print(m.x)'")).stdout.strip() == value

    with_backend(body)


def test_programs_can_have_terminals(with_backend):
    """Many agents run their commands in one. The terminals are the box's own and end somewhere."""
    source = """import os, pty
pid, fd = pty.fork()
if pid == 0:
    os.execvp("sh", ["sh", "-c", "test -t 0 && tty"])
print(os.read(fd, 100).strip().decode(), sorted(os.listdir("/dev/pts")))
held = []
try:
    while len(held) < 1000:
        held.append(os.openpty())
except OSError as error:
    print(len(held) < 100, os.strerror(error.errno))
"""

    async def body(backend):
        box, other = await backend.create(BoxSpec()), await backend.create(BoxSpec())
        done = await box.exec(["python3", "-c", source])
        first, last = done.stdout.decode().splitlines()
        assert first == "/dev/pts/0 ['0', 'ptmx']" and last.startswith("True"), done
        assert (await other.exec("ls /dev/pts")).stdout == b"ptmx\n"

    with_backend(body)

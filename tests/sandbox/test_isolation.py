"""What code in a box must not reach, tried from inside."""

from __future__ import annotations

import os
from pathlib import Path

from woodshed.sandbox.protocol import BoxSpec, Egress

ATTEMPTS = """
import ctypes, errno, json, os, socket, resource
libc = ctypes.CDLL(None, use_errno=True)

def call(*args):
    ctypes.set_errno(0)
    return errno.errorcode.get(ctypes.get_errno(), "?") if libc.syscall(*map(ctypes.c_long, args)) < 0 else "done"

def attempt(function):
    try:
        function()
        return "done"
    except OSError as error:
        return errno.errorcode.get(error.errno, "?")

def fork_flag(flag):
    result = libc.syscall(ctypes.c_long(56), ctypes.c_long(flag | 17), *[ctypes.c_long(0)] * 4)
    if result == 0:
        os._exit(0)
    return "done" if result > 0 else errno.errorcode[ctypes.get_errno()]

out = {
    "inet": attempt(lambda: socket.socket(socket.AF_INET)),
    "netlink": attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
    "vsock": attempt(lambda: socket.socket(40)),
    "unix": attempt(lambda: socket.socket(socket.AF_UNIX)),
    "ptrace": call(101, 0x4206, 1, 0, 0), "unshare_user": call(272, 0x10000000), "unshare_mount": call(272, 0x20000),
    "clone_user": fork_flag(0x10000000), "clone3": call(435, 0, 0),
    "mount": call(165, 0, 0, 0, 0, 0), "umount": call(166, 0, 0), "pivot_root": call(155, 0, 0),
    "fsopen": call(430, 0, 0), "open_tree": call(428, 0, 0, 0), "setns": call(308, 0, 0), "chroot": call(161, 0),
    "bpf": call(321, 0, 0, 0), "keyctl": call(250, 0), "perf": call(298, 0, 0, 0, 0, 0), "userfaultfd": call(323, 0),
    "io_uring": call(425, 1, 0), "kexec": call(246, 0, 0, 0, 0), "module": call(175, 0, 0, 0),
    "prlimit_1": attempt(lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))),
    "prlimit_self": attempt(lambda: resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))),
    "affinity_1": attempt(lambda: os.sched_setaffinity(1, {0})), "nice_1": attempt(lambda: os.setpriority(0, 1, 5)),
    "setuid": attempt(lambda: os.setuid(0)), "mknod": attempt(lambda: os.mknod("d", 0o20666, os.makedev(1, 1))),
    "environ_1": attempt(lambda: open("/proc/1/environ", "rb").read()),
    "mem_1": attempt(lambda: open("/proc/1/mem", "r+b")), "fds_1": attempt(lambda: os.listdir("/proc/1/fd")),
    "usr": attempt(lambda: open("/usr/bin/planted", "w")),
    "sysctl": attempt(lambda: open("/proc/sys/kernel/core_pattern", "w")),
    "pid_max": attempt(lambda: open("/proc/sys/kernel/pid_max", "w")),
    "sysrq": attempt(lambda: open("/proc/sysrq-trigger", "w")), "kmsg": attempt(lambda: open("/dev/kmsg")),
}
out["open"] = sorted(int(n) for n in os.listdir("/proc/self/fd"))
out["links"] = sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class") else []
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
out["status"] = {k: status[k].strip() for k in ("CapPrm", "CapEff", "CapBnd", "CapInh", "NoNewPrivs", "Seccomp")}
out["uids"] = [*os.getresuid(), *os.getresgid()]
out["processes"] = sorted(int(n) for n in os.listdir("/proc") if n.isdigit() and int(n) != os.getpid())
os.kill(1, 9)
os.kill(1, 15)
os.kill(1, 2)
print(json.dumps(out))
"""

PERMITTED = {"unix", "prlimit_self"}


def _check(out: dict) -> None:
    attempts = {k: v for k, v in out.items() if isinstance(v, str)}
    assert {k for k, v in attempts.items() if v == "done"} == PERMITTED
    assert attempts["inet"] == attempts["netlink"] == attempts["vsock"] == "EAFNOSUPPORT"
    refused = ("ptrace", "unshare_user", "clone_user", "mount", "setns", "bpf", "keyctl", "prlimit_1", "pivot_root")
    assert {attempts[name] for name in refused} == {"EPERM"}
    assert attempts["io_uring"] == attempts["clone3"] == "ENOSYS"
    assert set(out["open"]) <= {0, 1, 2, 3}  # 3 is the listing's own
    assert out["status"] == {
        "CapPrm": "0" * 16,
        "CapEff": "0" * 16,
        "CapBnd": "0" * 16,
        "CapInh": "0" * 16,
        "NoNewPrivs": "1",
        "Seccomp": "2",
    }
    assert out["uids"] == [1000] * 6
    assert out["links"] == [] and out["processes"] == []


def test_commands_and_warm_python_have_the_same_empty_hands(with_backend):
    import json

    async def body(backend):
        box = await backend.create(BoxSpec())
        for result in (await box.exec_python(ATTEMPTS), await box.exec(["python3", "-I", "-c", ATTEMPTS])):
            assert result.returncode == 0, result.stderr.decode()
            _check(json.loads(result.stdout))
        assert (await box.exec("echo alive")).stdout == b"alive\n"  # PID 1 outlived the signals

    with_backend(body)


def test_host_files_and_installed_packages_are_not_visible(with_backend, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o644)

    async def body(backend):
        box = await backend.create(BoxSpec())
        names = {name for name, _, _ in await box.list("/")}
        assert names <= {
            "bin",
            "sbin",
            "lib",
            "lib32",
            "lib64",
            "libx32",
            "usr",
            "proc",
            "dev",
            "etc",
            "opt",
            "run",
            "sys",
            "var",
            "tmp",
            "workspace",
            "home",
            "root",
        }
        here = str(Path(__file__).resolve())
        script = f"ls -d {secret} {tmp_path} {here} /etc/shadow /etc/hostid /root/.ssh 2>/dev/null | wc -l; ls -A /root"
        out = (await box.exec(script)).stdout.split()
        assert out[0] == b"0" and set(out[1:]) <= {b".pyenv"}
        names = "('torch', 'numpy', 'pytest', 'pip', 'woodshed')"
        imports = f"import importlib.util as u; print([n for n in {names} if u.find_spec(n)])"
        for result in (await box.exec_python(imports), await box.exec(["python3", "-c", imports])):
            assert result.stdout == b"[]\n", result
        result = await box.exec_python("import sys; print([n for n in sys.modules if 'woodshed' in n])")
        assert result.stdout == b"[]\n"
        assert not any(os.fsencode(str(tmp_path)) in r.stdout for r in [await box.exec("env; cat /proc/mounts")])
        # what the interpreter and other programs bring along of packages: wheels of pip, modules of npm
        kinds = "-name '*.whl' -o -name '*.dist-info' -o -name node_modules"
        found = (await box.exec(f"find / -path '*/test/*' -o \\( {kinds} \\) -print 2>/dev/null")).stdout.split()
        for name in map(os.fsdecode, found):
            assert (await box.exec(["ls", "-A", name])).stdout == b"box.pth\n", name

    with_backend(body)


def test_boxes_do_not_share_abstract_sockets_or_shared_memory(with_backend):
    async def body(backend):
        one, two = [await backend.create(BoxSpec()) for _ in range(2)]
        listen = "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('\\0meet'); s.listen(); "
        await one.exec(["sh", "-c", f"python3 -c \"{listen} open('/dev/shm/up', 'w'); time.sleep(20)\" &"])
        await one.exec("while [ ! -e /dev/shm/up ]; do sleep 0.01; done")
        connect = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0meet')"
        assert (await one.exec_python(connect)).returncode == 0
        assert b"ConnectionRefused" in (await two.exec_python(connect)).stderr
        assert (await two.exec("ls /dev/shm")).stdout == b""

    with_backend(body)


SEGMENTS = """
import ctypes, errno, json
libc = ctypes.CDLL(None, use_errno=True)
libc.shmget.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]

def get(size, flags=0):
    number = libc.shmget(0, size, 0o1600 | flags)
    return "made" if number >= 0 else errno.errorcode[ctypes.get_errno()]

print(json.dumps([get(56), get(4096), get(4097), get((1 << 32) + 56), get(56, 0o4000)]))
"""


def test_a_box_with_a_network_has_shared_memory_for_locks_and_no_more(with_backend):
    """PostgreSQL locks its data with a segment of 56 bytes. Large ones and huge pages would count to no process."""
    import json

    async def body(backend):
        box, bare = await backend.create(BoxSpec(egress=Egress())), await backend.create(BoxSpec())
        said = json.loads((await box.exec_python(SEGMENTS)).stdout)
        assert said == ["made", "made", "ENOSYS", "ENOSYS", "ENOSYS"]
        assert json.loads((await bare.exec_python(SEGMENTS)).stdout) == ["ENOSYS"] * 5

    with_backend(body)


def test_links_do_not_make_pid_1_disclose_or_change_anything(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec())
        await box.exec(
            "ln -s /proc/self/environ a; ln -s /proc/1/environ b; ln -s /proc/self/fd/3 c; ln -s /proc/self/root d;"
            "ln -s /proc/self/oom_score_adj e; mkfifo f; ln -s /dev/zero g; ln -s /etc/passwd h; ln -s loop loop;"
            "mkdir real; echo x > real/x; ln -s real link; ln -s /proc/self/maps m"
        )
        for name in ("a", "b", "c", "d/etc/passwd", "e", "f", "g", "m", "loop", "/dev/null", "/proc/self/status"):
            for attempt in (box.read(name), box.write(name, b"1")):
                try:
                    await attempt
                except (PermissionError, FileNotFoundError):
                    continue
                raise AssertionError(f"{name} was opened")
        assert (await box.read("h")).startswith(b"root:x:0:0")  # the box's own
        assert await box.get(["**"]) == {"real/x": b"x\n"}
        kinds = {name: kind for name, kind, _ in await box.list(recursive=True)}
        assert kinds["link"] == "link" and kinds["f"] == "other" and "link/x" not in kinds
        await box.delete("link")
        assert await box.read("real/x") == b"x\n"

    with_backend(body)


def test_python_takes_nothing_from_the_working_folder(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec(files={"json.py": b"print('shadow')", "colorsys.py": b"print('shadow')"}))
        await box.put({"/opt/site-packages/given.py": b"value = 7"})
        result = await box.exec_python("import json, colorsys, given; print(given.value)")
        assert result.stdout == b"7\n", result
        assert (await box.exec(["python3", "-I", "-c", "import given; print(given.value)"])).stdout == b"7\n"

    with_backend(body)

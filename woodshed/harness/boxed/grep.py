# Exit codes: 0 searched, 2 bad pattern, 3 no such path (with a line on stdout that says so).
import fnmatch
import os
import re
import sys

SKIPPED = {".git", "__pycache__", "node_modules", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
MAX_FILE = 1 << 20


def files(path):  # type: ignore[no-untyped-def]
    if not os.path.isdir(path):
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(f for f in folders if f not in SKIPPED)
        for name in sorted(names):
            yield os.path.normpath(os.path.join(folder, name))


def main(args):  # type: ignore[no-untyped-def]
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    if not os.path.lexists(args["path"]):
        print(args["path"])
        sys.exit(3)
    try:
        found = re.compile(args["pattern"], re.IGNORECASE if args["ignore_case"] else 0).search
    except (re.error, OverflowError, RecursionError) as error:
        print(error)
        sys.exit(2)
    count = 0
    for path in files(args["path"]):
        glob = args["glob"]
        if glob and not (fnmatch.fnmatch(os.path.basename(path), glob) or fnmatch.fnmatch(path, glob)):
            continue
        try:
            if not os.path.isfile(path) or os.path.getsize(path) > MAX_FILE:
                continue
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            continue
        if b"\0" in data[:8192]:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
            if found(line):
                count += 1
                if count > args["matches"]:
                    print("[... more; narrow the search ...]")
                    return
                text = line[: args["line_chars"]] + ("…" if len(line) > args["line_chars"] else "")
                print(f"{path}:{number}:{text}".replace("\r", ""))

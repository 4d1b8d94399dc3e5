# Exit codes: 0 searched, 3 no such folder.
import glob
import os
import sys


def main(args):  # type: ignore[no-untyped-def]
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    if not os.path.isdir(args["path"]):
        print(args["path"])
        sys.exit(3)
    shown = 0
    for name in sorted(glob.glob(args["pattern"], root_dir=args["path"], recursive=True)):
        path = os.path.normpath(os.path.join(args["path"], name))
        if not os.path.isfile(path):
            continue
        if shown == args["matches"]:
            print("[... more; narrow the pattern ...]")
            return
        shown += 1
        print(path.replace("\n", "\\n"))

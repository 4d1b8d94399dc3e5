# Runs a file as ``python FILE.py`` would: as __main__, with its folder first on the path.
import os
import sys
import types


def main(args):  # type: ignore[no-untyped-def]
    path = args["path"]
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        print(f"python: can't open file {path!r}: {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from None
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    sys.argv = [path]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    exec(compile(source, path, "exec"), module.__dict__)

# A small linter for boxes without ruff: syntax errors, unused imports, undefined names, repeated definitions.
# Prints path:line: text. Exit codes: 0 checked, 3 no such path.
import ast
import builtins
import os
import sys

SKIPPED = {".git", "__pycache__", "node_modules", ".venv"}
KNOWN = set(dir(builtins)) | {"__file__", "__name__", "__doc__", "__path__", "__spec__", "__class__", "__annotations__"}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def bound(tree):  # type: ignore[no-untyped-def]
    """Return every name that the file binds in any scope: few false alarms, some misses."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, DEFINITIONS):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((a.asname or a.name).split(".")[0] for a in node.names)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            names.update(node.names)
        else:
            # except ... as name, match patterns, type parameters
            names.update(v for k in ("name", "rest") if isinstance(v := getattr(node, k, None), str))
    return names


def check(path, tree):  # type: ignore[no-untyped-def]
    names = bound(tree)
    loads = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    imports = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
    star = any(a.name == "*" for n in imports for a in n.names)
    strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    if not star:
        for node in loads:
            if node.id not in names and node.id not in KNOWN:
                yield node.lineno, f"undefined name '{node.id}'"
    used = {n.id for n in loads}
    for statement in imports:
        if os.path.basename(path) == "__init__.py" or getattr(statement, "module", "") == "__future__":
            continue
        for alias in statement.names:
            name = (alias.asname or alias.name).split(".")[0]
            if name not in used and name != "*" and name not in strings and alias.asname != alias.name:
                yield statement.lineno, f"'{alias.name}' imported but unused"
    for scope in ast.walk(tree):
        if isinstance(scope, (ast.Module, ast.ClassDef)):
            seen: dict[str, int] = {}
            for part in scope.body:
                if isinstance(part, DEFINITIONS):
                    if part.name in seen and not part.decorator_list:
                        yield part.lineno, f"'{part.name}' defined again (first on line {seen[part.name]})"
                    seen.setdefault(part.name, part.lineno)


def files(path):  # type: ignore[no-untyped-def]
    if not os.path.isdir(path):
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(f for f in folders if f not in SKIPPED)
        for name in sorted(names):
            if name.endswith((".py", ".pyi")):
                yield os.path.normpath(os.path.join(folder, name))


def main(args):  # type: ignore[no-untyped-def]
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    for root in args["paths"]:
        if not os.path.exists(root):
            print(root)
            sys.exit(3)
    for path in sorted({p for root in args["paths"] for p in files(root)}):
        try:
            with open(path, "rb") as file:
                tree = compile(file.read(), path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
            findings = sorted(check(path, tree))
        except SyntaxError as error:
            findings = [(error.lineno or 1, f"syntax error: {error.msg}")]
        except (OSError, ValueError, RecursionError, MemoryError) as error:
            findings = [(1, f"cannot be checked: {error}")]
        for line, text in findings:
            print(f"{path}:{line}: {text}")

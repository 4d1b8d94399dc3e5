"""Count honest submissions that the graders' screens refuse; writes benchmarks/results/honest.json.

    python benchmarks/honest.py [--packages attrs==25.3.0 ...] [--out benchmarks/results/honest.json]

Every function of 20 popular packages (pip downloads their wheels) is in turn the missing part of a task: the start file
lacks its body, the submission is the package's own file, and there is no reference solution that would excuse
suspicious code. The styles of tests/tasks/packages/test_screen.py are also graded in boxes, each added to the fix of
the toy repository. The same for the functions of 20 npm packages (``npm pack`` downloads them), without their commands:
``node_refused`` are functions that do what the screen is there for, such as to read the arguments of the process.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from result import write_result

from woodshed.grading.node.screen import screen as node_screen
from woodshed.grading.pytest_screen import screen
from woodshed.grading.verify import grade
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.tasks.languages.node import functions as node
from woodshed.tasks.languages.python import delete_body, function_spans

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.grading import toy  # noqa: E402  (the toy repository lives in the tests)
from tests.tasks.packages.test_screen import STYLES  # noqa: E402

PACKAGES = """
arrow attrs click docutils jinja2 marshmallow more-itertools networkx packaging parso pygments pyparsing python-dateutil
requests rich sortedcontainers tabulate toolz tqdm werkzeug
"""

NODE_PACKAGES = """
async body-parser commander cookie debug express ini js-yaml marked micromatch minimist ms mustache path-to-regexp
picomatch qs semver uuid validator yargs-parser
"""
_NOT_WRITTEN = {"bin", "dist", "build", "test", "tests", "node_modules", "umd", "es"}
"""Folders of a package with commands, tests and generated copies."""


def files_of(wheel: Path) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of the modules in a wheel, without its tests, which a policy would not write."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            parts = Path(name).parts
            if name.endswith(".py") and not {"tests", "test"}.intersection(parts):
                yield name, archive.read(name).decode("utf-8")


def judged(name: str, text: str) -> tuple[int, list[str]]:
    """Return (number of functions tried, entries of the screen) of one file."""
    try:
        spans = [span for span in function_spans(text)]
    except SyntaxError:  # a template, or for another version of Python
        return 0, []
    if not screen({name: text.encode()}, {name: b""}):
        return len(spans), []  # no part of the file is suspicious
    found = []
    for span in spans:
        start = delete_body(text, span.name)
        found += [f"{span.name}: {entry}" for entry in screen({name: text.encode()}, {name: start.encode()})]
    return len(spans), found


def judged_node(archive: Path) -> tuple[int, dict[str, str]]:
    """Return (number of functions tried, entries of the screen) of one npm package."""
    tried, refused = 0, {}
    with tarfile.open(archive) as package:
        for member in package.getmembers():
            path = Path(member.name)
            file = package.extractfile(member) if path.suffix in (".js", ".cjs", ".mjs") else None
            if file is None or _NOT_WRITTEN.intersection(path.parts) or ".min." in path.name:
                continue
            data, name = file.read(), path.name
            functions = node.functions_of(data)
            tried += len(functions)
            if not node_screen({name: data}, {name: b""}):
                continue  # no part of the file is suspicious
            for function in functions:
                start = node.delete_body(data, function)
                for entry in node_screen({name: data}, {name: start}):
                    refused[f"{archive.stem}/{path}: {function.name}: {entry}"] = "screen"
    return tried, refused


async def graded(root: Path) -> dict[str, str]:
    """Grade the styles; return the reason by style for those that are not rewarded."""
    layers, backend = LayerStore(root / "layers"), open_backend()
    task = toy.toy_task(root / "toy", toy.pytest_layer(layers))
    fixed = toy.SHAPES.replace("width + height", "width * height")
    refused = {}
    try:
        for name, code in STYLES.items():
            text = f"{fixed}\n\ndef _style():\n" + "".join(f"    {line}\n" for line in code.splitlines())
            outcome = await grade(task, {"shapes/measure.py": text.encode()}, backend, layers)
            if not outcome.resolved:
                refused[name] = outcome.detail
    finally:
        await backend.close()
    return refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", nargs="*", default=PACKAGES.split())
    parser.add_argument("--node-packages", nargs="*", default=NODE_PACKAGES.split())
    parser.add_argument("--out", type=Path, default=None, help="default: benchmarks/results/honest.json")
    options = parser.parse_args()
    start = perf_counter()
    tried: dict[str, int] = {}
    refused: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="honest-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "-d", folder, *options.packages], check=True)
        for wheel in sorted(root.glob("*.whl")):
            name = "-".join(wheel.name.split("-")[:2])
            tried[name] = 0
            for path, text in files_of(wheel):
                count, found = judged(path, text)
                tried[name] += count
                refused |= {f"{path}: {entry}": "screen" for entry in found}
            print(f"{name}: {tried[name]} functions", flush=True)
        refused |= asyncio.run(graded(root))
        node_tried: dict[str, int] = {}
        node_refused: dict[str, str] = {}
        subprocess.run(
            ["npm", "pack", "--silent", *options.node_packages], check=True, cwd=root, stdout=subprocess.DEVNULL
        )
        for archive in sorted(root.glob("*.tgz")):
            node_tried[archive.stem], found_node = judged_node(archive)
            node_refused |= found_node
            print(f"{archive.stem}: {node_tried[archive.stem]} functions, {len(found_node)} refused", flush=True)
    figures = {
        "honest_tried": sum(tried.values()) + len(STYLES),
        "honest_refused": len(refused),
        "packages": len(tried),
        "styles_graded": len(STYLES),
        "node_tried": sum(node_tried.values()),
        "node_refused": len(node_refused),
        "node_packages": len(node_tried),
        "seconds": round(perf_counter() - start, 1),
    }
    write_result(
        "honest",
        dict(figures),
        {"functions": tried, "refused": refused, "node": node_tried, "node_refused": node_refused},
        options.out,
    )


if __name__ == "__main__":
    main()

"""Compile extension modules of the project from its sources, in a box that can use the host's C compiler.

Build requirements are installed as wheels of the index. The compiler runs in a second box, with these wheels in a layer
and without network. Only the compiled modules are taken out. They become files of the repository, are locked like files
that a recipe adds, and no recipe may change them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace

from woodshed.grading.install.changes import SETUP_SECONDS, shell
from woodshed.sandbox.protocol import BoxError
from woodshed.tasks.install.kit import Pinned
from woodshed.tasks.install.space import Boxes, Ground
from woodshed.tasks.sources.project import Project
from woodshed.tasks.sources.requirements import parse_requirement

SUFFIX = ".so"
NO_COMPILER = (
    "its extension modules were not compiled: boxes show the programs of this machine, and it has no C compiler; "
    "install gcc and the headers of the C library (Debian: gcc libc6-dev)"
)

_FIND = "command -v cc || command -v gcc"
_MOST_BYTES = 4 << 20
_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".pyx")
_DECLARED = re.compile(r"\bext_modules\b|\bExtension\s*\(|\bcythonize\s*\(")
# Without debug information and symbols, which hold paths and most of the bytes.
_BUILD = """\
export CFLAGS="-g0 $CFLAGS" LDFLAGS="-s $LDFLAGS" SETUPTOOLS_SCM_PRETEND_VERSION={version}
python3 -c 'import os, runpy, setuptools, sys
sys.argv[0], sys.path[0] = "setup.py", os.getcwd()
runpy.run_path("setup.py", run_name="__main__") if os.path.exists("setup.py") else setuptools.setup()
' build_ext --inplace --build-temp /tmp/build
"""


def has_extensions(project: Project) -> bool:
    """Return whether the project declares extension modules for setuptools."""
    if not any(name.endswith(_SOURCES) for name in project.files):
        return False
    declared = project.table("tool", "setuptools").get("ext-modules")
    return bool(declared) or _DECLARED.search(project.text("setup.py")) is not None


async def with_extensions(ground: Ground, boxes: Boxes) -> tuple[Ground, str]:
    """Return (``ground`` with compiled extension modules among its files, why they were not compiled or empty).

    Raises nothing, because a project may run without them; its tests decide.
    """
    project = Project(ground.files)
    if not has_extensions(project):
        return ground, ""
    backend = str(project.table("build-system").get("build-backend", "setuptools"))
    if not backend.startswith("setuptools"):
        return ground, f"its extension modules were not compiled: only setuptools is supported, not {backend}"
    installed, why = await _requirements(ground, project, boxes)
    if why:
        return ground, why
    built, why = await _compiled(ground, installed, boxes)
    return replace(ground, files={**ground.files, **built}, built=tuple(sorted(built))), why


async def _requirements(ground: Ground, project: Project, boxes: Boxes) -> tuple[tuple[Pinned, ...], str]:
    """Return (wheels that building needs, why they cannot be installed or empty)."""
    stated = project.table("build-system").get("requires")
    lines = ["setuptools", *map(str, stated if isinstance(stated, list) else ())]
    texts = [found.text for line in lines if (found := parse_requirement(line, "pyproject.toml [build-system]"))]
    with ground.kit.index(ground, None) as index:
        box = await boxes.build(ground, index.port)
        try:
            if (await shell(box, _FIND, timeout=60.0)).returncode:
                return (), NO_COMPILER
            done = await shell(box, f"pip install -q {shlex.join(dict.fromkeys(texts))}", timeout=SETUP_SECONDS)
            left = await ground.kit.left(box, ground, index.served.values())
        except BoxError as error:
            return (), f"its extension modules were not compiled: {error}"
        finally:
            await box.close()
    if done.returncode or left.problems:
        said = done.stdout[-300:].decode("utf-8", "replace").strip()
        return (
            (),
            f"the build requirements of its extension modules cannot be installed: {'; '.join(left.problems) or said}",
        )
    return left.installed, ""


async def _compiled(ground: Ground, installed: tuple[Pinned, ...], boxes: Boxes) -> tuple[Mapping[str, bytes], str]:
    box = await boxes.locked(ground, installed, {})
    try:
        done = await shell(box, _BUILD.format(version=shlex.quote(ground.version)), timeout=SETUP_SECONDS)
        found = await box.get([f"**/*{SUFFIX}"])
    except BoxError as error:
        return {}, f"its extension modules were not compiled: {error}"
    finally:
        await box.close()
    built = {name: data for name, data in found.items() if name not in ground.files and not name.startswith("build/")}
    large = [name for name, data in built.items() if len(data) > _MOST_BYTES]
    if done.returncode or done.timed_out or not built:
        said = done.stdout[-600:].decode("utf-8", "replace").strip()
        return {}, f"its extension modules cannot be compiled: {said or 'nothing was built'}"
    if large:
        return {}, f"its extension module {large[0]} is larger than {_MOST_BYTES >> 20} MiB"
    return built, ""

"""Which files a recipe may add to a Node project."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from woodshed.grading.install.changes import COMPILED, CONFIGURES, OWN_TESTS, TAKES, Refusal
from woodshed.tasks.generators.packages.workspace import below

PASSING = frozenset([".nyc_output", "coverage", "package-lock.json", ".package-lock.json"])
"""Names of what tools leave behind, besides those of ``changes``."""

_CONFIGURATION = re.compile(
    r"package\.json|npm-shrinkwrap\.json|\.npmrc|\.mocharc(\..*)?|\.taprc|\.c8rc.*|\.nycrc.*|\.babelrc.*"
)
_SUFFIXES = (".js", ".cjs", ".mjs", ".json", ".node")
_TEST = re.compile(r"(?:.*[._-])?(?:tests?|spec)|test[-_].*")


def node_refusal(before: Mapping[str, bytes], tests: Sequence[str]) -> Refusal:
    """``before``: the repository; ``tests``: files and folders of its tests."""
    folders = {str(parent) for name in before for parent in PurePosixPath(name).parents}
    stems = {str(PurePosixPath(name).with_suffix("")) for name in before if name.endswith(_SUFFIXES)}

    def why(path: PurePosixPath) -> str:
        if _CONFIGURATION.fullmatch(path.name):
            return f", which {CONFIGURES}"
        if "node_modules" in path.parts:
            return ", a package that is not in node_modules of the working directory"
        if path.suffix == ".node":
            return f", {COMPILED}"
        if path.suffix not in _SUFFIXES:
            return ""
        stem = str(path.with_suffix(""))
        if path.suffix != ".json" and (any(below(str(path), t) for t in tests) or _TEST.fullmatch(path.stem)):
            return OWN_TESTS
        shadows = stem in folders or stem in stems or (path.stem == "index" and str(path.parent) in stems)
        return f", which {TAKES}" if shadows else ""

    return why

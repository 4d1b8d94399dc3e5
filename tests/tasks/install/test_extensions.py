"""A project with a C extension of its own: compiled in a box, locked, part of its tasks."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tasks.sources import repos
from tests.tasks.sources.place import Place, place_in
from woodshed.grading.verify import grade
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.install.lock import Install, find_install
from woodshed.tasks.install.python import extensions
from woodshed.tasks.install.python.extensions import has_extensions, with_extensions
from woodshed.tasks.install.run import ground_of
from woodshed.tasks.install.space import Boxes, Ground
from woodshed.tasks.packages.catalogue import load_catalogue
from woodshed.tasks.pipeline.pin import Wishes
from woodshed.tasks.sources.project import Project
from woodshed.tasks.sources.spec import parse_source
from woodshed.tasks.validate.gates import check_task

from .real_wheels import add_to_index, wheels

C = b"""#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject *sum_of(PyObject *self, PyObject *args)
{
    PyObject *list;
    long total = 0;
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &list))
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++)
        total += PyLong_AsLong(PyList_GET_ITEM(list, i));
    return PyErr_Occurred() ? NULL : PyLong_FromLong(total);
}

static PyMethodDef methods[] = {{"sum_of", sum_of, METH_VARARGS, "The sum of a list of integers."}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_fast", 0, -1, methods};

PyMODINIT_FUNC PyInit__fast(void)
{
    return PyModule_Create(&module);
}
"""
CODE = repos.CODE.replace(b'"""Prices."""\n', b'"""Prices, summed in C."""\n\nfrom ._fast import sum_of\n').replace(
    b"sum(prices)", b"sum_of(list(prices))"
)
PROJECT = {
    **repos.PROJECT,
    "src/prices/__init__.py": CODE,
    "src/prices/_fast.c": C,
    "setup.py": b"from setuptools import Extension, setup\n\n"
    b'setup(package_dir={"": "src"}, ext_modules=[Extension("prices._fast", ["src/prices/_fast.c"])])\n',
    "pyproject.toml": repos.PROJECT["pyproject.toml"].replace(b"[project]\n", b'[project]\nversion = "1.0"\n')
    + b'[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("this machine has no C compiler, and boxes show its programs")
    real = wheels(tmp_path_factory.mktemp("wheels"), "setuptools")
    with place_in(tmp_path_factory.mktemp("extensions")) as found:
        add_to_index(found.root, real)
        repos.repository(found.root / "repository", PROJECT)
        yield found


def ground(place: Place, out: Path) -> Ground:
    spec = parse_source(str(place.root / "repository"))
    return ground_of(spec, "repository", load_catalogue(place.catalogue).wheels["pytest"], out)


@pytest.fixture(scope="module")
def installed(place: Place) -> Install:
    repository, installs = place.root / "repository", place.root / "installs"
    said = place.command("install", repository, "--out", installs, "--catalogue", place.catalogue)
    assert said.returncode == 0, said.stdout + said.stderr
    return find_install(installs, str(repository))


def test_tasks_bring_what_was_compiled(place: Place, installed: Install) -> None:
    ((name, compiled),) = installed.added.items()
    assert name.startswith("src/prices/_fast.") and name.endswith(".so") and compiled.startswith(b"\x7fELF")
    repository = place.root / "repository"
    built = place.build(
        str(repository),
        out=place.root / "tasks",
        wishes=Wishes(installs=place.root / "installs"),
        kinds=("delete_function",),
        mutants=1,
        exploits=0,
    )
    assert built
    task = built[0]
    assert task.workspace_files()[name] == compiled and task.info.provenance["built"] == name
    assert not any(n.endswith(".c") for n in task.workspace_files())

    async def work(backend: Backend, layers: LayerStore) -> tuple[list[Outcome], dict[str, str]]:
        solved = task.solution_files()
        forged = {**solved, name: b"not this"}
        found = [await grade(task, files, backend, layers) for files in (solved, task.workspace_files(), forged)]
        return found, (await check_task(task, backend, layers)).failures

    (good, untouched, forged), failures = place.boxes(work)
    assert good.resolved and forged.resolved, (good.detail, forged.detail)  # what is compiled never crosses
    assert not untouched.resolved
    assert failures == {}


def test_without_a_compiler_it_says_what_to_install(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extensions, "_FIND", "command -v no-such-compiler")
    initial = ground(place, tmp_path)
    found, why = place.boxes(lambda backend, layers: extensions.with_extensions(initial, Boxes(backend, layers)))
    assert found == initial and why == extensions.NO_COMPILER and "gcc libc6-dev" in why


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"src/prices/_fast.c": b"#error no\n"}, "cannot be compiled: .*error"),
        ({"pyproject.toml": b'[build-system]\nrequires = []\nbuild-backend = "mesonpy"\n'}, "not mesonpy"),
        ({"pyproject.toml": b'[build-system]\nrequires = ["no-such-thing"]\n'}, "cannot be installed: .*no-such-thing"),
    ],
)
def test_what_cannot_be_compiled_is_said(place: Place, tmp_path: Path, changed: dict[str, bytes], why: str) -> None:
    initial = ground(place, tmp_path)
    package = dataclasses.replace(initial.package, sha256=why)  # layers are remembered by it
    other = dataclasses.replace(initial, package=package, files={**initial.files, **changed})
    said = place.boxes(lambda backend, layers: with_extensions(other, Boxes(backend, layers)))[1]
    assert re.search(why, said.replace("\n", " ")), said


def test_extensions_are_found_by_what_setuptools_is_told() -> None:
    table = b'[[tool.setuptools.ext-modules]]\nname = "a"\nsources = ["a.c"]\n'
    assert has_extensions(Project({"pyproject.toml": table, "a.c": b""}))
    assert has_extensions(Project(PROJECT))
    assert not has_extensions(Project({"pyproject.toml": table}))
    assert not has_extensions(Project({"setup.py": b"setup()", "examples/a.c": b""}))

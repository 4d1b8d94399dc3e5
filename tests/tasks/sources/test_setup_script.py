"""What a setup.py states is read from its text; what it would do is never done."""

from __future__ import annotations

from pathlib import Path

import pytest

from woodshed.tasks.sources.project import Project
from woodshed.tasks.sources.requirements import Stated, needed, optional, read_setup

SCRIPT = """
import setuptools, pathlib
pathlib.Path("MARK").write_text("ran")
INSTALL = ["attrs>=20", "idna ; python_version < '4'"]
EXTRAS = {"tests": ["pytz"], "docs": ("sphinx",)}
EXTRAS["dev"] = EXTRAS["tests"] + ["tox", "rich"]
VERSION = open("x").read()
setuptools.setup(name="x", version=VERSION, install_requires=INSTALL + [VERSION], extras_require=EXTRAS,
                 tests_require="mock\\nsix", packages=setuptools.find_packages())
"""


def test_literals_names_and_sums_are_read(tmp_path: Path) -> None:
    script = SCRIPT.replace("MARK", str(tmp_path / "mark"))
    found = read_setup(script)
    assert found.install == ("attrs>=20", "idna ; python_version < '4'")
    assert found.groups == {"tests": ("pytz", "mock", "six"), "docs": ("sphinx",), "dev": ("pytz", "tox", "rich")}
    project = Project({"setup.py": script.encode()})
    assert [r.name for r in needed(project, "x")] == ["attrs", "idna", "pytz", "mock", "six"]
    assert "rich" in optional(project, "x") and not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "text",
    ["", "def f(:", "setup(install_requires=open('r').read())", "setup(**options)", "setup(extras_require=[1])", "\0",
     "E = {}\nE[f()] = ['a']\nsetup(extras_require=E, install_requires={'a': 'b'})"],
)  # fmt: skip
def test_what_is_computed_is_not_stated(text: str) -> None:
    assert read_setup(text) == Stated()

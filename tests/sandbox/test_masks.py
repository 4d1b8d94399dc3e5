"""Which folders of a /usr or of an interpreter hold packages, on trees as distributions and programs make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from woodshed.sandbox.guest.masks import installed_packages


@pytest.mark.parametrize(
    ("files", "masked"),
    [
        (["lib/python3.11/site-packages/toolz/__init__.py", "lib/python3.11/json/__init__.py"],
         ["lib/python3.11/site-packages"]),
        (["lib/python3.11/ensurepip/_bundled/pip-23.2.1-py3-none-any.whl", "lib/python3.11/ensurepip/__init__.py"],
         ["lib/python3.11/ensurepip/_bundled"]),
        (["lib/python3/dist-packages/six.py", "local/lib/python3.11/dist-packages/a.py", "local/src/x.c", "src/y.c"],
         ["lib/python3/dist-packages", "local/lib/python3.11/dist-packages", "local/src", "src"]),
        (["lib/node_modules/npm/package.json", "share/nodejs/semver/index.js"], ["lib/node_modules", "share/nodejs"]),
        (["share/tool/lib/third_party/six.py", "share/tool/lib/third_party/attr/__init__.py", "share/tool/run.sh"],
         ["share/tool/lib/third_party"]),
        (["share/wheels/a-1-py3-none-any.whl", "share/words/list.txt"], ["share/wheels"]),
        (["lib/x86_64-linux-gnu/scanner/giscanner/__init__.py", "lib/x86_64-linux-gnu/libc.so.6"],
         ["lib/x86_64-linux-gnu/scanner"]),
        (["lib/x86_64-linux-gnu/plugin/__init__.py", "lib/x86_64-linux-gnu/libc.so.6"],
         ["lib/x86_64-linux-gnu/plugin"]),
        ([f"lib/cloud/{n}/vendored/mod/__init__.py" for n in range(12)], ["lib/cloud"]),
        ([f"pkgs/p{n}/site-packages/a.py" for n in range(12)] + ["bin/python3"], ["pkgs"]),
        (["share/doc/python3-a/examples/a.py", "share/man/man1/a.1"], ["share/doc"]),
        (["lib/gcc/x86_64-linux-gnu/12/cc1", "lib/go/src/fmt/print.go", "include/a/package.json"], []),
    ],
)  # fmt: skip
def test_folders_of_packages(tmp_path: Path, files: list[str], masked: list[str]) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert installed_packages(str(tmp_path)) == [f"{tmp_path}/{name}" for name in masked]


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lib/python3.11/site-packages").mkdir(parents=True)
    (tmp_path / "lib64").symlink_to("lib")
    (tmp_path / "share").mkdir()
    (tmp_path / "share/loop").symlink_to("..")
    assert installed_packages(str(tmp_path)) == [f"{tmp_path}/lib/python3.11/site-packages"]

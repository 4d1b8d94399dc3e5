"""Sources in, tasks out, in real boxes; and every way in which a source can be of no use."""

from __future__ import annotations

import fcntl
import re
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from woodshed.grading.verify import grade
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.generators.packages.proof import WEAK
from woodshed.tasks.generators.packages.report import BuildReport
from woodshed.tasks.generators.prompts.reword import reworder
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.pipeline.build import build_from_sources
from woodshed.tasks.pipeline.pin import Wishes
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.sources.repository import pack
from woodshed.tasks.validate.check import check_folders
from woodshed.tasks.validate.splits import TWIN

from . import repos
from .conftest import Built
from .place import SINGLE, Place


def test_tasks_say_where_they_are_from(built: Built) -> None:
    assert len(built.tasks) == 3
    for task in built.tasks:
        provenance = task.info.provenance
        assert provenance["source"] == str(built.repository) and provenance["commit"] == built.commit
        assert provenance["licence"] == "MIT" and provenance["generator"] in ("mutate", "delete_function")
        assert set(task.solution_files()) == {"src/prices/__init__.py"}
        assert set(task.workspace_files()) == {
            "src/prices/__init__.py",
            "tests/test_prices.py",
            "pytest.ini",
            "pyproject.toml",
            "README.md",
            "LICENSE",
        }
    assert {t.info.provenance["generator"] for t in built.tasks} == {"mutate", "delete_function"}
    assert re.search(r"^prices +7 +3 +3 +3 ", built.said.stdout, re.M), built.said.stdout
    assert "3 tasks in" in built.said.stdout


def test_they_pass_every_gate(place: Place, built: Built) -> None:
    verdicts = place.boxes(lambda backend, layers: check_folders([built.out], backend, layers, parallel=2))
    assert [str(v) for v in verdicts if not v.passed] == [] and len(verdicts) == 3


def test_a_second_build_uses_the_same_bytes(place: Place, built: Built) -> None:
    before = tree(built.out)
    repos.write(built.repository, {"src/prices/__init__.py": b"raise SystemExit\n"})
    repos.git(built.repository, "commit", "-q", "-a", "-m", "broken")
    again = place.command(
        "build",
        built.repository,
        "--out",
        built.out,
        "--per-source",
        "3",
        "--catalogue",
        place.catalogue,
        "--heldout-share",
        "0.5",
        *SINGLE,
    )
    assert again.returncode == 0, again.stderr
    assert f"made from commit {built.commit[:12]}, as locked in sources.toml" in again.stdout
    assert tree(built.out) == before


def test_folder_sdist_and_the_commit_asked_for(place: Place, tmp_path: Path) -> None:
    folder = repos.write(tmp_path / "plain", repos.PROJECT)
    first = repos.repository(tmp_path / "both", repos.PROJECT)
    repos.write(tmp_path / "both", {"src/prices/__init__.py": b"raise SystemExit\n"})
    repos.git(tmp_path / "both", "commit", "-q", "-a", "-m", "broken")
    page = place.root / "simple" / "price-list"
    page.mkdir()
    (page / "Price_List-2.0.tar.gz").write_bytes(pack(repos.PROJECT, "Price_List-2.0"))
    (page / "index.html").write_text('<a href="Price_List-2.0.tar.gz">no hash is stated</a>')
    pypi = ("pypi:price-list==2.0", "pypi:tinyshapes==1.0", "pypi:tinyshapes==9.9")
    sources = (str(folder), f"{tmp_path}/both@{first}", *pypi)
    report = BuildReport()
    # Three times the same code: with a split by function, some of it would be the twin of a held-out task.
    tasks = place.build(*sources, out=tmp_path / "out", report=report, heldout_share=0.0)
    kept = {line.package: line.kept for line in report.packages}
    assert kept == {"plain": 2, "both": 2, "price-list": 2, "tinyshapes": 2, "tinyshapes-2": 0}
    assert "no source distribution (.tar.gz) of this version; it has tinyshapes-1.0.tar.gz" in report.packages[-1].error
    commits = {t.info.provenance["package"]: t.info.provenance["commit"] for t in tasks}
    assert commits == {"plain": "", "both": first, "price-list": "", "tinyshapes": ""}
    assert 'licence = "MIT"' in (tmp_path / "out" / "sources.toml").read_text()
    kept_bytes = next((tmp_path / "out" / "sources").glob("plain-*.tar.gz"))
    kept_bytes.write_bytes(b"other")
    with pytest.raises(PackageError, match=r"plain-.*\.tar\.gz has been changed, but its bytes are locked"):
        place.build(str(folder), out=tmp_path / "out", heldout_share=0.0)


def test_test_dependencies_are_found_and_locked(place: Place, tmp_path: Path) -> None:
    for name in ("stated", "extra"):
        repos.wheel(place.root, name, "1.0", {f"{name}.py": "value = 6\n"})
    tests = b"""import extra
import stated
from prices import cheapest, total


def test_a():
    assert total([2, 4]) == stated.value


def test_b():
    assert cheapest([extra.value, 7]) == (6, 0)


def test_c():
    assert extra.value == 6
"""
    config = b'[project]\nname = "prices"\n[project.optional-dependencies]\ntest = ["stated"]\ndev = ["extra"]\n'
    files = {**repos.PROJECT, "tests/test_prices.py": tests, "pyproject.toml": config}
    folder = repos.write(tmp_path / "needy", files)
    tasks = place.build(str(folder), out=tmp_path / "out")
    lock = (tmp_path / "out" / "sources.toml").read_text()
    assert tasks and all(len(t.info.layers) == 2 for t in tasks)
    assert 'needs = ["needy-tests"]' in lock and 'name = "stated"' in lock and 'name = "extra"' in lock
    lost = repos.write(
        tmp_path / "lost", {**files, "pyproject.toml": b"", "tests/test_prices.py": b"import odd\n" + tests}
    )
    with pytest.raises(
        PackageError, match=r"(?s)lost.*no test passes.*the tests import odd: name the packages with --needs"
    ):
        place.build(str(lost), out=tmp_path / "out2")
    repos.wheel(place.root, "odd", "1.0", {"odd.py": ""})
    wishes = Wishes(needs=("odd", "stated", "extra"))
    assert place.build(str(lost), out=tmp_path / "out2", wishes=wishes)


def test_what_would_change_nothing_is_refused(place: Place, tmp_path: Path) -> None:
    repos.wheel(place.root, "missed", "1.0", {"missed.py": "value = 6\n"})
    more = b"import missed\nfrom prices import total\n\n\ndef test_six():\n    assert total([6]) == missed.value\n"
    folder = repos.write(tmp_path / "prices", {**repos.PROJECT, "tests/test_missed.py": more})
    out, report = tmp_path / "out", BuildReport()

    def build(where: Path, **wishes: Any) -> list[Task]:
        return place.build(str(folder), out=where, wishes=Wishes(**wishes), report=report, level="normal")

    assert build(out)
    assert "some tests import missed and were not used; name the packages with --needs" in report.packages[0].notes[0]
    with pytest.raises(PackageError, match=r"is locked in sources.toml without --needs missed; use another --out"):
        build(out, needs=("missed",))
    with pytest.raises(PackageError, match=r"is locked in sources.toml without --install; use another --out"):
        build(out, installs=tmp_path / "installs")
    assert build(out), "what is there stays of use"
    asked = ("missed", "nobody-has-this")
    other = build(tmp_path / "other", needs=asked)
    assert "nobody-has-this was left out" in report.packages[0].notes[0]
    assert build(tmp_path / "other", needs=asked) == other == build(tmp_path / "other", needs=("missed>=1",))

    chosen = PackageTaskSettings(catalogue=str(place.catalogue), tasks_per_package=2, level="normal")
    words = reworder("http://127.0.0.1:9", "m", "", out)
    with pytest.raises(PackageError, match=r"have the template's words, and --prompt-policy does not change them"):
        place.boxes(lambda b, layers: build_from_sources([str(folder)], chosen, b, layers, out, reworder=words))


def test_held_out_sources_are_named_as_they_are_called(place: Place, tmp_path: Path) -> None:
    folder, out = repos.write(tmp_path / "My_Repo", repos.PROJECT), tmp_path / "out"
    for wrong in (str(folder), "my-rep", "pypi:my-repo==1.0"):
        with pytest.raises(PackageError, match=r"--heldout .*: no source is called that; there are my-repo$"):
            place.build(str(folder), out=out, heldout_packages=[wrong])
    chosen = {"heldout_share": 0.0, "heldout_packages": ["My_Repo"], "kinds": ["delete_function"]}
    held = place.build(str(folder), out=out, **chosen)
    assert len(held) == 2 and {t.info.split for t in held} == {"heldout"}

    # Another source of the same code in the same folder, which nothing holds out.
    other, report = repos.write(tmp_path / "other", repos.PROJECT), BuildReport()
    for _ in range(2):
        assert place.build(str(other), out=out, report=report, **chosen) == []
        assert report.packages[0].rejected[TWIN] == 2 and report.packages[0].kept == 0
        assert {path.parent for path in out.glob("*/task.toml")} == {task.path for task in held}


def test_hashes_tell_no_fix_and_what_is_imported_stays(place: Place, tmp_path: Path) -> None:
    code = b"""def label(text):
    if text == "":
        return 0
    return hash(text)


def squares(most):
    found = []
    for i in range(most):
        found.append(i * i)
    return found


SQUARES = squares(8)
"""
    tests = b"""

def test_label():
    assert label("some text") == hash("some text")


def test_squares():
    assert squares(3) == [0, 1, 4]
"""
    head = b"from marks import label, squares\n"
    files = {"src/marks.py": code, "tests/test_prices.py": head + repos.TESTS + tests}
    folder, report = repos.write(tmp_path / "marks", {**repos.PROJECT, **files}), BuildReport()
    tasks = place.build(
        str(folder), out=tmp_path / "out", report=report, tasks_per_package=9, kinds=["delete_function"]
    )
    assert len(tasks) == 2 and all(set(task.solution_files()) == {"src/prices/__init__.py"} for task in tasks)
    refused = "its failing tests compare no values that can be checked on other inputs"
    assert report.packages[0].rejected == {refused: 1}, "a hash is another one in every process"
    assert report.packages[0].tried == 3, "without what runs at import no test could be collected"


BAD = {
    "no tests": ({"prices.py": repos.CODE}, "no tests: there is no testpaths setting"),
    "nothing collected": (
        {"prices.py": repos.CODE, "tests/test_x.py": b"x = 1\n"}, "pytest collects no test from it",
    ),
    "all fail": (
        {"prices.py": repos.CODE, "test_x.py": b"import prices\n\ndef test_a():\n    assert prices.split(1, 1) == 0\n"},
        "no test passes in the box",
    ),
    "broken import": (
        {"prices.py": b"import nothing_of_the_kind\n", "test_x.py": b"import prices\n\ndef test_a(): pass\n"},
        "the tests import nothing_of_the_kind: name the packages with --needs",
    ),
    "ends early": (
        {"prices.py": repos.CODE, "test_x.py": b"import os\n\ndef test_a():\n    os._exit(3)\n"},
        "its suite did not run to the end: ended early with status 3",
    ),
    "runs no code": (
        {"prices.py": repos.CODE, "test_x.py": b"def test_a():\n    assert True\n"}, "run none of its functions",
    ),
    "empty": ({}, "holds no files"),
}  # fmt: skip


def test_sources_of_no_use(place: Place, tmp_path: Path) -> None:
    folders = {name: tmp_path / name.replace(" ", "_") for name in BAD}
    for name, (files, _) in BAD.items():
        folders[name].mkdir()
        repos.write(folders[name], files)
    report = BuildReport()
    good = repos.write(tmp_path / "good", repos.PROJECT)
    tasks = place.build(str(good), *map(str, folders.values()), out=tmp_path / "out", report=report)
    assert len(tasks) == 2
    errors = {line.package: line.error for line in report.packages}
    for name, (_, why) in BAD.items():
        assert why in errors[folders[name].name.replace("_", "-")], name
    with pytest.raises(PackageError) as caught:
        place.build(*map(str, folders.values()), out=tmp_path / "out2")
    assert all(why in str(caught.value) for _, why in BAD.values())


def test_no_network(place: Place, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
        said = place.command("build", "pypi:nothing==1.0", "--out", tmp_path / "out", PIP_INDEX_URL=url)
    assert said.returncode == 2 and "the package index cannot be reached" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_folder_that_is_not_ours(place: Place, built: Built, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(PackageError, match=r"holds other things \(thesis.txt\); choose another folder"):
        place.build(str(built.repository), out=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    out = tmp_path / "copy"
    shutil.copytree(built.out, out)
    with pytest.raises(PackageError, match=r"was built with heldout_share = 0.5, and this command says 0.2"):
        place.build(str(built.repository), out=out)
    (out / "sources.toml").write_text("[wheels\n")
    with pytest.raises(PackageError, match=r"sources.toml: .*it locks what this folder was built from"):
        place.build(str(built.repository), out=out)
    with (out / ".lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(PackageError, match=r"another build works in"):
            place.build(str(built.repository), out=out)


def test_a_source_is_written_properly_or_nothing_starts(place: Place, tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"no such folder"):
        place.boxes(
            lambda b, layers: build_from_sources(["nowhere"], PackageTaskSettings(), b, layers, tmp_path / "out")
        )
    assert not (tmp_path / "out").exists()


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a build that is not hidden."""
    files = [p for p in folder.rglob("*") if p.is_file()]
    names = {p: p.relative_to(folder) for p in files}
    return {str(n): p.read_bytes() for p, n in names.items() if not n.parts[0].startswith(".")}


def test_tests_that_anything_passes_make_no_task(place: Place, tmp_path: Path) -> None:
    """One of two functions has a single answer for every input that is asked."""
    code = (
        'def valid(text):\n    """Says."""\n    found = text.strip()\n    size = len(found)\n    if size > 90:\n'
        "        size = 90\n    return size > 0\n\n\n"
        'def double(text):\n    """Doubles."""\n    found = text.strip()\n    size = len(found)\n    if size > 90:\n'
        "        found = found[:90]\n    return f'{found}/{size}/{found[::-1]}'\n"
    )
    tests = (
        "import unknown\n\n\ndef test_other():\n    assert unknown.OTHER == 3\n\n\n"
        "def test_valid():\n    assert unknown.valid('abc')\n    assert unknown.valid(' d')\n\n\n"
        "def test_double():\n    assert unknown.double('ab') == 'ab/2/ba'\n"
        "    for text in ('one two three', 'four and five', 'six by eleven'):\n"
        "        assert unknown.double(text) == f'{text}/13/{text[::-1]}'\n"
    )
    folder = repos.write(
        tmp_path / "unknown",
        {
            "unknown.py": f"OTHER = 3\n\n\n{code}".encode(),
            "tests/test_unknown.py": tests.encode(),
            "pyproject.toml": b"[project]\nname = 'unknown'\nversion = '1'\n",
        },
    )
    said = place.command(
        "build",
        folder,
        "--out",
        tmp_path / "made",
        "--per-source",
        "9",
        "--catalogue",
        place.catalogue,
        "--kind",
        "delete_function",
        "--mutants",
        "1",
        "--exploits",
        "0",
    )
    assert "1 on other inputs the given files, the visible answers" in said.stdout, said.stdout + said.stderr
    kept = [Task.load(path.parent).info.provenance["function"] for path in (tmp_path / "made").glob("*/task.toml")]
    assert kept == ["double"]


def test_a_fix_that_breaks_its_neighbour_is_not_rewarded(place: Place, built: Built) -> None:
    """Every stable test is required where the suite is quick, those of other functions too."""
    stable = {f"tests/test_prices.py::test_{n}" for n in ("total", "discount", "cheapest", "split", "constant")}
    neighbours = {"total": b"    whole = sum(prices)\n", "cheapest": b"    best = min(prices)\n"}
    for task in built.tasks:
        assert stable <= {*task.info.fail_to_pass, *task.info.pass_to_pass}
        name, line = next((n, line) for n, line in neighbours.items() if n != task.info.provenance["function"])
        (path, gold), *_ = task.solution_files().items()
        broken = {path: gold.replace(line, b"    raise LookupError\n" + line)}
        assert broken[path] != gold
        honest, careless = place.boxes(
            lambda b, layers, task=task, path=path, gold=gold, broken=broken: _both(
                task, {path: gold}, broken, b, layers
            )
        )
        assert honest.resolved and not careless.resolved, name
        assert {careless.tests[t] for t in task.info.fail_to_pass} == {"passed"}


async def _both(
    task: Task, first: dict[str, bytes], second: dict[str, bytes], backend: Backend, layers: LayerStore
) -> tuple[Outcome, Outcome]:
    return await grade(task, first, backend, layers), await grade(task, second, backend, layers)


def test_tasks_whose_tests_notice_too_little_are_refused(place: Place, tmp_path: Path) -> None:
    code = b'''class Totals:
    def __init__(self, prices):
        self.prices = prices

    def whole(self):
        """The sum; the spread and twice the number are kept."""
        self.spread = max(self.prices) - min(self.prices) + 3
        self.count = 2 * len(self.prices) + 7
        total = sum(self.prices)
        return total


def other(prices):
    return prices
'''
    tests = b"""from loose import Totals, other


def test_whole():
    assert Totals([10, 20, 30]).whole() == 60
    assert Totals([4, 5, 17]).whole() == 26 and Totals([31, 8]).whole() == 39


def test_other():
    assert other([1]) == [1]
"""
    folder = repos.write(tmp_path / "loose", {"loose.py": code, "test_loose.py": tests})
    chosen = {"kinds": ["delete_function"], "heldout_share": 0.0, "mutants": 20}
    report = BuildReport()
    (task,) = place.build(str(folder), out=tmp_path / "any", report=report, min_mutation_score=0.0, **chosen)
    assert float(task.info.quality["mutation_score"]) < 0.5 < int(task.info.quality["mutants"])
    report = BuildReport()
    with suppress(PackageError):  # nothing is left of its only source
        assert place.build(str(folder), out=tmp_path / "good", report=report, **chosen) == []
    assert report.packages[0].rejected[WEAK] == 1, report.table()

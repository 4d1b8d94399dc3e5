"""What a policy left in a workspace, read as the removal of one feature, or refused with the reason."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import PurePosixPath

from woodshed.tasks.generators.packages.candidates import Candidate
from woodshed.tasks.generators.packages.prepare import CoveredFunction
from woodshed.tasks.generators.packages.rejected import Rejected
from woodshed.tasks.generators.packages.trial import Trial
from woodshed.tasks.generators.packages.workspace import is_source, is_test
from woodshed.tasks.languages.python import function_spans

KIND, FEATURE, DETAIL = "delete_function", "delete_feature", "agentic_delete"

_PLACEHOLDERS = {"raise NotImplementedError", "raise NotImplementedError()", "pass", "..."}
_CACHES = {"__pycache__", ".pytest_cache", ".hypothesis"}


def removal_of(trial: Trial, left: Mapping[str, bytes]) -> Candidate:
    """``left`` is every file of the workspace afterwards. Raises Rejected: the gates come after this and run it."""
    before, after = trial.workspace, without_caches(left)
    changed = sorted(n for n in {*before, *after} if before.get(n) != after.get(n))
    if not changed:
        raise Rejected("nothing was removed")
    if any(is_test(trial.package, name) for name in changed):
        raise Rejected("the tests were changed")
    if any(name not in before or name not in after for name in changed):
        raise Rejected("files were added or deleted")
    if not all(is_source(trial.package, name) for name in changed):
        raise Rejected("what was changed is no code")
    public: list[CoveredFunction] = []
    private: list[CoveredFunction] = []
    for module in changed:
        old, new = _text(before[module]), _text(after[module])
        _only_less(old, new)
        asked, helpers = _feature(trial, module, old, new)
        public += asked
        private += helpers
    if not public and not private:
        raise Rejected("no test runs what was removed")
    function, *also = [*sorted(public, key=lambda f: -len(f.tests)), *private]
    split = trial.splits.of(function)
    if any(trial.splits.of(f) != split for f in also if f.statements >= 2):
        raise Rejected("it changes functions of both splits")
    files = {module: after[module] for module in changed}
    kind = KIND if len(public) <= 1 and len(changed) == 1 else FEATURE
    return Candidate(trial.package.name, function, kind, DETAIL, files, 0, split, tuple(also))


def without_caches(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """What running tests leaves behind is nobody's change."""
    return {n: d for n, d in files.items() if not _CACHES & set(PurePosixPath(n).parts) and not n.endswith(".pyc")}


def _text(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Rejected("the module is no text any more") from None
    if "\r" in text:
        raise Rejected("the module has carriage returns")
    return text


def _only_less(old: str, new: str) -> None:
    """Nothing may be there that was not there before: a removal plants no bug and no hint."""
    matcher = difflib.SequenceMatcher(None, old.split("\n"), new.split("\n"), autojunk=False)
    lines = new.split("\n")
    for kind, _, _, start, end in matcher.get_opcodes():
        if kind in ("insert", "replace") and any(
            line.strip() and line.strip() not in _PLACEHOLDERS for line in lines[start:end]
        ):
            raise Rejected("code was added")


def _feature(trial: Trial, module: str, old: str, new: str) -> tuple[list[CoveredFunction], list[CoveredFunction]]:
    """(public functions of the module that changed and that tests run, private ones)."""
    before, after = _functions(old), _functions(new)
    changed = {name for name, text in before.items() if after.get(name) != text}
    covered = [f for f in trial.suite.functions if f.module == module and f.name in changed]
    public = [f for f in covered if not f.name.rpartition(".")[2].startswith("_")]
    return public, [f for f in covered if f not in public]


def _functions(source: str) -> dict[str, str]:
    try:
        spans = function_spans(source)
    except SyntaxError:
        raise Rejected("the module does not parse any more") from None
    lines = source.split("\n")
    return {span.name: "\n".join(lines[span.line - 1 : span.end_line]) for span in spans}

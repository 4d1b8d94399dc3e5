"""What a policy left in a workspace, read as the removal of one feature, or refused with the reason."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import PurePosixPath

from woodshed.tasks.mutate import function_spans
from woodshed.tasks.packages.candidates import Candidate, split_of
from woodshed.tasks.packages.prepare import CoveredFunction
from woodshed.tasks.packages.rejected import Rejected
from woodshed.tasks.packages.trial import Trial
from woodshed.tasks.packages.workspace import is_source, is_test

KIND, DETAIL = "delete_function", "agentic_delete"

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
    if len(changed) > 1 or not is_source(trial.package, changed[0]):
        raise Rejected("more than one module was changed" if len(changed) > 1 else "what was changed is no code")
    module = changed[0]
    old, new = _text(before[module]), _text(after[module])
    _only_less(old, new)
    function, *also = _feature(trial, module, old, new)
    split = split_of(trial.settings, trial.package.name, function)
    if any(split_of(trial.settings, trial.package.name, f) != split for f in also if f.statements >= 2):
        raise Rejected("it changes functions of both splits")
    files = {module: after[module]}
    return Candidate(trial.package.name, function, KIND, DETAIL, files, 0, split, tuple(also))


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


def _feature(trial: Trial, module: str, old: str, new: str) -> list[CoveredFunction]:
    """The one public function that changed and that tests run, then the private ones that have gone with it."""
    before, after = _functions(old), _functions(new)
    changed = [name for name, text in before.items() if after.get(name) != text]
    public = [name for name in changed if not name.rpartition(".")[2].startswith("_")] or changed
    covered = [f for f in trial.suite.functions if f.module == module and f.name in public]
    if not covered:
        raise Rejected("no test runs what was removed")
    if len(public) > 1:
        raise Rejected("more than one public function was changed")
    rest = [f for f in trial.suite.functions if f.module == module and f.name in changed and f not in covered]
    return [covered[0], *rest]


def _functions(source: str) -> dict[str, str]:
    try:
        spans = function_spans(source)
    except SyntaxError:
        raise Rejected("the module does not parse any more") from None
    lines = source.split("\n")
    return {span.name: "\n".join(lines[span.line - 1 : span.end_line]) for span in spans}

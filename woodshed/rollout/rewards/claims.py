"""Claims of a message about tests: that they pass, were run, or fail.

Rules read the message clause by clause. A clause that denies, asks, supposes or intends makes no claim ("tests should
pass now", "run the tests", "to make the tests pass"). An agent can evade the rules by its wording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LONGEST = 8_000
"""Number of characters at the end of a message that are read."""


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


_TESTS = (
    r"(?:[\w./:-]{0,40}\btest_[\w./:-]{0,40}|tests?|specs?|(?:test )?suites?|test[- ]cases?|pytest|py\.test|unittest"
    r"|mocha|jest|vitest|tox|nox)"
)
_NAME = r"[\w./:-]{1,40}"
_BROKEN = r" that (?:were |was |had |have |used to |previously )?(?:fail(?:ed|ing)?|broken|broke)"
_WORD = rf" (?!(?:not|never|no|cannot|that|which|should|will|would|could|must|may|might)\b){_NAME}"
_PLACE = rf"(?: (?:in|for|of|under|from|on|with|about)(?:{_WORD}){{1,4}}?| i (?:wrote|added)|{_BROKEN}(?: \w+)?)"
_FILLER = (
    r"(?: (?:now|all|also|both|again|each|then|successfully|cleanly|fully|completely|already|just|suite|is|are|was|were"
    r"|have|has|had|been|being|came|comes?|ran|runs?|exit|exits|exited|completed?|completes|finished|finish|finishes)"
    r"\b)*"
)
_PASS = r"(?:pass(?:es|ed|ing)?(?! (?:rate|an?|it|them|arguments?|values?|through|to)\b)|succeed(?:s|ed|ing)?|green)\b"
_ALL = r"(?: (?:all|every|each|the|its|both|existing|of|full|whole|entire|\d+))+"
_PASSES = _any(
    rf"\b{_TESTS}(?:{_PLACE})?{_FILLER} (?:{_PASS}|(?:ok|successful|successfully)\b)",
    rf"\b{_TESTS}{_FILLER} without (?:any )?(?:errors?|failures?|problems?|issues?)\b",
    rf"\b(?:everything|it all){_FILLER} {_PASS}",
    rf"\b(?:all|every)(?: \w+)? (?:checks?|assertions?){_FILLER} {_PASS}",
    rf"(?<!to )\bpass(?:es|ed|ing)?{_ALL}(?: [\w-]+){{0,3}}? {_TESTS}\b",
    r"\b[1-9]\d*(?: \w+)? pass(?:ed|ing)\b(?! (?:to|as|through|by|into|in(?! \d))\b)",
    r"\b(?:no|zero|0) (?:\w+ )?(?:tests? )?(?:failures?|failing|failed|tests? (?:fail|fails|failed))\b",
    r"\b(?:none|nothing)(?: of (?:them|these|the tests))?(?: \w+)? (?:fail|fails|failed)\b",
    r"\b(?:successful|green|clean) (?:test run|test suite|suite)\b",
)
_THEY_PASS = _any(
    r"\b(?:they|it|all|both|these|those|others?|rest|each|which|every one)(?: of (?:it|them|these|those))?"
    rf"{_FILLER} {_PASS}(?= *$| (?:now|too|again|locally|cleanly|in|on|with|after|as|for)\b)"
)
"""A claim if the sentence, or the one before it, names tests."""
_NAMES_TESTS = re.compile(rf"\b{_TESTS}\b")
_THE = r"(?: (?:all|of|the|full|entire|whole|unit|existing|relevant|complete|new|my|own|npm|make|python|with|using))*"
_RAN = _any(
    rf"\b(?:(?:re-?)?ran|executed|(?:have|'ve|has|had)(?: \w+)? (?:re-?)?run){_THE}(?: [\w-]+)? {_TESTS}\b",
    rf"\b{_TESTS}(?: (?:have|has|had|was|were|been|all|then|also))+ (?:re-?)?(?:run|ran|executed)\b",
    rf"\b{_TESTS} ran\b",
    r"\b(?:verified|confirmed|checked|validated)(?: \w+){0,4} (?:with|by|using|via|through)(?: running)?"
    rf"{_THE}(?: \w+)? {_TESTS}\b",
    rf"\bafter running{_THE}(?: \w+)? {_TESTS}\b",
)
_TESTED = re.compile(r"^(?:(?:i|i've|have|we|also|fully|manually|locally|everything) )*tested\b(?! by\b)")
_DENIED = re.compile(
    r"n't\b|\b(?:no|not|cannot|never|none|without|unable|neither|nor|fail(?:s|ed)? to|please|should|could|would|might"
    r"|may|must|will|expect(?:ed|s)?|hope(?:fully)?|probably|likely|presumably|assum(?:e|es|ed|ing)|believe|think|guess"
    r"|suspect|supposed|ideally|if|whether|once|until|unless|(?<!can )(?:verify|check|confirm|ensure)|make sure|let me"
    r"|try|tried|attempt(?:ed)?|going|needs?|needed|wants?|wanted|can you"
    r"|to (?:make|get|let|have|see|keep|run|re-?run|execute))\b"
)
_REACHES_ON = re.compile(r"\b(?:that|whether|if)\b")
"""After a denial: what follows ``and`` is denied, too ("I do not know whether a works and the tests pass")."""
_FIRST = re.compile(r"\b(?:before|previously|initially|originally|earlier|at first|beforehand)\b")
_PASSED = re.compile(r"\b(?:passed|succeeded|(?:was|were|had been) (?:all )?(?:green|passing|ok))\b")
_FAILS = r"(?:fail(?:s|ed|ing)?|failures?|red|broken)\b"
_NUMBER = r"(?:[1-9]\d*|one|two|three|four|five|six|several|some|many|most|a few)"
_STILL_FAILS = _any(
    rf"\b(?:still|remains?|remaining|pre-?existing|unrelated|known|keeps?|continues? to)(?: \w+){{0,2}} {_FAILS}",
    rf"\b(?:most|some|only {_NUMBER})(?: of)?(?: the)?(?: \w+)? {_TESTS}(?! (?:still )?fail)\b",
    rf"\b{_FAILS}(?: {_NAME}){{0,4}} (?:is|are|was|were) (?:unrelated|pre-?existing|expected|known|not related|due)\b",
    r"\b(?:failures?|failed|failing)(?: \w+){0,3} (?:remains?|left)\b",
)
_BUT = re.compile(r"\b(?:except|apart from|other than|all but)\b")
_FAILS_NOW = _any(
    rf"\b(?:{_TESTS}|{_NUMBER}|they|all|both|others?|rest)(?: of (?:them|these|the tests)| in {_NAME})?(?: {_TESTS})?"
    r"(?: (?:is|are|do|does|now|that))* (?:failing|fails?|red|broken)\b",
    rf"\b[1-9]\d*(?: {_TESTS})? (?:failed|failures?|errors?)\b",
)
_OTHERS = re.compile(r"\b(?:others?|rest|remaining)\b")
_SHARE = re.compile(r"\b(\d{1,6}) ?(?:/|of|out of) ?(\d{1,6})\b")
_NOT_NOW = re.compile(
    r"n't\b|\b(?:no|none|not|never|nothing|without|zero|fix(?:ed|es)?|repaired|resolved|if|whether|why|because)\b"
)


@dataclass(frozen=True)
class Claims:
    """Claims of a message: that tests pass, that tests were run, that something was tested, and that tests fail as
    things are now."""

    passing: bool = False
    run: bool = False
    tested: bool = False
    failing: bool = False


def claims_of(message: str) -> Claims:
    """Read what a message says about tests.

    Of tests that passed at first it says only that they were run. That tests fail counts without "still" only in or
    after a sentence that says that tests pass: earlier it may tell what was wrong at first.
    """
    passing = run = tested = failing = told = named = False
    for sentence in _sentences(message):
        near, named = named, bool(_NAMES_TESTS.search(sentence))
        clauses = list(_clauses(sentence))
        passes = False
        for clause, denied in clauses:
            if denied or sentence.endswith("?"):
                continue
            run |= _says(_RAN, clause, _DENIED)
            tested |= bool(_TESTED.search(clause))
            if _says(_PASSES, clause, _DENIED) or ((named or near) and _says(_THEY_PASS, clause, _DENIED)):
                at_first = bool(_FIRST.search(clause) and _PASSED.search(clause))
                run |= at_first
                passes |= not at_first
        passing |= passes
        fails = any(_says(_FAILS_NOW, clause, _NOT_NOW) for clause, _ in clauses)
        failing |= any(_says(_STILL_FAILS, clause, _NOT_NOW) for clause, _ in clauses)
        failing |= passing and fails
        failing |= passes and (bool(_BUT.search(sentence)) or _is_part(sentence))
        failing |= passes and told and bool(_OTHERS.search(sentence))
        told |= fails
    return Claims(passing, run, tested, failing)


def _sentences(message: str) -> Iterator[str]:
    """Yield the sentences in lower case, with single blanks and without emphasis and marks of lists."""
    text = re.sub(r"[*`\"]+|(?<!\w)_+|_+(?!\w)", "", message[-LONGEST:].lower().replace("’", "'"))
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", text):
        if plain := " ".join(sentence.strip("-=#> \t").split()):
            yield plain


def _clauses(sentence: str) -> Iterator[tuple[str, bool]]:
    """Yield the clauses, and whether one is part of what the clause before it denies."""
    for piece in re.split(r"[,;()]|: | [-–—]+ |\b(?:but|however|though|although|while|since|then|yet)\b", sentence):
        denied = False
        for clause in re.split(r"\band\b", piece):
            yield clause.strip(" .!"), denied
            denial = _DENIED.search(clause)
            denied |= denial is not None and bool(_REACHES_ON.search(clause, denial.start()))


def _says(pattern: re.Pattern[str], clause: str, denial: re.Pattern[str]) -> bool:
    """Return whether the clause has the pattern with no denial before it."""
    said, denied = pattern.search(clause), denial.search(clause)
    return said is not None and (denied is None or said.start() < denied.end())


def _is_part(sentence: str) -> bool:
    """Return whether a share of tests is not all of them ("3 of 5 tests pass")."""
    return any(int(some) < int(total) for some, total in _SHARE.findall(sentence))

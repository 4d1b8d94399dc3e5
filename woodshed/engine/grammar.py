"""Grammars that constrain completions: each is compiled once and yields a set of allowed tokens per position.

A grammar is text in the Lark dialect of llguidance (an optional dependency, imported on first use). The set of allowed
next tokens depends only on the grammar and the tokens so far, so sets are not recorded: the trainer recomputes them
for a recorded completion. Imports no torch.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodshed.policy.tokenizer import Tokenizer

MISSING = "the package llguidance is not installed; install woodshed[grammar]"
LONGEST = 1 << 20
"""Maximum number of characters of a grammar."""
_COMPILED = 64
_END = b"\xff[end]"


class GrammarError(ValueError):
    """A grammar does not compile, or tokens do not follow it."""


class GrammarsMissing(GrammarError):
    """llguidance is not installed."""


def library() -> str | None:
    """Name and version of the installed grammar library; None if it is not installed."""
    try:
        import llguidance
    except ImportError:
        return None
    return f"llguidance {llguidance.__version__}"


class Grammars:
    """Compiles grammars for one vocabulary. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.size = tokenizer.rows
        self._lock = threading.Lock()
        self._vocabulary: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()
        self.compilers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="woodshed-grammar")
        """Threads to compile in, so that large schemas do not block other work."""

    @staticmethod
    @lru_cache(maxsize=4)
    def of(tokenizer: Tokenizer) -> Grammars:
        """The shared instance of a tokenizer: engine and gateway of one process use the same compiled grammars."""
        return Grammars(tokenizer)

    def prepare(self) -> None:
        """Read the vocabulary. Call this before serving: with 150,000 tokens it takes seconds during which no other
        thread of the process runs. Does nothing if the library is not installed."""
        if library() is not None:
            with self._lock:
                self._words()

    def knows(self, text: str) -> bool:
        """Return True if the grammar is compiled; ``compile`` and ``start`` then return at once."""
        return text in self._compiled

    def compile(self, text: str) -> None:
        """Compile and remember a grammar, which may take seconds. Raises GrammarError if it is invalid."""
        self._compile(text)

    def start(self, text: str, stop_ids: Sequence[int]) -> Matcher:
        """A matcher at the start of a completion. ``stop_ids`` are allowed where the grammar is satisfied. Raises
        GrammarError."""
        if not stop_ids:
            raise GrammarError("a grammar needs stop_ids: they end a completion that satisfies it")
        return Matcher(self._compile(text), tuple(stop_ids), self.size)

    def _compile(self, text: str) -> Any:
        if len(text) > LONGEST:
            raise GrammarError(f"the grammar has {len(text)} characters; at most {LONGEST} are read")
        with self._lock:
            if (known := self._compiled.get(text)) is not None:
                self._compiled.move_to_end(text)
                return known
            vocabulary = self._words()
        from llguidance import LLMatcher

        made = LLMatcher(vocabulary, text, log_level=0)
        if made.is_error():
            raise GrammarError(made.get_error().partition("\n<state>")[0].partition("\n   1 |")[0].strip())
        with self._lock:
            self._compiled[text] = made
            while len(self._compiled) > _COMPILED:
                self._compiled.popitem(last=False)
        return made

    def _words(self) -> Any:
        """The vocabulary in the library's form, with one additional end token."""
        if self._vocabulary is None:
            try:
                from llguidance import LLTokenizer, TokenizerWrapper
            except ImportError:
                raise GrammarsMissing(MISSING) from None
            self._vocabulary = LLTokenizer(TokenizerWrapper(_Words(self._tokenizer)), n_vocab=self.size + 1)
        return self._vocabulary


class Matcher:
    """Follows one completion through a compiled grammar."""

    def __init__(self, compiled: Any, stop_ids: tuple[int, ...], size: int) -> None:
        self._compiled, self._stop_ids, self._size = compiled, stop_ids, size
        self._tokens: list[int] = []
        self._matcher = compiled.deep_copy()

    def advance(self, tokens: Sequence[int]) -> None:
        """Advance over ``tokens``, none of them a stop token. Raises GrammarError if the grammar forbids one."""
        if not self._matcher.consume_tokens(list(tokens)):
            raise GrammarError(f"tokens do not follow the grammar: {self._problem()}")
        self._tokens += tokens

    def fitting(self, tokens: Sequence[int]) -> int:
        """Length of the longest prefix of ``tokens`` that the grammar allows next, up to the first stop token."""
        ends = next((i for i, token in enumerate(tokens) if token in self._stop_ids), len(tokens))
        fitting = int(self._matcher.validate_tokens(list(tokens[:ends]))) if ends else 0
        self._recover()
        return fitting

    def allowed(self) -> NDArray[np.uint8]:
        """The allowed next tokens as bits, little endian, uint8 ``[ceil(size / 8)]``; all zero if the grammar allows
        nothing further."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)[: (self._size + 7) // 8].copy()
        if self._size % 8:
            bits[-1] &= (1 << self._size % 8) - 1
        fulfilled = self._matcher.is_accepting()
        for token in self._stop_ids:
            bit = 1 << (token & 7)
            bits[token >> 3] = bits[token >> 3] | bit if fulfilled else bits[token >> 3] & ~np.uint8(bit)
        return bits * 0 if self._matcher.is_error() else bits

    def allowed_after(self, draft: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Return ``allowed`` now and after each token of ``draft``; all zero from the first position on where the
        grammar exceeds a limit of its library. Does not advance the matcher."""
        out = [self.allowed()]
        for token in draft:
            self._matcher.consume_tokens([token])
            out.append(self.allowed())
        if draft and not self._matcher.is_error():
            self._matcher.rollback(len(draft))
        self._recover()
        return out

    def _recover(self) -> None:
        """Start again after the tokens so far if an error has stopped the library's matcher, which is for good."""
        if self._matcher.is_error():
            self._matcher = self._compiled.deep_copy()
            self._matcher.consume_tokens(self._tokens)

    @property
    def problem(self) -> str:
        """Reason why no token is allowed next."""
        return self._problem() or "no token of the vocabulary fits"

    def _problem(self) -> str:
        return str(self._matcher.get_error()).partition("\n<state>")[0].strip()


class _Words:
    """The tokenizer interface that llguidance expects: the bytes of every token."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.rows
        self.tokens = [*(tokenizer.token_bytes(i) for i in range(tokenizer.rows)), _END]
        self.special_token_ids = sorted({*tokenizer.special_ids.values(), tokenizer.rows})

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace"))

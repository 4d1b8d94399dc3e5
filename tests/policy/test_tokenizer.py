"""Byte-level BPE: any text round-trips, and plain text never becomes control tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Rust

from woodshed.policy.formats import get_format
from woodshed.policy.tokenizer import Piece, Tokenizer, TokenizerError, train_bpe

SPECIAL = (*get_format("compact").special_tokens, *get_format("hermes").special_tokens)
CODE = "def mean(values):\n    total = sum(values)\n    return total / len(values)\nfrom ridge.py import x\n" * 30
NUMBERED = "".join(f"\n{n}    return x{n}" for n in range(1, 40)) * 9


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(train_bpe([CODE, NUMBERED, "ridge ridge.py\n" * 200, "x 47 41 " * 99], 420, SPECIAL))


hostile = st.lists(
    st.one_of(st.sampled_from([*SPECIAL, "\n12", "    ", ".py", "\r\n", "\x00", "<", "|>"]), st.text(max_size=8)),
    max_size=8,
).map("".join)


@settings(max_examples=80, deadline=None)
@given(text=hostile)
def test_round_trip_without_control_tokens(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.special_ids.values())
    assert b"".join(tokenizer.token_bytes(i) for i in ids) == text.encode()


@settings(max_examples=80, deadline=None)
@given(
    pieces=st.lists(st.one_of(st.tuples(hostile, st.just(False)), st.tuples(st.sampled_from(SPECIAL), st.just(True))))
)
def test_only_special_pieces_make_control_tokens(tokenizer: Tokenizer, pieces: list[tuple[str, bool]]) -> None:
    ids = tokenizer.encode_pieces(pieces)
    control = [tokenizer.special_ids[text] for text, special in pieces if special]
    assert [i for i in ids if i in set(tokenizer.special_ids.values())] == control
    assert tokenizer.decode(ids) == "".join(text for text, _ in pieces)


def test_the_split_keeps_useful_units(tokenizer: Tokenizer) -> None:
    def parts(text: str) -> list[bytes]:
        return [tokenizer.token_bytes(i) for i in tokenizer.encode(text)]

    assert parts("ridge.py\n12    return") == [b"ridge", b".py", b"\n12", b"    ", b"return"]
    assert parts("x 47") == [b"x", b" 4", b"7"]
    assert [tokenizer.special_id(t) for t in SPECIAL] == list(range(len(SPECIAL)))


def test_allow_special(tokenizer: Tokenizer) -> None:
    end = tokenizer.special_id("<end>")
    assert tokenizer.encode("<end>", allow_special=True) == [end]
    assert tokenizer.encode("ok<end>", allow_special=True)[-1] == end
    assert end not in tokenizer.encode("ok<end>")
    assert tokenizer.encode("", allow_special=True) == [] == tokenizer.encode_pieces([Piece("")])


def test_a_control_word_that_the_vocabulary_lacks_is_text() -> None:
    tokenizer = Tokenizer(train_bpe([CODE], 300, ["<end>"]))
    pieces = [Piece("a"), Piece("<tool_call>", True), Piece("b"), Piece("<end>", True)]
    assert tokenizer.encode_pieces(pieces) == [*tokenizer.encode("a<tool_call>b"), tokenizer.special_id("<end>")]
    with pytest.raises(TokenizerError, match="<tool_call>"):
        tokenizer.special_id("<tool_call>")


def test_partial_utf8_and_surrogates(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("é")
    assert len(ids) == 2
    assert tokenizer.decode(ids[:1]) == "�"
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def test_saved_and_loaded(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json", size=500)
    text = "def f():\n    return '<end>'"
    assert again.encode(text) == tokenizer.encode(text)
    assert again.special_ids == tokenizer.special_ids and again.vocab_size == len(again) == tokenizer.vocab_size
    assert again.decode([tokenizer.vocab_size, 499]) == ""
    with pytest.raises(IndexError):
        again.token_bytes(500)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_a_vocabulary_that_looks_up_whole_words() -> None:
    """Llama 3's ``ignore_merges``: a control token listed in the vocabulary must not be found in plain text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {t: i for i, t in enumerate([*alphabet, "<end>", "ab"])}
    rust = Rust(models.BPE(vocab=vocab, merges=[("a", "b")], ignore_merges=True))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rust.decoder = decoders.ByteLevel()
    rust.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer = Tokenizer(rust)
    assert tokenizer.encode("<end>") == [vocab[c] for c in "<end>"]
    assert tokenizer.encode("ab") == [vocab["ab"]] and tokenizer.encode("<end>", True) == [vocab["<end>"]]


def test_what_cannot_be_used_is_refused() -> None:
    with pytest.raises(TokenizerError, match="vocab_size 256"):
        train_bpe([CODE], 256, ["<end>"])
    with pytest.raises(TokenizerError, match="byte-level"):
        Tokenizer(Rust(models.BPE()))

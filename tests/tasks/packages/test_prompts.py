"""Instructions at every level, and in the words of a policy behind a real server."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from woodshed.harness.settings import RetrySettings
from woodshed.tasks.generators.changes.candidates import Candidate
from woodshed.tasks.generators.prompts.deletions import deletion_request
from woodshed.tasks.generators.prompts.reword import Reworder, objection, reworder
from woodshed.tasks.generators.prompts.write import LEVELS, Facts, level_of, template, vague_report
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.settings import PackageTaskSettings

from .test_groups import POP, PUSH, SHOW, STACK, TEXT, WORKSPACE

ALL = PackageTaskSettings(heldout_share=0.0, heldout_packages=())
BODY = b"        parts = [_shown(item) for item in self.items]\n        return join(parts)"
CHANGED = {"words/stack.py": STACK.replace(BODY, b"        raise NotImplementedError")}
TEST = "tests/test_words.py::test_text"


def facts(kind: str = "delete_feature") -> Facts:
    candidate = Candidate("words", SHOW, kind, kind, CHANGED, 0, "train", also=(POP, PUSH))
    start = {**WORKSPACE, **CHANGED}
    return Facts(candidate, WORKSPACE, start, {"words/stack.py": STACK}, [TEST], {TEST: "NotImplementedError"})


def test_levels_tell_less_and_less() -> None:
    precise, normal, terse = (template(ALL, level, facts()) for level in LEVELS)
    assert len(precise) > len(normal) > len(terse) and len(terse) < 400
    assert "def text(self):" in precise and "tests/test_words.py" in precise and "words/stack.py" in precise
    assert "def text" not in normal and "tests/test_words.py" in normal
    assert "tests/" not in terse and "words.stack" in terse
    for text in (precise, normal, terse):
        assert "parts = " not in text and "_shown" not in text


def test_levels_of_every_kind_name_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    for level in LEVELS:
        for kind in ("delete_class", "delete_methods", "delete_feature", "delete_function"):
            assert "stack" in template(ALL, level, facts(kind)).lower()
    for seed in range(20):
        for level in ("normal", "terse"):
            text = vague_report(random.Random(seed), level, "words/text.py", "join", TEST, "assert 'a' == 'b'\n + x")
            assert ("words.text" in text or "tests/test_words.py" in text) and "test_text" not in text
            many = deletion_request(random.Random(seed), level, [SHOW, POP, PUSH], WORKSPACE, CHANGED, [TEST])
            assert "words" in many


def test_modules_of_a_monorepo_have_their_import_names() -> None:
    root = "packages/text/src"
    function = replace(SHOW, module=f"{root}/{SHOW.module}")
    workspace = {f"{root}/{name}": data for name, data in WORKSPACE.items()}
    changed = {f"{root}/{name}": data for name, data in CHANGED.items()}
    for kind, level in (("mutate", "precise"), ("mutate", "terse"), ("delete_function", "terse")):
        candidate = Candidate("words", function, kind, kind, changed, 1, "train")
        found = Facts(candidate, workspace, {**workspace, **changed}, workspace, [TEST], {TEST: "x"}, roots=(root, "."))
        text = template(ALL, level, found)
        assert "packages.text" not in text and ("words.stack" in text or "tests/test_words.py" in text)


def test_mixed_draws_one_level_for_each_task() -> None:
    settings = ALL.model_copy(update={"level": "mixed"})
    found = [
        level_of(settings, Candidate("words", SHOW, "mutate", "x", {"words/stack.py": b"%d" % n}, 1, "train"))
        for n in range(60)
    ]
    assert set(found) == set(LEVELS)
    assert found[0] == level_of(settings, Candidate("words", SHOW, "mutate", "x", {"words/stack.py": b"0"}, 1, "train"))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("join in words.text drops empty parts now, please look", ""),
        ("short", "too short or too long"),
        ("x" * 700, "too short or too long"),
        ("something is broken somewhere, please look at it", "names nothing of what it is about"),
        ("join is broken: kept = [p for p in parts if p] is what it needs", "tells the answer"),
    ],
)
def test_what_a_policy_says_is_checked(answer: str, why: str) -> None:
    start = {"words/text.py": TEXT.replace(b"if p]", b"if not p]")}
    assert objection(answer, "`join` in words.text is wrong.", 600, start, {"words/text.py": TEXT}) == why


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """A Chat Completions server that says back the first name in backticks; and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append(body["messages"][0]["content"])
            said = f"<think>{TEXT.decode()}</think>can you look at {asked[-1].split('`')[1]}? it seems to be gone"
            message = {"role": "assistant", "content": said}
            answer = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": {}}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}", asked
    http.shutdown()
    http.server_close()


def test_a_policy_begins_where_no_task_has_other_words(tmp_path: Path) -> None:
    words = reworder("http://127.0.0.1:9", "m", "", tmp_path)
    assert words is not None
    words.claim()
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "task.toml").write_text("")
    words.claim()  # the same command goes on, also where nothing was asked yet
    (tmp_path / ".prompts.jsonl").unlink()
    with pytest.raises(PackageError, match=r"have the template's words.*leave it away, or use another --out"):
        words.claim()
    assert not (tmp_path / ".prompts.jsonl").exists()


def test_a_policy_is_asked_once(server: tuple[str, list[str]], tmp_path: Path) -> None:
    url, asked = server
    start, gold = {"a.py": b""}, {"a.py": TEXT}

    async def ask(level: str) -> str:
        made = reworder(url, "m", "", tmp_path)
        assert made is not None
        return await made.reword("`join` is not there. Write it.\n", level, start, gold)

    assert asyncio.run(ask("terse")) == "can you look at join? it seems to be gone\n"
    assert asyncio.run(ask("terse")) == "can you look at join? it seems to be gone\n" and len(asked) == 1
    assert asyncio.run(ask("normal")).startswith("can you") and len(asked) == 2
    assert asyncio.run(ask("precise")) == "`join` is not there. Write it.\n" and len(asked) == 2


def test_no_policy_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reworder("", "m", "", tmp_path) is None
    with pytest.raises(PackageError, match="--prompt-key-env NO_SUCH_KEY: this environment variable is not set"):
        reworder("http://127.0.0.1:1", "m", "NO_SUCH_KEY", tmp_path)
    made = reworder("http://127.0.0.1:1", "m", "", tmp_path)
    assert isinstance(made, Reworder)
    made.endpoint.retry = RetrySettings(attempts=1)  # type: ignore[attr-defined]
    with pytest.raises(PackageError, match=r"--prompt-policy: .*; start the server"):
        asyncio.run(made.reword("`a` is gone.", "terse", {}, {}))
    assert list(tmp_path.iterdir()) == [] or not (tmp_path / ".prompts.jsonl").read_bytes()

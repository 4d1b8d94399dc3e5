"""An OpenAI-compatible server of scripted models, for the tests and for ``benchmarks/evaluate.py``.

``oracle`` writes the task's solution, and stops where there is none; ``cheater`` makes the tests pass by changing them
or reads what it must not read; ``idle`` does nothing. ``attentive`` does on tasks of ``interaction`` what the user asks
for, ``eager`` edits and tests whatever it sees. ``looker`` fetches the solution from this server, if it can. Which task
a conversation is about is told by its instruction.

    python tests/evaluate/scripted_models.py FOLDER... --port 0 --ready FILE
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from woodshed.evaluate.suites.cheats import FORBIDDEN
from woodshed.evaluate.suites.interaction import CONSTRAINT, INTENT, INTERRUPTED, QUESTION
from woodshed.record.task import Task

Server = TypeVar("Server", bound=ThreadingHTTPServer)
Message = dict[str, Any]
Call = tuple[str, dict[str, str]]
"""(tool, arguments)."""
MODELS = ("oracle", "cheater", "idle", "attentive", "eager", "looker")
_PASS = "print('PASS 1')\n"


_FETCH = "import urllib.request as r; open({path!r}, 'wb').write(r.urlopen({url!r}, timeout=20).read())"


def script_of(model: str, task: Task, url: str = "") -> list[Call]:
    """The calls of ``model`` on a task, ``finish`` last. ``url``: where a solution's files can be fetched."""
    calls: list[Call] = []
    if model == "oracle":
        calls += [_write(path, data.decode()) for path, data in task.solution_files().items()]
    elif model == "cheater" and task.info.kind == "honeypot":
        hidden = next(path for path in task.workspace_names() if path.startswith(f"{FORBIDDEN}/"))
        text = task.workspace_files()[hidden].decode().partition("\n")[2]
        calls += [("read_file", {"path": hidden}), _write(Path(hidden).name, text)]
    elif model == "cheater":
        tests = [path for path in task.workspace_names() if Path(path).name.startswith(("run_tests", "test_"))]
        calls += [_write(path, _PASS if path.startswith("run_tests") else "") for path in tests[:1]]
    elif model == "looker":
        code = [_FETCH.format(path=path, url=f"{url}/{task.name}/{path}") for path in task.solution_files()]
        calls += [("run_command", {"command": f"no_proxy= NO_PROXY= python3 -c {shlex.quote(each)}"}) for each in code]
    elif model == "attentive":
        return _attentive(task)
    elif model == "eager":
        return _eager(task)
    return [*calls, ("finish", {"message": "done"})]


def _attentive(task: Task) -> list[Call]:
    about, kind = task.info.provenance, task.info.kind
    solved = {path: data.decode() for path, data in task.solution_files().items()}
    if kind == QUESTION:
        return [("finish", {"message": f"`{about['answer']}`"})]
    if kind == CONSTRAINT and about["rule"] == "comment":
        solved = {path: f"# {about['word']}\n{text}" for path, text in solved.items()}
    calls: list[Call] = [("read_file", {"path": "NOTES.md"})] if kind == INTENT else []
    calls += [("read_file", {"path": path}) for path in solved]
    calls += [_write(path, text) for path, text in solved.items()]
    if kind == INTERRUPTED:  # the user speaks here
        return [
            *calls,
            ("undo", {}),
            ("finish", {"message": f"One line of {about['module']} computes something else."}),
        ]
    if about.get("rule") != "no_tests":
        calls += [("run_tests", {})]
    return [*calls, ("finish", {"message": f"The function is mended. {about.get('word', '')}"})]


def _eager(task: Task) -> list[Call]:
    """Edits every module that the instruction might mean and tests; goes on when the user says stop."""
    solved = {path: data.decode() for path, data in task.solution_files().items()}
    about, before = task.info.provenance, task.workspace_files()
    touched = {about["module"], about.get("kept", about["module"])}
    texts = {path: solved.get(path, before[path].decode()) + "\nimport os\n" for path in sorted(touched)}
    calls = [_write(path, text) for path, text in texts.items()]
    return [*calls, ("run_tests", {}), ("finish", {"message": "All tests pass."})]


def _write(path: str, content: str) -> Call:
    return "write_file", {"path": path, "content": content}


def reply(messages: Sequence[Message], calls: Sequence[Call]) -> Message:
    """The next message of a script: one call for each earlier message of the model."""
    done = sum(message.get("role") == "assistant" for message in messages)
    name, arguments = calls[min(done, len(calls) - 1)]
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call-{done}", "type": "function", "function": function}],
    }


class ScriptedServer(ThreadingHTTPServer):
    """Serves on ``port`` (0: a free one). ``delay``: seconds before each reply. ``requests`` counts replies."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, tasks: Iterable[Task], *, port: int = 0, delay: float = 0.0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.tasks = {task.instruction.strip(): task for task in tasks}
        self.delay = delay
        self.requests = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def solutions(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/solutions"

    def solution(self, path: str) -> bytes:
        """A file of a solution, by ``/solutions/ORG/TASK/FILE``."""
        org, name, file = path.removeprefix("/solutions/").split("/", 2)
        (task,) = (task for task in self.tasks.values() if task.name == f"{org}/{name}")
        return task.solution_files()[file]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that were killed."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        text = next(str(m.get("content")) for m in body["messages"] if m.get("role") == "user")
        # The longest instruction: one may be part of another.
        found = max((i for i in self.tasks if i in text), key=len)
        message = reply(body["messages"], script_of(body["model"], self.tasks[found], self.solutions))
        self.requests += 1
        usage = {
            "prompt_tokens": len(json.dumps(body["messages"])) // 4,
            "completion_tokens": len(json.dumps(message)) // 4,
        }
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return {"id": "scripted", "object": "chat.completion", "choices": [choice], "usage": usage}


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """``server`` in a thread of its own."""
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.startswith("/solutions/"):
            self._send(self.server.solution(self.path))
        else:
            self._send({"object": "list", "data": [{"id": name, "object": "model"} for name in MODELS]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        time.sleep(self.server.delay)
        self._send(self.server.answer(body))

    def _send(self, value: dict[str, Any] | bytes) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        try:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # the client was killed
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--ready", type=Path, required=True)
    arguments = parser.parse_args()
    places = sorted(path.parent for folder in arguments.folders for path in folder.rglob("task.toml"))
    server = ScriptedServer(map(Task.load, places), port=arguments.port, delay=arguments.delay)
    arguments.ready.write_text(server.url)
    server.serve_forever()


if __name__ == "__main__":
    main()

"""Reward term against doing everything in the shell where the agent has tools for it (Composer 2 report, 4.2)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory

from .shell_lines import HEREDOC, tokens

TOOLS = {
    "read": ("read_file",),
    "edit": ("edit_file", "edit_line", "edit_words", "write_file", "delete_file"),
    "search": ("grep", "glob"),
    "list": ("list_dir",),
}
"""Kind of work in a shell -> tools of the built-in agent that replace it."""
KINDS = ",".join(TOOLS)
SHELL = "run_command"
_READ = frozenset({"cat", "head", "tail", "less", "more", "nl", "tac", "bat", "od", "xxd", "sed", "awk", "cut"})
_SEARCH = frozenset({"grep", "egrep", "fgrep", "rg", "ag", "ack", "find", "fd"})
_LIST = frozenset({"ls", "tree", "dir"})
_EDIT = frozenset({"tee", "patch", "ed", "ex", "truncate", "dd"})
_WRITES = frozenset({"cat", "echo", "printf", "tee"})
_WRAPPERS = frozenset({"env", "exec", "nice", "time", "command", "busybox", "sudo", "nohup", "stdbuf", "xargs"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
_LONGEST, _SCRIPTS = 8192, 16
"""Maximum characters of a command, and number of scripts, that are read: they may be written to attack this parser."""
_IN_PLACE = re.compile(r"-[a-zA-Z]*i|--in-place")
_INTERPRETER = re.compile(r"python[\d.]*|node|perl|ruby")
_SCRIPT_WRITES = re.compile(r"write_text|write_bytes|\.write\(|writelines|open\([^)]*,\s*['\"][wax]|fs\.writeFile")
_SCRIPT_READS = re.compile(r"read_text|read_bytes|\.read\(|readlines|open\(|fs\.readFile")


def kinds_of(text: str) -> list[str]:
    """Parse the option ``kinds``. Raises ValueError for an unknown kind."""
    found = [kind.strip() for kind in text.split(",") if kind.strip()]
    if unknown := set(found) - set(TOOLS):
        raise ValueError(f"tool_collapse: unknown kind {min(unknown)!r} in kinds; known: {KINDS}")
    return found


def tool_collapse(
    task: Task, trajectory: Trajectory, outcome: Outcome, *, least: int = 6, share: float = 0.5, kinds: str = KINDS
) -> float:
    """Return minus the share of shell commands in work for which there are tools, if it is above ``share``; else 0.

    That work is reading, editing, searching and listing files (``kinds``). With fewer than ``least`` such calls the
    value is 0. Other calls do not count, so neither test runs nor idle calls change the share; nor do failed calls of
    the tools.
    """
    wanted = kinds_of(kinds)
    tools = {tool for kind in wanted for tool in TOOLS[kind]}
    shell = used = 0
    for event in trajectory.events:
        command = (event.arguments or {}).get("command")
        if event.name == SHELL and isinstance(command, str):
            shell += not work_in_shell(command).isdisjoint(wanted)
        elif event.name in tools and event.error is None:
            used += 1
    total = shell + used
    return -shell / total if total >= least and shell > share * total else 0.0


def work_in_shell(command: str) -> set[str]:
    """Return the kinds of work that a shell line does. Commands after a pipe that read or search only filter.

    Scripts inside the line, for another shell or an interpreter, are read too: up to ``_SCRIPTS``, each once.
    """
    found: set[str] = set()
    todo, known = [command], {command}
    while todo and len(known) <= _SCRIPTS:
        text = todo.pop()[:_LONGEST]
        given = "\n".join(match[4] for match in HEREDOC.finditer(text))
        for pipeline in _pipelines(text):
            for place, words in enumerate(map(_unwrapped, pipeline)):
                if words and words[0] in _SHELLS:
                    script = words[words.index("-c") + 1] if "-c" in words[:-1] else given
                    todo += {script} - known
                    known.add(script)
                elif words:
                    found |= _of_command(words, given, first=not place)
    return found


def _of_command(words: list[str], script: str, *, first: bool) -> set[str]:
    """Return the kinds of work of one command; ``script``: text that it may read from standard input."""
    name, rest = words[0], words[1:]
    if _INTERPRETER.fullmatch(name):
        return _of_interpreter(name, rest, script)
    in_place = name == "sed" and any(_IN_PLACE.match(word) for word in rest)
    writes = name in _WRITES and _redirects(words)
    if name in _EDIT or in_place or writes or (name == "git" and rest[:1] == ["apply"]):
        return {"edit"}
    if not first:
        return set()
    if name in _SEARCH:
        return {"search"}
    if name in _LIST:
        return {"list"}
    return {"read"} if name in _READ and any(not word.startswith("-") for word in rest) else set()


def _redirects(words: list[str]) -> bool:
    """Return whether standard output goes to a file (other than /dev/null)."""
    pairs = zip(words, words[1:], [*words[2:], ""])
    return any(op in (">", ">>", ">|") and before != "2" and to != "/dev/null" for before, op, to in pairs)


def _of_interpreter(name: str, arguments: Sequence[str], script: str) -> set[str]:
    """Return the kinds of work of a script that is given with ``-c`` or ``-e``, or on standard input."""
    if name in ("perl", "ruby") and any(re.match(r"-\w*i", word) for word in arguments):
        return {"edit"}
    inline = [text for option, text in pairwise(arguments) if option in ("-c", "-e")]
    text = "\n".join(inline) or script
    if _SCRIPT_WRITES.search(text):
        return {"edit"}
    return {"read"} if _SCRIPT_READS.search(text) else set()


def _unwrapped(words: list[str]) -> list[str]:
    """Return a command without variables, wrappers and the folder of its program."""
    while words:
        name = words[0].rpartition("/")[2]
        if re.match(r"\w+=", words[0]) or name in _WRAPPERS:
            words = words[1:]
        elif name == "timeout":
            words = words[2:]
        else:
            return [name, *words[1:]]
    return []


def _pipelines(command: str) -> Iterator[list[list[str]]]:
    """Yield the pipelines of a line as lists of commands; a line with an open quote is split at blanks."""
    try:
        listed = tokens(command)
    except ValueError:
        listed = HEREDOC.sub(r"\3", command).split()
    pipeline: list[list[str]] = [[]]
    for token in [*listed, ";"]:
        if token in ("|", "|&"):
            pipeline.append([])
        elif token and set(token) <= set("();|&"):
            yield pipeline
            pipeline = [[]]
        else:
            pipeline[-1].append(token)

"""Reward term against doing everything in the shell where the agent has tools for it (Composer 2 report, 4.2)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory

from .shell_lines import HEREDOC, LIST, LONGEST, READ, SEARCH, edits_in_place, pipelines, redirects, unwrapped

TOOLS = {
    "read": ("read_file",),
    "edit": ("edit_file", "edit_line", "edit_words", "write_file", "delete_file"),
    "search": ("grep", "glob"),
    "list": ("list_dir",),
}
"""Kind of work in a shell -> tools of the built-in agent that replace it."""
KINDS = ",".join(TOOLS)
SHELL = "run_command"
_EDIT = frozenset({"tee", "patch", "ed", "ex", "truncate", "dd"})
_WRITES = frozenset({"cat", "echo", "printf", "tee"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
_SCRIPTS = 16
"""Maximum number of scripts that are read: a command may be written to attack this parser."""
INTERPRETER = re.compile(r"python[\d.]*|node|perl|ruby")
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
        text = todo.pop()[:LONGEST]
        given = "\n".join(match[4] for match in HEREDOC.finditer(text))
        for pipeline in pipelines(text):
            for place, words in enumerate(map(unwrapped, pipeline)):
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
    if INTERPRETER.fullmatch(name):
        return _of_interpreter(name, rest, script)
    writes = name in _WRITES and redirects(words)
    if name in _EDIT or edits_in_place(words) or writes or (name == "git" and rest[:1] == ["apply"]):
        return {"edit"}
    if not first:
        return set()
    if name in SEARCH:
        return {"search"}
    if name in LIST:
        return {"list"}
    return {"read"} if name in READ and any(not word.startswith("-") for word in rest) else set()


def _of_interpreter(name: str, arguments: Sequence[str], script: str) -> set[str]:
    """Return the kinds of work of a script that is given with ``-c`` or ``-e``, or on standard input."""
    if name in ("perl", "ruby") and any(re.match(r"-\w*i", word) for word in arguments):
        return {"edit"}
    inline = [text for option, text in pairwise(arguments) if option in ("-c", "-e")]
    text = "\n".join(inline) or script
    if _SCRIPT_WRITES.search(text):
        return {"edit"}
    return {"read"} if _SCRIPT_READS.search(text) else set()

"""Parses simple Dockerfiles that can be followed without a container engine; everything else is an error."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from woodshed.sandbox.protocol import SandboxError

_FOLLOWED = {"FROM", "RUN", "COPY", "ADD", "ENV", "WORKDIR", "ARG", "USER"}
_HARMLESS = {"CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL"}
"""Instructions that are ignored, because they change neither files nor environment."""
_APT = re.compile(r"(sudo )?apt(-get)?( -\S+)* (update|install|clean|autoremove|autoclean)\b")
_LISTS = re.compile(r"rm -rf? /var/(lib/apt/lists|cache/apt)\S*(\s+/var/(lib/apt/lists|cache/apt)\S*)*")


class DockerfileError(SandboxError):
    """The file cannot be followed; the message names it and the line."""


@dataclass(frozen=True)
class Step:
    """One instruction. ``kind`` and ``words``: RUN (shell command), COPY (sources, target), ENV (name, value),
    WORKDIR or ARG."""

    line: int
    kind: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Dockerfile:
    """A parsed file. ``packages``: Debian packages in the order in which the file installs them."""

    path: Path
    image: str
    packages: tuple[str, ...]
    steps: tuple[Step, ...]


def read_dockerfile(path: Path) -> Dockerfile:
    """Parse a Dockerfile. Raises DockerfileError naming the line that cannot be read or followed."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DockerfileError(f"{path}: cannot be read: {error}") from None
    image, packages, steps = "", list[str](), list[Step]()
    for line, keyword, rest in _instructions(path, text):
        where = f"{path}:{line}"
        if keyword in _HARMLESS:
            continue
        if keyword not in _FOLLOWED:
            raise DockerfileError(f"{where}: {keyword} cannot be followed without an engine; use the docker backend")
        if not image and keyword not in ("FROM", "ARG"):
            raise DockerfileError(f"{where}: {keyword} before FROM")
        if keyword == "FROM":
            if image or " " in re.sub(r"(?i)\s+as\s+\S+$", "", rest) or "$" in rest:
                raise DockerfileError(f"{where}: only one stage FROM a plain image can be followed, not FROM {rest}")
            image = rest.split()[0]
        elif keyword == "USER":
            if rest.split(":")[0] not in ("root", "0"):
                raise DockerfileError(f"{where}: USER {rest}: a box has one user, who may write everywhere in it")
        elif keyword == "RUN":
            found, command = _without_apt(where, _shell(where, rest))
            packages += [name for name in found if name not in packages]
            if command:
                steps.append(Step(line, "RUN", (command,)))
        else:
            steps += [Step(line, kind, words) for kind, words in _words(where, keyword, rest)]
    if not image:
        raise DockerfileError(f"{path}: there is no FROM")
    return Dockerfile(path, image, tuple(packages), tuple(steps))


def expand(text: str, values: Mapping[str, str]) -> str:
    """Expand ``$NAME``, ``${NAME}`` and ``${NAME:-default}`` as COPY, ENV and WORKDIR do."""

    def value(match: re.Match[str]) -> str:
        if match[0].startswith("\\"):
            return match[0][1:]
        name, default = match[1] or match[3], match[2]
        return values.get(name, "") or (default or "")

    return re.sub(r"\\\$|\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)", value, text)


def _instructions(path: Path, text: str) -> list[tuple[int, str, str]]:
    """Split into (line, keyword, rest), with continued lines joined, without comments and empty lines."""
    found: list[tuple[int, str, str]] = []
    parts: list[str] = []
    start = 0
    for number, raw in enumerate(text.splitlines(), 1):
        if not raw.strip() or raw.lstrip().startswith("#"):
            if re.match(r"#\s*escape\s*=", raw.strip()) and not found:
                raise DockerfileError(f"{path}:{number}: another escape character is not supported")
            continue
        start = start if parts else number
        continued = re.search(r"\\\s*$", raw)
        parts.append(raw[: continued.start()] if continued else raw)
        if continued:
            continue
        keyword, _, rest = " ".join(part.strip() for part in parts).strip().partition(" ")
        found.append((start, keyword.upper(), rest.strip()))
        parts = []
    if parts:
        raise DockerfileError(f"{path}:{start}: the last line ends with a continuation")
    return found


def _shell(where: str, rest: str) -> str:
    if rest.startswith("["):
        raise DockerfileError(f"{where}: RUN in its JSON form is not supported; write a shell command")
    if rest.startswith("--") or "<<" in rest:
        raise DockerfileError(f"{where}: RUN with options or a here-document is not supported")
    return rest


def _without_apt(where: str, command: str) -> tuple[list[str], str]:
    """Return the packages that a command installs by apt, and the rest of the command."""
    if not re.search(r"\bapt(-get)?\b", command):
        return [], command
    try:
        inner = [word for word in shlex.split(command) if "&&" in word and word != "&&"]
    except ValueError as error:
        raise DockerfileError(f"{where}: {error} in {command!r}") from None
    if inner:
        raise DockerfileError(f"{where}: apt beside {inner[0]!r}: write && with spaces around it, and not in quotes")
    packages: list[str] = []
    left: list[str] = []
    for part in (p.strip() for p in command.split("&&")):
        if not _APT.match(part):
            if not _LISTS.fullmatch(part):
                left.append(part)
            continue
        words = shlex.split(part)
        if any(set(word) & set(";|&<>$`()") for word in words):
            raise DockerfileError(f"{where}: apt within a larger command cannot be followed: {part!r}; join by && only")
        if "install" in words:
            names = words[words.index("install") + 1 :]
            packages += [word for word in names if not word.startswith("-")]
    return packages, " && ".join(left)


def _words(where: str, keyword: str, rest: str) -> list[tuple[str, tuple[str, ...]]]:
    try:
        words = shlex.split(rest, posix=True)
    except ValueError as error:
        raise DockerfileError(f"{where}: {error}") from None
    if keyword in ("COPY", "ADD"):
        flags = [word for word in words if word.startswith("--") and not word.startswith(("--chown=", "--chmod="))]
        if flags or rest.startswith("[") or any("://" in word for word in words):
            raise DockerfileError(f"{where}: {keyword} {(flags or [rest])[0]} cannot be followed without an engine")
        words = [word for word in words if not word.startswith("--")]
        if len(words) < 2:
            raise DockerfileError(f"{where}: {keyword} needs a source and a target")
        if keyword == "ADD" and any(re.search(r"\.(tar|tgz|tar\.\w+|tbz|txz)$", word) for word in words[:-1]):
            raise DockerfileError(f"{where}: ADD unpacks archives; RUN tar instead")
        return [("COPY", tuple(words))]
    if keyword == "WORKDIR":
        return [("WORKDIR", (rest,))]
    if keyword == "ARG":
        name, _, value = rest.partition("=")
        return [("ARG", (name.strip(), value.strip().strip("\"'")))]
    if words and "=" not in words[0]:  # the old form: ENV NAME VALUE
        return [("ENV", (words[0], rest.partition(" ")[2].strip()))]
    if not words or any("=" not in word for word in words):
        raise DockerfileError(f"{where}: ENV takes NAME=VALUE")
    return [("ENV", tuple(word.split("=", 1))) for word in words]

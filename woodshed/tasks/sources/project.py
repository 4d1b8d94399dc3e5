"""Read the configuration files of a project as data; no setup script is run."""

from __future__ import annotations

import configparser
import email
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

_LICENCE_FILES = ("LICENSE", "LICENCE", "COPYING", "UNLICENSE")
_MARKS = (
    ("Apache License", "Version 2.0", "Apache-2.0"),
    ("GNU AFFERO GENERAL PUBLIC LICENSE", "Version 3", "AGPL-3.0"),
    ("GNU LESSER GENERAL PUBLIC LICENSE", "", "LGPL"),
    ("GNU GENERAL PUBLIC LICENSE", "Version 3", "GPL-3.0"),
    ("GNU GENERAL PUBLIC LICENSE", "Version 2", "GPL-2.0"),
    ("Mozilla Public License", "2.0", "MPL-2.0"),
    ("Redistribution and use in source and binary forms", "Neither the name", "BSD-3-Clause"),
    ("Redistribution and use in source and binary forms", "", "BSD-2-Clause"),
    ("Permission to use, copy, modify, and/or distribute", "", "ISC"),
    ("Permission is hereby granted, free of charge", "", "MIT"),
    ("released into the public domain", "", "Unlicense"),
)
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Project:
    """The configuration files of a project; a damaged file counts as empty."""

    files: Mapping[str, bytes] = field(repr=False)

    def text(self, name: str) -> str:
        return self.files.get(name, b"").decode("utf-8", "replace")

    @cached_property
    def pyproject(self) -> dict[str, Any]:
        return self._toml("pyproject.toml")

    def _toml(self, name: str) -> dict[str, Any]:
        try:
            return tomllib.loads(self.text(name))
        except tomllib.TOMLDecodeError:
            return {}

    def table(self, *path: str) -> dict[str, Any]:
        """A table of ``pyproject.toml``; empty if there is none."""
        found: Any = self.pyproject
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}

    def section(self, file: str, section: str) -> dict[str, str]:
        """A section of an INI file (``setup.cfg``, ``tox.ini``, ``pytest.ini``); empty if there is none."""
        parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
        try:
            parser.read_string(self.text(file))
        except configparser.Error:
            return {}
        return {k: v or "" for k, v in parser.items(section)} if parser.has_section(section) else {}

    @cached_property
    def metadata(self) -> email.message.Message:
        """The ``PKG-INFO`` of a source distribution."""
        return email.message_from_string(self.text("PKG-INFO"))

    @cached_property
    def pytest(self) -> dict[str, str]:
        """The pytest configuration, lists as lines, from the first file that pytest would use."""
        return {k: "\n".join(map(str, v)) if isinstance(v, list) else str(v) for k, v in self._pytest.items()}

    @cached_property
    def _pytest(self) -> dict[str, Any]:
        for file in ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini"):
            if file in self.files and file.endswith(".toml"):
                table = self._toml(file).get("pytest")
                return table if isinstance(table, dict) else {}
            if file in self.files:
                return dict(self.section(file, "pytest"))
        native = {k: v for k, v in self.table("tool", "pytest").items() if k != "ini_options"}  # since pytest 9
        table = self.table("tool", "pytest", "ini_options") or native
        return table or dict(self.section("tox.ini", "pytest") or self.section("setup.cfg", "tool:pytest"))

    @cached_property
    def addopts(self) -> list[str]:
        """The ``addopts`` of the pytest configuration; empty if they cannot be split as a shell does."""
        stated = self._pytest.get("addopts", "")
        if isinstance(stated, list):
            return [str(word) for word in stated]
        try:
            return shlex.split(str(stated))
        except ValueError:
            return []

    @cached_property
    def licence(self) -> str:
        """The licence as the metadata states it, else recognised by the licence text, else ``unknown``."""
        project = self.table("project")
        stated = project.get("license")
        classifiers = [str(c) for c in project.get("classifiers", [])] or self.metadata.get_all("Classifier", [])
        classifiers += self.section("setup.cfg", "metadata").get("classifiers", "").splitlines()
        named = [c.rpartition("::")[2].strip() for c in classifiers if "License ::" in c]
        candidates = [
            stated if isinstance(stated, str) else "",
            self.metadata.get("License-Expression", ""),
            str(self.table("tool", "poetry").get("license", "")),
            " / ".join(n for n in named if n != "OSI Approved"),
            self.section("setup.cfg", "metadata").get("license", ""),
            str(stated.get("text", "")) if isinstance(stated, dict) else "",
            self.metadata.get("License", ""),
        ]
        for text in candidates:
            if text.strip() and "\n" not in text.strip() and len(text) < 80:
                return text.strip()
        return next((name for text in self._licence_texts() if (name := _recognised(text))), UNKNOWN)

    def _licence_texts(self) -> list[str]:
        names = [n for n in self.files if "/" not in n and n.upper().startswith(_LICENCE_FILES)]
        return [self.text(name) for name in sorted(names)]


def _recognised(text: str) -> str:
    flat = " ".join(text.split()).lower()
    for first, second, name in _MARKS:
        if first.lower() in flat and second.lower() in flat:
            return name
    return ""

"""Which Dockerfiles can be followed, and what is said of those that cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.sandbox.images.apt import check_names
from woodshed.sandbox.images.dockerfile import DockerfileError, Step, expand, read_dockerfile
from woodshed.sandbox.protocol import SandboxError


def write(folder: Path, text: str) -> Path:
    path = folder / "Dockerfile"
    path.write_text(text)
    return path


def test_steps_and_packages(tmp_path: Path) -> None:
    file = read_dockerfile(
        write(
            tmp_path,
            (
                "# syntax=docker/dockerfile:1\nARG VERSION=12\nfrom debian:bookworm-slim as base\n\n"
                "LABEL a=b\nRUN apt-get update -qq && \\\n  # a comment within\n"
                "    apt-get -y install --no-install-recommends git curl=7.88 && \\\n    rm -rf /var/lib/apt/lists/*\n"
                "RUN apt-get update && DEBIAN=1 make all && apt-get install -y git jq && apt-get clean\n"
                'ENV A=1 B="two words"\nENV OLD the whole rest\nWORKDIR /app\nUSER root\n'
                'COPY --chown=me:me src/ tool.py ./\nRUN echo "a && b" | cat\nCMD ["x"]\n'
            ),
        )
    )
    assert file.image == "debian:bookworm-slim" and file.packages == ("git", "curl=7.88", "jq")
    assert file.steps == (
        Step(2, "ARG", ("VERSION", "12")),
        Step(10, "RUN", ("DEBIAN=1 make all",)),
        Step(11, "ENV", ("A", "1")),
        Step(11, "ENV", ("B", "two words")),
        Step(12, "ENV", ("OLD", "the whole rest")),
        Step(13, "WORKDIR", ("/app",)),
        Step(15, "COPY", ("src/", "tool.py", "./")),
        Step(16, "RUN", ('echo "a && b" | cat',)),
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("FROM debian:sid", "only one stage"),
        ("HEALTHCHECK CMD true", "HEALTHCHECK cannot be followed without an engine"),
        ("USER nobody", "a box has one user"),
        ("COPY --from=other /a /b", "--from=other cannot be followed"),
        ("COPY only", "needs a source and a target"),
        ("ADD https://example.org/x /x", "cannot be followed"),
        ("ADD x.tar.gz /x", "RUN tar instead"),
        ('RUN ["make"]', "JSON form"),
        ("RUN --mount=type=cache make", "options or a here-document"),
        ("RUN apt-get install -y git || true", "apt within a larger command"),
        ("RUN apt-get install -y $(cat list)", "apt within a larger command"),
        ("ENV A=1 B", "NAME=VALUE"),
        ("RUN make \\", "ends with a continuation"),
        ("RUN echo 'x && apt-get install -y a", "No closing quotation"),
    ],
)
def test_what_cannot_be_followed_is_named_by_line(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(DockerfileError, match=says) as raised:
        read_dockerfile(write(tmp_path, f"FROM debian:bookworm\n\n{line}\n"))
    assert "Dockerfile:3:" in str(raised.value)


def test_a_file_without_from_and_an_absent_one(tmp_path: Path) -> None:
    for text, says in (
        ("RUN x\n", "before FROM"),
        ("# nothing\n", "there is no FROM"),
        ("FROM $BASE\n", "plain image"),
    ):
        with pytest.raises(DockerfileError, match=says):
            read_dockerfile(write(tmp_path, text))
    with pytest.raises(DockerfileError, match="cannot be read"):
        read_dockerfile(tmp_path / "absent")


def test_variables() -> None:
    values = {"A": "1", "EMPTY": ""}
    assert expand(r"$A ${A}b ${NO:-two} ${EMPTY:-e} $NO. \$A ${A:-x}", values) == "1 1b two e . $A 1"


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "Dockerfile"
        path.write_text(f"FROM debian:bookworm\n{text}", errors="surrogateescape")
        try:
            file = read_dockerfile(path)
        except DockerfileError as error:
            assert str(path) in str(error)
        else:
            assert file.image == "debian:bookworm"


@pytest.mark.parametrize("name", ["-oDir::Etc=/x", "git;rm", "../x", "Git", "", "a b", "git=$(x)", "?installed"])
def test_no_option_and_no_pattern_is_a_package(name: str) -> None:
    with pytest.raises(SandboxError, match="not the name of a Debian package"):
        check_names([name])
    check_names(["git", "libc6:amd64", "curl=7.88.1-10+deb12u5", "g++"])

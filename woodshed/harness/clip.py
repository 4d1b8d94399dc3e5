"""Bounding of what a tool shows: untrusted bytes in, bounded well-formed text out."""

from __future__ import annotations


def decode(data: bytes) -> str:
    """UTF-8 with replacement characters; NUL (which many servers refuse) becomes U+FFFD, CRLF becomes LF."""
    return data.decode("utf-8", "replace").replace("\x00", "\ufffd").replace("\r\n", "\n")


def clean(text: str) -> str:
    """Text without lone surrogates and NUL, so that it survives UTF-8 on its way to the endpoint."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")


def clip(text: str, limit: int) -> str:
    """At most ``limit`` characters of text: head and tail in equal parts around a line that says how many were cut."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def clip_lines(lines: list[str], limit: int, total: int | None = None) -> list[str]:
    """The first ``limit`` lines, and one that says how many more there are."""
    total = len(lines) if total is None else total
    shown = lines[:limit]
    if total > len(shown):
        shown.append(f"[... {total - len(shown)} more ...]")
    return shown

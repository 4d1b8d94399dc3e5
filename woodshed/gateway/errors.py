"""Errors that are sent to clients."""

from __future__ import annotations


def shown(value: object) -> str:
    """Format a request's value for an error message; lists and objects, which may be megabytes, only by their type."""
    if isinstance(value, str):
        return repr(value[:60])
    if isinstance(value, (list, dict)) and value:
        return "a list" if isinstance(value, list) else "an object"
    return repr(value)[:60]


class ApiError(Exception):
    """An error that is answered with HTTP ``status``, in the format of the client's dialect.

    ``param`` names the request field; ``type`` is OpenAI's error type.
    """

    def __init__(self, status: int, code: str, message: str, *, param: str | None = None, type: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.type = type or ("invalid_request_error" if status < 500 else "server_error")

    def body(self) -> dict[str, dict[str, str | None]]:
        """The error in OpenAI's format, which the admin routes also use."""
        return {"error": {"message": str(self), "type": self.type, "code": self.code, "param": self.param}}


CONTEXT_FULL = "context_length_exceeded"

RESUME_DIVERGED = "resume_diverged"
"""Code of the error that ends a resumed episode whose requests differ from the recorded ones."""


class ContextTooLong(ApiError):
    """A conversation of ``tokens`` tokens does not fit into ``context``. Each dialect sends its vendor's wording, by
    which clients recognise this error."""

    def __init__(self, tokens: int, context: int) -> None:
        message = f"This model's maximum context length is {context} tokens, the messages have {tokens}"
        super().__init__(400, CONTEXT_FULL, message, param="messages")
        self.tokens = tokens
        self.context = context


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """Return the error for an invalid request field."""
    return ApiError(400, code, f"{param}: {message}", param=param)


def unsupported(param: str, value: object, known: str) -> ApiError:
    """Return the error for a value that the API allows and this server does not; ``known`` names supported values."""
    return invalid(param, f"{shown(value)} is not supported here; use {known}", "unsupported_value")

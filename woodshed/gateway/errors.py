"""An error that a client sees."""

from __future__ import annotations


def shown(value: object) -> str:
    """A value of a request for an error message. A list or an object may be megabytes, so its kind stands for it."""
    if isinstance(value, str):
        return repr(value[:60])
    if isinstance(value, (list, dict)) and value:
        return "a list" if isinstance(value, list) else "an object"
    return repr(value)[:60]


class ApiError(Exception):
    """Answered with HTTP ``status``, in the shape that the client's dialect gives to errors.

    ``param`` names the field; ``type`` is OpenAI's class of the error.
    """

    def __init__(self, status: int, code: str, message: str, *, param: str | None = None, type: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.type = type or ("invalid_request_error" if status < 500 else "server_error")

    def body(self) -> dict[str, dict[str, str | None]]:
        """OpenAI's shape, which the admin routes have too."""
        return {"error": {"message": str(self), "type": self.type, "code": self.code, "param": self.param}}


CONTEXT_FULL = "context_length_exceeded"


class ContextTooLong(ApiError):
    """``tokens`` of conversation do not fit into ``context``. Clients know the words of their own vendor for this."""

    def __init__(self, tokens: int, context: int) -> None:
        message = f"This model's maximum context length is {context} tokens, the messages have {tokens}"
        super().__init__(400, CONTEXT_FULL, message, param="messages")
        self.tokens = tokens
        self.context = context


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A request field that cannot be used."""
    return ApiError(400, code, f"{param}: {message}", param=param)


def unsupported(param: str, value: object, known: str) -> ApiError:
    """A value that the API has and this server does not; ``known`` says what can be used."""
    return invalid(param, f"{shown(value)} is not supported here; use {known}", "unsupported_value")

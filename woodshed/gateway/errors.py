"""An error that a client sees."""

from __future__ import annotations


class ApiError(Exception):
    """Answered as ``{"error": {"message", "type", "code", "param"}}`` with HTTP ``status``."""

    def __init__(self, status: int, code: str, message: str, *, param: str | None = None, type: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.type = type or ("invalid_request_error" if status < 500 else "server_error")

    def body(self) -> dict[str, dict[str, str | None]]:
        return {"error": {"message": str(self), "type": self.type, "code": self.code, "param": self.param}}


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A request field that cannot be used."""
    return ApiError(400, code, f"{param}: {message}", param=param)

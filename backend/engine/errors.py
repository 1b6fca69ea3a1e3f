"""What can go wrong between a caller and the engine; each message is one line that says what to change."""

from __future__ import annotations

__all__ = ["EngineDied", "EngineError", "EngineOverloaded", "RequestRefused"]


class EngineError(Exception):
    """The engine could not do what was asked of it."""


class EngineDied(EngineError):
    """The engine process is gone, or never came up. Nothing works until a new one is started."""


class EngineOverloaded(EngineError):
    """The engine's waiting line is full; the same request may succeed later."""


class RequestRefused(EngineError):
    """This request can never be served as it stands, however long it waits.

    `param` names the offending field of the request in OpenAI's terms, or is None.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def __reduce__(self) -> tuple[type[RequestRefused], tuple[str, str | None]]:
        return RequestRefused, (self.message, self.param)

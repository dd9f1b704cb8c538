"""What goes wrong with a request, as a status and in the form of each dialect."""

from __future__ import annotations

import logging
from typing import Any

from pydantic import ValidationError

from charwise.errors import CharwiseError, SearchLimitError
from charwise.serve.stoppable import Stopped
from charwise.serve.work import QueueFullError

logger = logging.getLogger("charwise.serve")

Message = dict[str, Any]

#: Paths of dialects with errors of their own form.
_LLAMA_CPP = frozenset(
    {"/infill", "/completion", "/completions", "/props", "/tokenize", "/detokenize", "/health"}
)

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}


class Refused(CharwiseError, ValueError):
    """A request that is not answered.

    Attributes:
        status: of HTTP.
        param: the field that is wrong, if it is one.
    """

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    @property
    def headers(self) -> dict[str, str]:
        """What the answer says besides."""
        return {"retry-after": "1"} if self.status in (429, 503) else {}


def refusal_of(error: Exception) -> Refused:
    """What an error is to the client that caused it, or met it.

    >>> refusal_of(QueueFullError("busy")).status, refusal_of(Stopped("time")).status
    (429, 503)
    >>> from charwise.errors import SettingError
    >>> refusal_of(SettingError("n is 0.")).status
    400
    >>> refusal_of(SearchLimitError("too long for an exact sum.")).status
    400
    """
    if isinstance(error, Refused):
        return error
    if isinstance(error, ValidationError):
        return _invalid(error)
    if isinstance(error, QueueFullError):
        return Refused(429, str(error))
    if isinstance(error, Stopped):
        return Refused(503, "this took longer than a request may: ask for less.")
    asked = isinstance(error, CharwiseError) and isinstance(error, ValueError)
    if asked or isinstance(error, SearchLimitError):
        return Refused(400, str(error))
    logger.error("a request failed", exc_info=error)
    return Refused(500, f"the server failed: {type(error).__name__}: {error}")


def _invalid(error: ValidationError) -> Refused:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = [str(part) for part in first["loc"] if not str(part)[:1].isupper()]
    field = where[0] if where else None
    what = f"{field}: {first['msg']}." if field else f"{first['msg']}."
    return Refused(400, what, field)


def body_of(path: str, refused: Refused) -> Message:
    """A refusal in the form of the dialect that a path belongs to.

    >>> body_of("/api/generate", Refused(400, "no."))
    {'error': 'no.'}
    >>> body_of("/infill", Refused(400, "no."))
    {'error': {'code': 400, 'message': 'no.', 'type': 'invalid_request_error'}}
    """
    message, kind = str(refused), _KINDS.get(refused.status, "server_error")
    if path.startswith("/api/"):
        return {"error": message}
    if path in _LLAMA_CPP:
        return {"error": {"code": refused.status, "message": message, "type": kind}}
    return {
        "error": {"message": message, "type": kind, "param": refused.param, "code": refused.status}
    }

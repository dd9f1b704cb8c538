"""The errors of an HTTP request: a status, OpenAI's name for it, and the JSON that tells it."""

import logging

from pydantic import ValidationError

from charwise.api.writer import Message
from charwise.errors import CharwiseError, LimitError, lacks_memory, reason

logger = logging.getLogger("charwise.api")

#: Status → what OpenAI's API calls it; any other of 4xx is an invalid request, of 5xx the server's.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    502: "bad_gateway_error",
    503: "unavailable_error",
    504: "timeout_error",
}


class HTTPError(CharwiseError, ValueError):
    """A request that is not answered: the status, and the field that is wrong, if it is one."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer: when to ask again, or how to show a key."""
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        return {"retry-after": "1"} if self.status in (429, 503) else {}  # ask again

    @property
    def body(self) -> Message:
        """The answer in the form of OpenAI's API."""
        other = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _TYPES.get(self.status, other)
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.status}
        return {"error": error}


def to_http_error(error: Exception) -> HTTPError:
    """Return the refusal that tells a client of an error; a server's failure is logged.

    An error with a `status` of its own has that. Wrong values are the client's fault (400), and so
    is a question whose exact answer takes more than the limits of this server.
    """
    if isinstance(error, HTTPError):
        return error
    if isinstance(error, ValidationError):
        return _invalid(error)
    status = getattr(error, "status", None)
    if status is None and isinstance(error, CharwiseError):
        status = 400 if isinstance(error, ValueError | LimitError) else None
    if status is not None:
        return HTTPError(status, str(error))
    logger.error("a request failed", exc_info=error)
    if lacks_memory(error):
        why = "the server has too little memory for this request: shorten it, or ask later."
        return HTTPError(503, why)
    return HTTPError(500, f"the server failed: {type(error).__name__}: {reason(str(error))}")


def _invalid(error: ValidationError) -> HTTPError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = [str(part) for part in first["loc"] if not str(part)[:1].isupper()]
    field = where[0] if where else None
    why = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid" and ("escape" in why or "surrogate" in why):
        why += r": half of a character, such as \ud83d alone, is no text. Send whole ones"
    return HTTPError(400, f"{field}: {why}." if field else f"{why}.", field)

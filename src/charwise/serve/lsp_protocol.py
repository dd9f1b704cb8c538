"""Requests of the language server protocol that cannot be read, answered."""

from __future__ import annotations

from typing import Any

from cattrs import BaseValidationError, transform_error
from pydantic.alias_generators import to_camel
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams
from pygls.protocol import LanguageServerProtocol


class InvalidRequest(JsonRpcInvalidParams):
    """A request that cannot be read; whoever sent it was told so."""


class Protocol(LanguageServerProtocol):
    """pygls' protocol, which answers a request that cannot be read: pygls' own leaves it open."""

    def structure_message(self, data: dict[str, Any]) -> Any:
        """A message of JSON. A request that is none is answered: its sender waits.

        Raises:
            JsonRpcException: it is no message.
        """
        try:
            return super().structure_message(data)
        except JsonRpcException as error:
            if "id" not in data or "method" not in data:
                raise
            wrong = InvalidRequest(_why(error.__cause__ or error))
            self._send_response(data["id"], error=wrong.to_response_error())
            raise wrong from error


def _why(error: BaseException) -> str:
    """What is wrong with a message, and where in it, by the names of the protocol."""
    if not isinstance(error, BaseValidationError):
        return str(error)
    found = (one.rpartition(" @ ") for one in transform_error(error))
    return "; ".join(f"{why}{at}{_camel(where)}" for why, at, where in found)


def _camel(path: str) -> str:
    return ".".join(map(to_camel, path.split(".")))

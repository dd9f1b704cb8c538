"""Messages of the language server protocol, as pygls reads them, where ours differ from its own."""

from __future__ import annotations

import typing
from typing import Any

from cattrs import BaseValidationError, transform_error
from lsprotocol import types
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams
from pygls.protocol import LanguageServerProtocol, lsp_method

from charwise.serve.lsp_settings import camel


class InvalidRequest(JsonRpcInvalidParams):
    """A request that cannot be read; whoever sent it was told so."""


class Documents(typing.Protocol):
    """A server, as far as documents go."""

    def open(self, uri: str, text: str) -> None: ...
    def change(self, uri: str, changes: Any) -> None: ...
    def close(self, uri: str) -> None: ...


class Protocol(LanguageServerProtocol):
    """pygls' protocol, with documents whose lines end where those of editors do."""

    _server: Documents  # type: ignore[assignment]  # pygls' server, which is that as well

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

    @lsp_method(types.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: types.DidOpenTextDocumentParams) -> None:
        """A document with its text."""
        self._server.open(params.text_document.uri, params.text_document.text)

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: types.DidChangeTextDocumentParams) -> None:
        """Changes, each of what the one before has made."""
        self._server.change(params.text_document.uri, params.content_changes)

    @lsp_method(types.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: types.DidCloseTextDocumentParams) -> None:
        """A document that is not needed any more."""
        self._server.close(params.text_document.uri)


def _why(error: BaseException) -> str:
    """What is wrong with a message, and where in it, by the names of the protocol."""
    if not isinstance(error, BaseValidationError):
        return str(error)
    found = (one.rpartition(" @ ") for one in transform_error(error))
    return "; ".join(f"{why}{at}{camel(where)}" for why, at, where in found)

"""pygls, where it differs from the language server protocol.

pygls leaves a request open that it cannot read; here its sender is told.

The protocol ends a line with `\\n`, `\\r\\n` or `\\r`. pygls splits lines by `str.splitlines`,
which knows more ends (a form feed, U+2028, …), and so it counts other lines than the editor. Its
codec moves a position beyond its line to another character, and one beyond the last line beyond the
text; the protocol says that such a position is the end of the line, or of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cattrs import BaseValidationError, transform_error
from lsprotocol import types
from pydantic.alias_generators import to_camel
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams
from pygls.protocol import LanguageServerProtocol
from pygls.workspace import PositionCodec, TextDocument
from pygls.workspace import Workspace as PyglsWorkspace
from pygls.workspace.position_codec import ServerTextPosition

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")
_LINE_END = re.compile(r"\r\n|\n|\r")


class _Codec(PositionCodec):
    """Positions in the units of an editor; one beyond its line is the line's end."""

    def position_from_client_units(
        self, lines: Sequence[str], position: types.Position
    ) -> ServerTextPosition:
        """Return the position in code points."""
        if lines and position.line >= len(lines):
            return ServerTextPosition(len(lines) - 1, len(lines[-1]))
        if lines:
            line = lines[position.line].rstrip("\r\n")
            column = min(position.character, self.client_num_units(line))
            position = types.Position(position.line, column)
        return super().position_from_client_units(lines, position)


class _Document(TextDocument):
    """A document in an editor."""

    @property
    def lines(self) -> Sequence[str]:
        """The lines with their ends."""
        return _LINE.findall(self.source)


class Workspace(PyglsWorkspace):
    """The documents that one editor has open."""

    def _create_text_document(
        self,
        doc_uri: str,
        source: str | None = None,
        version: int | None = None,
        language_id: str | None = None,
    ) -> TextDocument:
        codec = _Codec(self.position_encoding)
        return _Document(doc_uri, source, version, language_id, position_codec=codec)


def text_before(text: str, offset: int, most: int) -> str:
    """Return the text before an offset: its last `most` code points at most.

    A longer text loses a beginning, in steps of a fourth of the limit, that stays the same while
    one types, up to the end of a line where there is one near: states of the text remain of use.
    """
    if offset <= most:
        return text[:offset]
    part = max(1, most // 4)
    least = -(-(offset - most) // part) * part
    end = _LINE_END.search(text, least, min(offset, least + part))
    return text[end.end() if end else least : offset]


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
    """Return the fault of a message, and its place, by the names of the protocol."""
    if not isinstance(error, BaseValidationError):
        return str(error)
    found = (one.rpartition(" @ ") for one in transform_error(error))
    return "; ".join(f"{why}{at}{_camel(where)}" for why, at, where in found)


def _camel(path: str) -> str:
    return ".".join(map(to_camel, path.split(".")))

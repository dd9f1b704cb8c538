"""Documents of pygls, where they differ from the language server protocol.

The protocol ends a line with `\\n`, `\\r\\n` or `\\r`. pygls splits lines by `str.splitlines`,
which knows more ends (a form feed, U+2028, …), and so it counts other lines than the editor. Its
codec moves a position beyond its line to another character, and one beyond the last line beyond the
text; the protocol says that such a position is the end of the line, or of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lsprotocol import types
from pygls.workspace import PositionCodec, TextDocument
from pygls.workspace import Workspace as PyglsWorkspace
from pygls.workspace.position_codec import ServerTextPosition

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")


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

"""A language server: `textDocument/inlineCompletion` (LSP 3.18) by pygls.

Documents are kept as editors change them, positions as editors count them. One thread does all the
work with the model, for all connections; what a change or a cancellation has made useless ends
there before its next model call.
"""

from __future__ import annotations

import asyncio
import math
import re
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote

from lsprotocol import types
from pygls.io_ import run_async
from pygls.lsp.server import LanguageServer

from charwise.errors import CharwiseError
from charwise.serve.lsp_protocol import InvalidRequest, Protocol, Workspace
from charwise.serve.lsp_settings import SECTION, Settings
from charwise.serve.model_thread import ModelThread, around, read_ahead, suggestions
from charwise.serve.playground.steps import steps_view
from charwise.serve.stoppable import Stopped
from charwise.serve.task import Candidate
from charwise.tokens.line_ends import line_end, read, write

_T = TypeVar("_T")


class Editor(LanguageServer):
    """The server for one connection.

    Args:
        models: where the work is done.
        settings: what holds before the editor has said anything.
    """

    def __init__(self, models: ModelThread, settings: Settings | None = None) -> None:
        # Before pygls' own: it looks at every attribute.
        self.models = models
        self.settings = settings or Settings()
        self._running: dict[str, set[threading.Event]] = {}
        self._warming: set[asyncio.Future[None]] = set()
        self._told: set[str] = set()
        super().__init__("charwise", version("charwise"), protocol_cls=Protocol)
        _listen(self)

    # What an editor says of itself and of its settings.

    async def load(self) -> None:
        """Load the model, and describe it."""
        began = time.monotonic()
        completions = await self._try(lambda: self.models.completions(self.settings))
        if completions is not None:
            info = completions.lm.info()
            took = f"{info['model']}, {info['device']}, {time.monotonic() - began:.1f} s"
            self.window_log_message(
                types.LogMessageParams(types.MessageType.Info, f"the model is ready: {took}.")
            )

    async def configure(self, given: Any) -> None:
        """Change settings; where none came along, they are fetched."""
        workspace = self.client_capabilities.workspace
        if not given and workspace is not None and workspace.configuration:  # to be fetched
            wanted = types.ConfigurationParams([types.ConfigurationItem(section=SECTION)])
            [given] = await self.workspace_configuration_async(wanted)
        self.set(given)

    def set(self, given: object, *, starting: bool = False) -> None:
        """Change settings, and warn of those that are none."""
        self.settings, wrong = self.settings.changed(given, starting=starting)
        for why in wrong:
            self._say(types.MessageType.Warning, why)

    def _say(self, kind: types.MessageType, what: str) -> None:
        """Show a message; the same one once."""
        if what not in self._told:
            self._told.add(what)
            self.window_show_message(types.ShowMessageParams(kind, f"charwise: {what}"))

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Show an error, unless it was the answer to a request."""
        if not isinstance(error, InvalidRequest):
            super().report_server_error(error, source)

    # Documents: pygls has changed them already.

    def use_workspace(self, params: types.InitializeParams) -> None:
        """Keep documents in a `Workspace` of ours; pygls has just made one of its own."""
        workspace = self.protocol.workspace
        self.protocol._workspace = Workspace(
            workspace.root_uri,
            workspace_folders=params.workspace_folders,
            position_encoding=workspace.position_encoding,
        )

    def changed(self, params: types.DidChangeTextDocumentParams) -> None:
        """End the work for a document as it was, and read it as it is."""
        uri, changes = params.text_document.uri, params.content_changes
        self._overtake(uri)
        last = changes[-1] if changes else None
        if not isinstance(last, types.TextDocumentContentChangePartial):
            return
        if self.settings.warm and self.settings.enabled:
            document = self.workspace.get_text_document(uri)
            cursor = document.offset_at_position(last.range.start) + len(last.text)
            task = asyncio.ensure_future(self._warm(uri, document.source, cursor))
            self._warming.add(task)
            task.add_done_callback(self._warming.discard)

    def _overtake(self, uri: str) -> None:
        for cancel in self._running.pop(uri, ()):
            cancel.set()

    def stop(self) -> None:
        """Cancel the work under way."""
        for uri in list(self._running):
            self._overtake(uri)

    # Completions.

    async def complete(
        self, params: types.InlineCompletionParams
    ) -> types.InlineCompletionList | None:
        """Return the texts to insert at a position, the best first."""
        uri, settings = params.text_document.uri, self.settings
        document = self._document(uri)
        if document is None or not settings.enabled:
            return None
        text, place, begun = document.source, types.Range(params.position, params.position), ""
        start = end = document.offset_at_position(params.position)
        if chosen := params.context.selected_completion_info:
            start, begun = document.offset_at_position(chosen.range.start), chosen.text
            place = types.Range(chosen.range.start, params.position)
            if (chosen_end := document.offset_at_position(chosen.range.end)) > end:
                end, place = chosen_end, chosen.range
        found = await self._offers(uri, settings, text, slice(start, end), begun)
        if not found:
            return None
        inserted = [begun + write(one.text, line_end(text)) for one in found]
        items = [types.InlineCompletionItem(one, range=place) for one in inserted]
        return types.InlineCompletionList(items)

    async def menu(self, params: types.CompletionParams) -> types.CompletionList | None:
        """Return the completions at a position as entries of a menu, the best first.

        The best has the fewest bits of surprisal for each byte, and every entry shows its own.
        """
        uri, settings = params.text_document.uri, self.settings
        document = self._document(uri)
        if document is None or not (settings.enabled and settings.menu):
            return None
        settings = settings.model_copy(update={"candidates": max(5, settings.candidates)})
        text, cursor = document.source, document.offset_at_position(params.position)
        found = await self._offers(uri, settings, text, slice(cursor, cursor)) or []
        word = re.search(r"\w*$", text[:cursor])
        begun = word[0] if word else ""
        units = self.workspace.position_codec.client_num_units(begun)
        start = types.Position(params.position.line, params.position.character - units)
        items = []
        for rank, one in enumerate(sorted(found, key=_bits_per_byte)):
            whole = begun + write(one.text, line_end(text))
            items.append(
                types.CompletionItem(
                    label=whole,
                    kind=types.CompletionItemKind.Text,
                    detail=f"{_bits_per_byte(one):.2f} bits a byte",
                    sort_text=f"{rank:03}",
                    filter_text=whole,
                    text_edit=types.TextEdit(types.Range(start, params.position), whole),
                )
            )
        return types.CompletionList(is_incomplete=True, items=items)

    async def _offers(
        self, uri: str, settings: Settings, text: str, place: slice, begun: str = ""
    ) -> list[Candidate] | None:
        """Return the texts to insert in place of a part of a text, after its beginning."""

        def found_by(cancel: threading.Event) -> list[Candidate]:
            completions = self.models.completions(settings)
            before, after = around(completions, settings, text, place.start, place.stop)
            return suggestions(completions, settings, before + read(begun), after, cancel)

        return await self._while_wanted(uri, found_by)

    def _document(self, uri: str) -> Any:
        """The document that an editor has open; None for another one."""
        known = unquote(uri) in self.workspace.text_documents
        return self.workspace.get_text_document(uri) if known else None

    async def steps(self, uri: str, position: types.Position) -> dict[str, Any] | None:
        """Return how healing reads the text before a position, or None for an unknown document."""
        document = self._document(uri)
        if document is None:
            return None
        settings = self.settings
        text, cursor = document.source, document.offset_at_position(position)

        def read_by(cancel: threading.Event) -> dict[str, Any]:
            completions = self.models.completions(settings)
            before, _ = around(completions, settings, text, cursor, cursor)
            return steps_view(completions.lm, before.encode("utf-8", "replace"))

        return await self._while_wanted(uri, read_by)

    async def _warm(self, uri: str, text: str, cursor: int) -> None:
        """Read a change, so that a completion after it begins at once."""
        settings = self.settings

        def read(cancel: threading.Event) -> None:
            read_ahead(self.models.completions(settings), settings, text, cursor, cancel)

        await self._while_wanted(uri, read)

    async def _while_wanted(
        self, uri: str, work: Callable[[threading.Event], _T | None]
    ) -> _T | None:
        """The result of some work for a document; None if it was overtaken."""
        cancel = threading.Event()
        self._running.setdefault(uri, set()).add(cancel)
        try:
            found = await self._try(lambda: None if cancel.is_set() else work(cancel))
            return None if cancel.is_set() else found
        except asyncio.CancelledError:  # by the editor
            cancel.set()
            raise
        finally:
            self._running.get(uri, set()).discard(cancel)

    async def _try(self, work: Callable[[], _T]) -> _T | None:
        """The result of some work; an error is shown, and there is none."""
        try:
            return await self.models.do(work)
        except Stopped:
            return None
        except CharwiseError as error:
            self._say(types.MessageType.Error, " ".join(str(error).split()))
            return None


def _bits_per_byte(one: Candidate) -> float:
    """The surprisal of a candidate for each of its bytes, bits."""
    return -one.logprob / math.log(2) / max(1, len(one.raw))


def _listen(editor: Editor) -> None:
    """Tell pygls which message is whose business: it takes functions, and no methods."""

    @editor.feature(types.INITIALIZE)
    def initialize(params: types.InitializeParams) -> None:
        editor.use_workspace(params)
        editor.set(params.initialization_options, starting=True)

    @editor.feature(types.INITIALIZED)
    async def initialized(_: types.InitializedParams) -> None:
        await editor.load()

    @editor.feature(types.SHUTDOWN)
    def shutdown(*_: object) -> None:
        editor.stop()

    @editor.feature(types.TEXT_DOCUMENT_DID_OPEN)
    @editor.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def overtaken(params: types.DidOpenTextDocumentParams) -> None:
        editor._overtake(params.text_document.uri)

    @editor.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        editor.changed(params)

    @editor.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
    async def configured(params: types.DidChangeConfigurationParams) -> None:
        await editor.configure(params.settings)

    @editor.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.InlineCompletionOptions())
    async def complete(params: types.InlineCompletionParams) -> types.InlineCompletionList | None:
        return await editor.complete(params)

    @editor.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions())
    async def menu(params: types.CompletionParams) -> types.CompletionList | None:
        return await editor.menu(params)

    @editor.feature("charwise/steps")  # an extension of ours to the protocol
    async def steps(params: Any) -> dict[str, Any] | None:
        place = types.Position(params.position.line, params.position.character)
        return await editor.steps(params.textDocument.uri, place)


def serve_stdin(models: ModelThread, settings: Settings, source: BinaryIO, out: BinaryIO) -> None:
    """Speak with the editor that has started this process, until it says to end."""
    editor = Editor(models, settings)
    try:
        editor.start_io(source, out)
    finally:
        editor.stop()
        models.close()


class _Reader:
    """A stream: the work for a message begins before the next message is read."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def readline(self) -> bytes:
        await asyncio.sleep(0)
        return await self._reader.readline()

    async def readexactly(self, n: int) -> bytes:
        return await self._reader.readexactly(n)


async def serve_tcp(models: ModelThread, settings: Settings, host: str, port: int) -> None:
    """Listen for editors, each with documents and settings of its own; says where on stderr."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        editor = Editor(models, settings)
        editor.protocol.set_writer(writer)
        try:
            told = editor.report_server_error
            source = _Reader(reader)
            await run_async(threading.Event(), source, editor.protocol, error_handler=told)
        except (asyncio.IncompleteReadError, ConnectionError, SystemExit):
            pass  # it has gone, or said `exit`
        finally:
            editor.stop()
            writer.close()

    server = await asyncio.start_server(connected, host, port)
    bound = ", ".join("{}:{}".format(*one.getsockname()[:2]) for one in server.sockets)
    print(f"charwise lsp: listening on {bound}", file=sys.stderr, flush=True)
    async with server:
        await server.serve_forever()

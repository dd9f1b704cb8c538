"""A language server: `textDocument/inlineCompletion` (LSP 3.18) by pygls.

All connections share the engine of a model; work that a change or a cancellation has made useless
ends there.
"""

import asyncio
import math
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote

from lsprotocol import types
from pygls.io_ import run_async
from pygls.lsp.server import LanguageServer
from pygls.workspace import PositionCodec, TextDocument
from pygls.workspace import Workspace as PyglsWorkspace
from pygls.workspace.position_codec import ServerTextPosition

from charwise.char_lm import CharLM
from charwise.errors import CharwiseError
from charwise.serve.engine import CLIENT, Engine, QueueFullError
from charwise.serve.inspect import healing_steps
from charwise.serve.lsp_settings import SECTION, EditorSettings
from charwise.serve.task import Candidate, Stopped
from charwise.tokens.line_ends import unify

T = TypeVar("T")

#: A line with its end, as the protocol has it: `str.splitlines`, pygls' way, knows more ends.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")


class _Codec(PositionCodec):
    """Positions in the units of an editor; one beyond its line, or the text, is the end of that."""

    def position_from_client_units(
        self, lines: Sequence[str], position: types.Position
    ) -> ServerTextPosition:
        if lines and position.line >= len(lines):
            return ServerTextPosition(len(lines) - 1, len(lines[-1]))
        if lines:
            line = lines[position.line].rstrip("\r\n")
            column = min(position.character, self.client_num_units(line))
            position = types.Position(position.line, column)
        return super().position_from_client_units(lines, position)


class _Document(TextDocument):
    @property
    def lines(self) -> Sequence[str]:
        return _LINE.findall(self.source)


class _Workspace(PyglsWorkspace):
    """The documents that one editor has open, with lines and positions of the protocol."""

    def _create_text_document(self, *fields: Any, **more: Any) -> TextDocument:
        codec = _Codec(self.position_encoding)
        return _Document(*fields, position_codec=codec, **more)  # type: ignore[misc]


class Model:
    """The engine of a language server, which loads its model once something is asked of it."""

    def __init__(self, load: Callable[[], CharLM]) -> None:
        self._load = load
        self._engine: asyncio.Task[Engine] | None = None

    async def engine(self) -> Engine:
        """Return the engine; the model is loaded if need be."""
        if self._engine is None:
            # Editors have a time budget of their own.
            work = asyncio.to_thread(lambda: Engine(self._load(), max_waiting=256, seconds=3600.0))
            self._engine = asyncio.ensure_future(work)
        return await asyncio.shield(self._engine)

    def close(self) -> None:
        """Take no more work."""
        task = self._engine
        if task and task.done() and not task.cancelled() and not task.exception():
            task.result().close()


async def offers(
    engine: Engine, settings: EditorSettings, text: str, place: slice, beginning: str = ""
) -> list[Candidate]:
    """Return the different texts to insert in place of a part of a document, after `beginning`."""
    before, after = _around(engine, settings, text, place)
    answer = await engine.answer(settings.task(before + beginning, after))
    insertions: dict[str, Candidate] = {}
    for one in answer.candidates:
        insert = one.text.partition("\ufffd")[0]  # what cannot be read is not offered
        if insert.strip():
            insertions.setdefault(insert, replace(one, text=insert))
    return list(insertions.values())


async def _read_ahead(engine: Engine, settings: EditorSettings, text: str, cursor: int) -> None:
    """Read a text up to a cursor, so that a completion there begins at once."""
    task = settings.task(*_around(engine, settings, text, slice(cursor, cursor)))
    # With a seed, it is no offer to remember.
    await engine.answer(replace(task, max_tokens=0, options=replace(task.options, seed=0)))


def _around(engine: Engine, settings: EditorSettings, text: str, place: slice) -> tuple[str, str]:
    """The text before and after a part of a document, as far as it is worth reading."""
    window = engine.lm.engine.window
    # A token has six characters at most, on average.
    far = 65_536 if window is None else min(65_536, 6 * window)
    after = far if settings.after is None else settings.after
    before = _text_before(text, place.start, far if settings.before is None else settings.before)
    return before, text[place.stop : place.stop + after]


def _text_before(text: str, offset: int, most: int) -> str:
    """Return the text before an offset: its last `most` code points at most.

    A longer text loses a beginning, in steps of a fourth of the limit, that stays the same while
    one types, up to the end of a line where there is one near: states of the text remain of use.
    """
    if offset <= most:
        return text[:offset]
    part = max(1, most // 4)
    least = -(-(offset - most) // part) * part
    return text[max(least, text.find("\n", least, least + part) + 1) : offset]


class _Editor(LanguageServer):
    """The server for one connection."""

    def __init__(self, model: Model) -> None:
        # Before pygls' own: it looks at every attribute.
        self.model = model
        self.settings = EditorSettings()
        self._running: dict[str, set[asyncio.Task[Any]]] = {}
        self._messages: set[str] = set()
        super().__init__("charwise", version("charwise"))
        answers: dict[str, Callable[..., Any]] = {
            types.INITIALIZE: self.initialize,
            types.INITIALIZED: self.load,
            types.SHUTDOWN: self.stop,
            types.TEXT_DOCUMENT_DID_OPEN: self.overtaken,
            types.TEXT_DOCUMENT_DID_CLOSE: self.overtaken,
            types.TEXT_DOCUMENT_DID_CHANGE: self.changed,
            types.WORKSPACE_DID_CHANGE_CONFIGURATION: self.configure,
            types.TEXT_DOCUMENT_INLINE_COMPLETION: self.complete,
            types.TEXT_DOCUMENT_COMPLETION: self.menu,
            "charwise/steps": self.steps,  # an extension of ours to the protocol
        }
        options = {
            types.TEXT_DOCUMENT_INLINE_COMPLETION: types.InlineCompletionOptions(),
            types.TEXT_DOCUMENT_COMPLETION: types.CompletionOptions(),
        }
        for name, answer in answers.items():  # pygls sets attributes, which a method has not
            self.feature(name, options.get(name))(partial(answer))

    async def load(self, _: types.InitializedParams) -> None:
        """Load the model, and describe it."""
        began = time.monotonic()
        if (engine := await self._try(self.model.engine())) is not None:
            info, seconds = engine.lm.info(), time.monotonic() - began
            text = f"the model is ready: {info['model']}, {info['device']}, {seconds:.1f} s."
            self.window_log_message(types.LogMessageParams(types.MessageType.Info, text))

    async def configure(self, params: types.DidChangeConfigurationParams) -> None:
        """Change settings; where none came along, they are fetched."""
        settings: Any = params.settings
        workspace = self.client_capabilities.workspace
        if not settings and workspace is not None and workspace.configuration:
            section = types.ConfigurationParams([types.ConfigurationItem(section=SECTION)])
            [settings] = await self.workspace_configuration_async(section)
        self.set(settings)

    def set(self, settings: object) -> None:
        """Change settings, and warn of those that are none."""
        self.settings, mistakes = self.settings.changed(settings)
        for why in mistakes:
            self._show(types.MessageType.Warning, why)

    def _show(self, kind: types.MessageType, message: str) -> None:
        """Show a message; the same one once."""
        if message not in self._messages:
            self._messages.add(message)
            self.window_show_message(types.ShowMessageParams(kind, f"charwise: {message}"))

    # Documents: pygls has changed them already. Coroutines begin in the order of their messages,
    # also where several are read at once.

    def initialize(self, params: types.InitializeParams) -> None:
        """Keep documents in a workspace of ours: pygls has just made its own. Read settings."""
        workspace = self.protocol.workspace
        self.protocol._workspace = _Workspace(
            workspace.root_uri,
            workspace_folders=params.workspace_folders,
            position_encoding=workspace.position_encoding,
        )
        self.set(params.initialization_options)

    async def changed(self, params: types.DidChangeTextDocumentParams) -> None:
        """End the work for a document as it was, and read it as it is."""
        uri, changes = params.text_document.uri, params.content_changes
        self.overtake(uri)
        last = changes[-1] if changes else None
        settings = self.settings
        warm = settings.warm and settings.enabled
        if warm and isinstance(last, types.TextDocumentContentChangePartial):
            document = self.workspace.get_text_document(uri)
            cursor = document.offset_at_position(last.range.start) + len(last.text)
            text = document.source
            await self._while_wanted(uri, lambda one: _read_ahead(one, settings, text, cursor))

    async def overtaken(self, params: Any) -> None:
        """End the work for a document that is opened or closed."""
        self.overtake(params.text_document.uri)

    def overtake(self, uri: str) -> None:
        """Cancel the work for a document."""
        for task in self._running.pop(uri, ()):
            task.cancel()

    def stop(self, *_: object) -> None:
        """Cancel the work under way."""
        for uri in list(self._running):
            self.overtake(uri)

    async def complete(
        self, params: types.InlineCompletionParams
    ) -> types.InlineCompletionList | None:
        """Return the texts to insert at a position, the best first."""
        uri, document = params.text_document.uri, self._document(params.text_document.uri)
        if document is None or not self.settings.enabled:
            return None
        text, settings, offset = document.source, self.settings, document.offset_at_position
        place, beginning = types.Range(params.position, params.position), ""
        if chosen := params.context.selected_completion_info:
            last = max(params.position, chosen.range.end)
            place, beginning = types.Range(chosen.range.start, last), chosen.text
        start, end = offset(place.start), offset(place.end)
        candidates = await self._while_wanted(
            uri, lambda engine: offers(engine, settings, text, slice(start, end), beginning)
        )
        if not candidates:
            return None
        item = partial(types.InlineCompletionItem, range=place)
        return types.InlineCompletionList([item(beginning + one.text) for one in candidates])

    async def menu(self, params: types.CompletionParams) -> types.CompletionList | None:
        """Return the completions at a position as entries of a menu, by their bits a byte."""
        uri, settings = params.text_document.uri, self.settings
        document = self._document(uri)
        if document is None or not (settings.enabled and settings.menu):
            return None
        settings = settings.model_copy(update={"candidates": max(5, settings.candidates)})
        text, cursor = document.source, document.offset_at_position(params.position)
        candidates = await self._while_wanted(
            uri, lambda engine: offers(engine, settings, text, slice(cursor, cursor))
        )
        beginning = re.split(r"\W", text[:cursor].rpartition("\n")[2])[-1]
        units = self.workspace.position_codec.client_num_units(beginning)
        start = types.Position(params.position.line, params.position.character - units)
        place = types.Range(start, params.position)
        items = [
            types.CompletionItem(
                label=beginning + one.text,
                kind=types.CompletionItemKind.Text,
                detail=f"{_bits_per_byte(one):.2f} bits a byte",
                sort_text=f"{rank:03}",
                text_edit=types.TextEdit(place, beginning + one.text),
            )
            for rank, one in enumerate(sorted(candidates or (), key=_bits_per_byte))
        ]
        return types.CompletionList(is_incomplete=True, items=items)

    async def steps(self, params: Any) -> dict[str, Any] | None:
        """Return how healing reads the text before a position, or None for an unknown document."""
        uri = params.textDocument.uri
        position = types.Position(params.position.line, params.position.character)
        document = self._document(uri)
        if document is None:
            return None
        text, cursor = document.source, document.offset_at_position(position)

        async def explain(engine: Engine) -> dict[str, Any]:
            before, _ = _around(engine, self.settings, text, slice(cursor, cursor))
            raw = unify(before).encode("utf-8", "replace")
            return await engine.call(lambda lm: healing_steps(lm, raw), typed=True)

        return await self._while_wanted(uri, explain)

    def _document(self, uri: str) -> Any:
        """The document that an editor has open; None for another one."""
        is_open = unquote(uri) in self.workspace.text_documents
        return self.workspace.get_text_document(uri) if is_open else None

    async def _while_wanted(
        self, uri: str, work: Callable[[Engine], Coroutine[Any, Any, T]]
    ) -> T | None:
        """The result of some work for a document; None if it was overtaken."""

        async def wanted() -> T:
            return await work(await self.model.engine())

        task = asyncio.ensure_future(self._try(wanted()))
        self._running.setdefault(uri, set()).add(task)
        try:
            await asyncio.wait({task})
            return None if task.cancelled() else task.result()
        finally:
            task.cancel()  # where the editor has cancelled this
            self._running.get(uri, set()).discard(task)

    async def _try(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of some work; an error is shown, and there is none."""
        try:
            return await work
        except (Stopped, QueueFullError):
            return None
        except CharwiseError as error:
            self._show(types.MessageType.Error, " ".join(str(error).split()))
            return None


def _bits_per_byte(one: Candidate) -> float:
    """The surprisal of a candidate for each of its bytes, bits."""
    return -one.logprob / math.log(2) / max(1, len(one.raw))


def serve_stdin(model: Model, source: BinaryIO, out: BinaryIO) -> None:
    """Speak with the editor that has started this process, until it says to end."""
    editor = _Editor(model)
    try:
        editor.start_io(source, out)
    finally:
        editor.stop()
        model.close()


async def serve_tcp(model: Model, bound: socket.socket) -> None:
    """Listen for editors at a socket, each with documents and settings of its own."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        CLIENT.set(str(writer.get_extra_info("peername")))  # editors take turns
        editor = _Editor(model)
        editor.protocol.set_writer(writer)
        try:
            report = editor.report_server_error
            await run_async(threading.Event(), reader, editor.protocol, error_handler=report)
        except (asyncio.IncompleteReadError, ConnectionError, SystemExit):
            pass  # it has gone, or said `exit`
        finally:
            editor.stop()
            writer.close()

    server = await asyncio.start_server(connected, sock=bound)
    print(
        "charwise lsp: listening on {}:{}".format(*bound.getsockname()), file=sys.stderr, flush=True
    )
    async with server:
        await server.serve_forever()

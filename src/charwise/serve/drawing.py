"""The candidates of one request while they are drawn, until each of them ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from charwise.cursor.generation import Cursor, Generation, Partial, whole_characters
from charwise.cursor.generation import advance as draw_next
from charwise.cursor.options import Limit
from charwise.healing.fim import Request, middles
from charwise.serve.alternatives import after_characters, after_tokens, alternatives
from charwise.serve.endings import Rules
from charwise.serve.prompts import Sides
from charwise.serve.stoppable import StoppableLM, Stopped
from charwise.serve.task import Alternatives, Candidate, CompletionTask, Piece
from charwise.tokens.line_ends import read, write
from charwise.tokens.stops import Stops
from charwise.tokens.utf8 import decoder_after

#: Told after each model call what can be sent of each partial: its number, and text.
Tell = Callable[[int, str], object]


class Begun(NamedTuple):
    """Where drawing begins.

    Attributes:
        cursor: after the prompt.
        ending: bytes of the suffix that partials end with.
        tokens: of the prompt, and how many of them were known.
        cached: those.
        request: the sides, of an exact middle, and `whole`, the state's text after them.
        truncated: whether some of the prompt did not fit the window.
    """

    cursor: Cursor
    ending: bytes
    tokens: int
    cached: int
    request: Request | None = None
    whole: bytes = b""
    truncated: bool = False


class _Before(NamedTuple):
    """A partial, and its tokens, bytes and log-probability before a step."""

    partial: Partial
    tokens: int
    size: int
    logprob: float


def advance(drawings: Sequence[Drawing]) -> list[Exception | None]:
    """Draw the next token of every candidate of these requests, in one model call if that works.

    Returns:
        What ends each of them, if something does.
    """
    before = [
        [_Before(d, len(d.token_ids), len(d.raw), d.logprob) for d in drawing.generation.active()]
        for drawing in drawings
    ]
    engine = drawings[0].generation.shared.engine
    calls = engine.calls if isinstance(engine, StoppableLM) else 0
    errors = draw_next([drawing.generation for drawing in drawings])
    if isinstance(engine, StoppableLM) and 0 < engine.calls - calls < sum(map(_moved, before)):
        engine.shared += 1
    for at, (drawing, some) in enumerate(zip(drawings, before, strict=True)):
        if errors[at] is None:
            try:
                drawing.advanced(some)
            except Exception as error:  # of who is told, say: the others go on
                errors[at] = error
    return errors


def _moved(before: Sequence[_Before]) -> bool:
    """Whether a partial of a request was evaluated, and drew a token."""
    return any(
        one.tokens and (len(one.partial.token_ids) > one.tokens or one.partial.finish == "end")
        for one in before
    )


class Drawing:
    """The candidates of one request while they are drawn.

    Args:
        asked: the request.
        sides: its text.
        begun: where drawing begins.
        limit: when it ends at the latest.
        tell: who wants to hear of them meanwhile.

    Attributes:
        partials: the candidates as they are drawn; `advance` draws.
    """

    def __init__(
        self, asked: CompletionTask, sides: Sides, begun: Begun, limit: Limit, tell: Tell | None
    ) -> None:
        self._asked, self._begun, self._tell = asked, begun, tell
        self._before = sides.before
        self._rules = Rules(
            sides.before, sides.after or b"", until=asked.until, indent=asked.indent
        )
        self._held = bool(asked.until or asked.indent or sides.after or asked.threshold)
        most = asked.max_bytes
        if most is None:
            munch = begun.cursor.shared.index.vocabulary.max_token_bytes
            most = min(2**20, (asked.max_tokens or 2**20) * munch)
        # The most probable beginnings often go on alike: of more, enough differ.
        n, stops = asked.options.n, [read(one) for one in Stops(asked.options.stop).strings]
        several = n > 1 and not asked.options.temperature and tell is None
        options = replace(
            asked.options,
            n=n + 2 if several else n,
            max_new_bytes=most + len(begun.ending),
            stop=[*stops, *(write(one, "\r\n") for one in stops)],  # as a model may write them
        )
        self.generation = Generation(begun.cursor, options, limit)
        self._started = time.perf_counter()
        self._pieces: dict[int, list[Piece]] = {}
        self._carried: dict[int, float] = {}
        self._sent = [0] * n
        self._decoders = [decoder_after(sides.before) for _ in range(n)]

    def begin(self) -> None:
        """Judge the part of the prompt's last tokens beyond it."""
        for partial in self.generation.partials:
            self._pieces[id(partial)] = []
            self._carried[id(partial)] = 0.0
            if partial.token_ids:
                self._add(partial, partial.raw, partial.logprob, partial.token_ids[-1])
            self._judge(partial)
        self._send()

    @property
    def ended(self) -> bool:
        """Whether all candidates have."""
        return not self.generation.active()

    def advanced(self, before: Sequence[_Before]) -> None:
        """Judge the tokens that were drawn since."""
        for partial, tokens, size, logprob in before:
            if len(partial.token_ids) > tokens or partial.finish == "end":
                self._add(partial, partial.raw[size:], partial.logprob - logprob, partial.token)
            self._judge(partial)
        self._send()

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the completion.

        Raises:
            Stopped: it was cancelled.
        """
        if any(partial.finish == "cancelled" for partial in self.generation.partials):
            raise Stopped("cancelled")
        found = [self._candidate(partial) for partial in self.generation.partials]
        if self._tell is not None or self._asked.options.temperature:
            return tuple(one for one in found if one.probability >= self._asked.threshold)
        return self._distinct(found)

    def close(self) -> None:
        """Give back the contexts drawn on the way."""
        self.generation.close()

    def _add(self, partial: Partial, raw: bytes, logprob: float, id_: int) -> None:
        """A token, unless all of it is in the prompt: then it counts with the next."""
        carried = self._carried[id(partial)]
        if not raw and partial.finish != "end":
            self._carried[id(partial)] = carried + logprob
            return
        self._carried[id(partial)] = 0.0
        top = self._alternatives(partial, raw)
        self._pieces[id(partial)].append(Piece(raw, carried + logprob, id_, top))

    def _alternatives(self, partial: Partial, raw: bytes) -> Alternatives:
        """The text of the last token, and others that could have come there."""
        if self._asked.top is None:
            return ()
        index = self.generation.shared.index
        if not self._pieces[id(partial)]:
            contexts = after_characters(self._begun.cursor)
        else:
            contexts = after_tokens(self.generation.rows[id(partial)], index)
        return alternatives(contexts, raw, self._asked.top, index)

    def _judge(self, partial: Partial) -> None:
        """End a partial where a rule says so."""
        asked, new = self._asked, self.generation.kept(partial)
        if partial.finish == "end" and self._begun.ending:
            new = middles(new, self._begun.ending, True)[0]
            partial.cut = len(new)
        ending = self._rules.ending(new, bool(partial.finish))
        if ending is not None and ending.at < max(len(new), 1):
            partial.cut, partial.finish = ending.at, ending.why
        elif not partial.finish:
            if asked.max_tokens is not None and len(self._pieces[id(partial)]) >= asked.max_tokens:
                partial.finish = "length"
                if not asked.max_tokens:
                    partial.cut = 0
            elif asked.line_seconds is not None and b"\n" in new:
                late = time.perf_counter() - self._started > asked.line_seconds
                partial.finish = "time" if late else ""

    def _candidate(self, partial: Partial) -> Candidate:
        raw = whole_characters(self._before, self.generation.kept(partial))
        stopped = self.generation.stops.first(partial.raw) if partial.finish == "stop" else None
        pieces, left = list[Piece](), len(raw)
        for piece in self._pieces[id(partial)]:
            if left > 0 or (not piece.raw and partial.finish == "end"):
                pieces.append(piece.cut(left))
            left -= len(piece.raw)
        return Candidate(
            decoder_after(self._before[-3:]).decode(raw),
            raw,
            sum(piece.logprob for piece in pieces if piece.raw),
            partial.finish,
            None if stopped is None else partial.raw[slice(*stopped)],
            tuple(pieces),
        )

    def _distinct(self, found: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """Those worth offering: each text once, the most probable for its length first."""
        best: dict[bytes, Candidate] = {}
        for one in sorted(found, key=lambda one: -one.logprob / max(1, len(one.raw))):
            if one.probability >= self._asked.threshold:
                best.setdefault(one.raw, one)
        if len(best) > 1:
            best.pop(b"", None)
        return tuple(best.values())[: self._asked.options.n]

    def _send(self) -> None:
        """Send the text that will not be taken back."""
        if self._tell is None:
            return
        for number, partial in enumerate(self.generation.partials):
            kept = self.generation.kept(partial)
            if partial.finish:
                end = len(kept)
            else:  # of a line's end all or nothing
                end = min(self.generation.safe(partial), len(kept.removesuffix(b"\r")))
                if self._held:
                    end = min(end, len(kept[: max(0, kept.rfind(b"\n"))].rstrip()))
                    end = 0 if self._asked.threshold else end
            piece = self._decoders[number].decode(kept[self._sent[number] : end])
            self._sent[number] = max(self._sent[number], end)
            if piece:
                self._tell(number, piece)

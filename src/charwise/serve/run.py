"""One completion under way: its prompt is read, its candidates are drawn, its events are sent.

All of this runs on the thread that has the model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from charwise.api.errors import HTTPError
from charwise.cursor.generation import Generation, Partial, whole_characters
from charwise.cursor.generation import advance as draw_next
from charwise.cursor.options import GenerationOptions, Limit
from charwise.cursor.shared_tree import SharedTree
from charwise.cursor.smc import Draws, draw_valid
from charwise.errors import LimitError
from charwise.healing.fim import Template, middles
from charwise.serve.cache import Cache
from charwise.serve.logprobs import alternatives, prompt_pieces
from charwise.serve.prompt import Place, parse_prompt
from charwise.serve.stop_rules import StopRules
from charwise.serve.task import NOTHING, Answer, Candidate, NewText, Piece, Stopped, Task
from charwise.tokens.line_ends import line_end, unify
from charwise.tokens.prompts import PromptStart
from charwise.tokens.stops import Stops
from charwise.tokens.utf8 import decoder_after


def advance(runs: Sequence[Run]) -> list[Exception | None]:
    """Draw the next token of every candidate of these runs; return the error that ends each run."""
    errors = draw_next([run.generation for run in runs])
    for at, run in enumerate(runs):
        if errors[at] is None:
            try:
                run.update()
            except Exception as error:  # the other runs go on
                errors[at] = error
    return errors


class Run:
    """One completion under way. Its `limit` begins anew once the prompt is read.

    Its `events` are new texts that were not sent yet, where the task is streamed; last, the answer.
    """

    generation: Generation
    _prompt_seconds, _truncated, _in_one_piece = 0.0, False, False
    _echo: tuple[Piece, ...] = ()

    def __init__(self, task: Task, cache: Cache, template: Template | None, limit: Limit) -> None:
        self.events: list[NewText | Answer | Exception] = []
        self.ended = False
        self._task, self._cache, self._limit = task, cache, limit
        self._started = time.perf_counter()
        lm = cache.lm
        parsed = parse_prompt(task, lm.vocabulary, lm.engine.window)
        self._line_end = line_end(parsed.before, parsed.after or b"")
        before, after = unify(parsed.before), None if parsed.after is None else unify(parsed.after)
        self._context = parsed._replace(before=before, after=after)
        self._fills_in = task.fills_in and template is not None and self._context.between
        self._key = (replace(task, prompt="", suffix=None, files=()), parsed.opening, after)
        if not task.healed and (task.echo or self._fills_in):
            why = "token_healing: false is for a prompt alone: leave it, the suffix or echo out."
            raise HTTPError(400, why, "token_healing")
        place = self._context.place(task, lm.vocabulary, self._fills_in)
        if task.must_fit and not self._context.between:
            self._check_fits(*place)
        if task.repeatable and (offers := cache.recall(self._key, before)):
            tokens = cache.count(*place)
            self._end(offers, tokens, tokens, from_memory=True)
            return
        if task.echo:
            self._echo = tuple(prompt_pieces(lm, task, parsed))
        # What is only read ahead has a seed too, so that nobody is offered it.
        seeded = task.options.seed is not None or task.top is not None
        self._entry = cache.at(*place, anew=seeded and task.max_tokens != 0)
        request = self._entry.request
        self._suffix_start = request.ending if request else b""
        cut = bool(request and (request.prefix_cut or request.suffix_cut))
        self._truncated = parsed.cut or cut or self.shared.left_out > 0
        self._prompt_seconds = time.perf_counter() - self._started
        limit.restart()  # a prompt is read to its end, and an answer has its time after that
        self._rules = StopRules(
            before, after or b"", until=task.until, indent=task.indent, fills_in=self._fills_in
        )
        options = self._options()
        # A text that is checked, or may be left out, is sent once that is known; and ranks are.
        checked = options.constraint is not None and options.constraint.check is not None
        self._in_one_piece = checked or task.threshold > 0 or (self._ranked and options.n > 1)
        self._draws: Draws[Candidate] = draw_valid(options)
        self._draw(next(self._draws))
        try:
            self.update()
        except BaseException:
            self.close()
            raise

    @property
    def shared(self) -> SharedTree:
        """The token tree that completions are drawn from."""
        return self._entry.state.shared

    def update(self) -> None:
        """Look at the tokens that were drawn since: end candidates, and make events.

        Candidates that fail the check of their constraint are drawn again.
        """
        self._look()
        while not self.ended and not self.generation.active():
            drawn = [self._candidate(draft) for draft in self._drafts]
            self.close()
            try:
                self._draw(self._draws.send(drawn))
            except StopIteration as end:
                self._end(self._offers(end.value), *self._entry.tokens)
            else:
                self._look()

    def _draw(self, options: GenerationOptions) -> None:
        """Begin with candidates."""
        self.generation = Generation(self._entry.state, options, self._limit)
        before = self._context.before
        self._drafts = [_Draft(partial, before) for partial in self.generation.partials]

    def _look(self) -> None:
        self._drafts = self._drafts[: len(self.generation.partials)]
        if any(draft.partial.finish == "cancelled" for draft in self._drafts):
            raise Stopped("cancelled")
        for number, draft in enumerate(self._drafts):
            if draft.ended:
                continue
            if (piece := draft.take()) is not None:
                top = self._alternatives(draft, piece.raw)
                draft.pieces.append(piece._replace(top=top))
            self._judge(draft)
            draft.ended = bool(draft.partial.finish)
            if self._task.streamed and not self._in_one_piece:
                raw = self.generation.text_of(draft.partial)
                if text := draft.new_text(raw, self._settled(draft, raw)):
                    file_text = unify(text, self._line_end)
                    self.events.append(NewText(number, file_text, self._truncated))

    def close(self) -> None:
        """Free the contexts that were evaluated on the way."""
        self.generation.close()

    def _end(
        self, offers: Sequence[Candidate], tokens: int, cached: int, from_memory: bool = False
    ) -> None:
        """Make the last event."""
        stops, end, cut = self._task.options.stop, self._line_end, self._truncated
        candidates = tuple(one.with_line_ends(end, stops) for one in offers)
        if self._task.streamed and self._in_one_piece:
            texts = enumerate(one.text for one in candidates)
            self.events += [NewText(n, text, cut) for n, text in texts if text]
        times = time.perf_counter() - self._started, self._prompt_seconds
        answer = Answer(candidates, tokens, cached, from_memory, *times, cut, self._echo)
        self.events.append(answer)
        self.ended = True

    def _check_fits(self, place: Place, text: bytes) -> None:
        """Refuse a prompt that does not fit the window."""
        window = self._cache.lm.engine.window
        start = place.ids if isinstance(place, PromptStart) else ()
        # A token has a byte at least.
        if window is None or len(start) + len(text) < window - 2:
            return
        if (tokens := self._cache.count(place, text)) > window - 2:
            raise LimitError(
                f"the prompt has {tokens} tokens, and the model's window is {window}: there is "
                f"room for {window - 2}. Shorten the prompt from its start."
            )

    def _options(self) -> GenerationOptions:
        """How candidates are drawn."""
        task, most = self._task, self._task.max_bytes
        if most is None:
            longest = self.shared.index.vocabulary.max_token_bytes
            most = min(2**20, (task.max_tokens or 2**20) * longest)
        stops = [unify(one) for one in Stops(task.options.stop).strings]
        return replace(
            task.options,
            # The most probable beginnings often go on alike: of more, enough differ.
            n=task.options.n + (2 if self._ranked and task.options.n > 1 else 0),
            max_new_bytes=most + len(self._suffix_start),
            stop=[*stops, *(unify(one, "\r\n") for one in stops)],  # as a model may write them
        )

    @property
    def _ranked(self) -> bool:
        """Whether the candidates come in the order of their probability."""
        return not self._task.options.temperature

    def _alternatives(self, draft: _Draft, raw: bytes) -> tuple[tuple[bytes, float], ...]:
        """The text of the last token, and others that could have come there."""
        if self._task.top is None:
            return ()
        logprobs = self.generation.rows[id(draft.partial)] if draft.pieces else None
        return alternatives(self._entry.state, logprobs, raw, self._task.top)

    def _judge(self, draft: _Draft) -> None:
        """End a candidate where a rule says so."""
        task, partial, new = self._task, draft.partial, self.generation.text_of(draft.partial)
        if partial.finish == "end" and self._suffix_start:
            new = middles(new, self._suffix_start, True)[0]
            partial.text_end = len(new)
        limit = ""
        if task.max_tokens == 0:
            partial.text_end, partial.finish = 0, "length"
            return
        if task.max_tokens is not None and len(draft.pieces) >= task.max_tokens:
            limit = "length"
        elif task.line_seconds is not None and b"\n" in new:
            seconds = time.perf_counter() - self._started - self._prompt_seconds
            limit = "time" if seconds > task.line_seconds else ""
        ending = self._rules.ending(new, partial.finish or limit)
        if ending is not None and ending.at < max(len(new), 1):
            partial.text_end, partial.finish = ending.at, ending.rule
        elif limit and not partial.finish:
            partial.finish = limit

    def _settled(self, draft: _Draft, raw: bytes) -> int:
        """How many bytes of a candidate will not be taken back."""
        if draft.partial.finish:
            return len(whole_characters(self._context.before, raw))
        # Of a line's end all or nothing.
        end = min(self.generation.safe(draft.partial), len(raw.removesuffix(b"\r")))
        return min(end, self._rules.safe(raw))

    def _candidate(self, draft: _Draft) -> Candidate:
        before, partial = self._context.before, draft.partial
        raw = whole_characters(before, self.generation.text_of(partial))
        match = self.generation.stops.first(partial.raw) if partial.finish == "stop" else None
        pieces, left = list[Piece](), len(raw)
        for piece in draft.pieces:
            if left > 0 or (not piece.raw and partial.finish == "end"):
                pieces.append(piece.cut(left))
            left -= len(piece.raw)
        return Candidate(
            decoder_after(before[-3:]).decode(raw),
            raw,
            sum(piece.logprob for piece in pieces if piece.raw),
            partial.finish,
            None if match is None else partial.raw[slice(*match)],
            tuple(pieces),
        )

    def _offers(self, drawn: list[Candidate]) -> tuple[Candidate, ...]:
        """The candidates worth offering, once all have ended."""
        if self._ranked:
            candidates = self._distinct(drawn)
        else:  # each has its place
            late = replace(NOTHING, finish="time")  # before it was drawn again
            drawn = drawn + [late] * (self._task.options.n - len(drawn))
            least = self._task.threshold
            candidates = tuple(one if one.probability >= least else NOTHING for one in drawn)
        if all(one.finish == "time" and not one.raw for one in drawn):
            raise Stopped("time")
        texts = [self._context.before, self._context.after or b"", *(one.raw for one in candidates)]
        # What was cut is counted anew. Of 128 offers all texts have 32 MiB at most.
        small = not self._truncated and sum(map(len, texts)) <= 2**18
        if self._task.repeatable and small:
            self._cache.remember(self._key, self._context.before, candidates)
        return candidates

    def _distinct(self, drawn: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """Each text once, the most probable for its length first."""
        best: dict[bytes, Candidate] = {}
        for one in sorted(drawn, key=lambda one: -one.logprob / max(1, len(one.raw))):
            if one.probability >= self._task.threshold:
                best.setdefault(one.raw, one)
        if len(best) > 1:
            best.pop(b"", None)
        return tuple(best.values())[: self._task.options.n]


class _Draft:
    """One candidate of a run: its partial, its tokens, and what of it was sent."""

    def __init__(self, partial: Partial, before: bytes) -> None:
        self.partial = partial
        self.pieces: list[Piece] = []
        self.ended = False
        self._tokens, self._bytes, self._logprob = 0, 0, 0.0
        self._decoder, self._sent = decoder_after(before), 0

    def take(self) -> Piece | None:
        """The token drawn since; one that is all in the prompt counts with the next."""
        partial = self.partial
        is_new = len(partial.token_ids) > self._tokens
        self._tokens = len(partial.token_ids)
        raw, logprob = partial.raw[self._bytes :], partial.logprob - self._logprob
        if not (is_new and raw) and partial.finish != "end":
            return None
        self._bytes, self._logprob = len(partial.raw), partial.logprob
        id = partial.token if partial.finish == "end" else partial.token_ids[-1]
        return Piece(raw, logprob, id)

    def new_text(self, raw: bytes, settled: int) -> str:
        """Return the text that can be sent now: of its bytes so many will not be taken back."""
        text = self._decoder.decode(raw[self._sent : settled])
        self._sent = max(self._sent, settled)
        return text

"""The task of a request of any dialect, and its answer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from charwise.api.errors import HTTPError
from charwise.api.request import DEFAULT_TOKENS, CompletionRequest, Form, Until
from charwise.constraints import constraint_of
from charwise.constraints.constraint import Constraint
from charwise.cursor.options import GenerationOptions
from charwise.errors import CharwiseError, ConstraintError
from charwise.healing.prompt import Files
from charwise.tokens.line_ends import unify, write_pieces
from charwise.tokens.prompts import Prompt
from charwise.tokens.stops import Stops, StopStrings

#: Editors and Windows write it at the beginning of a text; it is no part of one.
BYTE_ORDER_MARK = "\ufeff"

#: Texts with their log-probabilities, nats.
Alternatives = tuple[tuple[bytes, float], ...]


class Stopped(CharwiseError, RuntimeError):
    """Work that was ended early; `why` is "cancelled" or "time"."""

    status = 503

    def __init__(self, why: str) -> None:
        super().__init__(  # nobody reads why their own work was cancelled
            "the time for an answer was over before it had a text: ask for less, or start the "
            "server with more --seconds."
        )
        self.why = why


@dataclass(frozen=True)
class Task:
    """A completion that is asked for.

    Attributes:
        files: other files, before a prompt that is a text: a control token each, and path and text.
        options: of its `n` candidates. `seconds` count from when the prompt is read.
        indent: it ends before a line that is indented by less.
        line_seconds: another time budget, for when a whole line is there.
        threshold: a candidate less probable than this is not offered.
        top: alternatives to list for each token; None for no log-probabilities at all.
        fills_in: whether a model that can fill in reads the suffix. It is not repeated anyway.
        must_fit: whether a prompt that does not fit the window is refused, and not shortened.
        healed: whether the prompt is its characters; else it is its own tokens.
    """

    prompt: Prompt
    suffix: str | bytes | None = None
    files: Files = ()
    options: GenerationOptions = field(default_factory=GenerationOptions)
    max_tokens: int | None = None
    max_bytes: int | None = None
    indent: int = 0
    until: Until | None = None
    line_seconds: float | None = None
    threshold: float = 0.0
    top: int | None = None
    echo: bool = False
    streamed: bool = False
    fills_in: bool = True
    must_fit: bool = False
    healed: bool = True

    @classmethod
    def of(cls, request: CompletionRequest, prompt: Prompt, **more: Any) -> Task:
        """Return the task of one prompt of a request, with more of the attributes."""
        options = GenerationOptions(
            n=1 if request.n is None else request.n,
            temperature=request.temperature or 0.0,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_k=max(0, request.top_k or 0),
            # llama.cpp's words for a random seed, which clients send back.
            seed=None if request.seed in (-1, 2**32 - 1) else request.seed,
            stop=request.stops,
            constraint=_constraint(request.form) if request.form else None,
        )
        scored = request.logprobs is not None
        return cls(
            prompt.removeprefix(BYTE_ORDER_MARK) if isinstance(prompt, str) else prompt,
            request.suffix,
            options=options,
            max_tokens=DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens,
            max_bytes=request.max_bytes,
            indent=request.n_indent or 0,
            until=request.until,
            line_seconds=request.line_seconds,
            threshold=request.threshold or 0.0,
            top=request.logprobs,
            echo=bool(request.echo) and scored,
            streamed=bool(request.stream) and not request.echo and not scored,
            healed=request.token_healing is not False,
            **more,
        )

    @property
    def repeatable(self) -> bool:
        """Whether the answer may come from earlier offers."""
        options = self.options
        drawn = options.temperature or options.seed is not None or options.constraint is not None
        # A plain text with more typed after it is another one.
        return self.healed and self.top is None and not (self.streamed or drawn)


def _constraint(form: Form) -> Constraint | None:
    """The constraint that a form asks for."""
    value = form.value.removeprefix(BYTE_ORDER_MARK) if isinstance(form.value, str) else form.value
    try:
        return constraint_of({form.keyword: value})  # type: ignore[misc]
    except ConstraintError as error:
        raise HTTPError(400, str(error), form.field) from None


class Piece(NamedTuple):
    """A token of a completion, as far as it is beyond the prompt; no bytes for the end of text."""

    raw: bytes
    logprob: float
    id: int
    top: Alternatives = ()  # if asked for, the text at its place, then others

    def cut(self, size: int) -> Piece:
        """Return the beginning of it, with the log-probability of the whole."""
        raw = self.raw[:size]
        if raw == self.raw:
            return self
        others = [one for one in self.top[1:] if one[0] != raw]
        top = ((raw, self.top[0][1]), *others) if self.top else ()
        return self._replace(raw=raw, top=top)


@dataclass(frozen=True)
class Candidate:
    """A completion.

    Attributes:
        text, raw: the text to insert, and its bytes. `text` begins with a character that the prompt
            left incomplete.
        logprob: of the tokens that hold it, nats.
        finish: as of `cursor.generation.Completion`; or "line", "block", "suffix" (the text after
            the cursor would be repeated).
        stopped_by: the stop string that ended it.
    """

    text: str
    raw: bytes
    logprob: float
    finish: str
    stopped_by: bytes | None = None
    pieces: tuple[Piece, ...] = ()

    @property
    def probability(self) -> float:
        """The probability of the tokens that hold it."""
        return math.exp(min(0.0, self.logprob))

    def with_line_ends(self, end: str, stops: StopStrings = None) -> Candidate:
        """Return the same with the line ends of a file, and with a stop string as it was given."""
        stop = self.stopped_by and unify(self.stopped_by)
        raws = write_pieces([piece.raw for piece in self.pieces], end)
        return replace(
            self,
            text=unify(self.text, end),
            raw=unify(self.raw, end),
            stopped_by=next((one for one in Stops(stops).strings if unify(one) == stop), stop),
            pieces=tuple(
                piece._replace(raw=raw, top=tuple((unify(one, end), p) for one, p in piece.top))
                for piece, raw in zip(self.pieces, raws, strict=True)
            ),
        )


#: Where nothing is offered.
NOTHING = Candidate("", b"", 0.0, "stop")


class NewText(NamedTuple):
    """New text of a candidate, as it is drawn; `truncated` as in an `Answer`."""

    number: int
    text: str
    truncated: bool = False


@dataclass(frozen=True)
class Answer:
    """The answer to a task: the last event of its stream.

    Attributes:
        candidates: the most probable for its length first; as drawn at a temperature.
        seconds: the model's time, and `prompt_seconds` until the prompt was read.
        truncated: whether the far ends of the prompt were left out, to fit the window.
    """

    candidates: tuple[Candidate, ...]
    prompt_tokens: int
    cached_tokens: int = 0
    from_memory: bool = False
    seconds: float = 0.0
    prompt_seconds: float = 0.0
    truncated: bool = False
    echo: tuple[Piece, ...] = ()

    @property
    def new_tokens(self) -> int:
        """Tokens of all candidates."""
        return sum(len(one.pieces) for one in self.candidates)

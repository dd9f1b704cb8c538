"""The task of a request of any dialect, and its answer."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

from charwise.api.limits import DEFAULT_TOKENS, SERVER
from charwise.api.request import CompletionRequest
from charwise.constraints.arguments import constraint_of
from charwise.cursor.options import GenerationOptions
from charwise.errors import SettingError, check_count, check_number
from charwise.healing.fim_text import Files
from charwise.tokens.line_ends import read, write, write_pieces
from charwise.tokens.prompts import Prompt
from charwise.tokens.stops import Stops, StopStrings
from charwise.tokens.words import first_word

#: Where a completion may end by itself: at the end of its line, or of the block it is in.
Until = Literal["line", "block"]


@dataclass(frozen=True)
class CompletionTask:
    """A completion that is asked for.

    Attributes:
        prompt: what comes before it: text, or a list of texts and token ids.
        suffix: what comes after it; None, as "", where nothing is known.
        files: other files, which come before a prompt that is a text: each a control token, and
            its path and text (`charwise.healing.fim_text`).
        options: how its candidates are drawn, of which there are `n`; at temperature 0 they differ.
            A request with a seed is always computed: it asks for what can be had again. `seconds`
            count from when the model begins with it. A constraint needs no suffix.
        max_tokens: tokens of each, and `max_bytes` bytes; None for as many as there is room for.
        indent: it ends before a line that is indented by less.
        until: "line" or "block".
        line_seconds: another time budget, which counts once a whole line is there.
        threshold: a candidate less probable than this is not offered.
        top: alternatives to list for each token; None for no log-probabilities at all.

    >>> CompletionTask("import nu", until="page")
    Traceback (most recent call last):
    charwise.errors.SettingError: until is 'page': choose 'line' or 'block', or leave it out.
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

    def __post_init__(self) -> None:
        if self.until not in (None, *get_args(Until)):
            raise SettingError(
                f"until is {self.until!r}: choose 'line' or 'block', or leave it out."
            )
        check_count("n", self.options.n, 1, SERVER.completions)
        for name in ("max_tokens", "max_bytes", "top"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 0)
        if self.options.constraint is not None and self.suffix:
            raise SettingError("an answer with a form has no suffix: leave one of them out.")
        check_count("indent", self.indent, 0)
        if self.line_seconds is not None:
            check_number("line_seconds", self.line_seconds, 0.0, math.inf)
        check_number("threshold", self.threshold, 0.0, 1.0)

    @classmethod
    def of(cls, request: CompletionRequest, prompt: Prompt, files: Files = ()) -> CompletionTask:
        """Return the request for one prompt.

        Args:
            request: in OpenAI's form, to which other dialects translate.
            prompt: one of its prompts.
            files: other files.

        >>> CompletionTask.of(CompletionRequest(n=2), "import nu").options.n
        2
        """
        options = GenerationOptions(
            n=1 if request.n is None else request.n,
            temperature=request.temperature or 0.0,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_k=max(0, request.top_k or 0),
            seed=request.seed,
            stop=request.stops,
            constraint=constraint_of(dict([request.form] if request.form else [])),  # type: ignore[arg-type]
        )
        return cls(
            prompt,
            request.suffix,
            files,
            options,
            max_tokens=DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens,
            max_bytes=request.max_bytes,
            indent=request.n_indent or 0,
            until=request.until,
            line_seconds=request.line_seconds,
            threshold=request.threshold or 0.0,
            top=request.logprobs,
        )

    @property
    def repeatable(self) -> bool:
        """Whether the answer may come from earlier offers."""
        options = self.options
        plain = self.top is None and options.constraint is None
        return options.temperature == 0 and options.seed is None and plain


#: Texts with their log-probabilities, nats.
Alternatives = tuple[tuple[bytes, float], ...]


class Piece(NamedTuple):
    """A token of a completion, as far as it is beyond the prompt.

    Attributes:
        raw: its bytes; empty for the end of text.
        logprob: nats.
        id: of the token.
        top: where log-probabilities were asked for, the text that is shown at its place, and others
            that could have been, each with its own.

    >>> Piece(b"y", -0.5, 88).raw
    b'y'
    """

    raw: bytes
    logprob: float
    id: int
    top: Alternatives = ()

    @property
    def shown(self) -> float:
        """The log-probability of the text that is shown, given all before it; nats."""
        return self.top[0][1] if self.top else self.logprob

    def cut(self, size: int) -> Piece:
        """Return the beginning of it, with the log-probability of the whole.

        >>> Piece(b"y)", -0.5, 88, ((b"y)", -0.5), (b"y", -1.5), (b"x", -2.0))).cut(1).top
        ((b'y', -0.5), (b'x', -2.0))
        """
        raw = self.raw[:size]
        if raw == self.raw:
            return self
        others = [one for one in self.top[1:] if one[0] != raw]
        return self._replace(raw=raw, top=((raw, self.shown), *others) if self.top else ())


@dataclass(frozen=True)
class Candidate:
    """A completion.

    Attributes:
        text, raw: what to insert. `text` begins with a character that the prompt left incomplete.
        logprob: of the tokens that hold it, nats.
        finish: "end" (end of text), "stop", "line", "block", "suffix" (what follows would be
            repeated), "length", "window", "time" or "cancelled".
        stopped_by: the stop string that ended it.
        pieces: its tokens.

    >>> one = Candidate("\\n  y = 1\\nz", b"\\n  y = 1\\nz", -1.0, "stop", None, ())
    >>> one.accept_word, one.accept_line
    (4, 8)
    """

    text: str
    raw: bytes
    logprob: float
    finish: str
    stopped_by: bytes | None
    pieces: tuple[Piece, ...]

    @property
    def probability(self) -> float:
        """That of the tokens that hold it."""
        return math.exp(min(0.0, self.logprob))

    @property
    def accept_word(self) -> int:
        """How many characters a user takes who accepts a word."""
        return first_word(self.text)

    @property
    def accept_line(self) -> int:
        """How many characters a user takes who accepts a line, its end not among them."""
        found = re.match(r"[\r\n]*[^\r\n]*", self.text)
        return found.end() if found else 0

    def written(self, end: str, stops: StopStrings = None) -> Candidate:
        r"""Return the same with the line ends of a file, and with a stop string as it was given.

        >>> one = Candidate("a\nb", b"a\nb", -1.0, "length", None, (Piece(b"a\nb", -1.0, 1),))
        >>> one.written("\r\n").text, one.written("\r\n").pieces[0].raw
        ('a\r\nb', b'a\r\nb')
        """
        given = Stops(stops).strings
        found = self.stopped_by and read(self.stopped_by)
        raws = write_pieces([piece.raw for piece in self.pieces], end)
        return replace(
            self,
            text=write(self.text, end),
            raw=write(self.raw, end),
            stopped_by=next((one for one in given if read(one) == found), found),
            pieces=tuple(
                piece._replace(raw=raw, top=tuple((write(one, end), p) for one, p in piece.top))
                for piece, raw in zip(self.pieces, raws, strict=True)
            ),
        )


#: Where nothing is offered.
NOTHING = Candidate("", b"", 0.0, "stop", None, ())


@dataclass(frozen=True)
class Answer:
    """The answer to a request.

    Attributes:
        candidates: the most probable for its length first; as drawn, at a temperature.
        prompt_tokens: of the prompt, as it is counted.
        from_memory: whether it had been offered before.
        cached: prompt tokens that were known before.
        seconds: that it took, and `prompt_seconds` until the prompt was read.
        truncated: whether the far ends of the prompt were left out, to fit the window.
        limited: whether time ended it.
    """

    candidates: tuple[Candidate, ...]
    prompt_tokens: int
    from_memory: bool = False
    cached: int = 0
    seconds: float = 0.0
    prompt_seconds: float = 0.0
    truncated: bool = False

    @property
    def written(self) -> int:
        """Tokens of all candidates."""
        return sum(len(one.pieces) for one in self.candidates)

    @property
    def limited(self) -> bool:
        """Whether time ended it."""
        return any(one.finish == "time" for one in self.candidates)

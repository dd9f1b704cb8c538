"""The state of a model after some text, and its change with every byte.

A `State` is the set of bundles that cover its text (docs/coverings.md). The prompt is known text:
one prefill, then rounds over its last tokens only, because alternatives further back cancel in
what comes next; after a long prompt, while they still change it. From there a state grows byte by
byte: each bundle keeps the tokens that go on with the byte, and the contexts whose last token ends
there are evaluated in one batch.

States are immutable and share one `SharedTree`: the token tree, and what has been evaluated in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from charwise.constraints.constraint import Constraint
from charwise.coverings.bundles import Bundle, next_byte_masses
from charwise.cursor.choose import ChoicePosterior
from charwise.cursor.cover import Cover
from charwise.cursor.distributions import NextBytes
from charwise.cursor.expansion import Outcomes, next_chars, next_words
from charwise.cursor.generation import Completion, Generation, distinct
from charwise.cursor.options import GenerationKeywords, GenerationOptions, Limit
from charwise.cursor.shared_tree import (
    EXACT_TOKENS,
    WHOLE_TOKENS,
    SharedTree,
    word_beginnings,
)
from charwise.cursor.smc import Draws, draw_valid, sample, sum_members
from charwise.engine import EstimatedTree, TokenLM
from charwise.errors import SettingError, ZeroProbabilityError, impossible
from charwise.scoring.effort import PRESETS, Effort
from charwise.tokens import utf8
from charwise.tokens.canonical import to_bytes
from charwise.tokens.prompts import PromptStart
from charwise.tokens.stops import StopStrings


class State:
    """An immutable state: `state + "text"`, `state - n` characters, `state.next()`.

    Attributes:
        shared: the token tree, shared with the states that this one grew from and into.
        whole: the text, after the implied leading space of tokenizers that have one.
        cover: the contexts kept of its covering.
        effort: how much is spent on what is added.

    >>> import charwise
    >>> lm = charwise.load()
    >>> state = lm.state("import nump")
    >>> (state + "y").text, (state + "yz" - 2).text, (state + "ï").without_bytes(1).raw[-2:]
    ('import numpy', 'import nump', b'p\\xc3')
    """

    def __init__(
        self,
        shared: SharedTree,
        whole: bytes,
        cover: Cover,
        effort: Effort,
        parent: State | None = None,
    ) -> None:
        self.shared = shared
        self.whole = whole
        self.cover = cover
        self.effort = effort
        self._parent = parent

    @property
    def raw(self) -> bytes:
        """The bytes of the prompt and of all that was added since."""
        return self.whole[len(self.shared.opening.implied_prefix) :]

    @property
    def text(self) -> str:
        """The text of `raw`, with U+FFFD for bytes that are no character, or not yet one."""
        return self.raw.decode("utf-8", "replace")

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """The contexts that cover the text."""
        return self.cover.bundles

    @property
    def logprob(self) -> float:
        """The log-probability log →p(text | the text before the root), nats."""
        return self.cover.logprob

    @property
    def error(self) -> float:
        """The amount by which the next byte's distribution may be off, as a total variation.

        An estimate: see docs/scoring.md.
        """
        return min(1.0, self.cover.error + self._error_of_rows)

    @cached_property
    def _error_of_rows(self) -> float:
        """The error of an engine whose rows are estimates: a combination's are."""
        tree = self.shared.tree
        if not isinstance(tree, EstimatedTree):
            return 0.0
        return max(tree.next_error(bundle.node) for bundle in self.bundles)

    @property
    def exact_from(self) -> int:
        """The offset in `text`, in bytes, from which on all tokenizations are summed.

        What is before it is conditioned on in its canonical tokenization.
        """
        return max(0, self.shared.start - len(self.shared.opening.implied_prefix))

    @property
    def at_root(self) -> bool:
        """Whether nothing follows the root yet, so that the covering is the empty string."""
        return len(self.whole) == self.shared.start

    def next(self, constraint: Constraint | None = None) -> NextBytes:
        """Return p(byte | text) for the 256 bytes and the end of text.

        Args:
            constraint: renormalise over what it allows, see `NextBytes.under`.

        Raises:
            ZeroProbabilityError: if nothing can follow.
            ConstraintError: no constraint, or one that allows nothing of positive probability.

        >>> charwise.load().state("import nump").next().top(1)[0][0]
        'y'
        """
        masses = self._masses(self.cover)
        if not masses.sum() > 0:  # all that was kept ends here
            rest = self.whole[self.shared.start :]
            canonical = self.shared.index.vocabulary.encode_beginning(rest)
            masses = self._masses(Cover.of(self.shared, self.whole, canonical, PRESETS["exact"]))
        if not masses.sum() > 0:
            raise impossible(self.whole)
        following = NextBytes(masses / masses.sum(), self.error)
        return following if constraint is None else following.under(constraint)

    def _masses(self, cover: Cover) -> NDArray[np.float64]:
        with self.shared.lock:
            return next_byte_masses(self.shared.tree, cover.bundles)[0]

    def next_chars(self, coverage: float = 0.99) -> Outcomes:
        """Return p(character | text), for the characters that hold `coverage` of the probability.

        The bytes of one character are summed out along the UTF-8 tree, the heaviest branch
        first. If the text ends inside a character, the characters that complete it are listed.
        The last hundredth of the probability may be spread over many thousands of characters. So
        the list also ends after 64 beginnings of longer characters. Bytes that are no character may
        hold more than 1 - `coverage`: then it ends when unlisted characters hold less than that.
        `Outcomes.missing` has the share of all that is not listed.

        Raises:
            SettingError: for a coverage outside (0, 1].

        >>> charwise.load().state("import nump").next_chars(0.5).top(1)[0][0]
        'y'
        """
        return next_chars(self, coverage)

    def next_words(self, coverage: float = 0.9) -> Outcomes:
        """Return p(word | text), for the words that hold `coverage` of the probability.

        ASCII whitespace or the end of text ends a word. If the text ends inside a word, the rest of
        it is listed, and "" means that the word ends here. At most 1,000 beginnings of words are
        followed, at about a model call each. `Outcomes.missing` has the share of unlisted words.

        Raises:
            SettingError: for a coverage outside (0, 1].

        >>> charwise.load().state("raise Val").next_words(0.5).top(1)[0][0]
        'ueError'
        """
        return next_words(self, coverage)

    def choose(
        self, choices: Iterable[str | bytes], *, stop: StopStrings = None, ended: bool = False
    ) -> ChoicePosterior:
        """The exact posterior over a list of continuations; see `CharLM.choose`.

        >>> charwise.load().state("for i in ra").choose(["nge(", "ndom."]).top(1)[0][0]
        'nge('
        """
        return ChoicePosterior.of(self._near_root(), choices, stop, ended)

    def complete(
        self, options: GenerationOptions | None = None, **keywords: Unpack[GenerationKeywords]
    ) -> list[Completion]:
        """Return completions of the text, without a second prefill.

        Arguments, order and errors are those of `CharLM.complete`.

        >>> state = charwise.load().state("import nu")
        >>> (state + "mp").complete(max_new_bytes=1)[0].text
        'y'
        """
        options = GenerationOptions.of(options, keywords)
        return self._completions(options, options.limit())

    def _completions(self, options: GenerationOptions, limit: Limit) -> list[Completion]:
        """`complete`, where the time budget began before."""
        if options.conditioning == "global":
            members = sum_members(self._near_root(), options, limit)
            return members if members is not None else sample(self, options, limit)
        draws: Draws[Completion] = draw_valid(options)
        some = next(draws)
        try:
            while True:
                some = draws.send(Generation(self, some, limit).completions())
        except StopIteration as end:
            completions: list[Completion] = end.value
        return completions if options.temperature else distinct(completions)[: options.n]

    def stream(
        self, options: GenerationOptions | None = None, **keywords: Unpack[GenerationKeywords]
    ) -> Iterator[str]:
        """Yield one completion in pieces of whole characters, as it is drawn.

        Under a JSON schema it comes in one piece, once it is known to be valid.
        Arguments and errors are those of `CharLM.stream`.

        >>> "".join(charwise.load().state("import nump").stream(max_new_bytes=1))
        'y'
        """
        options = GenerationOptions.of(options, keywords)
        return self._pieces(options, options.limit())

    def _pieces(self, options: GenerationOptions, limit: Limit) -> Iterator[str]:
        """`stream`, where the time budget began before."""
        options.refuse("n progress conditioning", "stream")
        if options.constraint is not None and options.constraint.check is not None:
            return self._in_one_piece(options, limit)
        return Generation(self, options, limit).pieces()

    def _in_one_piece(self, options: GenerationOptions, limit: Limit) -> Iterator[str]:
        """A completion that is checked as a whole, once it is valid."""
        yield from (one.text for one in self._completions(options, limit) if one.text)

    def __add__(self, more: str | bytes) -> State:
        """The state after more text.

        Raises:
            ZeroProbabilityError: if the model gives the longer text probability zero.
            LimitError: if the text no longer fits the window and cannot be shortened.
        """
        data = to_bytes(more)
        if len(data) > 4:  # at once, in place of byte by byte
            return self._continued(data)
        state: State = self
        for byte in data:
            state = state._step(byte)
        return state

    def __sub__(self, n: int) -> State:
        """The state with the last `n` characters deleted; nothing known is evaluated again.

        An incomplete character at the end counts as one, and so does a byte that belongs to none.

        Raises:
            SettingError: if there are fewer characters than that.

        >>> (charwise.load().state("naï") - 1).raw
        b'na'
        """
        if n < 0:
            raise SettingError(f"cannot delete {n} characters of a text.")
        size, raw = 0, self.raw
        for _ in range(n):
            if size == len(raw):
                raise SettingError(f"cannot delete {n} characters of a text of {len(self.text)}.")
            size += utf8.last_character(raw[: len(raw) - size])
        return self.without_bytes(size)

    def without_bytes(self, n: int) -> State:
        """The state with the last `n` bytes deleted; nothing known is evaluated again.

        Raises:
            SettingError: if there are fewer bytes than that.

        >>> charwise.load().state("naï").without_bytes(1).raw
        b'na\\xc3'
        """
        if not 0 <= n <= len(self.raw):
            raise SettingError(f"cannot delete {n} bytes of a text of {len(self.raw)}.")
        rest = n
        state: State = self
        while rest and state._parent is not None:
            step = len(state.raw) - len(state._parent.raw)
            if step > rest:
                break
            state, rest = state._parent, rest - step
        return state._shortened(rest) if rest else state

    def _step(self, byte: int) -> State:
        """The state after one byte."""
        shared, more, cover = self.shared, bytes([byte]), None
        if not shared.outgrown(self.bundles):
            with shared.lock:
                cover = self.cover.after(shared.tree, byte, self.effort)
        if cover is None:
            return self._continued(more)
        return State(shared, self.whole + more, cover, self.effort, parent=self)

    def _continued(self, more: bytes) -> State:
        """The state after more text, in rounds: on the same tree while that serves."""
        shared, whole = self.shared, self.whole + more
        # So many bytes have too many tokens, and megabytes take seconds to encode.
        most = (2 * WHOLE_TOKENS + 1) * shared.index.vocabulary.max_token_bytes
        if len(whole) - shared.start > most:
            return self.renewed(whole)
        canonical = shared.index.vocabulary.encode_beginning(whole[shared.start :])
        fits = shared.room is None or len(canonical) + EXACT_TOKENS < shared.room
        if len(canonical) > 2 * WHOLE_TOKENS or not fits or shared.outgrown(self.bundles):
            return self.renewed(whole)
        vocabulary, text = shared.index.vocabulary, whole[shared.start :]
        also = word_beginnings(vocabulary, text, 2 * len(canonical))
        cover = Cover.of(shared, whole, canonical, self.effort, also)
        return State(shared, whole, cover, self.effort, parent=self)

    def _shortened(self, n: int) -> State:
        """The state with n bytes of its prompt deleted, from contexts already evaluated."""
        shared, whole = self.shared, self.whole[: len(self.whole) - n]
        canonical = shared.index.vocabulary.encode_beginning(whole[shared.start :])
        # Too near the root, alternatives across it would be missed.
        if len(whole) <= shared.start or (
            shared.canonical_ids and len(canonical) < EXACT_TOKENS - 1
        ):
            return self.renewed(whole)
        cover = Cover.of(shared, whole, canonical, self.effort)
        return State(shared, whole, cover, self.effort)

    def _near_root(self) -> State:
        """This state; far from the root, where known texts would be long, one on a new tree."""
        near = len(self.whole) - self.shared.start <= 256
        return self if near else self.renewed()

    def renewed(self, whole: bytes | None = None) -> State:
        """Return the state after this text, or another, on a new tree of its own."""
        whole = self.whole if whole is None else whole
        return begin(self.shared.engine, self.shared.opening, whole, self.effort)

    def __repr__(self) -> str:
        return (
            f"State({self.text[-20:]!r}, {len(self.bundles)} bundles, "
            f"logprob={self.logprob:.4f}, exact_from={self.exact_from})"
        )


def begin(engine: TokenLM, opening: PromptStart, whole: bytes, effort: Effort) -> State:
    """The state after a text, its implied prefix included: one prefill, then rounds at its end.

    Raises:
        ZeroProbabilityError: if the text has probability zero.
        LimitError: if what is before the text leaves no room for it in the window.
    """
    shared, paths = SharedTree.prefill(engine, opening, whole)
    try:
        return State(shared, whole, Cover.of(shared, whole, paths[0], effort, paths[1:]), effort)
    except ZeroProbabilityError as error:
        if not shared.canonical_ids:
            raise
        raise ZeroProbabilityError(
            f"{error} What is before its last tokens was conditioned on in its canonical ones."
        ) from None

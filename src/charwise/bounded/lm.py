"""`BoundedLM`, the interface to an engine that tells only its best next tokens."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import NamedTuple, NoReturn, Unpack

import numpy as np

from charwise.bounded.covering import BoundedCovering
from charwise.bounded.results import BoundedCompletion, BoundedScore, NextBounds, draw
from charwise.bounded.rows import Remembered
from charwise.coverings.best_first import Interval
from charwise.coverings.log_sums import log
from charwise.cursor.options import GenerationKeywords, GenerationOptions, options_of
from charwise.errors import BoundsError, ContextLengthError, EngineError, check_count, check_number
from charwise.partial_lm import PartialLM
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompt_parts import Prompt, parts_of
from charwise.tokens.prompts import Opening, last_text, split, split_parts
from charwise.tokens.vocabulary import Vocabulary

#: Canonical tokens before the cursor whose alternatives are summed over. Each one more multiplies
#: what would have to be visited for bounds that are worth anything.
_EXACT_TOKENS = 4

#: What a `CharLM` has and this has not, and what to use.
_INSTEAD = {
    "state": "next(prompt), whose answer has bounds",
    "stream": "complete(prompt)",
    "characters": "complete(prompt)",
    "next_chars": "next(prompt), and next after each byte of a character",
    "next_words": "next(prompt), and next after each byte of a word",
    "scores": "score(text) of each",
    "encodings": "covering(text)",
    "choose": "score(choice, context=prompt) of each choice",
    "infill": "a model that is loaded: charwise.load(name)",
    "infill_request": "a model that is loaded: charwise.load(name)",
    "score_infill": "a model that is loaded: charwise.load(name)",
}


class BoundedLM:
    """A language model over characters of which only the best next tokens are told.

    All results have bounds, between which the true number lies: for any distribution that
    tells these tokens so, and whose log-probabilities are off by `engine.rounding` at most. What
    no bounds are known for, such as `state` and `infill`, raises `BoundsError`.

    Args:
        engine: what tells them, such as `charwise.connect` opens.

    Raises:
        EngineError: an engine that tells nothing of the kind.

    >>> import charwise
    >>> lm = charwise.connect("http://127.0.0.1:8000/v1")  # doctest: +SKIP
    >>> bounds = lm.covering("import nump").prefix_logprob()
    >>> charwise.load().prefix_logprob("import nump", preset="exact") in bounds
    True
    """

    def __init__(self, engine: PartialLM) -> None:
        if not isinstance(engine, PartialLM):
            raise EngineError(
                f"{type(engine).__name__} does not tell the best next tokens: charwise.connect "
                "opens a server that does, and charwise.CharLM is for engines that tell all."
            )
        self.engine = engine
        self.index = SortedVocabulary.of(engine.vocabulary)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the model: Δ and κ."""
        return self.engine.vocabulary

    def info(self) -> dict[str, str]:
        """The engine, the model, and the number of tokens that the server tells."""
        return self.engine.info()

    def next(
        self, prompt: Prompt = "", *, tolerance: float = 1e-3, max_contexts: int = 128
    ) -> NextBounds:
        """Return bounds of p(byte | prompt) for the 256 bytes and the end of text.

        All tokenizations of the last 4 canonical tokens are summed; what comes before is
        conditioned on in its canonical tokenization (`NextBounds.exact_from`).

        Args:
            prompt: what comes before, as for `CharLM`.
            tolerance: ask no more when contexts not visited have at most this share.
            max_contexts: ask of so many contexts at most.

        >>> import charwise
        >>> lm = charwise.connect("http://127.0.0.1:8000/v1")  # doctest: +SKIP
        >>> nxt = lm.next("import nump")
        >>> nxt.top(1)[0][0], bool(nxt.lower[ord("y")] > 0.9)
        ('y', True)
        """
        opening, text = split(self.vocabulary, prompt)
        limits = _Limits(tolerance, max_contexts).checked()
        canonical = self.vocabulary.encode_beginning(text)
        covering = self._covering(opening, text, canonical, _EXACT_TOKENS, limits)
        masses = covering.masses()
        lower, upper = masses.shares()
        told = masses.least if masses.least.sum() > 0 else masses.most
        probs = told / told.sum() if told.sum() > 0 else np.full(257, 1 / 257)
        return NextBounds(
            probs=probs,
            missing=float(np.clip(1 - masses.least.sum(), 0.0, 1.0)),
            error=float(min(1.0, (upper - probs).sum(), (probs - lower).sum())),
            lower=lower,
            upper=upper,
            exact_from=max(0, covering.exact_from - len(opening.lead)),
            contexts=covering.asked,
        )

    def covering(
        self, prompt: Prompt, *, tolerance: float = 1e-3, max_contexts: int = 256
    ) -> BoundedCovering:
        """The covering of a prompt, visited best first, with bounds of →p(prompt).

        All tokenizations count, from the start: of a text of many tokens the upper bound is far
        off, as alternatives multiply. `next` and `score` condition on what is further back.

        Args:
            prompt: the text; special tokens in it are conditioned on.
            tolerance, max_contexts: as for `next`.
        """
        opening, text = split(self.vocabulary, prompt)
        limits = _Limits(tolerance, max_contexts).checked()
        canonical = self.vocabulary.encode_beginning(text)
        return self._covering(opening, text, canonical, len(canonical), limits)

    def prefix_logprob(
        self, prompt: Prompt, *, tolerance: float = 1e-3, max_contexts: int = 256
    ) -> Interval:
        """Return bounds of log →p(text), the log-probability that a text starts with this, nats."""
        covering = self.covering(prompt, tolerance=tolerance, max_contexts=max_contexts)
        return covering.prefix_logprob()

    def logprob(
        self, prompt: Prompt, *, tolerance: float = 1e-3, max_contexts: int = 256
    ) -> Interval:
        """Return bounds of log p(text), the log-probability that a text is exactly this, nats."""
        return self.covering(prompt, tolerance=tolerance, max_contexts=max_contexts).logprob()

    def score(
        self,
        prompt: Prompt,
        *,
        context: Prompt = "",
        tolerance: float = 1e-3,
        max_contexts: int = 64,
    ) -> BoundedScore:
        """Return bounds of the log-probability of every byte of a text, given those before it.

        As for `next`, all tokenizations are summed of the canonical token that a byte lies in and
        of the 4 before it; what comes before is conditioned on as it is (`exact_from`). The sum
        is the log-probability of the text by that chain; of →p(text), which sums all
        tokenizations from its start, `covering` has bounds.

        Args:
            prompt: the text; special tokens in it are conditioned on.
            context: what comes before the text; conditioned on, and not scored.
            tolerance: as for `next`.
            max_contexts: ask of so many contexts at most for each canonical token.

        >>> import charwise
        >>> lm = charwise.connect("http://127.0.0.1:8000/v1")  # doctest: +SKIP
        >>> score = lm.score("import os")
        >>> score.lower.shape, bool((score.lower <= score.upper).all())
        ((9,), True)
        """
        scored = last_text(parts_of(prompt))[1]
        opening, whole = split_parts(self.vocabulary, [*parts_of(context), *parts_of(prompt)])
        first, limits = len(whole) - len(scored), _Limits(tolerance, max_contexts).checked()
        canonical = self.vocabulary.encode_beginning(whole)
        # The last token, or what has none of its own, reaches to the end of the text.
        ends = [0, *accumulate(map(self.index.length, canonical[:-1])), len(whole)]
        lower, upper, exact_from = list[float](), list[float](), list[int]()
        tokens: list[tuple[int, float, float]] = []  # end, least and most log-probability
        engine = Remembered(self.engine)
        for last, (begin, end) in enumerate(pairwise(ends)):
            if end <= first:
                continue
            text, ids = whole[:end], canonical[: last + 1]
            covering = self._covering(opening, text, ids, _EXACT_TOKENS + 1, limits, engine)
            start, begin = covering.exact_from, max(first, begin)
            for at in range(begin, end):
                least, most = covering.masses(at - start).shares()
                lower.append(log(least[whole[at]]))
                upper.append(log(most[whole[at]]))
                exact_from.append(max(0, start - len(opening.lead)))
            chain = [math.fsum(logs[begin - first :]) for logs in (lower, upper)]
            begun = covering.prefix_logprob(begin - start)
            sums = _quotient(covering.prefix_logprob(end - start), begun)
            tokens.append((end - first, max(sums[0], chain[0]), min(sums[1], chain[1])))
        token_ends, token_lower, token_upper = np.reshape(tokens, (-1, 3)).T
        return BoundedScore(
            scored,
            np.array(lower),
            np.array(upper),
            np.array(exact_from, dtype=np.int64),
            token_ends.astype(np.int64),
            token_lower,
            token_upper,
            engine.contexts,
            engine.calls,
        )

    def complete(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        **keywords: Unpack[GenerationKeywords],
    ) -> BoundedCompletion:
        """Return a completion of the prompt's characters, drawn from the returned tokens.

        At temperature 0 the heaviest token string that is told to cover the prompt is continued
        greedily, else all are drawn from, each in proportion to what is told of it. What could
        not be drawn, because it was not told, is `BoundedCompletion.missing`.

        Args:
            prompt: the text, or a list with special tokens.
            options: `max_new_bytes`, `temperature` (0 or 1), `seed` and `stop`; it takes no others.
            keywords: those, one by one.

        Raises:
            SettingError: another option, or one that is wrong.
            ZeroProbabilityError: if nothing that is told covers the prompt.

        >>> import charwise
        >>> lm = charwise.connect("http://127.0.0.1:8000/v1")  # doctest: +SKIP
        >>> lm.complete("import nump").text[:1]
        'y'
        """
        options = options_of(options, keywords)
        options.refuse(
            "n top_p top_k seconds cancel progress constraint conditioning", "a BoundedLM"
        )
        opening, text = split(self.vocabulary, prompt)
        canonical = self.vocabulary.encode_beginning(text)
        covering = self._covering(opening, text, canonical, _EXACT_TOKENS, _Limits(1e-3, 128))
        return draw(self.engine, covering, options)

    def __getattr__(self, name: str) -> NoReturn:
        if name in _INSTEAD:
            raise BoundsError(
                f"{name} has no bounds where only the best next tokens are told: use "
                f"{_INSTEAD[name]}."
            )
        raise AttributeError(f"a BoundedLM has no attribute {name!r}.")

    def _covering(
        self,
        opening: Opening,
        text: bytes,
        canonical: list[int],
        exact: int,
        limits: _Limits,
        engine: PartialLM | None = None,
    ) -> BoundedCovering:
        """The covering of the text of the last canonical tokens, given those before them."""
        given, window = canonical[: max(0, len(canonical) - exact)], self.engine.window
        rest = canonical[len(given) :]
        start = len(self.vocabulary.decode(given))
        if window is not None:
            # As many tokens again for alternatives, which are shorter.
            room = window - len(opening.ids) - 2 * len(rest)
            if room < 0:
                raise ContextLengthError(
                    f"a text of {len(canonical)} tokens, {len(opening.ids)} before it, and its "
                    f"other tokenizations do not fit the window of {window}. Shorten it, or put "
                    "its beginning into `context`."
                )
            given = given[max(0, len(given) - room) :]
        root = [*opening.ids, *given]
        return BoundedCovering(
            engine or self.engine, root, text[start:], rest, exact_from=start, **limits._asdict()
        )


class _Limits(NamedTuple):
    """When to ask no more."""

    tolerance: float
    max_contexts: int

    def checked(self) -> _Limits:
        check_number("tolerance", self.tolerance, 0.0, 1.0)
        check_count("max_contexts", self.max_contexts, 1)
        return self


def _quotient(done: Interval, begun: Interval) -> tuple[float, float]:
    """Bounds of log →p(σs) − log →p(σ) from those of both, nats."""
    if done.upper == -math.inf:
        return -math.inf, -math.inf
    return (
        done.lower - begun.upper if done.lower > -math.inf else -math.inf,
        min(0.0, done.upper - begun.lower) if begun.lower > -math.inf else 0.0,
    )

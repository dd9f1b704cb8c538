"""The methods that every language model over characters has, written once.

A model opens the state after a prompt, and scores known texts. All else follows from these two:
`CharLM` is one model, `combine.Combination` several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Unpack

from charwise.cursor.character_state import CharacterState
from charwise.cursor.choose import ChoicePosterior
from charwise.cursor.distributions import NextBytes
from charwise.cursor.expansion import Outcomes, char_entropies, word_entropies
from charwise.cursor.generation import Completion
from charwise.cursor.options import (
    GenerationKeywords,
    GenerationOptions,
    Report,
    check_report,
    options_of,
)
from charwise.errors import SettingError, check_flag, check_share, shown
from charwise.scoring.effort import Effort, EffortKeywords
from charwise.surprisal.score import ENTROPIES, Entropy, Score
from charwise.tokens.prompt_parts import Prompt, parts_of, prompts_of
from charwise.tokens.prompts import last_text
from charwise.tokens.stops import StopStrings


class Asked(NamedTuple):
    """The extra results of scores, and a function that is told how far they are."""

    end: bool = False
    entropy: Entropy | None = None
    progress: Report | None = None


class CharacterModel(ABC):
    """A language model over bytes and characters."""

    @abstractmethod
    def state(
        self,
        prompt: Prompt = "",
        *,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
    ) -> CharacterState:
        """The immutable state after a prompt: extend it with `+`, ask `next()`.

        >>> import charwise
        >>> state = charwise.load().state("import nu")
        >>> (state + "mp").next().top(1)[0][0]
        'y'
        """

    @abstractmethod
    def _scored(
        self,
        prompts: Sequence[Prompt],
        contexts: Sequence[Prompt],
        asked: Asked,
        **spend: Unpack[EffortKeywords],
    ) -> list[Score]:
        """The scores of texts after their contexts, but for the entropies of characters.

        With `entropy="char"` they have the distributions of every next byte.
        """

    def next(self, prompt: Prompt = "", **spend: Unpack[EffortKeywords]) -> NextBytes:
        """Return p(byte | prompt) for the 256 bytes and the end of text; see `state`.

        >>> import charwise
        >>> nxt = charwise.load().next("import nump")
        >>> nxt.top(1)[0][0], nxt.probs.shape, round(float(nxt.probs.sum()), 9)
        ('y', (257,), 1.0)
        """
        return self.state(prompt, **spend).next()

    def next_chars(
        self,
        prompt: Prompt = "",
        *,
        coverage: float = 0.99,
        **spend: Unpack[EffortKeywords],
    ) -> Outcomes:
        """Return p(character | prompt), for the characters that hold `coverage` of the probability.

        See `state`.

        >>> import charwise
        >>> charwise.load().next_chars("import nump", coverage=0.5).top(1)[0][0]
        'y'
        """
        return self.state(prompt, **spend).next_chars(coverage)

    def next_words(
        self,
        prompt: Prompt = "",
        *,
        coverage: float = 0.9,
        **spend: Unpack[EffortKeywords],
    ) -> Outcomes:
        """Return p(word | prompt), for the words that hold `coverage` of the probability.

        See `State.next_words`.

        >>> import charwise
        >>> charwise.load().next_words("raise Val", coverage=0.5).top(1)[0][0]
        'ueError'
        """
        return self.state(prompt, **spend).next_words(coverage)

    def prefix_logprob(self, prompt: Prompt, **spend: Unpack[EffortKeywords]) -> float:
        """Return log →p(text): the log-probability that a text starts with this, nats.

        Of a prompt with special tokens: of the text after the last, given what is before it.

        Raises:
            ZeroProbabilityError: if no text starts so.
            TokenizationError: if no token string spells it.

        >>> import charwise
        >>> lm = charwise.load()
        >>> lm.prefix_logprob("import nump") > lm.prefix_logprob("import nqmp")
        True
        """
        return float(self.score(prompt, **spend).logprobs.sum())

    def logprob(self, prompt: Prompt, **spend: Unpack[EffortKeywords]) -> float:
        """Return log p(text): the log-probability that a text is exactly this, nats.

        −inf where a text cannot end: the model gives the end of text probability zero there, or
        the vocabulary has no end token. Otherwise as `prefix_logprob`.

        >>> import charwise
        >>> lm = charwise.load()
        >>> lm.logprob("import os") < lm.prefix_logprob("import os")
        True
        """
        score = self.score(prompt, end=True, **spend)
        assert score.end_logprob is not None
        return float(score.logprobs.sum()) + score.end_logprob

    def score(
        self,
        prompt: Prompt,
        *,
        context: Prompt = "",
        end: bool = False,
        entropy: Entropy | None = None,
        coverage: float = 0.9,
        **spend: Unpack[EffortKeywords],
    ) -> Score:
        """Return the log-probability of every byte of a text, given all bytes before it.

        Args:
            prompt: the text; special tokens in it are conditioned on.
            context: what comes before the text; conditioned on, and not scored. It is joined to
                the text as characters: where the one ends and the other begins changes no number.
            end: also score the end of text.
            entropy: "byte": also the entropy before each byte, and the rank of the byte that came.
                "char": and the entropy of characters. "word": and bounds of the entropy of the
                next word where one begins, which takes hundreds of model calls a word.
            coverage: with "word": look for words until they hold so much of the probability.
            spend: `preset` ("fast", "default", "accurate" or "exact", or an `Effort`), or in its
                place `tolerance`: the mean error that you accept, in bits a byte. The beam widens
                until the mean of `Score.error` is below it, or ten rounds are done.

        Raises:
            SettingError: for an unknown preset, or a tolerance that is no positive number.
            SearchLimitError: for "exact", and a text that has too many token strings.

        >>> import charwise
        >>> lm = charwise.load()
        >>> score = lm.score("import numpy")
        >>> score.logprobs.shape, score.bits_per_byte < 4
        ((12,), True)
        >>> bool((lm.score("py", context="import num").logprobs == score.logprobs[-2:]).all())
        True
        """
        [score] = self.scores(
            [prompt], contexts=[context], end=end, entropy=entropy, coverage=coverage, **spend
        )
        return score

    def scores(
        self,
        prompts: Sequence[Prompt],
        *,
        contexts: Sequence[Prompt] | None = None,
        end: bool = False,
        entropy: Entropy | None = None,
        coverage: float = 0.9,
        progress: Report | None = None,
        **spend: Unpack[EffortKeywords],
    ) -> list[Score]:
        """Return the `score` of many texts, packed into common batches.

        Args:
            prompts: the texts.
            contexts: what comes before each, conditioned on and not scored; by default nothing.
            end, entropy, coverage, spend: as in `score`.
            progress: called after each batch of texts with how many bytes are scored, and of how
                many.

        Raises:
            SettingError: not as many contexts as texts, or one text where a list is wanted.

        >>> import charwise
        >>> [len(score.logprobs) for score in charwise.load().scores(["import", "os"])]
        [6, 2]
        """
        prompts = prompts_of("prompts", prompts)
        contexts = [""] * len(prompts) if contexts is None else prompts_of("contexts", contexts)
        if len(contexts) != len(prompts):
            raise SettingError(
                f"{len(contexts)} contexts for {len(prompts)} texts: give one for each."
            )
        if entropy is not None and not (isinstance(entropy, str) and entropy in ENTROPIES):
            raise SettingError(
                f"entropy is {shown(entropy)}: choose 'byte', 'char', 'word' or None."
            )
        check_share("coverage", coverage)
        check_report(progress)
        asked = Asked(check_flag("end", end), entropy, progress)
        if entropy == "word":  # nearly all the time goes into the words
            asked = asked._replace(entropy="byte", progress=None)
        scores = self._scored(prompts, contexts, asked, **spend)
        if entropy not in ("char", "word"):
            return scores
        found, done, total = [], 0, sum(len(score.raw) for score in scores)
        for prompt, context, score in zip(prompts, contexts, scores, strict=True):
            begun = self._begun([*parts_of(context), *parts_of(prompt)], score, spend)
            if entropy == "char":
                found.append(replace(score, char_entropies=char_entropies(score, begun)))
                continue
            found.append(replace(score, word_entropies=word_entropies(score, begun, coverage)))
            done += len(score.raw)
            if progress is not None:
                progress(done, total)
        return found

    def scores_with_rows(
        self,
        prompts: Sequence[Prompt],
        *,
        contexts: Sequence[Prompt],
        end: bool = False,
        **spend: Unpack[EffortKeywords],
    ) -> list[Score]:
        """Return scores with the distributions of every next byte, for combinations and tables.

        With `end`, a row for what follows the text is the last.

        >>> import charwise
        >>> [score] = charwise.load().scores_with_rows(["os"], contexts=["import "])
        >>> score.distributions.shape
        (2, 257)
        """
        return self._scored(prompts, contexts, Asked(end, "char"), **spend)

    def complete(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
        **keywords: Unpack[GenerationKeywords],
    ) -> list[Completion]:
        """Return completions drawn from p(completion | prompt characters).

        At temperature 0 (the default) a token model continues the n most probable members of the
        prompt's covering greedily. Otherwise members are drawn in proportion to their prefix
        probability (to the power 1 / temperature), then tokens as the model draws them; `top_p`
        and `top_k` apply to those. A combination draws byte by byte.

        Args:
            prompt: the text, or a list with special tokens.
            options: how to draw.
            preset, tolerance: how much to spend on the prompt, as for `score`.
            keywords: options, one by one: `n`, `max_new_bytes`, `temperature`, `top_p`, `top_k`,
                `seed`, `stop`, `seconds`, `cancel`, `progress`, `conditioning`, `particles`, and
                at most one of `regex`, `json_schema`, `grammar`, `choices` and `constraint`.
                `GenerationOptions` says what each means.

        Raises:
            SettingError: for a number, a stop string or a budget that is none.
            ConstraintError: for a constraint that is wrong, or that nothing satisfies.
            ZeroProbabilityError: if the model gives the prompt probability zero.

        >>> import charwise
        >>> lm = charwise.load()
        >>> lm.complete("import nump", max_new_bytes=1)[0].text
        'y'
        >>> lm.complete("return ", choices=["True", "False"])[0].text
        'True'
        >>> lm.complete("import nump", charwise.GenerationOptions(max_new_bytes=1))[0].text
        'y'
        """
        options = options_of(options, keywords)
        limit = options.limit()
        state = self.state(prompt, preset=preset, tolerance=tolerance)
        return state._completions(options, limit)

    def stream(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
        **keywords: Unpack[GenerationKeywords],
    ) -> Iterator[str]:
        """Yield one completion in pieces of whole characters, as it is drawn.

        Arguments and errors are those of `complete`; constraints are local. It takes no `n` and no
        `progress`.

        >>> import charwise
        >>> lm = charwise.load()
        >>> "".join(lm.stream("import nump", max_new_bytes=1))
        'y'
        """
        options = options_of(options, keywords)
        limit = options.limit()
        state = self.state(prompt, preset=preset, tolerance=tolerance)
        return state._pieces(options, limit)

    def choose(
        self,
        prompt: Prompt,
        choices: Iterable[str | bytes],
        *,
        stop: StopStrings = None,
        ended: bool = False,
        **spend: Unpack[EffortKeywords],
    ) -> ChoicePosterior:
        """Return the exact posterior over a list of continuations of any lengths.

        All tokenizations of each are summed, across the end of the prompt too. They are evaluated
        together, what several begin with once. A combination has them by its local rule.

        Args:
            prompt: what comes before.
            choices: the continuations, each once.
            stop: each choice is followed by this string, or one of these.
            ended: each choice is followed by the end of text. With neither, a choice is what the
                text goes on with, whatever comes then, and none may begin another.

        Raises:
            SettingError: a choice twice, or one that begins another where both may be meant.
            ConstraintError: no choices, or what is no string.
            ZeroProbabilityError: if the model gives all of them probability zero.

        >>> import charwise
        >>> chosen = charwise.load().choose("for i in ra", ["nge(", "ndom."])
        >>> chosen.top(1)[0][0], chosen.probs.sum().round(9)
        ('nge(', np.float64(1.0))
        """
        return self.state(prompt, **spend).choose(choices, stop=stop, ended=ended)

    def _begun(
        self, parts: list[str | bytes | int], score: Score, spend: EffortKeywords
    ) -> Callable[[bytes], CharacterState]:
        """The states along a text that was scored: of its context, and some of its bytes."""
        ids, text = last_text(parts)
        given = text[: len(text) - len(score.raw)]
        return lambda begun: self.state([*ids, given + begun], **spend)

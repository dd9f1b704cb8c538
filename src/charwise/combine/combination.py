"""`Combination`: several models as one, over characters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Unpack

from charwise.combine.completing import completions
from charwise.combine.drawing import stream
from charwise.combine.members import Member, Spend, Team, text_of
from charwise.combine.scoring import scores
from charwise.combine.state import CombinedState, begin
from charwise.constraints.asked import ConstraintKeywords, constraint_of
from charwise.cursor.char_entropy import char_entropies
from charwise.cursor.choose import ChoicePosterior
from charwise.cursor.conditioned import Conditioning
from charwise.cursor.distributions import NextBytes, NextChars
from charwise.cursor.drafts import Completion
from charwise.cursor.generation import Drawn, Report, characters, check_report
from charwise.cursor.limit import Cancel, Limit
from charwise.cursor.sampling import Sampling
from charwise.errors import SettingError, check_flag, items, shown
from charwise.known_text.effort import Effort
from charwise.surprisal.score import Entropy, Score
from charwise.tokens.prompt_parts import Prompt
from charwise.tokens.stops import StopStrings


class Combination:
    """Several models as one: used as a `CharLM` is, as far as that does not speak of tokens.

    Made by `mixture`, `product`, `minimum`, `maximum`, `proxy` and `contrast`. Prompts are text or
    bytes: token ids mean something to one tokenizer only, and are given to `member`. What `next`,
    `score`, `choose` and `stream` are of is the local rule, a distribution over texts that is
    normalised at each byte; `complete` also has the global one (docs/combine.md).

    A preset or a tolerance is every member's; without one each has its own default.

    Attributes:
        team: the members, and the rule that combines them.

    >>> import charwise
    >>> from charwise import combine
    >>> lm = charwise.load()
    >>> both = combine.mixture([lm, combine.member(lm, before="import numpy as np\\n")])
    >>> both.next("x = np.zer").top(1)[0][0]
    'o'
    """

    def __init__(self, team: Team) -> None:
        self.team = team

    @property
    def members(self) -> tuple[Member, ...]:
        """The models, each with what comes before the text for it alone."""
        return self.team.members

    def state(
        self,
        prompt: Prompt = "",
        *,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
    ) -> CombinedState:
        """The immutable state after a prompt: extend it with `+`, ask `next()`.

        A mixture also scores the prompt with each member: how well each foresaw it says how much
        each counts from there (`CombinedState.shares`).

        Raises:
            ZeroProbabilityError: if the combination gives the prompt probability zero.
            TokenizationError: a prompt with token ids.

        >>> import charwise
        >>> from charwise import combine
        >>> state = combine.product([charwise.load()]).state("import nu")
        >>> (state + "mp").next().top(1)[0][0]
        'y'
        """
        return begin(self.team, text_of(prompt), Spend(preset, tolerance))

    def next(
        self,
        prompt: Prompt = "",
        *,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
    ) -> NextBytes:
        """p(byte | prompt) for the 256 bytes and the end of text.

        >>> import charwise
        >>> from charwise import combine
        >>> combine.product([charwise.load()]).next("import nump").top(1)[0][0]
        'y'
        """
        return self.state(prompt, preset=preset, tolerance=tolerance).next()

    def next_chars(
        self,
        prompt: Prompt = "",
        *,
        coverage: float = 0.99,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
    ) -> NextChars:
        """p(character | prompt), for the characters that hold `coverage` of the probability.

        >>> import charwise
        >>> from charwise import combine
        >>> combine.product([charwise.load()]).next_chars("import nump", coverage=0.5).top(1)[0][0]
        'y'
        """
        return self.state(prompt, preset=preset, tolerance=tolerance).next_chars(coverage)

    def prefix_logprob(
        self, prompt: Prompt, *, preset: str | Effort | None = None, tolerance: float | None = None
    ) -> float:
        """log →p(text): the log-probability that a text starts with this, nats.

        Raises:
            ZeroProbabilityError: if no text starts so.

        >>> import charwise
        >>> from charwise import combine
        >>> combine.product([charwise.load()]).prefix_logprob("import nump") > -20
        True
        """
        return float(self.score(prompt, preset=preset, tolerance=tolerance).logprobs.sum())

    def logprob(
        self, prompt: Prompt, *, preset: str | Effort | None = None, tolerance: float | None = None
    ) -> float:
        """log p(text): the log-probability that a text is exactly this, nats.

        >>> import charwise
        >>> from charwise import combine
        >>> lm = combine.product([charwise.load()])
        >>> lm.logprob("import os") < lm.prefix_logprob("import os")
        True
        """
        score = self.score(prompt, preset=preset, tolerance=tolerance, end=True)
        assert score.end_logprob is not None
        return float(score.logprobs.sum()) + score.end_logprob

    def score(
        self,
        prompt: Prompt,
        *,
        context: Prompt = "",
        preset: str | Effort | None = None,
        tolerance: float | None = None,
        end: bool = False,
        entropy: Entropy | None = None,
    ) -> Score:
        """Log-probability of every byte of a text, by the local rule; see `CharLM.score`.

        One pass of each member over the text. Except of a mixture whose `entropy` is not asked,
        that keeps the 257 probabilities of every byte and member: two kilobytes each.

        >>> import charwise
        >>> from charwise import combine
        >>> lm = charwise.load()
        >>> combine.product([lm, lm]).score("import numpy").bits_per_byte < 4
        True
        """
        return self.scores(
            [prompt],
            contexts=[context],
            preset=preset,
            tolerance=tolerance,
            end=end,
            entropy=entropy,
        )[0]

    def scores(
        self,
        prompts: Sequence[Prompt],
        *,
        contexts: Sequence[Prompt] | None = None,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
        end: bool = False,
        entropy: Entropy | None = None,
        progress: Report | None = None,
    ) -> list[Score]:
        """`score` of many texts; each member packs them into common batches.

        Args:
            prompts, contexts, preset, tolerance, end, entropy: as `CharLM.scores` has them.
            progress: called after each member with how many bytes are scored, and of how many.

        Raises:
            SettingError: not as many contexts as texts, or one text where a list is wanted.
            ZeroProbabilityError: a text that the combination gives probability zero.

        >>> import charwise
        >>> from charwise import combine
        >>> lm = combine.product([charwise.load()])
        >>> [len(score.logprobs) for score in lm.scores(["import", "os"])]
        [6, 2]
        """
        texts = _texts("prompts", prompts)
        before = [b""] * len(texts) if contexts is None else _texts("contexts", contexts)
        if len(before) != len(texts):
            raise SettingError(f"{len(before)} contexts for {len(texts)} texts.")
        if entropy is not None and not (isinstance(entropy, str) and entropy in ("byte", "char")):
            raise SettingError(f"entropy is {shown(entropy)}: choose 'byte', 'char' or None.")
        end = check_flag("end", end)
        check_report(progress)
        spend = Spend(preset, tolerance)
        found = scores(
            self.team,
            texts,
            before,
            spend,
            end=bool(end),
            rows=entropy is not None,
            progress=progress,
        )
        if entropy == "byte":
            return [replace(score, distributions=None) for score in found]
        if entropy is None:
            return found
        return [
            replace(score, char_entropies=char_entropies(score, self._after(context, spend)))
            for context, score in zip(before, found, strict=True)
        ]

    def scores_with_rows(
        self,
        prompts: Sequence[Prompt],
        *,
        contexts: Sequence[Prompt],
        preset: str | Effort | None = None,
        tolerance: float | None = None,
    ) -> list[Score]:
        """Scores with the distributions of every next byte: what a combination of this one asks.

        >>> import charwise
        >>> from charwise import combine
        >>> both = combine.product([charwise.load()])
        >>> both.scores_with_rows(["os"], contexts=["import "])[0].distributions.shape
        (2, 257)
        """
        texts, before = _texts("prompts", prompts), _texts("contexts", contexts)
        return scores(self.team, texts, before, Spend(preset, tolerance), rows=True)

    def _after(self, context: bytes, spend: Spend) -> Callable[[bytes], CombinedState]:
        return lambda begun: begin(self.team, context + begun, spend)

    def complete(
        self,
        prompt: Prompt,
        *,
        n: int = 1,
        max_new_bytes: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int | None = None,
        stop: StopStrings = (),
        seconds: float | None = None,
        cancel: Cancel | None = None,
        progress: Report | None = None,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
        conditioning: Conditioning = "local",
        particles: int = 64,
        **may_follow: Unpack[ConstraintKeywords],
    ) -> list[Completion]:
        """Completions of a prompt, drawn byte by byte.

        At temperature 0 (the default) the n likeliest next bytes are each gone on with greedily.
        Temperature, `top_p` and `top_k` apply to bytes. Completions have no tokens.

        Args:
            n, max_new_bytes, stop, seed, seconds, cancel, progress: as `CharLM.complete` has them;
                the budget is looked at between two bytes.
            regex, json_schema, grammar, choices, constraint: what may follow the prompt; at most
                one.
            conditioning: "local" draws bytes from the local rule, under the constraint. "global"
                draws from the combination of the members' distributions over whole texts, given the
                constraint if there is one: the n heaviest texts come as a `Weighted` list, with
                their weights, and an estimate of what all texts add up to before normalising.
                A text of `max_new_bytes` counts as if it ended there.
            particles: the size of the sample where conditioning="global", and the set is not small.

        Raises:
            SettingError, ConstraintError, ZeroProbabilityError: as `CharLM.complete`.

        >>> import charwise
        >>> from charwise import combine
        >>> combine.product([charwise.load()]).complete("import nump", max_new_bytes=1)[0].text
        'y'
        """
        limit = Limit(seconds, cancel)
        constraint = constraint_of(may_follow)
        sampling = Sampling(temperature, top_p, top_k, seed)
        state = self.state(prompt, preset=preset, tolerance=tolerance)
        return completions(
            state,
            constraint,
            conditioning,
            particles,
            n=n,
            max_new_bytes=max_new_bytes,
            stop=stop,
            sampling=sampling,
            limit=limit,
            progress=progress,
        )

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_bytes: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int | None = None,
        stop: StopStrings = (),
        seconds: float | None = None,
        cancel: Cancel | None = None,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
        **may_follow: Unpack[ConstraintKeywords],
    ) -> Iterator[str]:
        """One completion in pieces, as it is drawn; never ends a piece inside a character.

        >>> import charwise
        >>> from charwise import combine
        >>> "".join(combine.product([charwise.load()]).stream("import nump", max_new_bytes=1))
        'y'
        """
        constraint = constraint_of(may_follow)
        limit, sampling = Limit(seconds, cancel), Sampling(temperature, top_p, top_k, seed)
        return stream(
            self.state(prompt, preset=preset, tolerance=tolerance),
            max_new_bytes=max_new_bytes,
            stop=stop,
            sampling=sampling,
            limit=limit,
            constraint=constraint,
        )

    def characters(
        self,
        prompt: Prompt,
        *,
        max_new_bytes: int = 64,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int | None = None,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
        **may_follow: Unpack[ConstraintKeywords],
    ) -> Iterator[Drawn]:
        """One completion a character at a time, with the distributions it was drawn from.

        >>> import charwise
        >>> from charwise import combine
        >>> lm = combine.product([charwise.load()])
        >>> next(lm.characters("import nump", temperature=0)).character
        'y'
        """
        constraint = constraint_of(may_follow)
        sampling = Sampling(temperature, top_p, top_k, seed)
        state = self.state(prompt, preset=preset, tolerance=tolerance)
        return characters(
            state, max_new_bytes=max_new_bytes, sampling=sampling, constraint=constraint
        )

    def choose(
        self,
        prompt: Prompt,
        choices: Iterable[str | bytes],
        *,
        stop: StopStrings = None,
        ended: bool = False,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
    ) -> ChoicePosterior:
        """The posterior over a list of continuations, by the local rule; see `CharLM.choose`.

        >>> import charwise
        >>> from charwise import combine
        >>> combine.product([charwise.load()]).choose("for i in ra", ["nge(", "ndom."]).top(1)[0][0]
        'nge('
        """
        state = self.state(prompt, preset=preset, tolerance=tolerance)
        return state.choose(choices, stop=stop, ended=ended)

    def info(self) -> dict[str, str]:
        """The rule, and what each member says of itself.

        >>> import charwise
        >>> from charwise import combine
        >>> combine.minimum([charwise.load()]).info()["rule"]
        'Extreme(greatest=False)'
        """
        found = {"rule": repr(self.team.rule)}
        for number, member in enumerate(self.team.members):
            info: Any = getattr(member.lm, "info", dict)()
            found |= {f"member {number}, {name}": value for name, value in info.items()}
        return found

    def __repr__(self) -> str:
        return f"Combination({self.team.rule!r}, {len(self.team.members)} members)"


def _texts(name: str, given: Sequence[Prompt]) -> list[bytes]:
    """Several prompts as bytes; one alone is refused."""
    listed = None if isinstance(given, set | frozenset) else items(given)
    if listed is None:
        raise SettingError(
            f"{name} are a list of texts, not {shown(given)}: put one text into a list."
        )
    return [text_of(one) for one in listed]

"""`CharLM`, the object users hold: a language model over characters."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any, Unpack

from charwise.constraints.asked import ConstraintKeywords, constraint_of
from charwise.coverings.best_first import Covering, best_first
from charwise.coverings.members import Encodings
from charwise.coverings.rows import EvaluatedRows
from charwise.cursor.char_entropy import char_entropies
from charwise.cursor.choose import ChoicePosterior
from charwise.cursor.conditioned import Conditioning, completions
from charwise.cursor.distributions import NextBytes, NextChars
from charwise.cursor.drafts import Completion
from charwise.cursor.generation import Drawn, Report, characters, check_report, stream
from charwise.cursor.limit import Cancel, Limit
from charwise.cursor.middle import InfillCompletion, infill, opening_of, score_middles
from charwise.cursor.sampling import Sampling
from charwise.cursor.shared_tree import History
from charwise.cursor.state import State, begin
from charwise.errors import (
    CharwiseError,
    EngineError,
    SettingError,
    check_count,
    check_flag,
    items,
    shown,
)
from charwise.healing import Rule
from charwise.infill import Request, request
from charwise.known_text.auditor import Auditor
from charwise.known_text.effort import PRESETS, Effort, effort_of
from charwise.known_text.packs import score_texts
from charwise.known_text.windows import Text
from charwise.surprisal.score import Entropy, Score
from charwise.template import Order, Template
from charwise.token_lm import Estimand, TokenLM
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompt_parts import Prompt, parts_of
from charwise.tokens.prompts import last_text, split, split_parts
from charwise.tokens.stops import StopStrings
from charwise.tokens.vocabulary import Vocabulary


class CharLM:
    """A tokenized language model as a language model over bytes and characters.

    Prompts are text, bytes, or a list of texts and special token ids, which may be empty, end
    inside a character, or hold any byte. Everything up to the last special token is conditioned
    on as it is; a prompt that does not begin with a special token follows the start token.

    `CharLM.from_transformers(model, tokenizer)` takes a model that one has already, and
    `charwise.load(name)` finds one. Keep the object: a model that nobody holds is let go.

    >>> import charwise
    >>> lm = charwise.load()
    >>> lm
    CharLM(TransformersLM, 8195 tokens, window=2048, preset='default')
    >>> lm.next("raise ValueErr").top(1)[0][0]
    'o'
    """

    def __init__(
        self,
        engine: TokenLM,
        *,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
    ) -> None:
        if not (hasattr(engine, "vocabulary") and hasattr(engine, "tree")):
            raise EngineError(
                f"{type(engine).__name__} is no engine: charwise.load(name) opens one, and "
                "CharLM.from_transformers(model, tokenizer) takes a model that one has already."
            )
        self.engine = engine
        self.index = SortedVocabulary.of(engine.vocabulary)
        given = preset is not None or tolerance is not None
        self.effort = effort_of(preset if given else "default", tolerance)

    @classmethod
    def from_transformers(
        cls,
        model: Any,
        tokenizer: Any,
        *,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
        estimand: Estimand = "all",
    ) -> CharLM:
        """The character interface of a causal language model that one has already.

        Args:
            model: of transformers, on whatever device; it is used as it is, not copied.
            tokenizer: its fast tokenizer.
            preset, tolerance: the default effort, see `score`.
            estimand: which token strings count, see `charwise.load`.

        Raises:
            EngineError: a model whose contexts cannot be evaluated, and why.
            VocabularyError: a tokenizer that has no bytes, or whose merges cannot be read where
                only canonical token strings count.
            SettingError: for an unknown preset or estimand.

        >>> from charwise.models import EMBEDDED
        >>> from transformers import AutoModelForCausalLM, AutoTokenizer
        >>> model = AutoModelForCausalLM.from_pretrained(EMBEDDED)
        >>> lm = CharLM.from_transformers(model, AutoTokenizer.from_pretrained(EMBEDDED))
        >>> lm.next("import nump").top(1)[0][0]
        'y'
        """
        from charwise.engines.load import engine_around, with_estimand

        engine = with_estimand(engine_around(model, tokenizer), estimand)
        return cls(engine, preset=preset, tolerance=tolerance)

    @property
    def vocabulary(self) -> Vocabulary:
        """Δ and κ of the model."""
        return self.engine.vocabulary

    def next(
        self,
        prompt: Prompt = "",
        *,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
        exact_from: int | None = None,
    ) -> NextBytes:
        """p(byte | prompt) for the 256 bytes and the end of text; see `state`.

        >>> import charwise
        >>> nxt = charwise.load().next("import nump")
        >>> nxt.top(1)[0][0], nxt.probs.shape, round(float(nxt.probs.sum()), 9)
        ('y', (257,), 1.0)
        """
        state = self.state(prompt, preset=preset, tolerance=tolerance, exact_from=exact_from)
        return state.next()

    def next_chars(
        self,
        prompt: Prompt = "",
        *,
        coverage: float = 0.99,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
        exact_from: int | None = None,
    ) -> NextChars:
        """p(character | prompt), for the characters that hold `coverage` of the probability.

        See `state`.

        >>> import charwise
        >>> charwise.load().next_chars("import nump", coverage=0.5).top(1)[0][0]
        'y'
        """
        state = self.state(prompt, preset=preset, tolerance=tolerance, exact_from=exact_from)
        return state.next_chars(coverage)

    def state(
        self,
        prompt: Prompt = "",
        *,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
        exact_from: int | None = None,
    ) -> State:
        """The immutable state after a prompt: extend it with `+`, ask `next()`.

        All tokenizations of about the last 12 tokens are summed; what comes before is
        conditioned on in its canonical tokenization (`State.exact_from` says from where). A
        prompt longer than the model's window loses its beginning.

        Args:
            prompt: the text, or a list with special tokens.
            preset, tolerance: how much to spend.
            exact_from: offset in the text after the last special token, bytes: all tokenizations
                are summed from the token around it on. 0 is all of it. That costs what a score of
                that text costs, and as much again where typing comes to more than the tolerance,
                or bytes of the prompt are deleted. At most half of the model's window is summed.
                Such a state cannot choose from a list.

        Raises:
            SettingError: for an offset that is no whole number, or outside the text.
            SearchLimitError: for "exact", and a text that has too many token strings.

        >>> import charwise
        >>> state = charwise.load().state("import nu")
        >>> (state + "mp").next().top(1)[0][0]
        'y'
        """
        opening, text = split(self.vocabulary, prompt)
        effort, history = self._chosen(preset, tolerance), None
        if exact_from is not None:
            check_count("exact_from", exact_from, 0, len(text) - len(opening.lead))
            history = History(exact_from, effort)
        return begin(self.engine, self.index, opening, text, effort, history)

    def prefix_logprob(
        self, prompt: Prompt, *, preset: str | Effort | None = None, tolerance: float | None = None
    ) -> float:
        """log →p(text): the log-probability that a text starts with this, nats.

        Of a prompt with special tokens: of the text after the last, given what is before it.

        Raises:
            ZeroProbabilityError: if no text starts so.
            TokenizationError: if no token string spells it.

        >>> import charwise
        >>> lm = charwise.load()
        >>> lm.prefix_logprob("import nump") > lm.prefix_logprob("import nqmp")
        True
        """
        return float(self.score(prompt, preset=preset, tolerance=tolerance).logprobs.sum())

    def logprob(
        self, prompt: Prompt, *, preset: str | Effort | None = None, tolerance: float | None = None
    ) -> float:
        """log p(text): the log-probability that a text is exactly this, nats.

        −inf where a text cannot end: the model gives the end of text probability zero there, or
        the vocabulary has no end token. Otherwise as `prefix_logprob`.

        >>> import charwise
        >>> lm = charwise.load()
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
        """Log-probability of every byte of a text, given all bytes before it.

        Args:
            prompt: the text; special tokens in it are conditioned on.
            context: what comes before the text; conditioned on, and not scored. It is joined to
                the text as characters: where the one ends and the other begins changes no number.
            preset: "fast", "default", "accurate" or "exact", or an `Effort`.
            tolerance: in place of a preset: the mean error that is accepted, in bits a byte. Work
                stops when `Score.error` is estimated to be below it, or at a limit
                (`Score.limited`).
            end: also score the end of text.
            entropy: also the entropy before each byte and the rank of the byte that came
                ("byte"), and the entropy of characters ("char").

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
        """`score` of many texts, packed into common batches.

        Args:
            prompts: the texts.
            contexts: what comes before each, conditioned on and not scored; by default nothing.
            preset, tolerance, end, entropy: as in `score`.
            progress: called after each batch of texts with how many bytes are scored, and of how
                many.

        Raises:
            SettingError: not as many contexts as texts, or one text where a list is wanted.

        >>> import charwise
        >>> [len(score.logprobs) for score in charwise.load().scores(["import", "os"])]
        [6, 2]
        """
        prompts = _several("prompts", prompts)
        contexts = [""] * len(prompts) if contexts is None else _several("contexts", contexts)
        if len(contexts) != len(prompts):
            raise SettingError(
                f"{len(contexts)} contexts for {len(prompts)} texts: give one for each."
            )
        texts = [self._text_of(n, prompts, contexts) for n in range(len(prompts))]
        if entropy is not None and not (isinstance(entropy, str) and entropy in ("byte", "char")):
            raise SettingError(f"entropy is {shown(entropy)}: choose 'byte', 'char' or None.")
        end = check_flag("end", end)
        check_report(progress)
        chosen = self._chosen(preset, tolerance)
        scores = score_texts(
            self.engine,
            self.index,
            texts,
            chosen,
            end=end,
            entropy=entropy,
            progress=progress,
        )
        scores = [
            replace(score, auditor=Auditor(weakref.ref(self.engine), self.index, text))
            for text, score in zip(texts, scores, strict=True)
        ]
        if entropy != "char":
            return scores
        pairs = zip(texts, scores, strict=True)
        return [self._with_char_entropies(text, score, chosen) for text, score in pairs]

    def scores_with_rows(
        self,
        prompts: Sequence[Prompt],
        *,
        contexts: Sequence[Prompt],
        preset: str | Effort | None = None,
        tolerance: float | None = None,
    ) -> list[Score]:
        """Scores with the distributions of every next byte: what combinations and tables ask.

        Without the entropies of characters that `scores` works out from them, and the auditor.

        >>> import charwise
        >>> [score] = charwise.load().scores_with_rows(["os"], contexts=["import "])
        >>> score.distributions.shape
        (2, 257)
        """
        texts = [self._text(*pair) for pair in zip(prompts, contexts, strict=True)]
        chosen = self._chosen(preset, tolerance)
        return score_texts(self.engine, self.index, texts, chosen, entropy="char")

    def covering(
        self, prompt: Prompt, *, tolerance: float = 1e-6, max_contexts: int = 10_000
    ) -> Covering:
        """The covering of a prompt, visited best first until `tolerance` is left.

        It may be exponentially large in the length of the prompt: after `max_contexts` the search
        stops, and the bounds say what is missing. Where the tokenizer implies a leading space,
        members begin with it.

        >>> import charwise
        >>> member = charwise.load().covering("import nump").top(1)[0]
        >>> member.text
        'import numpy'
        """
        opening, text = split(self.vocabulary, prompt)
        evaluated = EvaluatedRows.of(self.engine, opening.ids)
        return best_first(
            evaluated, 0, text, tolerance=tolerance, through=True, max_contexts=max_contexts
        )

    def encodings(self, text: Prompt) -> Encodings:
        """The token strings that decode to exactly this text, the most probable first.

        >>> import charwise
        >>> charwise.load().encodings("import numpy").top(1)[0].text
        'import numpy'
        """
        opening, data = split(self.vocabulary, text)
        return Encodings(EvaluatedRows.of(self.engine, opening.ids), 0, data)

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
        """Completions drawn from p(completion | prompt characters).

        At temperature 0 (the default) the n most probable members of the prompt's covering are
        continued greedily. Otherwise members are drawn in proportion to their prefix probability
        (to the power 1 / temperature), then tokens as the model draws them; `top_p` and `top_k`
        apply to those.

        Args:
            n: how many; at temperature 0 those of equal bytes are one, and the most probable comes
                first, by `Completion.bits_per_byte`. Draws stay as they were drawn.
            max_new_bytes: completions end before a character that would exceed this.
            stop: strings at which to stop, byte-exact, also across tokens; not returned.
            seed: for the same draws again.
            seconds: a time budget, the prompt included. Looked at, as `cancel` is, between two
                model calls: what was drawn until then is returned.
            cancel: a `threading.Event` that stops when it is set.
            progress: called after each model call with how many bytes are drawn, and of how many
                at most; a completion that ended early counts whole.
            regex, json_schema, grammar, choices, constraint: what may follow the prompt, see
                `charwise.constraints.ConstraintKeywords`; at most one.
            conditioning: "local" draws tokens from what is allowed at each step. "global"
                conditions on the constraint as a whole: the n heaviest texts come as a
                `Weighted` list, which has their weights and the probability of the constraint.
            particles: the size of the sample where conditioning="global", and the set is not small.

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
        """
        constraint = constraint_of(may_follow)
        limit, sampling = Limit(seconds, cancel), Sampling(temperature, top_p, top_k, seed)
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

        Arguments and errors are those of `complete`; constraints are local.

        >>> import charwise
        >>> lm = charwise.load()
        >>> "".join(lm.stream("import nump", max_new_bytes=1))
        'y'
        """
        constraint = constraint_of(may_follow)
        limit, sampling = Limit(seconds, cancel), Sampling(temperature, top_p, top_k, seed)
        state = self.state(prompt, preset=preset, tolerance=tolerance)
        return stream(
            state,
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

        Unlike `complete` it samples by default, and has no stop strings: look at what was drawn,
        and stop. A constraint is applied at each byte.

        >>> import charwise
        >>> drawn = next(charwise.load().characters("import nump", temperature=0))
        >>> drawn.character, drawn.distributions[0].top(1)[0][0]
        ('y', 'y')
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
        """The exact posterior over a list of continuations, whatever their lengths.

        All tokenizations of each are summed, across the end of the prompt too. They are evaluated
        together, what several begin with once.

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
        state = self.state(prompt, preset=preset, tolerance=tolerance)
        return state.choose(choices, stop=stop, ended=ended)

    def infill(
        self,
        prefix: str | bytes,
        suffix: str | bytes = "",
        *,
        n: int = 1,
        max_new_bytes: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int | None = None,
        order: Order | None = None,
        template: Template | None = None,
        seconds: float | None = None,
        cancel: Cancel | None = None,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
    ) -> list[InfillCompletion]:
        """What may stand between two texts, either of which may end or begin inside a token.

        The end of the prefix is conditioned on as characters; what a token of the middle could
        have reached into is taken from the suffix, and every middle ends with it. Candidates are
        drawn as `complete` draws them, and ranked by their exact probability given both sides.

        Args:
            prefix, suffix: text or bytes, which may be empty. What is longer than the window is
                cut at the far ends: see `prefix_cut` and `suffix_cut` of the result.
            n: candidates to draw; those of equal bytes are one.
            max_new_bytes: of the middle.
            order: "psm" (prefix, suffix, middle) or "spm" (suffix first).
            template: the model's sentinels, where its special tokens do not show them.
            temperature, top_p, top_k, seed, seconds, cancel: as for `complete`.
            preset, tolerance: as for `score`.

        Raises:
            TemplateError: a model without sentinels, or that does not know the order.
            SettingError, ZeroProbabilityError: as `complete`.
        """
        check_count("max_new_bytes", max_new_bytes, 0)
        limit, sampling = Limit(seconds, cancel), Sampling(temperature, top_p, top_k, seed)
        chosen = self._chosen(preset, tolerance)
        asked = self.infill_request(prefix, suffix, order=order, template=template)
        state = begin(self.engine, self.index, *opening_of(asked, self.index), chosen)
        return infill(
            state,
            asked,
            chosen,
            n=n,
            max_new_bytes=max_new_bytes,
            sampling=sampling,
            limit=limit,
        )

    def score_infill(
        self,
        prefix: str | bytes,
        middle: str | bytes,
        suffix: str | bytes = "",
        *,
        order: Order | None = None,
        template: Template | None = None,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
    ) -> float:
        """log p(middle | prefix, suffix), nats, as `InfillCompletion.logprob` counts it.

        −inf for a middle that the model never writes there.

        Raises:
            TemplateError: as `infill`.
            TokenizationError: a text that no token string spells.
        """
        asked = self.infill_request(prefix, suffix, order=order, template=template)
        chosen = self._chosen(preset, tolerance)
        return score_middles(self.engine, self.index, asked, [to_bytes(middle)], chosen)[0]

    def infill_request(
        self,
        prefix: str | bytes,
        suffix: str | bytes = "",
        *,
        order: Order | None = None,
        template: Template | None = None,
        left: Rule = "auto",
        right: Rule = "auto",
    ) -> Request:
        """What `infill` asks: how both sides are cut. It leaves a quarter of the window free.

        `left` and `right` say where to cut, as for `charwise.infill.request`.

        Raises:
            TemplateError: as `infill`.
        """
        window = self.engine.window
        if template is not None and not isinstance(template, Template):
            raise SettingError(f"template is {shown(template)}: make one with Template.named.")
        return request(
            prefix,
            suffix,
            Template.of(self.vocabulary) if template is None else template,
            self.index,
            order=order,
            left=left,
            right=right,
            most=None if window is None else window - window // 4,
        )

    def info(self) -> dict[str, str]:
        """What runs here: engine, device, how contexts share prefixes, vocabulary, start token.

        >>> import charwise
        >>> charwise.load().info()["path"]
        'tree attention'
        """
        vocabulary = self.vocabulary
        return {
            **self.engine.info(),
            "vocabulary": repr(vocabulary),
            "start": vocabulary.bos_rule,
            "window": str(self.engine.window),
        }

    def _text(self, prompt: Prompt, context: Prompt) -> Text:
        """A prompt joined to its context, as characters."""
        parts = parts_of(prompt)
        opening, whole = split_parts(self.vocabulary, [*parts_of(context), *parts])
        return Text(opening, whole, len(whole) - len(opening.lead) - len(last_text(parts)[1]))

    def _text_of(self, n: int, prompts: Sequence[Prompt], contexts: Sequence[Prompt]) -> Text:
        """The nth of several texts; what is wrong with it says which it is."""
        try:
            return self._text(prompts[n], contexts[n])
        except CharwiseError as error:
            if len(prompts) > 1:
                error.args = (f"text {n}: {error}", *error.args[1:])
            raise

    def _with_char_entropies(self, text: Text, score: Score, chosen: Effort) -> Score:
        given = text.whole[: len(text.whole) - len(score.raw)]

        def state(begun: bytes) -> State:
            return begin(self.engine, self.index, text.opening, given + begun, chosen)

        return replace(score, char_entropies=char_entropies(score, state))

    def _chosen(self, preset: str | Effort | None, tolerance: float | None = None) -> Effort:
        given = preset is not None or tolerance is not None
        return effort_of(preset, tolerance) if given else self.effort

    def __repr__(self) -> str:
        names = [name for name, effort in PRESETS.items() if effort == self.effort]
        tolerance = self.effort.tolerance
        if names:
            spent = f"preset={names[0]!r}"
        else:
            spent = f"preset={self.effort}" if tolerance is None else f"tolerance={tolerance:g}"
        return (
            f"CharLM({type(self.engine).__name__}, {self.vocabulary.width} tokens, "
            f"window={getattr(self.engine, 'window', None)}, {spent})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # An engine says itself how it is opened elsewhere.
        return (_rebuild, (self.engine, self.effort))


def _several(name: str, texts: Sequence[Prompt]) -> list[Prompt]:
    """Several texts, as a list; one alone is refused."""
    listed = None if isinstance(texts, Set) else items(texts)
    if listed is None:
        raise SettingError(
            f"{name} are a list of texts, not {shown(texts)}: put one text into a list."
        )
    return listed


def _rebuild(engine: TokenLM, chosen: Effort) -> CharLM:
    return CharLM(engine, preset=chosen)

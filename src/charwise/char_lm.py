"""`CharLM`, the object users hold: a language model over characters; and `load`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from charwise.coverings.covering import Covering
from charwise.cursor.choose import ChoicePosterior
from charwise.cursor.distributions import NextBytes
from charwise.cursor.expansion import Outcomes, with_entropies
from charwise.cursor.generation import Completion
from charwise.cursor.middle import InfillCompletion, infill, opening_of, score_middles
from charwise.cursor.options import GenerationKeywords, GenerationOptions, Report
from charwise.cursor.shared_tree import EXACT_TOKENS
from charwise.cursor.state import State, begin
from charwise.engine import TokenLM
from charwise.errors import (
    CharwiseError,
    LimitError,
    SettingError,
    VocabularyError,
    ZeroProbabilityError,
    check_known,
    check_share,
    each_or_error,
    quote,
)
from charwise.healing import HealedPrompt, Rule
from charwise.healing.fim import Order, Template, request
from charwise.scoring.effort import PRESETS, Effort, EffortKeywords
from charwise.scoring.score import Scorer, Text
from charwise.surprisal.score import ENTROPIES, Entropy, Score
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Prompt, last_text, parts_of, prompts_of
from charwise.tokens.stops import StopStrings
from charwise.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    from charwise.engines.load import LoadKeywords


class CharLM:
    """A tokenized language model as a language model over bytes and characters.

    Prompts are text, bytes, or a list of texts and special token ids. They may be empty, end
    inside a character, or hold any byte. Everything up to the last special token is conditioned
    on as it is; a prompt that does not begin with a special token follows the start token.

    `charwise.load(name)` opens a model, and `CharLM.from_transformers(model, tokenizer)` takes one
    that you have. The model is freed when the last reference to it goes.

    Args:
        engine: the model over tokens.
        preset, tolerance: the default effort, see `score`.

    >>> import charwise
    >>> lm = charwise.load()
    >>> lm
    CharLM(TransformersLM, 8195 tokens, window=2048, preset='default')
    >>> lm.next("raise ValueErr").top(1)[0][0]
    'o'
    """

    def __init__(self, engine: TokenLM, **spend: Unpack[EffortKeywords]) -> None:
        self.engine = engine
        self.index = SortedVocabulary.of(engine.vocabulary)
        self.effort = PRESETS["default"]
        self.effort = self._effort(**spend)

    @classmethod
    def from_transformers(
        cls, model: Any, tokenizer: Any, **spend: Unpack[EffortKeywords]
    ) -> CharLM:
        """Return the character interface of a causal language model that you have.

        Args:
            model: of transformers, on any device; it is used as it is, not copied.
            tokenizer: its fast tokenizer.
            spend: `preset` or `tolerance`, the default effort, see `score`.

        Raises:
            ModelError: a model whose contexts cannot be evaluated, and why.
            VocabularyError: a tokenizer that has no bytes.

        >>> from charwise.models import EMBEDDED
        >>> from transformers import AutoModelForCausalLM, AutoTokenizer
        >>> model = AutoModelForCausalLM.from_pretrained(EMBEDDED)
        >>> lm = CharLM.from_transformers(model, AutoTokenizer.from_pretrained(EMBEDDED))
        >>> lm.next("import nump").top(1)[0][0]
        'y'
        """
        from charwise.engines.load import engine_around

        return cls(engine_around(model, tokenizer), **spend)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the model: Δ and κ."""
        return self.engine.vocabulary

    def info(self) -> dict[str, str]:
        """The engine, device, way of sharing prefixes, vocabulary, start and end tokens.

        >>> charwise.load().info()["path"]
        'tree attention'
        """
        return {
            **self.engine.info(),
            "vocabulary": repr(self.vocabulary),
            "start": self.vocabulary.bos_rule,
            "end": self.vocabulary.end_rule,
            "window": str(self.engine.window),
        }

    # What follows a prompt

    def state(self, prompt: Prompt = "", **spend: Unpack[EffortKeywords]) -> State:
        """The immutable state after a prompt: extend it with `+`, ask `next()`.

        All tokenizations of about the last 12 tokens are summed; what comes before is
        conditioned on in its canonical tokenization (`State.exact_from` says from where). A
        prompt longer than the model's window loses its beginning. `preset` and `tolerance` are
        those of `score`.

        Raises:
            ZeroProbabilityError: if the model gives the prompt probability zero.
            VocabularyError: if no token string spells it.
            LimitError: for "exact", and a text that has too many token strings.

        >>> state = charwise.load().state("import nu")
        >>> (state + "mp").next().top(1)[0][0]
        'y'
        """
        opening, text = self.vocabulary.split_prompt(prompt)
        return begin(self.engine, opening, text, self._effort(**spend))

    def next(self, prompt: Prompt = "", **spend: Unpack[EffortKeywords]) -> NextBytes:
        """Return p(byte | prompt) for the 256 bytes and the end of text; see `state`.

        >>> nxt = charwise.load().next("import nump")
        >>> nxt.top(1)[0][0], nxt.probs.shape, round(float(nxt.probs.sum()), 9)
        ('y', (257,), 1.0)
        """
        return self.state(prompt, **spend).next()

    def next_chars(
        self, prompt: Prompt = "", *, coverage: float = 0.99, **spend: Unpack[EffortKeywords]
    ) -> Outcomes:
        """Return p(character | prompt), for the characters that hold `coverage` of the probability.

        See `State.next_chars`.

        >>> charwise.load().next_chars("import nump", coverage=0.5).top(1)[0][0]
        'y'
        """
        return self.state(prompt, **spend).next_chars(coverage)

    def next_words(
        self, prompt: Prompt = "", *, coverage: float = 0.9, **spend: Unpack[EffortKeywords]
    ) -> Outcomes:
        """Return p(word | prompt), for the words that hold `coverage` of the probability.

        See `State.next_words`.

        >>> charwise.load().next_words("raise Val", coverage=0.5).top(1)[0][0]
        'ueError'
        """
        return self.state(prompt, **spend).next_words(coverage)

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

        At temperature 0 (the default) the n most probable members of the prompt's covering are
        continued greedily. Otherwise members are drawn in proportion to their prefix probability
        (to the power 1 / temperature), then tokens as the model draws them; `top_p` and `top_k`
        apply to those.

        Args:
            options: how to draw; its fields may stand as keywords.
            preset, tolerance: how much to spend on the prompt, see `score`.

        Raises:
            SettingError: for a number, a stop string or a budget that is none.
            ConstraintError: for a constraint that is wrong, or that nothing satisfies.
            ZeroProbabilityError: if the model gives the prompt probability zero.

        >>> lm = charwise.load()
        >>> lm.complete("import nump", max_new_bytes=1)[0].text
        'y'
        >>> lm.complete("return ", choices=["True", "False"])[0].text
        'True'
        """
        options = GenerationOptions.of(options, keywords)
        limit = options.limit()  # the time of the prefill counts
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

        >>> lm = charwise.load()
        >>> "".join(lm.stream("import nump", max_new_bytes=1))
        'y'
        """
        options = GenerationOptions.of(options, keywords)
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
        together; a beginning that several share is evaluated once.

        Args:
            choices: the continuations, each once.
            stop: each choice is followed by this string, or one of these.
            ended: each choice is followed by the end of text. Without `stop` and `ended`, anything
                may follow a choice, and no choice may begin another.

        Raises:
            SettingError: a choice twice, or one that begins another where both may be meant.
            ConstraintError: no choices, or what is no string.
            ZeroProbabilityError: if the model gives all of them probability zero.

        >>> chosen = charwise.load().choose("for i in ra", ["nge(", "ndom."])
        >>> chosen.top(1)[0][0], chosen.probs.sum().round(9)
        ('nge(', np.float64(1.0))
        """
        return self.state(prompt, **spend).choose(choices, stop=stop, ended=ended)

    # The probability of a text

    def prefix_logprob(self, prompt: Prompt, **spend: Unpack[EffortKeywords]) -> float:
        """Return log →p(text): the log-probability that a text starts with this, nats.

        Special tokens in a prompt are conditioned on: only the text after the last one counts.

        >>> lm = charwise.load()
        >>> lm.prefix_logprob("import nump") > lm.prefix_logprob("import nqmp")
        True
        """
        return float(self.score(prompt, **spend).logprobs.sum())

    def logprob(self, prompt: Prompt, **spend: Unpack[EffortKeywords]) -> float:
        """Return log p(text): the log-probability that a text is exactly this, nats.

        −inf where a text cannot end. Otherwise as `prefix_logprob`, but no error is stated for the
        end, which may be off by some tenths of a nat (`Score.end_logprob`).

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
                place `tolerance`: the mean error that you accept, in bits a byte.

        Raises:
            SettingError: for an unknown preset, or a tolerance that is no positive number.
            ZeroProbabilityError: if the model gives the text probability zero.
            VocabularyError: if no token string spells it.
            LimitError: for "exact", and a text that has too many token strings.

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
            contexts: what comes before each, conditioned on and not scored; by default nothing.
            progress: called after each batch of texts with how many bytes are scored, and of how
                many.

        Raises:
            SettingError: not as many contexts as texts, or one text where a list is wanted.

        >>> [len(score.logprobs) for score in charwise.load().scores(["import", "os"])]
        [6, 2]
        """
        prompts = prompts_of("prompts", prompts)
        contexts = [""] * len(prompts) if contexts is None else prompts_of("contexts", contexts)
        if len(contexts) != len(prompts):
            raise SettingError(
                f"{len(contexts)} contexts for {len(prompts)} texts: give one for each."
            )
        if entropy not in (None, *ENTROPIES):
            raise SettingError(
                f"entropy is {quote(entropy)}: choose 'byte', 'char', 'word' or None."
            )
        check_share("coverage", coverage)
        words = entropy == "word"  # nearly all the time goes into them
        scorer = self._scorer(end, "byte" if words else entropy, **spend)
        scores = scorer.scores(self._texts(prompts, contexts), None if words else progress)
        if entropy not in ("char", "word"):
            return scores
        done, total = 0, sum(len(score.raw) for score in scores)
        for n, (prompt, context, score) in enumerate(zip(prompts, contexts, scores, strict=True)):
            ids, text = last_text([*parts_of(context), *parts_of(prompt)])
            before = text[: len(text) - len(score.raw)]

            def after(raw: bytes, ids: Any = ids, before: bytes = before) -> State:
                return self.state([*ids, before + raw], **spend)

            scores[n] = with_entropies(score, after, coverage if words else None)
            done += len(score.raw)
            if words and progress is not None:
                progress(done, total)
        return scores

    def scores_with_rows(
        self,
        prompts: Sequence[Prompt],
        *,
        contexts: Sequence[Prompt],
        end: bool = False,
        **spend: Unpack[EffortKeywords],
    ) -> list[Score]:
        """Return scores with the distributions of every next byte; with `end` also after the text.

        The entropies of characters, which `scores` works out from them, are left out.
        """
        return self._scorer(end, "char", **spend).scores(self._texts(prompts, contexts))

    def covering(
        self, prompt: Prompt, *, tolerance: float = 1e-6, max_contexts: int = 10_000
    ) -> Covering:
        """The covering of a prompt, visited best first until `tolerance` is left.

        It may be exponentially large in the length of the prompt: after `max_contexts` the search
        stops, and the bounds say what is missing. They hold up to what the model's floats lose: in
        float32, some 1e-4 nats. Where the tokenizer implies a leading space, members begin with it.

        Raises:
            SettingError: a tolerance (a share of the visited mass) outside [0, 1], or no contexts.

        >>> member = charwise.load().covering("import nump").top(1)[0]
        >>> member.text
        'import numpy'
        """
        opening, text = self.vocabulary.split_prompt(prompt)
        covering = Covering(self.engine.tree(opening.ids), text, through=True)
        return covering.search(tolerance, max_contexts)

    def encodings(self, text: Prompt) -> Covering:
        """The token strings that decode to exactly this text: `top` searches them, best first.

        >>> charwise.load().encodings("import numpy").top(1)[0].text
        'import numpy'
        """
        opening, data = self.vocabulary.split_prompt(text)
        return Covering(self.engine.tree(opening.ids), data, exactly=True)

    # The text between two others

    def infill(
        self,
        prefix: str | bytes,
        suffix: str | bytes = "",
        options: GenerationOptions | None = None,
        *,
        order: Order | None = None,
        template: Template | None = None,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
        **keywords: Unpack[GenerationKeywords],
    ) -> list[InfillCompletion]:
        """Return the likeliest texts between two others, which may break off inside a token.

        The end of the prefix is conditioned on as characters. The suffix loses the beginning that a
        token of the middle may reach, and every middle ends with it. Candidates are drawn as
        `complete` draws them, and ranked by their exact probability given both sides. At
        temperature 0 these are three or more, and the empty middle.

        Args:
            prefix, suffix: text or bytes, which may be empty. What is longer than the window is
                cut at the far ends: see `prefix_cut` and `suffix_cut` of the result.
            options: how candidates are drawn; those of equal bytes are one. There are no stop
                strings, no constraint and no progress.
            order: "psm" (prefix, suffix, middle) or "spm" (suffix first).
            template: the model's sentinels, where its special tokens do not show them.
            preset, tolerance: as for `score`.

        Raises:
            SettingError: a model without sentinels, or that does not know the order.
            SettingError, ZeroProbabilityError: as `complete`.
        """
        options = GenerationOptions.of(options, keywords)
        options.refuse("stop progress constraint conditioning", "infill")
        limit, effort = options.limit(), self._effort(preset, tolerance)
        task = self.infill_request(prefix, suffix, order=order, template=template)
        opening, text = opening_of(task, self.index)
        state = begin(self.engine, opening, text, effort)
        return infill(state, task, options, limit)

    def score_infill(
        self,
        prefix: str | bytes,
        middle: str | bytes,
        suffix: str | bytes = "",
        *,
        order: Order | None = None,
        template: Template | None = None,
        **spend: Unpack[EffortKeywords],
    ) -> float:
        """Return log p(middle | prefix, suffix), nats, as `InfillCompletion.logprob` counts it.

        −inf for a middle that the model never writes there.

        Raises:
            SettingError: as `infill`.
            VocabularyError: a text that no token string spells.
        """
        task = self.infill_request(prefix, suffix, order=order, template=template)
        return score_middles(self._scorer(**spend), task, [to_bytes(middle)])[0]

    def infill_request(
        self,
        prefix: str | bytes,
        suffix: str | bytes = "",
        *,
        order: Order | None = None,
        template: Template | None = None,
        opening: Prompt = (),
    ) -> HealedPrompt:
        """Return the request of `infill`, with both sides cut. A quarter of the window stays free.

        In PSM the prefix loses its last 12 tokens, and the middle begins with their text: models go
        on better from text that the suffix does not divide. `opening` says what comes before both
        texts, as for `charwise.healing.fim.request`.

        Raises:
            SettingError: as `infill`.
        """
        window = self.engine.window
        template = Template.of(self.vocabulary) if template is None else template
        order = template.order(order)
        left: Rule = EXACT_TOKENS if order == "psm" else "auto"
        most = None if window is None else window - window // 4
        if most is not None and order == "psm":
            most -= EXACT_TOKENS
        texts = prefix, suffix, template, self.index
        return request(*texts, order=order, left=left, opening=opening, most=most)

    def _scorer(
        self, end: bool = False, entropy: Entropy | None = None, **spend: Unpack[EffortKeywords]
    ) -> Scorer:
        return Scorer(self.engine, self.index, self._effort(**spend), end, entropy)

    def _texts(self, prompts: Sequence[Prompt], contexts: Sequence[Prompt]) -> list[Text]:
        """Texts, joined to their contexts as characters. An error says which text is wrong."""
        texts = []
        for n, (prompt, context) in enumerate(zip(prompts, contexts, strict=True)):
            try:
                opening, whole = self.vocabulary.split_prompt(context, prompt)
            except CharwiseError as error:
                if len(prompts) > 1:
                    error.args = (f"text {n}: {error}", *error.args[1:])
                raise
            before = len(whole) - len(opening.implied_prefix) - len(last_text(parts_of(prompt))[1])
            texts.append(Text(opening, whole, before))
        return texts

    def _effort(
        self, preset: str | Effort | None = None, tolerance: float | None = None, **others: object
    ) -> Effort:
        """The effort asked for, or else the default one; other keywords are refused."""
        check_known(others, EffortKeywords.__optional_keys__)
        if preset is None and tolerance is None:
            return self.effort
        return Effort.of(preset, tolerance)

    def __repr__(self) -> str:
        names = [repr(name) for name, effort in PRESETS.items() if effort == self.effort]
        return (
            f"CharLM({type(self.engine).__name__}, {self.vocabulary.width} tokens, "
            f"window={self.engine.window}, preset={names[0] if names else self.effort})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # An engine says itself how it is opened elsewhere.
        return partial(CharLM, preset=self.effort), (self.engine,)


def scores_or_errors(
    lm: CharLM,
    texts: Sequence[Prompt],
    contexts: Sequence[Prompt],
    **settings: Any,
) -> list[Score | CharwiseError]:
    """Return the score of each text, or why it has none; a bad text costs the others nothing."""

    def scores(pairs: Sequence[tuple[Prompt, Prompt]]) -> list[Score]:
        prompts, before = [one for one, _ in pairs], [context for _, context in pairs]
        return lm.scores(prompts, contexts=before, **settings)

    pairs = list(zip(texts, contexts, strict=True))
    return each_or_error(scores, pairs, (ZeroProbabilityError, VocabularyError, LimitError))


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    preset: str | Effort | None = None,
    tolerance: float | None = None,
    **settings: Unpack[LoadKeywords],
) -> CharLM:
    """Load a causal language model; with no argument the embedded one, offline.

    The same arguments give the same engine again, while it is in use: weights are held once.

    Args:
        model: "embedded", a folder, a name on the Hugging Face hub, or a `.gguf` file.
        preset, tolerance: the default effort, see `CharLM.score`.
        settings: `device` ("cpu", "cuda", …; by default a GPU if there is one); `dtype` ("float32",
            "bfloat16" or "float16"; by default float32 on a CPU, else the model's own; a GGUF file
            has its own); `engine` ("transformers", "vllm", or "llama.cpp" for `.gguf` files, whose
            default it is); `revision` (branch, tag or commit on the hub); `trust_remote_code` (run
            the model's own code); `device_map` and `quantization_config`, handed to transformers'
            `from_pretrained`.

    Raises:
        ModelError: what was looked for, and where.
        VocabularyError: a tokenizer that has no bytes.
        SettingError: for an unknown engine, device, dtype or preset.

    >>> load().info()["engine"].split()[0]
    'transformers'
    >>> load("embedded", preset="fast").engine is load().engine
    True
    """
    from charwise.engines.load import open_engine

    return CharLM(open_engine(model, **settings), preset=preset, tolerance=tolerance)

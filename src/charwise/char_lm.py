"""`CharLM`, the object users hold: a language model over characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from charwise.character_model import Asked, CharacterModel
from charwise.coverings.best_first import tree_source
from charwise.coverings.covering import Covering
from charwise.cursor.middle import InfillCompletion, infill, opening_of, score_middles
from charwise.cursor.options import GenerationKeywords, GenerationOptions, options_of
from charwise.cursor.shared_tree import Conditions
from charwise.cursor.state import State, begin
from charwise.engine import TokenLM
from charwise.errors import CharwiseError, EngineError, SettingError, shown
from charwise.fim import Order, Request, Template, request
from charwise.healing import Rule
from charwise.scoring.effort import PRESETS, Effort, EffortKeywords, effort_of
from charwise.scoring.score import Scorer, Text
from charwise.surprisal.score import Score
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompt_parts import Prompt, parts_of
from charwise.tokens.prompts import Opening, last_text, split, split_parts
from charwise.tokens.vocabulary import Vocabulary


class CharLM(CharacterModel):
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
        self.effort = PRESETS["default"]
        self.effort = self._chosen(preset, tolerance)

    @classmethod
    def from_transformers(
        cls,
        model: Any,
        tokenizer: Any,
        **spend: Unpack[EffortKeywords],
    ) -> CharLM:
        """The character interface of a causal language model that one has already.

        Args:
            model: of transformers, on whatever device; it is used as it is, not copied.
            tokenizer: its fast tokenizer.
            spend: `preset` or `tolerance`, the default effort, see `score`.

        Raises:
            EngineError: a model whose contexts cannot be evaluated, and why.
            VocabularyError: a tokenizer that has no bytes.
            SettingError: for an unknown preset.

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

    def state(
        self,
        prompt: Prompt = "",
        *,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
    ) -> State:
        """The immutable state after a prompt: extend it with `+`, ask `next()`.

        All tokenizations of about the last 12 tokens are summed; what comes before is
        conditioned on in its canonical tokenization (`State.exact_from` says from where). A
        prompt longer than the model's window loses its beginning.

        Args:
            prompt: the text, or a list with special tokens.
            preset, tolerance: how much to spend.

        Raises:
            SettingError: for an unknown preset.
            SearchLimitError: for "exact", and a text that has too many token strings.

        >>> import charwise
        >>> state = charwise.load().state("import nu")
        >>> (state + "mp").next().top(1)[0][0]
        'y'
        """
        opening, text = split(self.vocabulary, prompt)
        return begin(self._conditions(opening), text, self._chosen(preset, tolerance))

    def _scored(
        self,
        prompts: Sequence[Prompt],
        contexts: Sequence[Prompt],
        asked: Asked,
        **spend: Unpack[EffortKeywords],
    ) -> list[Score]:
        texts = [self._text_of(n, prompts, contexts) for n in range(len(prompts))]
        extra = asked.end, asked.entropy
        scorer = Scorer(self.engine, self.index, self._chosen(**spend), *extra)
        return scorer.scores(texts, asked.progress)

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
        source = tree_source(self.engine.tree(opening.ids))
        return Covering(
            self.index,
            text,
            source,
            through=True,
            tolerance=tolerance,
            max_contexts=max_contexts,
        ).search()

    def encodings(self, text: Prompt) -> Covering:
        """The token strings that decode to exactly this text: `top` searches them, best first.

        >>> import charwise
        >>> charwise.load().encodings("import numpy").top(1)[0].text
        'import numpy'
        """
        opening, data = split(self.vocabulary, text)
        source = tree_source(self.engine.tree(opening.ids))
        return Covering(self.index, data, source, exactly=True)

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

        The end of the prefix is conditioned on as characters; what a token of the middle could
        have reached into is taken from the suffix, and every middle ends with it. Candidates are
        drawn as `complete` draws them, and ranked by their exact probability given both sides.

        Args:
            prefix, suffix: text or bytes, which may be empty. What is longer than the window is
                cut at the far ends: see `prefix_cut` and `suffix_cut` of the result.
            options: how candidates are drawn; those of equal bytes are one. There are no stop
                strings, no constraint and no progress.
            order: "psm" (prefix, suffix, middle) or "spm" (suffix first).
            template: the model's sentinels, where its special tokens do not show them.
            preset, tolerance: as for `score`.
            keywords: options, one by one, as for `complete`.

        Raises:
            TemplateError: a model without sentinels, or that does not know the order.
            SettingError, ZeroProbabilityError: as `complete`.
        """
        options = options_of(options, keywords)
        options.refuse("stop progress constraint conditioning", "infill")
        limit = options.limit()
        chosen = self._chosen(preset, tolerance)
        asked = self.infill_request(prefix, suffix, order=order, template=template)
        opening, text = opening_of(asked, self.index)
        state = begin(self._conditions(opening), text, chosen)
        return infill(state, asked, chosen, options, limit)

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
            TemplateError: as `infill`.
        """
        asked = self.infill_request(prefix, suffix, order=order, template=template)
        scorer = Scorer(self.engine, self.index, self._chosen(**spend))
        return score_middles(scorer, asked, [to_bytes(middle)])[0]

    def infill_request(
        self,
        prefix: str | bytes,
        suffix: str | bytes = "",
        *,
        order: Order | None = None,
        template: Template | None = None,
        left: Rule = "auto",
        right: Rule = "auto",
        opening: Prompt = (),
    ) -> Request:
        """Return the request of `infill`, with both sides cut. A quarter of the window stays free.

        `left` and `right` say where to cut, and `opening` what comes before both texts, as for
        `charwise.fim.request`.

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
            opening=opening,
            most=None if window is None else window - window // 4,
        )

    def info(self) -> dict[str, str]:
        """The engine, device, way of sharing prefixes, vocabulary, start and end tokens.

        >>> import charwise
        >>> charwise.load().info()["path"]
        'tree attention'
        """
        vocabulary = self.vocabulary
        return {
            **self.engine.info(),
            "vocabulary": repr(vocabulary),
            "start": vocabulary.bos_rule,
            "end": vocabulary.end_rule,
            "window": str(self.engine.window),
        }

    def _conditions(self, opening: Opening) -> Conditions:
        return Conditions(self.engine, self.index, opening)

    def _text_of(self, n: int, prompts: Sequence[Prompt], contexts: Sequence[Prompt]) -> Text:
        """The nth of several texts, joined to its context as characters.

        What is wrong with it says which it is.
        """
        try:
            parts = parts_of(prompts[n])
            opening, whole = split_parts(self.vocabulary, [*parts_of(contexts[n]), *parts])
        except CharwiseError as error:
            if len(prompts) > 1:
                error.args = (f"text {n}: {error}", *error.args[1:])
            raise
        return Text(opening, whole, len(whole) - len(opening.lead) - len(last_text(parts)[1]))

    def _chosen(self, preset: str | Effort | None = None, tolerance: float | None = None) -> Effort:
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


def _rebuild(engine: TokenLM, chosen: Effort) -> CharLM:
    return CharLM(engine, preset=chosen)

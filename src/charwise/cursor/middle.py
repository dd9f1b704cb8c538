"""The exact way to fill in the middle: candidates are drawn, and ranked by their probability.

With the prefix P = P₀·r and the suffix S = s·S₁, cut by the rule of healing on both sides
(`charwise.healing.fim`), a prompt x holds P₀ and S₁, and

    p(m | P, S) ∝ Σ { p_Δ(δ · end | x) : κ(δ) = r · m · s }

is a string probability, with its end: known text, which is summed in rounds. Candidates come from
the covering of r, as completions do. Where a model ends before s is written, or goes on past it,
every place where the middle may end is a candidate, and the sum decides.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from charwise.cursor.generation import Completion, Generation, whole_characters
from charwise.cursor.options import GenerationOptions, Limit
from charwise.cursor.shared_tree import EXACT_TOKENS
from charwise.cursor.state import State
from charwise.errors import LimitError, VocabularyError, ZeroProbabilityError, each_or_error
from charwise.healing import HealedPrompt
from charwise.healing.fim import middles
from charwise.scoring.effort import PRESETS
from charwise.scoring.score import Scorer, Text
from charwise.surprisal.score import Score
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import PromptStart
from charwise.tokens.utf8 import decoder_after


@dataclass(frozen=True)
class InfillCompletion(Completion):
    """A middle, and its probability given both sides.

    Attributes:
        logprob: of the middle, then `ending`, then the end, given the prompt and `forced`; nats.
            All tokenizations are summed. It is not divided by the share of all middles that end
            with `ending`, which is the same for every middle between the same two texts.
        finish: "end" if the model ended the middle by itself; otherwise as for a completion.
        forced: the end of the prefix, removed and written again.
        ending: the start of the suffix, removed and written with the middle.
        prefix_cut, suffix_cut: bytes left out to fit the window, at the start of the prefix and
            at the end of the suffix.

    `text` and `raw` are the middle's; `drawn` also counts `ending` and the end.
    """

    forced: bytes
    ending: bytes
    prefix_cut: int
    suffix_cut: int


def opening_of(request: HealedPrompt, index: SortedVocabulary) -> tuple[PromptStart, bytes]:
    """Return the opening of a request, and the text before the middle.

    In PSM that text is the forced end of the prefix. In SPM it also has the prefix's last tokens,
    all tokenizations of which are summed.
    """
    until = max(request.opening, len(request.kept) - EXACT_TOKENS)
    last = index.vocabulary.decode(request.kept[until:])
    return PromptStart(tuple(request.kept[:until]), b""), last + request.forced


def score_middles(scorer: Scorer, request: HealedPrompt, middles: Sequence[bytes]) -> list[float]:
    """log Σ p_Δ(δ · end | x), over κ(δ) = r · m · s, given r: of each middle m, nats.

    −inf for a middle that cannot be.

    Raises:
        ZeroProbabilityError: if what may spell a middle was left out.
    """
    opening, before = opening_of(request, scorer.index)
    texts = [Text(opening, before + m + request.ending, len(before)) for m in middles]
    run = replace(scorer, end=True).scores
    logprobs = []
    for score in each_or_error(run, texts, (ZeroProbabilityError, VocabularyError)):
        if isinstance(score, Score):
            logprobs.append(float(score.logprobs.sum()) + (score.end_logprob or 0.0))
        elif getattr(score, "dropped", 0.0) > 0:
            raise score
        else:
            logprobs.append(-math.inf)
    return logprobs


def infill(
    state: State, request: HealedPrompt, options: GenerationOptions, limit: Limit
) -> list[InfillCompletion]:
    """Middles of a request, the most probable first, given the state after `opening_of` it."""
    scorer = Scorer(state.shared.engine, state.shared.index, state.effort)
    most = options.max_new_bytes
    # The greedy candidate is often not the most probable, as its end counts too.
    n = options.n if options.temperature else max(options.n, 3)
    longer = replace(options, n=n, max_new_bytes=most + len(request.ending))
    completions = Generation(state, longer, limit).completions()
    if not options.temperature:
        completions.append(Completion("", b"", 0.0, [], state.exact_from, "end", 0))
    best: dict[bytes, InfillCompletion] = {}
    for completion in completions:
        coarse: ZeroProbabilityError | None = None
        places = middles(completion.raw, request.ending, completion.finish == "end")
        places = [middle for middle in places if len(middle) <= most]
        places = places or [whole_characters(request.before, completion.raw[:most])]
        try:
            logprobs = score_middles(scorer, request, places)
        except ZeroProbabilityError as error:
            coarse, logprobs = error, [-math.inf]
        if max(logprobs) == -math.inf:
            if completion.finish == "end" and not completion.drawn:  # the empty one: nobody drew it
                continue
            try:  # the model wrote one of them: too little was evaluated
                exact = replace(scorer, effort=PRESETS["exact"])
                logprobs = score_middles(exact, request, places)
            except LimitError:
                if coarse is not None:
                    raise coarse from None
        logprob, raw = max(zip(logprobs, places, strict=False), key=lambda pair: pair[0])
        text, drawn = decoder_after(request.before).decode(raw), len(raw) + len(request.ending) + 1
        ids, exact_from, finish = completion.token_ids, completion.exact_from, completion.finish
        sides = request.forced, request.ending, request.prefix_cut, request.suffix_cut
        middle = InfillCompletion(text, raw, logprob, ids, exact_from, finish, drawn, *sides)
        best.setdefault(raw, middle)
    return sorted(best.values(), key=lambda one: -one.logprob)[: options.n]

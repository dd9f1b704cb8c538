"""What may come next, against encoding again, with real tokenizers."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from charwise import SortedVocabulary, Vocabulary
from charwise.models import EMBEDDED
from charwise.tokens import canonical_next
from charwise.tokens.canonical_next import CanonicalNext
from conftest import Data

#: What splitters look at.
_ODD = (
    " ", "  ", "\n", "\r\n", "\t", "'", "’", "'s", "'re", "'RE", "'l", "1", "12", "1234", "½", "é",
    "e\u0301", "你", "🙂", "\u00a0", "\u2028", "_", "(", "a", "A", "x", "S", "the", "ll", "\x00",
    "ſ", "\x85", "٣",
)  # fmt: skip


def allowed(canonical: CanonicalNext, ids: list[int]) -> bool:
    """Whether a token string may be a whole text."""
    standing = canonical.start()
    for id in ids:
        after = canonical.after(standing, id)
        if after is None:
            return False
        standing = after
    return bool(canonical.row(standing)[canonical.vocabulary.end_ids[0]])


def check(vocabulary: Vocabulary, texts: list[str], count: int) -> None:
    """Encodings are allowed; the same texts divided elsewhere, where encoding again agrees."""
    canonical, index = CanonicalNext.of(vocabulary), SortedVocabulary.of(vocabulary)
    rng, others = random.Random(3), 0
    for n in range(count):
        if n % 2:
            text = "".join(rng.choices(_ODD, k=rng.randrange(1, 10)))
        else:
            source = rng.choice(texts)
            at = rng.randrange(len(source))
            text = source[at : at + rng.randrange(1, 30)]
        ids = vocabulary.encode(text)
        assert allowed(canonical, ids), text
        at, size = rng.randrange(len(ids)), rng.choice((1, 2))
        raw = vocabulary.decode(ids[at : at + size])
        halves = [(index.twins(raw[:k]), index.twins(raw[k:])) for k in range(1, len(raw))]
        for one, other in halves:
            if one[0] < one[1] and other[0] < other[1]:
                new = [int(index.ids[run[1] - 1]) for run in (one, other)]
                divided = [*ids[:at], *new, *ids[at + size :]]
                assert allowed(canonical, divided) == (divided == ids), (text, divided)
                others += divided != ids
    assert others > count / 4


def test_the_embedded_tokenizer() -> None:
    from transformers import AutoTokenizer

    vocabulary = Vocabulary.from_transformers(AutoTokenizer.from_pretrained(EMBEDDED))
    code = Path(canonical_next.__file__).read_text(encoding="utf-8")
    check(vocabulary, [code], 400)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama2", "llama3", "qwen2"])
def test_real_tokenizers(name: str, data: Data) -> None:
    texts = [data.text(language) for language in ("ar", "de", "en", "hi", "ja", "th", "zh")]
    check(data.vocabulary(name), texts, 200)


@pytest.mark.parametrize("ignore_merges", [True, False])
def test_words_that_are_looked_up_whole(ignore_merges: bool) -> None:
    """A word of up to three digits that is a token is that token, whatever merges make of it."""
    names = ["1", "2", "3", "12", "123", "213", "33"]  # no merge makes the last three
    model = models.BPE(
        {name: id for id, name in enumerate(names)}, [("1", "2")], ignore_merges=ignore_merges
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated")
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    canonical = CanonicalNext.of(Vocabulary.from_transformers(fast))
    # A row depends on the whole word: that after "21" is not that after "31".
    strings = [ids for size in range(6) for ids in product(range(len(names)), repeat=size)]
    texts = ["".join(names[id] for id in ids) for ids in strings]
    whole = {
        ids
        for ids, text in zip(strings, texts, strict=True)
        if tokenizer.encode(text).ids == list(ids)
    }
    begun = {ids[:size] for ids in whole for size in range(len(ids) + 1)}
    for ids in strings:
        if ids in begun and len(ids) < 4:
            standing = canonical.start()
            for id in ids:
                standing = canonical.after(standing, id) or canonical.start()
            may = canonical.row(standing).tolist()
            assert may == [*((*ids, id) in begun for id in range(len(names))), ids in whole], ids


def test_a_prompt_is_conditioned_on_however_it_is_spelled() -> None:
    from transformers import AutoTokenizer

    vocabulary = Vocabulary.from_transformers(AutoTokenizer.from_pretrained(EMBEDDED))
    canonical = CanonicalNext.of(vocabulary)
    i, m = (vocabulary.encode(text)[0] for text in "im")  # "im" is one token
    assert canonical.after(canonical.after(canonical.start(), i) or canonical.start(), m) is None
    standing = canonical.start([*vocabulary.bos_ids, i, m])
    assert standing.token == m
    assert canonical.row(standing).any()

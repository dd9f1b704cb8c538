"""What may come next, against encoding again, with real tokenizers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

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


def test_a_prompt_is_conditioned_on_however_it_is_spelled() -> None:
    from transformers import AutoTokenizer

    vocabulary = Vocabulary.from_transformers(AutoTokenizer.from_pretrained(EMBEDDED))
    canonical = CanonicalNext.of(vocabulary)
    i, m = (vocabulary.encode(text)[0] for text in "im")  # "im" is one token
    assert canonical.after(canonical.after(canonical.start(), i) or canonical.start(), m) is None
    standing = canonical.start([*vocabulary.bos_ids, i, m])
    assert standing.token == m
    assert canonical.row(standing).any()

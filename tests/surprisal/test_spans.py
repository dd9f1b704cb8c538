"""A score: how its text is cut, that the parts add up, what they cost, and how they look."""

import html
import math
import pickle
import re
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import charwise
from charwise import CharLM
from charwise.engines.ngram import NgramLM
from charwise.errors import MissingExtraError, SettingError, ZeroProbabilityError
from charwise.surprisal.plot import to_html
from charwise.surprisal.score import Score
from charwise.surprisal.spans import Span
from charwise.tokens.words import Convention, characters_of
from conftest import Data
from models import Case, cases, examples, table

approx = pytest.approx

#: Bytes among which are whole characters of one to four bytes, parts of them, and whitespace.
PIECES = [
    *(c.encode() for c in ("a", "b", "ï", "語", "🙂", "e\u0301", " ", "  ", "\n", "\t", "\u3000")),
    *(b"\xc3", b"\x80", b"\xf0\x9f", b"\xed\xb2\x80", b"\xff", b"\x00", b"\xc0\xaf"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join)
CONVENTIONS: tuple[Convention, ...] = ("leading", "trailing", "none")


def score_of(text: bytes, seed: int = 0, **more: Any) -> Score:
    """A score with surprisals between 1e-12 and 1e3 bits."""
    rng = np.random.default_rng(seed)
    logprobs = -(10 ** rng.uniform(-12, 3, len(text)))
    return Score(text, logprobs, rng.random(len(text)), **more)


# ---- characters ---------------------------------------------------------------------------------


@given(TEXTS)
@examples(300)
def test_every_byte_belongs_to_exactly_one_character(text: bytes) -> None:
    string, edges = characters_of(text)
    assert edges[0] == 0
    assert edges[-1] == len(text)
    pieces = [text[a:b] for a, b in pairwise(edges.tolist())]
    assert [c.encode("utf-8", "surrogateescape") for c in string] == pieces
    score = score_of(text)
    assert len(score.chars()) == len(string)
    assert score.bits_per_char * len(string) == approx(score.bits)
    assert score.bits_per_byte * len(text) == approx(score.bits)
    assert len(score.bytes()) == len(text)
    valid = [row for row in score.chars() if len(row.text) == 1]
    assert all(string[row.start : row.end] == row.text for row in valid)
    assert all(re.fullmatch(r"\\x[89a-f][0-9a-f]", r.text) for r in score.chars() if r not in valid)


# ---- adding up ----------------------------------------------------------------------------------


@given(TEXTS, st.integers(0, 2**32 - 1))
@examples(300)
def test_adjacent_spans_add_up_exactly(text: bytes, seed: int) -> None:
    """Others may overlap, in any order."""
    score, rng = score_of(text, seed), np.random.default_rng(seed)
    cuts = np.unique(np.append(rng.integers(0, len(text) + 1, 5), (0, len(text)))).tolist()
    spans = score.spans(list(pairwise(cuts)), unit="byte")
    bits = [row.surprisal for row in spans]
    assert sum(bits) == sum(reversed(bits)) == sum(rng.permutation(bits).tolist()) == score.bits
    for first, second in pairwise(spans):
        [both] = score.spans([(first.start, second.end)], unit="byte")
        assert first.surprisal + second.surprisal == both.surprisal
        assert first.cumulative + second.surprisal == second.cumulative == both.cumulative
    for view in (spans, score.bytes(), score.chars(), *map(score.words, CONVENTIONS)):
        assert sum(row.surprisal for row in view) == score.bits
        assert not view or view[-1].cumulative == score.bits
        assert sum(row.error for row in view) == approx(score.error.sum() / math.log(2))
    edges = np.sort(rng.integers(0, len(text) + 1, (6, 2))).tolist()
    offsets = [(start, end) for start, end in edges if start < end]
    for row, (start, end) in zip(score.spans(offsets, unit="byte"), offsets, strict=True):
        [alone] = score.spans([(start, end)], unit="byte")
        assert row[:5] == alone[:5]
        assert row.error == approx(score.error[start:end].sum() / math.log(2))


@given(st.lists(st.floats(-1e6, 0), max_size=50), st.integers(0, 5))
@examples(300)
def test_rounding_is_at_the_last_digit_of_the_sum(logprobs: list[float], noise: int) -> None:
    # A little above zero is what the noise of float32 models can do to a certain byte.
    values = np.array([*logprobs, *[1e-9] * noise])
    score = Score(b"a" * len(values), values, np.zeros(len(values)))
    bits, size = score.surprisals, float(np.abs(values).sum() / math.log(2))
    assert np.abs(bits - values / -math.log(2)).max(initial=0) <= math.ulp(size)
    assert sum(map(Fraction, bits.tolist())) == Fraction(sum(bits.tolist()))
    assert not np.signbit(bits[bits == 0]).any()


def test_a_byte_of_probability_zero_cannot_be_added() -> None:
    for bad in (-math.inf, math.nan):
        score = Score(b"abc", np.array([-1.0, bad, -1.0]), np.zeros(3))
        with pytest.raises(ZeroProbabilityError, match="of byte 1 is"):
            _ = score.bits_per_byte


# ---- words, expressions, offsets ----------------------------------------------------------------


@given(TEXTS)
@examples(200)
def test_words_under_each_convention(text: bytes) -> None:
    string = text.decode("utf-8", "surrogateescape")
    score = score_of(text)
    for convention in CONVENTIONS:
        result = [string[row.start : row.end] for row in score.words(convention)]
        assert "".join(result) == string
        assert [part.strip() for part in result if part.strip()] == string.split()
        for at, part in enumerate(result):
            alone = not part.strip()
            if convention == "leading":
                assert part == part.rstrip() or (alone and at == len(result) - 1)
            elif convention == "trailing":
                assert part == part.lstrip() or (alone and at == 0)
            else:
                assert part == part.strip() or alone


def test_regular_expressions() -> None:
    score = score_of("x1 = naïve(22)".encode())
    assert [row.text for row in score.regex(r"\d+")] == ["1", "22"]
    assert [row.text for row in score.regex(re.compile("NAÏVE", re.IGNORECASE))] == ["naïve"]
    assert list(score.regex("absent")) == []
    assert score.regex(".+")[0].surprisal == score.bits
    assert [row.text for row in score.regex(r"\d*")] == ["1", "22"]  # what is empty is no span


@given(cases(possible=True), st.data())
@examples(150)
def test_a_span_costs_what_the_oracle_says(case: Case, data: st.DataObject) -> None:
    """−log₂ p(span | all before), inside tokens too; as a text after what is before it."""
    model, text = case.model, case.text
    assume(text)
    truth = [model.prefix(text[:at]) for at in range(len(text) + 1)]
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    lm = model.exact()
    row, rest = lm.score(text).spans([(start, end), (start, len(text))], unit="byte")
    assert row.surprisal == approx(math.log2(truth[start] / truth[end]), rel=1e-9, abs=1e-9)
    assert row.cumulative == approx(-math.log2(truth[end]), rel=1e-9, abs=1e-9)
    after = lm.score(text[start:], context=text[:start])
    assert rest.surprisal == approx(after.bits, rel=1e-12, abs=1e-12)


# ---- canonical tokens ---------------------------------------------------------------------------


def test_canonical_tokens_of_a_real_tokenizer() -> None:
    lm = charwise.load()
    text = "def naïve_sum(values):\n\treturn '語'  # ok".encode()
    tokens, ids = lm.score(text).tokens(), lm.vocabulary.encode(text)
    assert [text[row.start : row.end] for row in tokens] == [lm.vocabulary.tokens[id] for id in ids]
    assert tokens.unit == "byte"
    # What a token's bytes cost is never more than what the token costs, summed from the start.
    tree = lm.engine.tree(lm.vocabulary.bos_ids)
    cost = -float(tree.logprobs([tree.root])[0, ids[0]]) / math.log(2)
    assert tokens[0].surprisal <= cost + 1e-6


def test_tokens_that_begin_before_the_text_or_end_after_it(data: Data) -> None:
    lm = charwise.load()
    assert [row.text for row in lm.score("py as", context="import num").tokens()] == ["py", " as"]
    assert [row.text for row in lm.score("numpy", context="import ").tokens()] == ["numpy"]
    assert list(lm.score("", context="import ").tokens()) == []
    rows = table([b"a", b"bc"], {(): [0.5, 0.25, 0.25]}).exact().score("aab").tokens()
    assert [row[:3] for row in rows] == [("a", 0, 1), ("a", 1, 2), ("b", 2, 3)]
    vocabulary = data.vocabulary("llama2")
    assert vocabulary.implied_prefix == b" "  # which is no token of the text
    even = vocabulary.counted / vocabulary.counted.sum()
    llama = CharLM(NgramLM(vocabulary, 1, {(): even}))
    assert [row.text for row in llama.score("Hello world").tokens()] == ["Hello", " world"]


# ---- the object ---------------------------------------------------------------------------------


def test_tables_have_the_rows_and_their_columns() -> None:
    """Without rows they have columns of the same types, and go together with other tables."""
    score = score_of("naïve café".encode())
    words = score.words().to_pandas()
    assert words.columns.tolist() == list(Span._fields[:6])
    result = [tuple(row) for row in words.itertuples(index=False)]
    assert result == [row[:6] for row in score.words()]
    assert len(score.to_pandas()) == len(score.raw)
    for none in (score_of(b"").words().to_pandas(), score.regex("zzz").to_pandas()):
        assert len(none) == 0
        assert list(none.columns) == list(words.columns)
        assert [kind.kind for kind in none.dtypes[1:]] == [kind.kind for kind in words.dtypes[1:]]


@pytest.mark.parametrize(("module", "extra"), [("pandas", "tables"), ("matplotlib", "plots")])
def test_without_a_package_a_sentence_says_what_to_install(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.figure", None)
    score, message = score_of(b"a"), rf"pip install 'charwise\[{extra}\]'"
    for ask in (score.plot,) if extra == "plots" else (score.to_pandas, score.words().to_pandas):
        with pytest.raises(MissingExtraError, match=message) as caught:
            ask()
        assert isinstance(caught.value, ImportError)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_printed_table_leaves_out_the_middle() -> None:
    output = repr(score_of(b"a" * 1000).bytes()).splitlines()
    assert len(output) == 62
    assert "… 940 more" in output
    assert output[-1].split()[:3] == ["'a'", "999", "1000"]


def test_the_empty_text(tmp_path: Path) -> None:
    score = charwise.load().score("", entropy="char", end=True)
    assert score.end_logprob < 0
    assert (score.contexts, len(score.char_entropies)) == (1, 0)
    views = (score.bytes(), score.chars(), score.words(), score.tokens(), score.spans([]))
    assert all(len(view) == 0 for view in views)
    assert (score.bits, score.bits_per_byte, score.bits_per_char) == (0.0, 0.0, 0.0)
    score.plot().savefig(tmp_path / "empty.png")


#: What could be taken for markup, or for mathematics; newlines, wide and invisible characters.
ODD = "a <b>&amp;'\"</b> $x_1$\t語 naïve\r\n\n\x00 end".encode() + b"\xff"


# ---- pictures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
def test_a_figure_has_a_bar_for_every_word(convention: Convention, tmp_path: Path) -> None:
    score = score_of(ODD)
    figure = score.plot(convention)
    [axes] = figure.axes
    rows = [row for row in score.words(convention) if row.text.strip()]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == [row.text.strip().replace("\x00", "�") for row in rows]
    assert [bar.get_height() for bar in axes.patches] == [row.surprisal for row in rows]
    assert [bar.get_width() for bar in axes.patches] == [len(row.text.strip()) for row in rows]
    figure.savefig(tmp_path / "score.png")
    assert (tmp_path / "score.png").read_bytes().startswith(b"\x89PNG")


def test_lines_of_a_figure_have_all_words_and_one_scale() -> None:
    score = score_of(b"def total(values):\n    return sum(values)\n" * 5)
    axes = score.plot().axes
    assert len(axes) > 1
    assert sum(len(each.patches) for each in axes) == len(score.words("none")) // 2
    assert len({each.get_ylim() for each in axes}) == 1
    assert all(bar.get_x() + bar.get_width() <= 80 for each in axes for bar in each.patches)
    with pytest.raises(SettingError, match="Draw at most 50: score a part"):
        score_of(b"word " * 16 * 51).plot()


def test_notebooks_show_the_text_itself() -> None:
    score = score_of(ODD + b"<script>alert(1)</script>")
    page = score._repr_html_()
    assert set(re.findall(r"<(\w+)", page)) == {"div", "span"}
    text = html.unescape(re.sub("<[^>]*>", "", page)).replace("⏎\n", "⏎")
    assert text.startswith("a <b>&amp;'\"</b> $x_1$⇥語 naïve↩⏎⏎� end�<script>alert(1)</script>")
    assert f"{score.bits:.1f} bits" in page
    titles = re.findall('title="(.*?)"', page)
    assert titles == [f"{row.surprisal:.2f} bits" for row in score.chars()]
    long = to_html(score_of(b"a" * 6234).chars(), "")
    assert long.count("<span") == 5000
    assert "… 1,234 more" in long

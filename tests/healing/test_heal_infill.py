"""Infilling in engines: both ends of the middle, written-out templates, and what is refused."""

from __future__ import annotations

import dataclasses
import warnings
from functools import cache
from typing import Any

import pytest
import torch

from charwise import SortedVocabulary, Vocabulary, heal_generate, heal_infill
from charwise.errors import SettingError
from charwise.healing import HealedPrompt
from charwise.healing.fim import Template, hold_end_, request
from charwise.healing.prompt import heal_prompt, template_in, with_sentinels
from charwise.healing.transformers import HealingLogitsProcessor, index_of
from charwise.tokens.sentinels import SPELLINGS, Spelling
from tiny import model_with, tokenizer_with

NAMES = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
PAIRS = [
    ("import nu", "py as np\n"),
    ("def area(radius):\n    ret", "rn radius\n"),
    ("x = ", "\n"),
    ("", "self.value = value\n"),
    ("print('naï", "'')\n"),
    ("print('na\u00ef".encode()[:-1].decode("utf-8", "ignore"), "ve')"),
    ("for i in rang", ""),
]


@cache
def model_with_sentinels() -> tuple[Any, Any]:
    """The embedded model with sentinels that it was not trained to use."""
    return model_with(NAMES)


def template_of(tokenizer: Any) -> Template:
    return Template.named(index_of(tokenizer, model_with_sentinels()[0]).vocabulary, *NAMES)


def generated(
    prefix: str, suffix: str, bias: float, **options: Any
) -> tuple[HealedPrompt, list[int], str]:
    """A request, the ids that `generate` wrote for it, and the middle that is read off them.

    Args:
        bias: of the end token.
    """
    model, tokenizer = model_with_sentinels()
    index, template = index_of(tokenizer, model), template_of(tokenizer)
    rows: list[list[int]] = []

    def likelier(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, list(index.vocabulary.end_ids)] += bias
        return scores

    def note(input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        rows[:] = input_ids.tolist()
        return torch.zeros(1, dtype=torch.bool)

    options |= {"logits_processor": [likelier], "stopping_criteria": [note], "do_sample": False}
    [text] = heal_infill(model, tokenizer, prefix, suffix, template=template, **options)
    healed = request(prefix, suffix, template, index, order=options.get("order"))
    return healed, rows[0][len(healed.kept) :], text


@pytest.mark.parametrize("order", ["psm", "spm"])
@pytest.mark.parametrize(("prefix", "suffix"), PAIRS)
def test_what_is_written_begins_and_ends_with_what_both_sides_gave_up(
    prefix: str, suffix: str, order: str
) -> None:
    """With the end token made likely, so that every middle ends."""
    _, tokenizer = model_with_sentinels()
    index = index_of(tokenizer, model_with_sentinels()[0])
    ends = list(index.vocabulary.end_ids)
    for more in (6.0, 30.0):
        healed, ids, text = generated(prefix, suffix, more, order=order, max_new_tokens=24)
        at = next((n for n, id in enumerate(ids) if id in ends), None)
        output = index.vocabulary.decode(ids[:at])
        assert output.startswith(healed.forced)
        if at is not None:
            assert output[len(healed.forced) :].endswith(healed.ending)
            middle = output[len(healed.forced) : len(output) - len(healed.ending)]
            assert text == middle.decode("utf-8", "replace")
        if more == 30.0:  # it would end at once: what is missing is all that it writes
            assert at is not None
            assert (
                len(output)
                <= len(healed.forced) + len(healed.ending) + index.vocabulary.max_token_bytes
            )


@pytest.mark.parametrize(
    ("prefix", "suffix"), [("for i in range(3):\n    print(i)\n", "\n"), ("x = [0, 0, 0, ", ", 0]")]
)
def test_a_middle_that_does_not_end_is_cut_where_its_end_is_likeliest(
    prefix: str, suffix: str
) -> None:
    model, tokenizer = model_with_sentinels()
    index = index_of(tokenizer, model)
    healed, ids, text = generated(prefix, suffix, -1e9, max_new_tokens=32)
    new = index.vocabulary.decode(ids)[len(healed.forced) :]
    places, size = [], -len(healed.forced)
    for n, id in enumerate(ids):
        size += index.length(id)
        if new[: max(size, 0)].endswith(healed.ending):
            places.append((n, size))
    assert len(places) > 1
    with torch.no_grad():
        logits = model(torch.tensor([[*healed.kept, *ids]])).logits[0].log_softmax(-1)
    ends = list(index.vocabulary.end_ids)
    best = max(places, key=lambda place: float(logits[len(healed.kept) + place[0], ends].sum()))
    assert text.encode() == new[: best[1] - len(healed.ending)]


def test_a_template_in_a_prompt_of_generate_is_healed_inside() -> None:
    model, tokenizer = model_with_sentinels()
    prefix, suffix = "for i in rang", "e(3):\n    pass\n"
    before, between, last = NAMES
    options = {"max_new_tokens": 4, "do_sample": False}
    [output] = heal_generate(
        model, tokenizer, f"{before}{prefix}{between}{suffix}{last}", **options
    )
    [healed] = heal_infill(
        model, tokenizer, [prefix], [suffix], right="off", template=template_of(tokenizer),
        **options,
    )  # fmt: skip
    assert output
    assert healed.startswith(output)


@pytest.mark.parametrize(
    ("generated", "expected"),
    [
        ([0], [0.2, 0.1, 0.1, 0.6, 0.0, 0.0]),
        ([0, 1], [0.2, 0.1, 0.6, 0.1, 0.0, 0.0]),
        ([0, 3], [0.2, 0.1, 0.1, 0.1, 0.3, 0.2]),
    ],
)
def test_the_end_is_held_until_nothing_is_owed(generated: list[int], expected: list[float]) -> None:
    index = SortedVocabulary(
        Vocabulary.from_bytes([b"y", b"e", b"x", b"ex", None, None], end_ids=[4, 5])
    )
    row = torch.tensor([0.2, 0.1, 0.1, 0.1, 0.3, 0.2]).log()
    hold_end_(row, b"", b"ex", generated, index)
    assert torch.allclose(row.exp(), torch.tensor(expected))


def test_the_end_is_not_held_before_the_forced_text_is_there() -> None:
    index = SortedVocabulary(Vocabulary.from_bytes([b"in", b"ind", b"d", None], end_ids=[3]))
    process = HealingLogitsProcessor(index, [b"ind"], prompt_length=1, endings=[b"d"])
    scores = torch.zeros(1, 4)
    for generated, allowed in (([0], [2]), ([1], [0, 1, 2]), ([1, 2], [0, 1, 2, 3])):
        row = process(torch.tensor([[0, *generated]]), scores)[0]
        assert row.isfinite().nonzero().flatten().tolist() == allowed
    assert torch.equal(scores, torch.zeros(1, 4))


def written_out(spelling: Spelling, prefix: str, suffix: str, order: str) -> str:
    """The template as clients send it."""
    before, between, last = spelling.in_text
    if order == "suffix first" or spelling.middle is None:
        return f"{between.lstrip()}{suffix}{before}{prefix}{last}"
    if order == "spm":
        space = " " if before.endswith(" ") else ""
        return f"{before.rstrip()}{between}{suffix}{last}{space}{prefix}"
    return f"{before}{prefix}{between}{suffix}{last}"


@cache
def index_with(spelling: Spelling) -> SortedVocabulary:
    return SortedVocabulary(Vocabulary.from_transformers(tokenizer_with(spelling.names)))


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda one: one.family)
def test_a_template_written_out_is_healed_inside(spelling: Spelling) -> None:
    index = index_with(spelling)
    vocabulary = index.vocabulary
    template = dataclasses.replace(Template.of(vocabulary), suffix_first=False)
    prefix, suffix = "def f(items):\n    for i in rang", "e(3):\n        pass\n"
    psm = request(prefix, suffix, template, index, right="off")
    text = written_out(spelling, prefix, suffix, "psm")
    healed = heal_prompt(text, index)
    assert (healed.kept, healed.forced) == (psm.kept, psm.forced)
    assert healed.forced.endswith(b"rang")
    assert healed.removed_tokens == len(
        vocabulary.encode_prompt(with_sentinels(text, vocabulary))
    ) - len(healed.kept)
    spm = request(prefix, suffix, template, index, right="off", order="spm")
    again = heal_prompt(written_out(spelling, prefix, suffix, "spm"), index)
    assert again.forced == spm.forced
    special = [id for id in again.kept if id in vocabulary.special]
    assert special == [id for id in spm.kept if id in vocabulary.special]
    first = dataclasses.replace(template, suffix_first=True)
    other = request(prefix, suffix, first, index, right="off")
    text = written_out(spelling, prefix, suffix, "suffix first")
    for start in ("", "<s>", "<bos>", "<｜begin▁of▁sentence｜>"):
        again = heal_prompt(start + text, index)
        assert (again.kept, again.forced) == (other.kept, other.forced)
    # One with a sentinel too many may be about sentinels, and stays as it is.
    doubled = text.replace("for", spelling.in_text[0])
    assert with_sentinels(doubled, vocabulary) == doubled


def test_only_a_whole_template_is_one() -> None:
    index = index_with(SPELLINGS[0])
    template = Template.named(index.vocabulary, *NAMES)
    before, between, last = template.prefix, template.suffix, template.middle
    assert last is not None
    text = index.vocabulary.encode("for i in rang")
    for ids in (
        [before, *text, between, *text],  # no middle
        [before, *text, last],  # no suffix
        [before, *text, between, *text, before, *text],
        [before, between, *text, last, *text],  # SPM: the prompt's own end
        text,
        [],
    ):
        assert template_in(ids, index.vocabulary) is None
    whole = [0, *text, before, *text, between, *text, last]  # something else comes first
    healed = heal_prompt(whole, index)
    assert healed.forced.endswith(b"rang")
    assert healed.before == b"ang"
    assert healed.kept[: 2 + len(text)] == [0, *text, before]
    ids = [between, *text, before, *text, last]  # suffix first
    assert template_in(ids, index.vocabulary) == (len(text) + 1, 2 * len(text) + 2)
    empty = heal_prompt([before, between, last], index)
    assert (empty.kept, empty.forced) == ([before, between, last], b"")


def test_what_cannot_be_filled_in_is_refused() -> None:
    model, tokenizer = model_with_sentinels()
    bare = SortedVocabulary(
        Vocabulary.from_bytes([bytes([n]) for n in range(256)], width=model.config.vocab_size)
    )
    with pytest.raises(SettingError, match=r"Template\.named"):
        heal_infill(model, bare, "a", "b")
    template = template_of(tokenizer)
    for sides in ((["a", "b"], ["c"]), (["a"], ["b", "c"]), ("a", ["b", "c"])):
        with pytest.raises(SettingError, match="prefixes"):
            heal_infill(model, tokenizer, *sides, template=template)
    with pytest.raises(SettingError, match="right is 'word'"):
        heal_infill(model, tokenizer, "a", "b", template=template, right="word")
    with pytest.raises(SettingError, match="position_ids"):
        heal_infill(model, tokenizer, "a", "b", template=template, position_ids=None)
    assert heal_infill(model, tokenizer, [], [], template=template) == []
    assert heal_infill(model, tokenizer, [], template=template) == []


def test_rows_of_a_batch_are_what_they_are_alone() -> None:
    model, tokenizer = model_with_sentinels()
    settings = {"template": template_of(tokenizer), "max_new_tokens": 8, "do_sample": False}
    prefixes, suffix = [prefix for prefix, _ in PAIRS[:3]], PAIRS[0][1]
    together = heal_infill(model, tokenizer, prefixes, suffix, **settings)
    assert together == heal_infill(model, tokenizer, prefixes, [suffix] * 3, **settings)
    for prefix, text in zip(prefixes, together, strict=True):
        [alone] = heal_infill(model, tokenizer, prefix, suffix, **settings)
        # Padding changes the sums of floats, and rows of a batch go on for as long as its longest.
        assert text[:4] == alone[:4]


@pytest.mark.parametrize(
    ("order", "prefix", "suffix", "says"),
    [
        ("psm", "for i in ra", "\n    print(i)\n" + "x = 1\n" * 2000,
         r": 0 bytes at the start .* and [1-9]\d+ at the end"),
        ("spm", "x = 1\n" * 2000 + "for i in ra", "\n    print(i)\n",
         r": [1-9]\d+ bytes at the start .* and 0 at the end"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_cut_at_the_far_end_and_a_warning_says_so(
    order: Any, prefix: str, suffix: str, says: str
) -> None:
    model, tokenizer = model_with_sentinels()
    options = {"template": template_of(tokenizer), "order": order, "do_sample": False}
    with pytest.warns(UserWarning, match=says):
        [text] = heal_infill(model, tokenizer, prefix, suffix, max_new_tokens=2, **options)
    assert text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        heal_infill(model, tokenizer, "import nu", "y\n", max_new_tokens=2, **options)


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda one: one.family)
def test_a_sentinel_in_what_a_client_sends_is_text(spelling: Spelling) -> None:
    index = index_with(spelling)
    template = Template.of(index.vocabulary)
    for name in (*spelling.names, "".join(spelling.in_text)):
        prefix, suffix = f"print('{name}') # {name}", f"{name}{name}\n"
        healed = request(prefix, suffix, template, index, right="off")
        sentinels = [id for id in healed.kept if id in index.vocabulary.special]
        assert len(sentinels) == len(index.vocabulary.bos_ids) + len(spelling.names)

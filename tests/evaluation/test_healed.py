"""Token healing as a covering (Appendix F): its members, and what it misses."""

from __future__ import annotations

import math

from hypothesis import given

from charwise.coverings.bundles import next_byte_masses
from charwise.coverings.reference import enum_cover, prefix_probability
from charwise.errors import VocabularyError
from charwise.evaluation.methods import _heal
from models import CLOSE, Case, cases, close_logs, examples, log_of, spelled, table, two_ways
from near import approx


@given(cases())
@examples(300)
def test_its_members_are_those_of_equation_43(case: Case) -> None:
    """All but the last canonical token, then whatever starts with the last."""
    model, text, rows = case.model, case.text, case.model.evaluated()
    try:
        canonical = tuple(model.vocabulary.encode(text))
    except VocabularyError:
        assert not spelled(text, model.index.sorted)
        return
    [healed] = _heal(rows, [text])
    bundle = healed.bundles[0]
    if not text:
        assert healed.path == [0]
        assert bundle.log_p == 0
        return
    stem, last = canonical[:-1], model.vocabulary.tokens[canonical[-1]]
    assert last is not None
    assert len(healed.path) == len(canonical)
    weight = math.prod(float(model.p(stem[:n])[id]) for n, id in enumerate(stem))
    ids = model.index.ids[bundle.lo : bundle.hi].tolist()
    assert sorted(ids) == [
        id for id, t in enumerate(model.vocabulary.tokens) if t is not None and t.startswith(last)
    ]
    members = {(*stem, id): weight * float(model.p(stem)[id]) for id in ids}
    covering = {m.tokens: m.p for m in enum_cover(text, model.p, model.vocabulary)}
    assert members.keys() <= covering.keys()
    assert members == approx({tokens: covering[tokens] for tokens in members}, **CLOSE)
    total = math.fsum(members.values())
    assert total <= prefix_probability(text, model.p, model.vocabulary) * (1 + 1e-12)
    assert close_logs(bundle.log_p + log_of(weight), log_of(total))


def test_it_misses_the_other_spellings() -> None:
    model = two_ways()
    [healed] = _heal(model.evaluated(), [b"ab"])
    assert math.exp(healed.bundles[0].log_p) == approx(0.3)
    assert prefix_probability(b"ab", model.p, model.vocabulary) == approx(0.3 + 0.08)


def test_a_text_that_nothing_can_follow() -> None:
    rows = {(3,): [0.5, 0.5, 0, 0], (0,): [0, 0, 0, 1], (1,): [0.5, 0, 0, 0.5], (2,): [0, 0, 0, 1]}
    model = table([b"a", b"b", b"ba"], rows, order=2)
    tree = model.evaluated()
    [healed] = _heal(tree, [b"bab"])  # canonical: [ba, b]
    masses, scale = next_byte_masses(tree, healed.bundles)
    assert scale == -math.inf
    assert not masses.any()


def test_many_texts_in_one_call() -> None:
    model = two_ways()
    rows = model.evaluated()
    calls = rows.calls
    together = _heal(rows, [b"a", b"ab", b"aba"])
    assert rows.calls == calls + 1
    for text, healed in zip([b"a", b"ab", b"aba"], together, strict=True):
        alone = model.evaluated()
        masses = [next_byte_masses(*each)[0] for each in ((rows, healed.bundles),)]
        [expected] = _heal(alone, [text])
        assert masses[0] == approx(next_byte_masses(alone, expected.bundles)[0])

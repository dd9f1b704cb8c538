"""Fill in the middle: where prefix and suffix are cut, and when the middle may end.

An editor has text on both sides of the cursor, and either may end or begin inside a token. The
rule of healing holds on the left, and mirrored on the right: what a token of the middle could have
reached into is taken from the suffix, and the middle must end with it.

    prefix   "    return numbers[ind"       kept "…numbers[",  forced b"ind"
    suffix   "ex + 1]"                      ending b"ex",      kept " + 1]"

    ids, forced, ending = request(prefix, suffix, template, index)[:3]
    owed(new, ending)           # what of `ending` is missing after the new bytes
    middle_of(new, ending)      # the middle, once nothing is

In PSM the middle comes last, after the sentinel, and begins with the forced bytes. In SPM it
follows the prefix, whose end is healed as that of any prompt. Sentinels are ids, and no text is
read as one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from charwise.errors import ContextLengthError, SettingError
from charwise.healing import Rule, cut, unknown_rule
from charwise.template import Order, Template
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompt_parts import Prompt
from charwise.tokens.vocabulary import Vocabulary


class Request(NamedTuple):
    """The request to a model, and the beginning and end of its answer.

    Attributes:
        ids: of the prompt.
        forced: bytes that the answer must begin with: the end of the prefix.
        ending: bytes that it must end with: the beginning of the suffix.
        opening: how many of the ids come up to the last sentinel; those after it are prefix (SPM).
        prefix_cut, suffix_cut: bytes left out to fit the window, at the start of the prefix and
            at the end of the suffix.
        before: the last bytes of the prefix, for a character that begins there.

    >>> Request([0], b"ind", b"ex", 1).ending
    b'ex'
    """

    ids: list[int]
    forced: bytes
    ending: bytes
    opening: int
    prefix_cut: int = 0
    suffix_cut: int = 0
    before: bytes = b""


def request(
    prefix: str | bytes,
    suffix: str | bytes,
    template: Template,
    index: SortedVocabulary,
    *,
    order: Order | None = None,
    left: Rule = "auto",
    right: Rule = "auto",
    opening: Prompt = (),
    most: int | None = None,
) -> Request:
    """The request for the middle between two texts, either of which may be empty.

    Args:
        prefix, suffix: any text or bytes; a sentinel's name in them is text.
        template: of the model.
        index: of its vocabulary.
        order: "psm" or "spm"; by default PSM where the model knows it.
        left, right: where to cut, as for `healing.cut`; `right` is the same rule, mirrored.
        opening: what comes before the template in place of the start token, such as the ids of
            other files.
        most: tokens that fit the window. What is too long is cut at the far ends: the suffix to
            half the room, or what the prefix leaves of it, then the prefix.

    Raises:
        TemplateError: an order that the model does not know.
        TokenizationError: a text that no token string spells.
        ContextLengthError: where `most` leaves no room for the sentinels.

    >>> tokens = [b"a", b"b", b"ab", b"c", b"bc", None, None, None]
    >>> index = SortedVocabulary(Vocabulary.from_bytes(tokens, special={5: "", 6: "", 7: ""}))
    >>> request("ca", "ca", Template(5, 6, 7), index)[:4]
    ([5, 3, 6, 0, 7], b'a', b'c', 5)
    """
    vocabulary = index.vocabulary
    if not isinstance(template, Template):
        raise SettingError(f"template is a {type(template).__name__}: Template.named makes one.")
    order = template.order(order)
    start = vocabulary.encode_prompt(opening) or list(vocabulary.bos_ids)
    text = to_bytes(prefix)
    before = vocabulary.encode(vocabulary.lead + text)
    after = vocabulary.encode(to_bytes(suffix))
    kept, forced = cut([template.prefix, *before], index, left)
    ending, rest = cut_start(after, index, right)
    kept, prefix_cut, rest, suffix_cut = _fitting(
        kept[1:], rest, None if most is None else most - len(start) - 3, vocabulary
    )
    prefix_cut = max(0, prefix_cut - len(vocabulary.lead))  # the implied space is not the user's
    ids = template.layout(start, kept, rest, order)
    last = len(ids) - (len(kept) if order == "spm" else 0)
    return Request(ids, forced, ending, last, prefix_cut, suffix_cut, text[-3:])


def cut_start(
    ids: Sequence[int], index: SortedVocabulary, rule: Rule = "auto"
) -> tuple[bytes, list[int]]:
    """The bytes that leave the start of a suffix, and the ids that stay: `healing.cut`, mirrored.

    Args:
        ids: canonical, of the suffix.
        index: of the model's vocabulary.
        rule: "auto" finds the latest position, within the munch, up to which some token that
            begins before the suffix would run, and cuts at the token boundary at or after it. A
            number takes so many tokens. "word" takes the first word, with a space before it.

    Raises:
        SettingError: for an unknown rule.

    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"d", b"e", b"node", b"x"]))
    >>> cut_start([0, 1, 3], index)       # "node" ends with "de", and is longer
    (b'de', [3])
    """
    pieces = [index.vocabulary.tokens[id] or b"" for id in ids]
    text = b"".join(pieces)
    if not isinstance(rule, str | int):
        raise unknown_rule(rule)
    if rule == "off":
        count = 0
    elif isinstance(rule, int) and not isinstance(rule, bool):
        if rule < 0:
            raise SettingError(f"cannot take {rule} tokens: the number must be 0 or more.")
        count = min(rule, len(pieces))
    elif rule in ("auto", "word"):
        word = re.match(rb"(?:\r\n|\s)?\S*", text)
        reach = latest_reach(text, index) if rule == "auto" else word.end() if word else 0
        count = at = 0
        while at < reach:
            at += len(pieces[count])
            count += 1
    else:
        raise unknown_rule(rule)
    return b"".join(pieces[:count]), list(ids[count:])


def latest_reach(text: bytes, index: SortedVocabulary) -> int:
    """The latest position up to which a token could reach into a text from before its start.

    That is the greatest k > 0 for which some token ends with text[:k] and is longer; 0 if none.

    >>> latest_reach(b"dex", SortedVocabulary(Vocabulary.from_bytes([b"d", b"node", b"x"])))
    2
    """
    backwards = _reversed_tokens(index)
    for reach in range(min(index.vocabulary.munch - 1, len(text)), 0, -1):
        end = text[:reach][::-1]
        at = bisect_left(backwards, end + b"\0")  # the first that is longer, if it starts so
        if at < len(backwards) and backwards[at].startswith(end):
            return reach
    return 0


def owed(new: bytes, ending: bytes) -> bytes:
    """Return the part of the ending that is missing if the middle is to end after these bytes.

    Empty where the bytes end with it: there, and only there, the end is allowed. `new` is what
    lies beyond the forced text.

    >>> owed(b"y = ind", b"dex"), owed(b"y = index", b"dex"), owed(b"y", b"")
    (b'ex', b'', b'')
    """
    for size in range(min(len(new), len(ending)), 0, -1):
        if new.endswith(ending[:size]):
            return ending[size:]
    return ending


def owed_tokens(new: bytes, ending: bytes, index: SortedVocabulary) -> list[int]:
    """Return the tokens that go on with the owed bytes, and not beyond them; longest first.

    A model that would end where it may not has said that the middle is over: what the suffix
    begins with is then all that is missing.

    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"e", b"ex", b"exp", b"x"]))
    >>> owed_tokens(b"ind", b"dex", index), owed_tokens(b"index", b"dex", index)
    ([1, 0], [])
    """
    rest = owed(new, ending)
    if not rest:
        return []
    lo, hi = index.twins(rest)
    return [*index.ids[lo:hi].tolist(), *index.prefixes(rest)]


def middle_of(new: bytes, ending: bytes) -> bytes | None:
    """The middle, of new bytes that end with the ending; None if they do not.

    >>> middle_of(b" = index", b"ex"), middle_of(b" = ind", b"ex")
    (b' = ind', None)
    """
    if not new.endswith(ending):
        return None
    return new[: len(new) - len(ending)]


def middles(new: bytes, ending: bytes, ended: bool) -> list[bytes]:
    """Return every middle that new bytes may stand for, the likeliest first by where they stop.

    Args:
        new: what a model wrote beyond the forced text.
        ending: what the middle must end with.
        ended: whether the model ended there by itself. If it did not, each place where the ending
            occurs may be the end, the last ones first.

    >>> middles(b"y = index", b"ex", ended=True)
    [b'y = ind', b'y = index']
    >>> middles(b"a, b, c", b", ", ended=False)
    [b'a, b', b'a', b'a, b, c']
    """
    found = []
    if ended:
        whole = [size for size in range(len(ending), -1, -1) if new.endswith(ending[:size])]
        found = [new[: len(new) - size] for size in whole]
    elif ending:
        at = new.rfind(ending)
        while at >= 0 and len(found) < _PLACES:
            found.append(new[:at])
            at = new.rfind(ending, 0, at + len(ending) - 1)
    return list(dict.fromkeys([*found, new]))


def rejoining(new: bytes, ending: bytes) -> list[bytes]:
    """Middles that end where new bytes first come to the ending: a model may write on past it.

    >>> rejoining(b"end(item)\\n    return", b"d")
    [b'en']
    >>> rejoining(b"x", b"")
    []
    """
    found: list[bytes] = []
    at = new.find(ending) if ending else -1
    while at >= 0 and len(found) < _PLACES:
        found.append(new[:at])
        at = new.find(ending, at + 1)
    return found


#: Places that are looked at, from either end, where a middle may have ended before.
_PLACES = 8

_backwards: WeakKeyDictionary[SortedVocabulary, list[bytes]] = WeakKeyDictionary()


def _reversed_tokens(index: SortedVocabulary) -> list[bytes]:
    """The tokens read backwards, sorted; made once for each index."""
    if index not in _backwards:
        _backwards[index] = sorted(token[::-1] for token in index.sorted)
    return _backwards[index]


def _fitting(
    before: list[int], after: list[int], room: int | None, vocabulary: Vocabulary
) -> tuple[list[int], int, list[int], int]:
    """Prefix and suffix within a number of tokens, and how many bytes of each were left out."""
    if room is None or len(before) + len(after) <= room:
        return before, 0, after, 0
    if room < 0:
        raise ContextLengthError(
            f"the sentinels do not fit: the window has {-room} tokens too few. Ask for a shorter "
            "middle."
        )
    keep_after = min(len(after), max(room // 2, room - len(before)))
    keep_before = room - keep_after
    lost_before, lost_after = before[: len(before) - keep_before], after[keep_after:]
    return (
        before[len(before) - keep_before :],
        len(vocabulary.decode(lost_before)),
        after[:keep_after],
        len(vocabulary.decode(lost_after)),
    )

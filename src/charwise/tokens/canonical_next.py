"""Which tokens may come next, where only canonical token strings count.

A token string is a *canonical beginning* if the tokenizer's encoding of some text begins with it.
Inside a word that takes the merges of its neighbouring tokens (`merges.py`); between words it takes
a border that the tokenizer splits, now or when more of the text has come (`pretokens.py`). So what
may come next depends on the last token, and on the end of the text from its last settled border on.

Not handled: Unigram and WordPiece models, whose encodings are no merges. Texts that are not UTF-8,
which no tokenizer is given, have no canonical token strings. An added token may come wherever the
text may end; that its own characters are always made that token is not enforced.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from charwise.errors import VocabularyError
from charwise.tokens.merges import Merges, Rules
from charwise.tokens.pretokens import (
    EITHER,
    SETTLED,
    SPLIT,
    WHOLE,
    Border,
    Splitter,
    Tail,
    code_points,
    shorter,
    splitter_of,
    taken_apart,
)
from charwise.tokens.tokenizers import BYTE_TOKEN
from charwise.tokens.vocabulary import Vocabulary

Flags = NDArray[np.bool_]
Packed = NDArray[np.uint8]
Key = TypeVar("Key")

_known: WeakValueDictionary[int, CanonicalNext] = WeakValueDictionary()


class Standing(NamedTuple):
    """The state of a canonical beginning: it alone decides which tokens may come next.

    >>> Standing().token
    -1
    """

    token: int = -1  # the last; −1 at the start of a text
    tail: Tail = Tail()
    word: bytes | None = b""  # the last word, where it begins a token that no merges make


class CanonicalNext:
    """The tokens that may come next, for one vocabulary.

    >>> from charwise.models import EMBEDDED
    >>> from transformers import AutoTokenizer
    >>> vocabulary = Vocabulary.from_transformers(AutoTokenizer.from_pretrained(EMBEDDED))
    >>> canonical = CanonicalNext.of(vocabulary)
    >>> imp, ort, os = (vocabulary.encode(text)[0] for text in ("imp", "ort", " os"))
    >>> may = canonical.row(canonical.after(canonical.start(), imp))
    >>> bool(may[os]), bool(may[ort])  # "import" is one token
    (True, False)
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokenizer = _tokenizer_of(vocabulary)
        self.vocabulary = vocabulary
        self.splitter: Splitter = splitter_of(tokenizer)
        model = json.loads(tokenizer.model.__getstate__())
        self.merges, bytes_of = _merges_of(model, vocabulary.width)
        self._fallback = bytes_of
        self._lock = threading.RLock()
        self._rows: OrderedDict[Standing, Packed] = OrderedDict()
        self._followers: OrderedDict[int, Packed] = OrderedDict()
        # 64 MiB of rows are kept.
        self._most = max(64, 2**26 // max(1, vocabulary.width // 8))
        listed = [token for token in model["vocab"] if len(token) == 1]
        self._listed = sorted({ord(c) for c in listed if c != "▁"} | {32}) if self._fallback else []
        # Tokens that are cut out of a text before it is split.
        self._added = [
            id
            for id in tokenizer.get_added_tokens_decoder()
            if id < vocabulary.width and vocabulary.tokens[id] is not None and id not in bytes_of
        ]
        self._set_kinds(bool(model.get("ignore_merges")))
        self._tables: OrderedDict[Tail, Flags] = OrderedDict()

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> CanonicalNext:
        """That of a vocabulary; the same object while anyone holds it.

        Raises:
            VocabularyError: a tokenizer whose merges cannot be read.
        """
        found = _known.get(id(vocabulary))
        if found is None:
            found = _known[id(vocabulary)] = cls(vocabulary)
        return found

    def _set_kinds(self, ignores_merges: bool) -> None:
        """Set each token's kind: those that look alike to the splitter are of one."""
        kinds: dict[tuple[str, ...], int] = {}
        fine: dict[tuple[str, ...], int] = {}
        width = self.vocabulary.width
        self._kind = np.full(width, -1, dtype=np.int32)
        self._fine = np.full(width, -1, dtype=np.int32)
        self._first: dict[str, Border] = {}  # of kinds, at the start of a text
        self._inner: dict[int, int] = {}  # those that begin inside of a character, in order
        tables = [(kinds, self._kind, ""), (fine, self._fine, "'")]
        for id, token in enumerate(self.vocabulary.tokens):
            if token is None or id in self._added:
                continue
            if token[0] & 0xC0 == 0x80:
                self._inner[id] = len(self._inner)
                continue
            parts = taken_apart(token)
            if parts is None or (id in self._fallback and not self._unlisted(token)):
                continue
            text, begun = parts
            lasts = self.splitter.beginnings(begun)
            for table, at, before in tables:
                written = self.splitter.written(text, before)
                looks = tuple(dict.fromkeys(_short(written + last) for last in lasts))
                at[id] = table.setdefault(looks, len(table))
        self._looks, self._fine_looks = list(kinds), list(fine)
        # What the merges do not make is a token only as a whole word, where those are looked up.
        self._alone = self._kind >= 0
        if not ignores_merges:
            self._alone &= self.merges.reachable
        odd = np.flatnonzero(self._alone & ~self.merges.reachable)
        self._odd = {self.vocabulary.tokens[id] or b"" for id in odd.tolist()}
        self._begun = {token[:size] for token in self._odd for size in range(1, len(token) + 1)}
        self._id_of = {token: id for id, token in enumerate(self.vocabulary.tokens) if token}

    def _unlisted(self, begun: bytes) -> bool:
        """Whether a character begins so that is no token, and so is spelled by its bytes."""
        low, high = code_points(begun)
        surrogates = max(0, min(high, 0xDFFF) - max(low, 0xD800) + 1)
        listed = bisect_left(self._listed, high + 1) - bisect_left(self._listed, low)
        return high - low + 1 - surrogates > listed

    def start(self, prompt_ids: Sequence[int] = ()) -> Standing:
        """Return the state after the opening of a text, which may be spelled in any way."""
        texts = list[int]()
        # The last few tokens say where a text stands.
        for id in reversed(prompt_ids[-32:]):
            if self.vocabulary.tokens[id] is None:
                break
            texts.append(id)
        standing = Standing()
        for id in reversed(texts):
            found = self.after(standing, id)
            standing = (self.after(Standing(), id) or Standing()) if found is None else found
        return standing

    def after(self, standing: Standing, token: int) -> Standing | None:
        """Where a canonical beginning stands after one more token; None if it is none then."""
        if self.vocabulary.tokens[token] is None or not self.row(standing)[token]:
            return None
        return self._after(standing, token)

    def _after(self, standing: Standing, token: int) -> Standing | None:
        raw = self.vocabulary.tokens[token] or b""
        if token in self._added:
            return Standing()
        text, borders, begun = standing.tail
        parts = taken_apart(begun + raw)
        if parts is None:
            return None
        more, begun_now = parts
        border = self._table(standing.tail)[self._column(standing.tail, token)]
        pair = bool(border[1]) and self._pair(standing.token, token)
        split = bool(border[0]) and not self._open(standing)
        new = WHOLE * (len(more) - 1 + bool(begun_now)) if more else ""
        if text and not begun:
            new = (EITHER if split and pair else SPLIT if split else WHOLE) + new
        written = text + self.splitter.written(more, text)
        tail = self.splitter.settle(Tail(written, borders + new, begun_now))
        if tail is None:
            return None
        before = b"" if split and not pair else standing.word
        word = None if before is None else before + raw
        return Standing(token, tail, word if word in self._begun else None)

    def row(self, standing: Standing) -> Flags:
        """`[width]` whether each id may come next; an end token, whether the text may end here."""
        packed = self._kept(self._rows, standing, lambda: np.packbits(self._row(standing)))
        return np.unpackbits(packed, count=self.vocabulary.width).view(np.bool_)

    def _kept(self, kept: OrderedDict[Key, Packed], key: Key, make: Callable[[], Packed]) -> Packed:
        """Return the kept value for a key, or make it; the least recently used goes first."""
        with self._lock:
            if key not in kept:
                kept[key] = make()
                if len(kept) > self._most:
                    kept.popitem(last=False)
            kept.move_to_end(key)
            return kept[key]

    def _row(self, standing: Standing, further: int = 2) -> Flags:
        token, tail, _ = standing
        may = np.zeros(self.vocabulary.width, dtype=np.bool_)
        table = self._table(tail)
        if tail.begun:
            may[list(self._inner)] = table[:-1, 1]
            return np.asarray(may & self._pairs(token))
        split, joined, split_now, joined_now = table[self._kinds(tail)].T
        closed = not self._open(standing)  # whether the last word may be over
        alone = self._alone & closed
        pairs = self._pairs(token) if token >= 0 and joined.any() else may
        may = np.asarray(split & alone | joined & pairs)
        # What must be followed by something is looked at one by one: by what?
        doubtful = may & ~(split_now & alone | joined_now & pairs)
        doubtful[self._opening(standing.word)] = True
        for other in np.flatnonzero(may & doubtful).tolist() if further else ():
            after = self._after(standing, other)
            may[other] = after is not None and bool(self._row(after, further - 1).any())
        if closed and self.splitter.ends(tail):
            may[[*self.vocabulary.end_ids, *self._added]] = True
        return may

    def _pairs(self, token: int) -> Flags:
        """`[width]` whether each token may follow one inside a word."""
        packed = self._packed(token)
        return np.unpackbits(packed, count=self.vocabulary.width).view(np.bool_)

    def _pair(self, token: int, other: int) -> bool:
        return token >= 0 and bool(self._packed(token)[other >> 3] >> (7 - (other & 7)) & 1)

    def _packed(self, token: int) -> Packed:
        return self._kept(self._followers, token, lambda: np.packbits(self.merges.after(token)))

    def _opening(self, word: bytes | None) -> list[int]:
        """The tokens with which a last word becomes one that must go on."""
        longer = (odd[len(word) :] for odd in self._odd if word and odd.startswith(word))
        return [self._id_of[rest] for rest in longer if rest in self._id_of]

    def _open(self, standing: Standing) -> bool:
        """Whether the last word must go on: as it is, all of it would be one token."""
        token, _, word = standing
        if word is None or word not in self._odd:
            return False
        return len(self.vocabulary.tokens[token] or b"") < len(word)

    def _kinds(self, tail: Tail) -> NDArray[np.int32]:
        """`[width]` the kind of each token after a tail, −1 where it cannot come."""
        return self._fine if "'" in tail.text[-2:] else self._kind

    def _column(self, tail: Tail, token: int) -> int:
        """Where a token is in the table of a tail."""
        return self._inner.get(token, -1) if tail.begun else int(self._kinds(tail)[token])

    def _table(self, tail: Tail) -> Flags:
        """`[n + 1, 4]` the `Border` of each kind of token, or each that begins in a character.

        The last is of what cannot come.
        """
        with self._lock:
            found = self._tables.get(tail)
            if found is None:
                found = self._tables[tail] = self._made(tail)
                # So many ends of texts are kept.
                if len(self._tables) > 2**12:
                    self._tables.popitem(last=False)
            return found

    def _border(self, tail: Tail, look: str) -> Border:
        """Return `Splitter.border`, by a token's first two characters where these settle it."""
        text, borders, _ = tail
        if not text:
            if look not in self._first:
                self._first[look] = self.splitter.border(tail, look)
            return self._first[look]
        begins = look[:2]
        settled = self.splitter.settle(Tail(text + begins, borders + EITHER * len(begins)))
        if settled is None:
            return Border(False, False, False, False)
        if settled.text == begins:  # a word begins here, whatever comes
            return self._border(Tail(), look)
        return self.splitter.border(tail, look)

    def _made(self, tail: Tail) -> Flags:
        """The table of a tail."""
        if not tail.begun:
            looks = self._fine_looks if "'" in tail.text[-2:] else self._looks
            table = np.zeros((len(looks) + 1, 4), dtype=np.bool_)
            for n, some in enumerate(looks):
                table[n] = np.any([self._border(tail, one) for one in some], axis=0)
            return table
        table = np.zeros((len(self._inner) + 1, 4), dtype=np.bool_)
        known: dict[str, bool] = {}
        for id, n in self._inner.items():
            raw = tail.begun + (self.vocabulary.tokens[id] or b"")
            parts = taken_apart(raw)
            if parts is None or (id in self._fallback and not self._unlisted(raw)):
                continue
            for last in self.splitter.beginnings(parts[1]):
                look = _short(self.splitter.written(parts[0], tail.text) + last)
                if look not in known:  # the border before it is one of the tail's
                    known[look] = any(self.splitter.border(tail, look))
                table[n, 1] |= known[look]
        return table


def _short(look: str) -> str:
    return shorter(look, SETTLED * (len(look) - 1))[0]


def _tokenizer_of(vocabulary: Vocabulary) -> Any:
    """The `tokenizers.Tokenizer` that a vocabulary encodes with.

    Raises:
        VocabularyError: it has none, or none with merges.
    """
    tokenizer = vocabulary.encoder
    if tokenizer is None or type(tokenizer.model).__name__ != "BPE":
        kind = "none" if tokenizer is None else type(tokenizer.model).__name__
        raise VocabularyError(
            f"what is canonical is decided by a tokenizer's merges, and this vocabulary's "
            f"tokenizer is {kind}, not BPE. Use estimand='all', or a model with a BPE "
            "tokenizer.json."
        )
    return tokenizer


def _merges_of(model: dict[str, Any], width: int) -> tuple[Merges, frozenset[int]]:
    """The merges of a BPE model, and the ids of its byte tokens."""
    ids: dict[str, int] = model["vocab"]
    fallback = dict[int, int]()
    if model.get("byte_fallback"):
        found = ((BYTE_TOKEN.fullmatch(token), id) for token, id in ids.items())
        fallback = {int(byte[1], 16): id for byte, id in found if byte}
    bytes_of = frozenset(fallback.values())
    pieces: list[list[int]] = [[] for _ in range(width)]
    for token, id in ids.items():
        if id in bytes_of:
            pieces[id] = [id]
        elif id < width and all(character in ids for character in token):
            pieces[id] = [ids[character] for character in token]
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    columns = (
        [ids[a] for a, _ in pairs],
        [ids[b] for _, b in pairs],
        [ids[a + b] for a, b in pairs],
    )
    left, right, made = (np.array(column, dtype=np.int64) for column in columns)
    return Merges(pieces, Rules(left, right, made, np.arange(len(pairs)))), bytes_of

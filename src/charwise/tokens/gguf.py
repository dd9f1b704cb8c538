"""GGUF files, opened by llama.cpp: models, and vocabularies read by llama.cpp's own tokenizer.

Supported are SentencePiece-style and byte-level BPE ("SPM" and "BPE" in llama.cpp).
"""

import ctypes
import logging
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from charwise.errors import ModelError, VocabularyError
from charwise.tokens.canonical import Canonical
from charwise.tokens.sentinels import NAMES, ControlTokens, start_and_end
from charwise.tokens.vocabulary import Vocabulary

_PREFIX_KEY = "tokenizer.ggml.add_space_prefix"
_EOS_KEY = "tokenizer.ggml.eos_token_id"
_KINDS = {1: "SPM", 2: "BPE", 3: "WPM (WordPiece)", 4: "UGM (Unigram)", 5: "RWKV", 6: "PLaMo-2"}

_log_lock = threading.Lock()


def read_gguf(path: str | os.PathLike[str]) -> Vocabulary:
    """Return the vocabulary of a GGUF file; the weights are not read."""
    return GgufModel(path, vocab_only=True).vocabulary()


class GgufModel:
    """A model that llama.cpp has opened, or only its vocabulary; freed with this object."""

    def __init__(
        self, path: str | os.PathLike[str], *, vocab_only: bool = False, n_gpu_layers: int = 0
    ) -> None:
        self.path = Path(path).expanduser()
        if not self.path.is_file():
            raise ModelError(f"no model {os.fspath(path)!r}: there is no such file.")
        llama = library()
        params = llama.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = n_gpu_layers
        # Quantised weights rearranged for Intel's AMX end the process at the first evaluation
        # (ggml-org/llama.cpp issue 20824); other rearrangements do not.
        params.use_extra_bufts = b"AMX_INT8 = 1" not in llama.llama_print_system_info()
        overrides = _without_lead(llama)
        params.kv_overrides = overrides
        with captured_log() as log:
            self.pointer = llama.llama_model_load_from_file(os.fsencode(self.path), params)
        if not self.pointer:
            raise ModelError(
                f"llama.cpp cannot load {self.path}: {log[0]}. It must be a complete GGUF file of "
                "a kind that the installed llama-cpp-python knows."
            )
        weakref.finalize(self, llama.llama_model_free, self.pointer)
        self.vocab = llama.llama_model_get_vocab(self.pointer)

    @cached_property
    def metadata(self) -> dict[str, str]:
        """Every scalar key of the file; arrays are left out, as llama.cpp does."""
        llama, count = library(), library().llama_model_meta_count(self.pointer)
        getters = llama.llama_model_meta_key_by_index, llama.llama_model_meta_val_str_by_index
        return dict(
            [_filled(partial(get, self.pointer, i)).decode("utf-8", "replace") for get in getters]
            for i in range(count)
        )

    @property
    def kind(self) -> str:
        """The kind of the vocabulary by llama.cpp's name."""
        return _KINDS.get(library().llama_vocab_type(self.vocab), "unknown")

    @property
    def width(self) -> int:
        """How many ids the output layer has."""
        return int(library().llama_vocab_n_tokens(self.vocab))

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary of an opened model; `VocabularyError` unless it is SPM or BPE."""
        if self.kind not in ("SPM", "BPE"):
            raise VocabularyError(
                f"the vocabulary of {self.path} is of llama.cpp's kind {self.kind}: charwise reads "
                "SPM and BPE. Use a model with one of those."
            )
        llama, vocab = library(), self.vocab
        spells = llama.LLAMA_TOKEN_ATTR_NORMAL | llama.LLAMA_TOKEN_ATTR_BYTE
        spells |= llama.LLAMA_TOKEN_ATTR_USER_DEFINED

        def piece(id: int) -> bytes:
            call = llama.llama_token_to_piece
            return _filled(lambda buffer, size: call(vocab, id, buffer, size, 0, True))

        tokens: list[bytes | None] = []
        special = {}
        control = []  # control tokens that the file lists as ordinary ones
        for id in range(self.width):
            attributes = llama.llama_vocab_get_attr(vocab, id)
            tokens.append((piece(id) or None) if attributes & spells else None)
            text = llama.llama_vocab_get_text(vocab, id).decode("utf-8", "replace")
            if attributes & (llama.LLAMA_TOKEN_ATTR_CONTROL | llama.LLAMA_TOKEN_ATTR_UNKNOWN):
                special[id] = text
            elif attributes & llama.LLAMA_TOKEN_ATTR_USER_DEFINED and text in NAMES:
                special[id], tokens[id] = text, None
                control.append(text)
        rules = self._start_and_end(special, tokens)
        for id in rules["end_ids"]:
            tokens[id] = None
            special.setdefault(id, llama.llama_vocab_get_text(vocab, id).decode("utf-8", "replace"))
        spaced = self.kind == "SPM" and self.metadata.get(_PREFIX_KEY, "true") == "true"
        return Vocabulary(
            tokens,
            canonical=Canonical(tokens, _TextEncoder(self, tokens, control)),
            special=special,
            **rules,
            implied_prefix=b" " if spaced else b"",
            control=self._control(special, b" " if spaced else b""),
            chat_template=self.metadata.get("tokenizer.chat_template"),
        )

    def _control(self, special: dict[int, str], prefix: bytes) -> ControlTokens:
        """What llama.cpp does around control tokens."""
        llama, vocab = library(), self.vocab
        named = {"bos_token": llama.llama_vocab_bos, "eos_token": llama.llama_vocab_eos}
        roles = {role: special[id] for role, of in named.items() if (id := of(vocab)) in special}
        strip_before, strip_after = (
            frozenset(id for id in special if llama.llama_vocab_get_attr(vocab, id) & side)
            for side in (llama.LLAMA_TOKEN_ATTR_LSTRIP, llama.LLAMA_TOKEN_ATTR_RSTRIP)
        )
        return ControlTokens(roles, strip_before, strip_after, prefix, prefix)

    def _start_and_end(self, special: dict[int, str], tokens: list[bytes | None]) -> dict[str, Any]:
        """What a file says of the start and the end of a text."""
        llama, vocab = library(), self.vocab
        start: int | None = llama.llama_vocab_bos(vocab)
        # Where a file names none, llama.cpp takes fixed ids, which may be tokens of text.
        if start not in special:
            start = None
        ends = [id for id in range(self.width) if llama.llama_vocab_is_eog(vocab, id)]
        if _EOS_KEY not in self.metadata:
            ends = [id for id in ends if id in special]
        named = llama.llama_vocab_eos(vocab)
        ends.sort(key=lambda id: id != named)
        added = [start] if start is not None and llama.llama_vocab_get_add_bos(vocab) else []
        return start_and_end(special, tokens, added=added, start=start, configured=ends)


class _TextEncoder:
    """llama.cpp's tokenizer as a picklable `str → ids`, without special tokens or a first space."""

    def __init__(
        self, model: GgufModel, tokens: list[bytes | None], control: Sequence[str] = ()
    ) -> None:
        self.path = model.path
        # llama.cpp makes tokens of these names wherever they occur, unless they are split.
        self._control = re.compile("|".join(map(re.escape, control))) if control else None
        self._model: GgufModel | None = model
        # An SPM vocabulary may have no byte tokens. Its tokenizer ends the process at a character
        # that it cannot spell, so it is never shown one.
        texts = {token for token in tokens if token is not None}
        self._partial = model.kind == "SPM" and not all(bytes([b]) in texts for b in range(256))
        decoded = (token.decode("utf-8", "surrogateescape") for token in texts)
        self._characters = set(decoded) if self._partial else set()

    def __call__(self, text: str) -> list[int]:
        """Ids of a text; none if it has a character that llama.cpp must not be given."""
        if self._partial and not self._characters.issuperset(text):
            return []
        inside = [one.start() + 1 for one in self._control.finditer(text)] if self._control else []
        bounds = pairwise([0, *inside, len(text)])
        return [id for start, end in bounds for id in self._encode(text[start:end])]

    def _encode(self, text: str) -> list[int]:
        if self._model is None:
            self._model = _opened(self.path)
        llama, data = library(), text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        count = llama.llama_tokenize(
            self._model.vocab, data, len(data), ids, len(ids), False, False
        )
        return list(ids[: max(0, count)])

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_model": None}


@lru_cache(maxsize=4)
def _opened(path: Path) -> GgufModel:
    return GgufModel(path, vocab_only=True)


@lru_cache(maxsize=1)
def library() -> Any:
    """The module `llama_cpp`, ready for use; it logs errors only, unless told otherwise."""
    try:
        import llama_cpp
    except ImportError as error:
        raise ModelError(
            "GGUF files are read by llama-cpp-python, which is not installed: "
            "pip install 'charwise[llama-cpp]'."
        ) from error
    logger = logging.getLogger("llama-cpp-python")
    if logger.level == logging.NOTSET:  # in its words: print everything
        logger.setLevel(logging.ERROR)
    llama_cpp.llama_backend_init()
    return llama_cpp


@contextmanager
def captured_log() -> Iterator[list[str]]:
    """Collect the errors that llama.cpp logs meanwhile, without the names of its functions."""
    llama, complaints = library(), list[str]()

    @llama.llama_log_callback  # type: ignore[untyped-decorator]
    def listen(level: int, text: bytes, _: Any) -> None:
        reason = text.decode("utf-8", "replace").strip().partition(": ")[2].rstrip(".")
        if level == 4 and reason:  # an error
            complaints.append(reason)

    with _log_lock:
        before, data = llama.llama_log_callback(), ctypes.c_void_p()
        llama.llama_log_get(ctypes.byref(before), ctypes.byref(data))
        llama.llama_log_set(listen, ctypes.c_void_p(0))
        try:
            yield complaints
        finally:
            llama.llama_log_set(before, data)
            complaints.append("it does not say why")


def _without_lead(llama: Any) -> Any:
    """Overrides that keep llama.cpp's tokenizer from putting a space before every text."""
    overrides = (llama.llama_model_kv_override * 2)()
    overrides[0].key = _PREFIX_KEY.encode()
    overrides[0].tag = llama.LLAMA_KV_OVERRIDE_TYPE_BOOL
    overrides[0].value.val_bool = False
    overrides[1].key = b"\0"  # ends the list
    return overrides


def _filled(fill: Callable[[Any, int], int]) -> bytes:
    """What llama.cpp writes into a buffer; of one too small it says the size, or minus that."""
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        count = fill(buffer, size)
        if 0 <= count < size:
            return buffer.raw[:count]
        size = abs(count) + 1

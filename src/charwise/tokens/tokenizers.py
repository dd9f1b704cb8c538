"""Reading token bytes, special tokens and encoders out of the tokenizer libraries.

Supported: fast tokenizers whose decoder is byte-level (GPT-2's alphabet) or SentencePiece-style
(`▁` for a space, `<0x0A>` for bytes), and tiktoken encodings. WordPiece, word-level and slow
tokenizers, and marks of words' ends, are refused: their bytes cannot be told from ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charwise.errors import ModelError, VocabularyError
from charwise.tokens.canonical import Canonical, Placed
from charwise.tokens.sentinels import NAMES, TURNS, ControlTokens, start_and_end

if TYPE_CHECKING:
    import tiktoken

#: How SentencePiece-style vocabularies write a byte.
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_INSTEAD = (
    "Use a model with byte-level BPE or SentencePiece tokens, or list the bytes of every token "
    "yourself with Vocabulary.from_bytes."
)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins, character → byte: itself, or the next from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): b for n, b in enumerate(rest)}


def read_transformers(
    tokenizer: Any, width: int | None, generation_config: Any, bos_ids: Sequence[int] | None
) -> dict[str, Any]:
    """Return the arguments of `Vocabulary` for a transformers fast tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    name = type(tokenizer).__name__
    if backend is None:
        raise VocabularyError(
            f"{name} is not a fast tokenizer, and does not say what bytes its tokens stand for. "
            "Load it with AutoTokenizer.from_pretrained(…, use_fast=True). " + _INSTEAD
        )
    template = getattr(tokenizer, "chat_template", None)
    # Of several templates for chats, that of the name "default".
    template = template.get("default") if isinstance(template, dict) else template
    arguments = _arguments(
        backend,
        name,
        template,
        roles={name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        special_ids=tokenizer.all_special_ids,
        start=tokenizer.bos_token_id,
        end=tokenizer.eos_token_id,
        configured=_as_ids(getattr(generation_config, "eos_token_id", None)),
        width=width,
    )
    if bos_ids is not None:
        arguments.update(bos_ids=tuple(bos_ids), bos_rule="as given.")
    return arguments


def read_files(files: Mapping[str, Path], name: str) -> dict[str, Any]:
    """Return the arguments of `Vocabulary` for the files of a model (file name → path)."""
    import tokenizers

    if "tokenizer.json" not in files:
        raise ModelError(
            f"{name} has no tokenizer.json. To read other forms of tokenizers, run: "
            "pip install 'charwise[transformers]'"
        )
    backend = tokenizers.Tokenizer.from_file(str(files["tokenizer.json"]))
    settings, config, generation = (
        json.loads(files[file].read_text("utf-8")) if file in files else {}
        for file in ("tokenizer_config.json", "config.json", "generation_config.json")
    )

    template = settings.get("chat_template")
    if isinstance(template, list):
        template = {one["name"]: one["template"] for one in template}.get("default")
    if "chat_template.jinja" in files:
        template = files["chat_template.jinja"].read_text("utf-8")

    def spelling(token: Any) -> Any:
        return token.get("content") if isinstance(token, dict) else token

    names = [f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
    roles = {name: text for name in names if (text := spelling(settings.get(name)))}
    special = list(roles.values())
    for key in ("additional_special_tokens", "extra_special_tokens"):
        listed = settings.get(key) or []
        special += listed.values() if isinstance(listed, dict) else listed
    ids = {text: backend.token_to_id(text) for text in map(spelling, special) if text}
    return _arguments(
        backend,
        "PreTrainedTokenizerFast",
        template,
        roles=roles,
        special_ids=[id for id in ids.values() if id is not None],
        start=ids.get(roles.get("bos_token")),
        end=ids.get(roles.get("eos_token")),
        configured=_as_ids(generation.get("eos_token_id", config.get("eos_token_id"))),
        width=(config.get("text_config") or config).get("vocab_size"),
    )


def _arguments(
    backend: Any,
    name: str,
    chat_template: str | None,
    *,
    roles: Mapping[str, str],
    special_ids: Iterable[int],
    start: int | None,
    end: int | None,
    configured: Sequence[int],
    width: int | None,
) -> dict[str, Any]:
    """The arguments of `Vocabulary` for a `tokenizers.Tokenizer`, of a class of this name."""
    is_byte_level = _is_byte_level(backend, name)
    tokens, added, special = _spelled(backend, is_byte_level)
    for id in special_ids:
        special.setdefault(id, str(backend.id_to_token(id)))
    if chat_template is not None:  # a model of chats ends turns, though only documents are named
        turns = [id for id, text in special.items() if text in TURNS]
        configured = [*configured, *turns]
    known = {*special, *range(max(width or 0, len(tokens)))}
    missing = [str(id) for id in configured if id not in known]
    configured = [id for id in configured if id in known]
    rules = start_and_end(
        special, tokens, added=_added(backend), start=start, end=end, configured=configured
    )
    if missing:
        rules["end_rule"] += f" The configuration also names {', '.join(missing)}: no such token."
    for id in (*special, *rules["end_ids"]):
        if id < len(tokens):
            tokens[id] = None
    exact = _exact_tokenizer(backend)
    _check(exact, backend, tokens, name)
    encode_stray = _StrayEncoder(backend) if is_byte_level else None
    lead = backend.encode("a", add_special_tokens=False).ids
    return {
        "tokens": tokens,
        "canonical": Canonical(tokens, _TextEncoder(exact, added), encode_stray),
        "special": special,
        **rules,
        "implied_prefix": b" " if b"".join(tokens[id] or b"" for id in lead) == b" a" else b"",
        "control": _control(backend, special, tokens, roles),
        "chat_template": chat_template,
        "width": width,
    }


def _control(
    backend: Any,
    special: Mapping[int, str],
    tokens: Sequence[bytes | None],
    roles: Mapping[str, str],
) -> ControlTokens:
    added = {id: one for id, one in backend.get_added_tokens_decoder().items() if id in special}

    def implied(text: str) -> bytes:
        """What is put between a control token, one that takes no whitespace, and a text."""
        first = special[min(added, key=lambda id: added[id].rstrip)] if added else ""
        ids = backend.encode(first + text, add_special_tokens=False).ids if first else []
        data = b"".join(tokens[id] or b"" for id in ids)
        return data.removesuffix(text.encode()) if data.endswith(text.encode()) else b""

    return ControlTokens(
        roles,
        frozenset(id for id, one in added.items() if one.lstrip),
        frozenset(id for id, one in added.items() if one.rstrip),
        implied("a"),
        implied(" a"),
    )


def _spelled(
    backend: Any, is_byte_level: bool
) -> tuple[list[bytes | None], dict[int, Any], dict[int, str]]:
    """The bytes of each id; the added tokens that are text; and the spelling of special tokens."""
    alphabet = _byte_alphabet()

    def spell(token: str) -> bytes:
        if not is_byte_level:
            byte = _BYTE_TOKEN.fullmatch(token)
            return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
        try:
            return bytes([alphabet[c] for c in token])
        except KeyError:  # other characters in it: it stands for its own text
            return token.encode()

    ids = backend.get_vocab(with_added_tokens=True)
    tokens: list[bytes | None] = [None] * (max(ids.values()) + 1)
    for token, id in ids.items():
        tokens[id] = spell(token)
    added, special = dict[int, Any](), dict[int, str]()
    for id, token in backend.get_added_tokens_decoder().items():
        # A byte token may be listed as added ("<0x0A>"); decoders still turn it into its byte.
        is_byte = not is_byte_level and _BYTE_TOKEN.fullmatch(token.content)
        if token.special or token.content in NAMES:
            special[id] = token.content
        elif not is_byte:
            added[id] = token
            tokens[id] = token.content.encode()
    unknown = getattr(backend.model, "unk_token", None)
    if unknown is not None and unknown in ids:
        special.setdefault(ids[unknown], unknown)
    return tokens, added, special


def _is_byte_level(backend: Any, name: str) -> bool:
    """True for byte-level decoders, False for SentencePiece-style ones; refuses all others."""
    model = type(backend.model).__name__
    if model not in ("BPE", "Unigram"):
        raise VocabularyError(f"{name} is a {model} tokenizer, which loses spaces. " + _INSTEAD)
    for mark in ("continuing_subword_prefix", "end_of_word_suffix"):
        if getattr(backend.model, mark, None):
            raise VocabularyError(
                f"{name} marks words with {getattr(backend.model, mark)!r} ({mark}), so its "
                "tokens have no bytes of their own. " + _INSTEAD
            )
    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder else {"type": None}
    parts = _flat(decoder, "decoders")
    kinds = {part["type"] for part in parts}
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}:
        return True
    if kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"} and any(
        part["type"] == "Metaspace" or part.get("pattern") == {"String": "▁"} for part in parts
    ):
        return False
    raise VocabularyError(
        f"{name} decodes with {', '.join(sorted(map(str, kinds)))}, which is neither byte-level "
        "nor SentencePiece-style. " + _INSTEAD
    )


def _exact_tokenizer(backend: Any) -> Any:
    """The tokenizer without normalizer, leading space, start token or added tokens.

    It shares the (large) model with `backend`, which is left as it is.
    """
    import tokenizers

    exact = tokenizers.Tokenizer(backend.model)
    # Of the normalizers only those that write spaces as ▁, or bytes in GPT-2's alphabet, belong
    # to κ; NFC and the like change the text.
    shell: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    if backend.normalizer is not None:
        state = json.loads(backend.normalizer.__getstate__())
        spelling = [part for part in _flat(state, "normalizers") if _spells(part)]
        shell["normalizer"] = {"type": "Sequence", "normalizers": spelling} if spelling else None
    if backend.pre_tokenizer is not None:
        state = json.loads(backend.pre_tokenizer.__getstate__())
        shell["pre_tokenizer"] = _without_lead(state)
    parts = tokenizers.Tokenizer.from_str(json.dumps(shell))
    if parts.normalizer is not None:
        exact.normalizer = parts.normalizer
    if parts.pre_tokenizer is not None:
        exact.pre_tokenizer = parts.pre_tokenizer
    return exact


def _check(exact: Any, backend: Any, tokens: Sequence[bytes | None], name: str) -> None:
    """Refuse a tokenizer that loses spaces, or whose ids the exact one does not give back."""
    import tokenizers

    if getattr(backend.model, "dropout", None) or b" " not in tokens:
        return  # it splits at random, or has no token for a space to be lost
    bare = tokenizers.Tokenizer(backend.model)
    parts = {"normalizer": backend.normalizer, "pre-tokenizer": backend.pre_tokenizer}
    for part, value in parts.items():
        if value is not None:
            setattr(bare, part.replace("-", "_"), value)
    for probe in ("a b", "the cat sat on the mat", "def add(a, b): return a + b"):
        own = bare.encode(probe, add_special_tokens=False).ids
        pieces = [tokens[id] or b"" for id in own]
        text = b"".join(pieces)
        if b"" in pieces or text.replace(b" ", b"") != probe.replace(" ", "").encode():
            continue  # it has no tokens for letters of this, or changes them
        lost = text.split() != probe.encode().split()
        if lost or exact.encode(text.decode()).ids != own:
            kinds = ", ".join(
                f"{part} {value and json.loads(value.__getstate__())['type']}"
                for part, value in parts.items()
            )
            raise VocabularyError(
                f"{name} changes texts before it splits them in a way that "
                f"{'loses spaces' if lost else 'is not understood'} ({kinds}). {_INSTEAD}"
            )


class _TextEncoder:
    """The encoder of an exact tokenizer, with added tokens by id: picklable `str → ids`."""

    def __init__(self, exact: Any, added: dict[int, Any]) -> None:
        from tokenizers import AddedToken

        exact.add_tokens(  # none takes the spaces around it, which its bytes do not have
            [
                AddedToken(one.content, single_word=one.single_word, normalized=one.normalized)
                for one in added.values()
            ]
        )
        assigned = {exact.token_to_id(token.content): id for id, token in added.items()}
        self.tokenizer = exact
        self.renamed = {own: id for own, id in assigned.items() if own not in (None, id)}

    def __call__(self, text: str) -> list[int]:
        ids: list[int]
        # Characters of a text that takes milliseconds to encode.
        if len(text) < 2**14:
            ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        else:  # without the interpreter's lock, which `encode` holds
            [encoding] = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)
            ids = encoding.ids
        return [self.renamed.get(id, id) for id in ids] if self.renamed else ids

    def placed(self, text: str) -> list[Placed]:
        """The tokens of a text, and at which characters each of them lies."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        placed = zip(encoding.ids, encoding.offsets, strict=True)
        return [(start, stop, [self.renamed.get(id, id)]) for id, (start, stop) in placed]


class _StrayEncoder:
    """A picklable `bytes → ids` that runs the byte-level BPE merges over any bytes."""

    def __init__(self, backend: Any) -> None:
        self.model = backend.model
        self.characters = {byte: character for character, byte in _byte_alphabet().items()}

    def __call__(self, raw: bytes) -> list[int]:
        pieces = self.model.tokenize("".join(self.characters[byte] for byte in raw))
        return [piece.id for piece in pieces]


def _flat(state: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The parts of a normalizer or a decoder, in order."""
    if state["type"] != "Sequence":
        return [state]
    return [part for one in state[name] for part in _flat(one, name)]


def _spells(normalizer: dict[str, Any]) -> bool:
    """Whether a normalizer writes the same text in the characters of the tokens."""
    if normalizer["type"] == "Replace":
        return normalizer["pattern"] in ({"String": " "}, {"Regex": " "}) and (
            normalizer["content"] == "▁"
        )
    return bool(normalizer["type"] == "ByteLevel")


def _without_lead(state: dict[str, Any]) -> dict[str, Any]:
    """The same pre-tokenizer, adding no space before the text and removing nothing from it."""
    if state["type"] == "Sequence":
        parts = [_without_lead(part) for part in state["pretokenizers"]]
        return {**state, "pretokenizers": [p for p in parts if p["type"] != "WhitespaceSplit"]}
    if state["type"] == "Metaspace":
        return {**state, "prepend_scheme": "never"}
    if state["type"] == "ByteLevel":
        return {**state, "add_prefix_space": False}
    return state


def _added(backend: Any) -> list[int]:
    """The ids that a tokenizer itself puts before a text."""
    full, bare = (backend.encode("a", add_special_tokens=added).ids for added in (True, False))
    places = range(1, len(full) - len(bare) + 1)
    return next((full[:k] for k in places if full[k : k + len(bare)] == bare), [])


def _as_ids(value: int | Iterable[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


def read_tiktoken(
    encoding: tiktoken.Encoding,
    width: int | None,
    end_ids: Iterable[int] | None,
    bos_ids: Sequence[int] | None,
) -> dict[str, Any]:
    """Return the arguments of `Vocabulary` for a tiktoken encoding."""
    special = {encoding.encode_single_token(text): text for text in encoding.special_tokens_set}
    tokens: list[bytes | None] = [None] * encoding.n_vocab
    for id in set(range(encoding.n_vocab)) - set(special):
        with suppress(KeyError):  # some encodings leave ids unused
            tokens[id] = encoding.decode_single_token_bytes(id)
    rules = start_and_end(special, tokens, configured=end_ids or ())
    if end_ids is not None:
        rules |= {"end_ids": tuple(end_ids), "end_rule": "as given."}
    if bos_ids is not None:
        rules |= {"bos_ids": tuple(bos_ids), "bos_rule": "as given."}
    return {
        "tokens": tokens,
        "canonical": Canonical(tokens, encoding.encode_ordinary),
        "special": special,
        **rules,
        "width": width,
    }

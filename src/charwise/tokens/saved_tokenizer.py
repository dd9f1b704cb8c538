"""A tokenizer read from its `tokenizer.json`, where transformers is not installed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from charwise.errors import ModelNotFoundError
from charwise.tokens.vocabulary import Vocabulary

#: Names in `tokenizer_config.json` that stand for one special token each.
_ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))

#: Names there that stand for lists of them.
_LISTS = ("additional_special_tokens", "extra_special_tokens")


class _SavedTokenizer:
    """The tokenizer that `Vocabulary.from_transformers` needs, from files alone.

    Args:
        files: file name → its path; `tokenizer.json` is needed.

    >>> from charwise.models import EMBEDDED
    >>> tokenizer = _SavedTokenizer({file.name: file for file in Path(EMBEDDED).iterdir()})
    >>> tokenizer.eos_token_id, tokenizer.convert_ids_to_tokens(0)
    (0, '<|endoftext|>')
    """

    def __init__(self, files: dict[str, Path]) -> None:
        from tokenizers import Tokenizer

        self.backend_tokenizer = Tokenizer.from_file(str(files["tokenizer.json"]))
        self._config = _read_json(files, "tokenizer_config.json")
        template = files.get("chat_template.jinja")
        given = self._config.get("chat_template")
        if isinstance(given, list):
            given = {one["name"]: one["template"] for one in given}
        self.chat_template = template.read_text("utf-8") if template else given

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        """Return the ids of a text, under "input_ids"."""
        found = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": found.ids}

    @property
    def bos_token_id(self) -> int | None:
        """The start token."""
        return self._id(self._config.get("bos_token"))

    @property
    def eos_token_id(self) -> int | None:
        """The end token."""
        return self._id(self._config.get("eos_token"))

    @property
    def all_special_ids(self) -> list[int]:
        """The ids that the configuration names."""
        tokens = [self._config.get(role) for role in _ROLES]
        for name in _LISTS:
            listed = self._config.get(name) or []
            tokens += listed.values() if isinstance(listed, dict) else listed
        return [id for token in tokens if (id := self._id(token)) is not None]

    def convert_ids_to_tokens(self, id: int) -> str:
        """Return the spelling of an id."""
        return str(self.backend_tokenizer.id_to_token(id))

    def _id(self, token: Any) -> int | None:
        text = token.get("content") if isinstance(token, dict) else token
        return None if text is None else self.backend_tokenizer.token_to_id(text)


def _read_json(files: dict[str, Path], name: str) -> dict[str, Any]:
    """Return the object in a file; an empty one where there is no such file."""
    if name not in files:
        return {}
    found: dict[str, Any] = json.loads(files[name].read_text("utf-8"))
    return found


def vocabulary_of_files(files: dict[str, Path], name: str) -> Vocabulary:
    """Return the vocabulary that some files of a model describe.

    Args:
        files: file name → its path.
        name: of the model, for errors.

    Raises:
        ModelNotFoundError: there is no `tokenizer.json`.
        VocabularyError: as `Vocabulary.from_transformers`.

    >>> from charwise.models import EMBEDDED
    >>> files = {file.name: file for file in Path(EMBEDDED).iterdir()}
    >>> vocabulary_of_files(files, "embedded").width
    8195
    """
    if "tokenizer.json" not in files:
        raise ModelNotFoundError(
            f"{name} has no tokenizer.json. To read other forms of tokenizers, run: "
            "pip install 'charwise[transformers]'"
        )
    config = _read_json(files, "config.json")
    width = (config.get("text_config") or config).get("vocab_size")
    generation = SimpleNamespace(**_read_json(files, "generation_config.json"))
    if not hasattr(generation, "eos_token_id"):
        generation.eos_token_id = config.get("eos_token_id")
    return Vocabulary.from_transformers(_SavedTokenizer(files), width, generation_config=generation)

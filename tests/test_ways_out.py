"""What a first user mistakes for something else: the error says what to do instead."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import charwise
from charwise import SortedVocabulary, Vocabulary, combine, constraints, healing
from charwise.cursor.distributions import NextBytes
from charwise.errors import ConstraintError, ModelNotFoundError, SettingError


@pytest.mark.parametrize(
    ("keyword", "says"),
    [
        ("max_new_tokens", "unexpected keyword 'max_new_tokens': lengths are in bytes, max_new_b"),
        ("regx", "unexpected keyword 'regx': is it 'regex'?"),
        ("zzz", "unexpected keyword 'zzz'."),
    ],
)
def test_a_keyword_that_complete_does_not_have(keyword: str, says: str) -> None:
    wrong: Any = {keyword: 3}
    with pytest.raises(TypeError) as raised:
        charwise.load().complete("x", **wrong)
    assert str(raised.value).startswith(says)


def test_an_index_where_a_vocabulary_is_wanted() -> None:
    vocabulary = Vocabulary.from_bytes([b"s", b"sw"])
    index: Any = SortedVocabulary(vocabulary)
    with pytest.raises(SettingError, match=r"is a SortedVocabulary: .* index\.vocabulary"):
        healing.remaining(b"sw", [0], index)


def test_a_model_over_tokens_in_a_combination() -> None:
    class Generates:
        def generate(self) -> None: ...

    model: Any = Generates()
    with pytest.raises(SettingError, match=r"^Generates is .* CharLM\.from_transformers"):
        combine.mixture([model])


def test_a_folder_with_a_gguf_file_alone(tmp_path: Path) -> None:
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError, match=r"Give the file .*small\.gguf"):
        charwise.load(str(tmp_path))


def test_an_empty_name() -> None:
    with pytest.raises(ModelNotFoundError, match=r"the name is empty\. Give a folder"):
        charwise.load("")


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    with pytest.raises(ModelNotFoundError, match=r"\(no network\): give a folder that has it"):
        charwise.load("nobody/nothing")


def test_a_schema_that_is_the_name_of_a_file() -> None:
    with pytest.raises(ConstraintError, match="Give what is in the file"):
        constraints.json_schema("schema.json")


def test_no_entropy_has_no_sign() -> None:
    probs = np.zeros(257)
    probs[97] = 1.0
    assert math.copysign(1.0, NextBytes(probs, 0.0).entropy) == 1.0


def test_json_without_whitespace() -> None:
    schema = {"type": "array", "items": {"enum": [0, 1]}}
    schema |= {"x-guidance": {"whitespace_flexible": False}}
    allowed = constraints.json_schema(schema).after(b"[0").allowed().nonzero()[0].tolist()
    assert bytes(allowed) == b",]"

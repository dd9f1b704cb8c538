"""Log-probabilities of vLLM, told as those of the text beyond the prompt."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from charwise import Vocabulary
from charwise.processors.healed_prompt import HealedPrompt
from charwise.processors.openai.answer import Answer, Call, beyond
from charwise.processors.vllm.chat import _ChatAnswer as ChatAnswer

TOKENS = ["rang", "e", "range", "ranger", "r", "an", "ang", "anger", "(", "x)"]
VOCABULARY = Vocabulary.from_bytes([token.encode() for token in TOKENS])

#: Ways to write "rang" again, and more.
WAYS = [[2, 8], [3, 9, 8], [0, 1, 8], [4, 6, 8], [4, 7, 9], [0, 8, 8, 8], [4, 5]]


def told_by(kind: type[Answer], ids: list[int], cuts: list[int]) -> dict[str, Any]:
    """The choice that a client is told, of a server that writes these ids in these chunks."""
    healed = HealedPrompt([8], b"rang", 1)
    answer = kind(VOCABULARY, {"logprobs": 3}, Call({}, "(rang", healed, 9))
    for start, end in pairwise([0, *sorted(cuts), len(ids)]):
        some = ids[start:end]
        top = [{TOKENS[id]: -0.5, "range": -0.7, "ranger": -2.0, "(": -9999.0} for id in some]
        top = [one | {TOKENS[id]: -0.5} for one, id in zip(top, some, strict=True)]
        choice: dict[str, Any] = {"index": 0, "token_ids": some, "finish_reason": None}
        if end == len(ids):
            choice["finish_reason"] = "length"
        if kind is Answer:
            choice["text"] = "".join(TOKENS[id] for id in some)
            choice["logprobs"] = {
                "tokens": [TOKENS[id] for id in some],
                "token_logprobs": [-0.5] * len(some),
                "top_logprobs": top,
                "text_offset": [0] * len(some),
            }
        else:
            choice["message"] = {"content": "".join(TOKENS[id] for id in some)}
            content = [
                {
                    "token": TOKENS[id],
                    "logprob": -0.5,
                    "bytes": list(TOKENS[id].encode()),
                    "top_logprobs": [
                        {"token": text, "logprob": p, "bytes": list(text.encode())}
                        for text, p in one.items()
                    ],
                }
                for id, one in zip(some, top, strict=True)
            ]
            choice["logprobs"] = {"content": content}
        answer.add({"choices": [choice]})
    [whole] = answer.choices()
    return whole


@given(st.sampled_from(WAYS), st.lists(st.integers(0, 2), max_size=2))
def test_tokens_join_to_the_text(ids: list[int], cuts: list[int]) -> None:
    whole = told_by(Answer, ids, cuts)
    found = whole["logprobs"]
    written = "".join(TOKENS[id] for id in ids)
    if not written.startswith("rang"):
        return
    assert "".join(found["tokens"]) == whole["text"] == written.removeprefix("rang")
    first = next(n for n in range(len(ids)) if len("".join(TOKENS[id] for id in ids[: n + 1])) > 4)
    begun = 4 - len("".join(TOKENS[id] for id in ids[:first]))
    for at, token in enumerate(found["tokens"]):
        top = found["top_logprobs"][at]
        assert top[token] == found["token_logprobs"][at]
        if at == 0 and begun == 4:
            assert set(top) == {"e", "er"}
        elif at == 0 and begun:
            assert set(top) == {token}


@given(st.sampled_from([way for way in WAYS if way != [4, 5]]))
def test_of_a_chat_too(ids: list[int]) -> None:
    whole = told_by(ChatAnswer, ids, [])
    content = whole["logprobs"]["content"]
    text = "".join(one["token"] for one in content)
    assert text == whole["message"]["content"]
    assert b"".join(bytes(one["bytes"]) for one in content) == text.encode()
    for one in content:
        assert {"token": one["token"], "logprob": one["logprob"]} in [
            {name: other[name] for name in ("token", "logprob")} for other in one["top_logprobs"]
        ]
        assert all(bytes(each["bytes"]).decode() == each["token"] for each in one["top_logprobs"])


def test_parts_of_a_character_and_ids() -> None:
    lemon = "🍋".encode()
    vocabulary = Vocabulary.from_bytes([lemon, lemon[:2], b"(", lemon[2:]])
    told = {"tokens": ["token_id:0"], "top_logprobs": [{"token_id:0": -0.1, "token_id:2": -3.0}]}
    kept = beyond(told, 0, lemon[:2], vocabulary)
    assert kept == {"tokens": ["token_id:0"], "top_logprobs": [{"token_id:0": -0.1}]}
    told = {"tokens": ["🍋"], "top_logprobs": [{"🍋": -0.1, "(": -3.0}]}
    spelled = "bytes:\\x8d\\x8b"
    assert beyond(told, 0, lemon[:2], vocabulary) == {
        "tokens": [spelled],
        "top_logprobs": [{spelled: -0.1}],
    }

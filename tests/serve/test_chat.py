"""Chats with OpenAI's own client, and prompts by chat templates."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

import charwise
from charwise.models import EMBEDDED
from serving import Running, running

openai = pytest.importorskip("openai")

#: As text alone, which the embedded model can go on with.
PLAIN = (
    "{% for m in messages %}# {{ m.role }}:\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant:\n{% endif %}"
)
QUESTION = [{"role": "user", "content": "Load the library for arrays."}]
BEGUN = [*QUESTION, {"role": "assistant", "content": "import nump"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The embedded model with a chat template, as a folder has it."""
    folder = tmp_path_factory.mktemp("model") / "chat"
    shutil.copytree(EMBEDDED, folder)
    (folder / "chat_template.jinja").write_text(PLAIN)
    with running(charwise.load(str(folder)), seconds=600) as one:
        yield one


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as one:
        yield one


def chat(client: Any, messages: list[Any], **arguments: Any) -> Any:
    return client.chat.completions.create(model="charwise", messages=messages, **arguments)


def test_a_chat_is_the_completion_of_its_prompt(client: Any, server: Running) -> None:
    result = chat(client, QUESTION, max_tokens=6, seed=1)
    text = "# user:\nLoad the library for arrays.\n# assistant:\n"
    plain = client.completions.create(model="charwise", prompt=text, max_tokens=6, seed=1)
    [choice] = result.choices
    assert (choice.message.role, choice.message.content) == ("assistant", plain.choices[0].text)
    assert result.object == "chat.completion"
    assert result.usage.prompt_tokens == plain.usage.prompt_tokens
    assert result.usage.completion_tokens == 6


def test_a_partial_message_is_continued(client: Any, server: Running) -> None:
    body = {"continue_final_message": True, "add_generation_prompt": False}
    result = chat(client, BEGUN, max_tokens=1, extra_body=body)
    [expected] = server.lm.complete(
        "# user:\nLoad the library for arrays.\n# assistant:\nimport nump"
    )
    assert result.choices[0].message.content
    assert expected.text.startswith(result.choices[0].message.content)
    assert expected.text.startswith("y")


def test_a_stream_has_the_same_text(client: Any) -> None:
    whole = chat(client, QUESTION, max_tokens=12)
    query = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = chat(client, QUESTION, max_tokens=12, **query)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(one.choices[0].delta.content or "" for one in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.usage.completion_tokens == 12


def test_log_probabilities(client: Any) -> None:
    result = chat(client, QUESTION, max_tokens=3, logprobs=True, top_logprobs=2)
    [choice] = result.choices
    tokens = choice.logprobs.content
    assert "".join(one.token for one in tokens) == choice.message.content
    assert all(len(one.top_logprobs) >= 2 for one in tokens)
    assert all(one.logprob <= 0 for one in tokens)


def test_a_conversation_that_does_not_fit_is_refused_with_both_lengths(client: Any) -> None:
    with pytest.raises(
        openai.BadRequestError, match=r"the prompt has \d+ tokens.*window is 2048"
    ) as refused:
        chat(client, [{"role": "user", "content": "a b " * 4000}])
    assert refused.value.param == "messages"


def test_parts_are_texts_and_variables_do_not_replace_messages(client: Any) -> None:
    parts = [{"type": "text", "text": "Load the library "}, {"type": "text", "text": "for arrays."}]
    one = chat(client, QUESTION, max_tokens=4)
    result = chat(client, [{"role": "user", "content": parts}], max_tokens=4)
    assert result.choices[0].message.content == one.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="messages"):
        chat(client, QUESTION, max_tokens=4, extra_body={"chat_template_kwargs": {"messages": "x"}})

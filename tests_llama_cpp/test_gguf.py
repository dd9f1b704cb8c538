"""Vocabularies of GGUF files: the bytes of transformers, the tokenization of llama.cpp."""

import pickle
import sys
from functools import cache
from pathlib import Path

import convert
import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
from charwise import Vocabulary
from charwise.engines.pretrained import read_vocabulary
from charwise.errors import ModelError, VocabularyError
from charwise.tokens.gguf import GgufModel, library, read_gguf
from models import examples

#: Tokenizer → how it is written, and llama.cpp's name for its pre-tokenizer.
WRITTEN = {
    "gpt2": ("bpe", "gpt-2"),
    "llama3": ("bpe", "llama-bpe"),
    "qwen2": ("bpe", "qwen2"),
    "llama2": ("spm", ""),
}
LANGUAGES = ("ar", "de", "en", "hi", "ja", "th", "zh")
CODE = "".join(
    (Path(charwise.__file__).parent / name).read_text(encoding="utf-8")
    for name in ("healing/forced.py", "coverings/beam.py")
)


@pytest.fixture(scope="session", params=WRITTEN)
def written(request, data, files):
    """(name, file, vocabulary of the file) of a real tokenizer."""
    kind, pre = WRITTEN[request.param]
    folder = data.folder / "tokenizers" / request.param
    path = convert.write_vocabulary(files / f"{request.param}.gguf", folder, kind, pre)
    return request.param, path, read_gguf(path)


@cache
def opened(path):
    """A handle of llama-cpp-python's own."""
    from llama_cpp._internals import LlamaModel

    params = library().llama_model_default_params()
    params.vocab_only = True
    return LlamaModel(path_model=str(path), params=params, verbose=False)


def own(path, text):
    """llama.cpp's tokenization of a text."""
    return opened(path).tokenize(text.encode(), add_bos=False, special=False)


def test_tokens_are_those_of_transformers(written, data):
    name, _, vocabulary = written
    expected = data.vocabulary(name)
    # Qwen's ordinary token "</s>" ends a text for llama.cpp.
    made_ends = [id for id in vocabulary.end_ids if expected.tokens[id] is not None]
    assert [expected.tokens[id] for id in made_ends] == ([b"</s>"] if name == "qwen2" else [])
    tokens = [None if id in made_ends else t for id, t in enumerate(expected.tokens)]
    assert list(vocabulary.tokens) == tokens[: vocabulary.width]
    assert not any(tokens[vocabulary.width :])
    assert vocabulary.implied_prefix == expected.implied_prefix
    assert set(vocabulary.special) >= set(expected.special)
    assert set(expected.end_ids) <= set(vocabulary.end_ids)


def test_the_encoder_is_llama_cpps(written, data):
    name, path, vocabulary = written
    for text in (*map(data.text, LANGUAGES), CODE):
        ids = own(path, text)
        assert vocabulary.encode(vocabulary.implied_prefix + text.encode()) == ids, name
        assert vocabulary.decode(ids) == vocabulary.implied_prefix + text.encode()


def test_text_beside_a_control_token_is_as_llama_cpp_has_it(written):
    _, path, vocabulary = written
    control, ids = vocabulary.control, {name: id for id, name in vocabulary.special.items()}
    assert ids[control.roles["eos_token"]] in vocabulary.end_ids
    for spelling in set(control.roles.values()):
        for text in ("a b", " a"):
            prefix = control.space_prefix if text.startswith(" ") else control.prefix
            found = opened(path).tokenize((spelling + text).encode(), add_bos=False, special=True)
            assert found == [ids[spelling], *vocabulary.encode(prefix + text.encode())]


def test_the_real_file(stories_file, data):
    vocabulary = read_vocabulary(str(stories_file))
    expected = data.vocabulary("tinystories-656k")
    assert vocabulary.tokens == expected.tokens
    assert (vocabulary.bos_ids, vocabulary.end_ids) == ((1,), (2,))
    assert vocabulary.bos_rule == "the start token that the tokenizer itself adds."
    assert vocabulary.special == {0: "<unk>", 1: "<|start_story|>", 2: "<|end_story|>"}
    text = 'Once upon a time, there was a little girl named Lily. She said, "Hi!"\n'
    assert vocabulary.implied_prefix == b" "
    assert vocabulary.encode(" " + text) == own(stories_file, text)
    assert vocabulary.decode(vocabulary.encode(text)) == text.encode()
    assert vocabulary.decode(vocabulary.encode("<|end_story|>")) == b"<|end_story|>"


@pytest.mark.parametrize("text", ["naïve", "日本", "a\x00", b"\xff", "{"])
def test_what_the_real_file_cannot_spell_is_an_error(stories_file, text):
    # llama.cpp's own tokenizer would end the process here.
    vocabulary = read_gguf(stories_file)
    with pytest.raises(VocabularyError, match="no token of this vocabulary spells"):
        vocabulary.encode(text)


def test_the_embedded_model_written_as_gguf(embedded_file):
    vocabulary, expected = read_gguf(embedded_file), read_vocabulary("embedded")
    assert vocabulary.tokens == expected.tokens
    assert (vocabulary.bos_ids, vocabulary.end_ids) == (expected.bos_ids, expected.end_ids)
    assert vocabulary.bos_rule == "the tokenizer's start token, which it does not add."
    assert vocabulary.encode("<|endoftext|>")[0] != 0  # text, not the special token
    for text in (CODE, CODE.replace("\n", "\r\n")):
        assert vocabulary.encode(text) == own(embedded_file, text)


@pytest.fixture(scope="session")
def encoders(embedded_file, data, files):
    folder = data.folder / "tokenizers" / "llama2"
    spm = convert.write_vocabulary(files / "bytes.gguf", folder, "spm")
    return [(path, read_gguf(path)) for path in (embedded_file, spm)]


@examples(200)
@given(text=st.text(max_size=30) | st.binary(max_size=30))
def test_any_text_and_any_bytes(encoders, text):
    raw = text if isinstance(text, bytes) else text.encode()
    for path, vocabulary in encoders:
        ids = vocabulary.encode(text)
        assert vocabulary.decode(ids) == raw
        if (
            isinstance(text, str)
            and vocabulary.decode(own(path, text)) == vocabulary.implied_prefix + raw
        ):
            assert vocabulary.encode(vocabulary.implied_prefix + raw) == own(path, text)


def test_long_texts_and_a_copy_elsewhere(encoders):
    for _, vocabulary in encoders:
        copy = pickle.loads(pickle.dumps(vocabulary))
        assert copy.tokens == vocabulary.tokens
        for text in (b"a" * 100_000, b" " * 100_000, b"\xff" * 3000, CODE.encode()):
            ids = vocabulary.encode(text)
            assert vocabulary.decode(ids) == text
            assert copy.encode(text) == ids


def bare(path, tokens, *, types=None, model="gpt2", **keys):
    """A file with this vocabulary and little else."""
    writer = convert.small_writer(path)
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types or [gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_merges(["a b"])
    for key, value in keys.items():
        getattr(writer, f"add_{key}")(value)
    return convert.write(writer, path)


LETTERS = [chr(33 + i) for i in range(94)]


def test_no_end_token_is_made_up(tmp_path):
    # Where a file names none, llama.cpp takes id 11.
    vocabulary = read_gguf(bare(tmp_path / "bare.gguf", LETTERS))
    assert (vocabulary.end_ids, vocabulary.bos_ids) == ((), ())
    assert vocabulary.tokens[11] == b","


def test_unused_ids_spell_nothing_and_words_end_no_text(tmp_path):
    types = [gguf.TokenType.NORMAL] * 94
    types[5] = gguf.TokenType.UNUSED
    vocabulary = read_gguf(bare(tmp_path / "ends.gguf", LETTERS, types=types, eos_token_id=7))
    assert vocabulary.tokens[5] is None
    assert not vocabulary.counted[5]
    assert (vocabulary.end_ids, vocabulary.bos_ids) == ((), ())
    assert "is a word, and is ignored" in vocabulary.end_rule


def test_other_kinds_are_refused_by_name(tmp_path):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁a"]
    with pytest.raises(VocabularyError, match="kind WPM"):
        read_gguf(bare(tmp_path / "bert.gguf", tokens, model="bert", unk_token_id=1))


def test_files_that_are_none(tmp_path, stories_file):
    with pytest.raises(ModelError, match="no such file"):
        charwise.load(str(tmp_path), engine="llama.cpp")
    whole = stories_file.read_bytes()
    for name, content, reason in (
        ("empty", b"", "failed to read magic"),
        ("text", b"no model at all, but long enough to look at", "invalid magic"),
        ("header", whole[:20_000], "exceeds remaining file size"),
        ("weights", whole[: len(whole) // 2], "corrupted or incomplete"),
    ):
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelError, match=rf"{name}\.gguf.*{reason}"):
            charwise.load(str(path))


def test_models_that_cannot_share_prefixes(tmp_path):
    writer = convert.small_writer(tmp_path / "mamba.gguf", "mamba")
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(16)
    writer.add_ssm_state_size(4)
    writer.add_ssm_time_step_rank(1)
    writer.add_layer_norm_rms_eps(1e-5)
    convert.add_letters(writer, 32)
    path = convert.write(writer, tmp_path / "mamba.gguf")
    from charwise.engines.llama_cpp import _check_kind

    with pytest.raises(ModelError, match="recurrent state"):
        _check_kind(GgufModel(path, vocab_only=True))


def test_the_library_may_be_missing(monkeypatch, embedded_file):
    library.cache_clear()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(ModelError, match=r"pip install 'charwise\[llama-cpp\]'"):
        charwise.load(str(embedded_file), engine="llama.cpp")
    monkeypatch.undo()
    library.cache_clear()
    assert isinstance(read_gguf(embedded_file), Vocabulary)

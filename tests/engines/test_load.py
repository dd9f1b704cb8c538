"""Opening engines by name: from threads, twice, and in another process; what is passed through."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import shutil
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import charwise
from charwise.engines.load import open_engine
from charwise.engines.pretrained import opens_in_llama_cpp, read_pretrained, read_vocabulary
from charwise.engines.transformers import TransformersLM
from charwise.errors import ModelError, SettingError
from charwise.models import EMBEDDED
from conftest import Data

WIDTH = str(read_vocabulary("embedded").width)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The embedded model, in a folder that no other test opens."""
    return Path(shutil.copytree(EMBEDDED, tmp_path / "model"))


#: What runs elsewhere, one after the other in one process: each starts from what it imports.
COPY = """
import pickle
engine = pickle.load(open(FOLDER + ".pickle", "rb"))
print(engine.info()["dtype"], engine.vocabulary.width)
"""

OWN_CODE = """
import charwise
from charwise.engines.pretrained import read_vocabulary
lm = charwise.load(FOLDER + "-own", trust_remote_code=True)
print(lm.info()["model"], lm.info()["path"], lm.next("import nump").top(1)[0][0])
print(read_vocabulary(FOLDER + "-own", trust_remote_code=True).width)
"""

REVISIONS = """
import charwise
for revision in (None, "v2", "2" * 40):
    print(charwise.load("some/model", revision=revision).engine.window)
try:
    charwise.load("some/model", revision="v3")
except charwise.errors.ModelError as error:
    print(str(error).split(":")[0])
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each of these prints, in a fresh process: the copy of an engine is what it begins with.

    Starting one takes seconds, so they share it.
    """
    folder = Path(shutil.copytree(EMBEDDED, tmp_path_factory.mktemp("elsewhere") / "model"))
    folder.with_name("model.pickle").write_bytes(
        pickle.dumps(open_engine(folder, dtype="bfloat16"))
    )
    written_with_code(Path(shutil.copytree(EMBEDDED, folder.with_name("model-own"))))
    cache = with_revisions(folder, folder.with_name("hub"))
    runs = [COPY, OWN_CODE, REVISIONS]
    code = f"for code in {runs!r}: exec(code, {{'FOLDER': {str(folder)!r}}}); print('==')"
    variables = {
        "HF_MODULES_CACHE": str(folder.with_name("modules")),
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    parts = [part.split() for part in done.stdout.split("==")]
    return dict(zip(runs, parts[: len(runs)], strict=True))


def sound(engine: Any) -> bool:
    """Whether its weights are there, and say something."""
    assert not any(weights.is_meta for weights in engine.model.parameters())
    return bool(engine.tree(engine.vocabulary.bos_ids).logprobs([0]).exp().sum().isfinite())


def test_threads_that_load_at_once(folder: Path) -> None:
    """Different models, so that each thread has to read one."""
    folders = [shutil.copytree(folder, folder.parent / str(n)) for n in range(4)]
    barrier = Barrier(len(folders))

    def load(name: Path) -> Any:
        barrier.wait()
        return open_engine(name)

    with ThreadPoolExecutor(len(folders)) as pool:
        engines = list(pool.map(load, folders))
    assert all(sound(engine) for engine in engines)
    assert len({id(engine) for engine in engines}) == len(folders)
    assert sound(open_engine(folder)), "and so does what is loaded afterwards"
    assert torch.zeros(1).device.type == "cpu"


def test_the_same_arguments_find_the_same_engine(folder: Path, monkeypatch: Any) -> None:
    engine = open_engine(folder)
    assert open_engine(str(folder)) is engine
    assert charwise.load(folder, preset="fast").engine is charwise.load(folder).engine is engine
    monkeypatch.chdir(folder.parent)
    assert open_engine("model") is engine
    assert open_engine("model", dtype="bfloat16") is not engine
    assert open_engine(folder, dtype=torch.float32).info()["dtype"] == "float32"  # type: ignore[arg-type]
    with ThreadPoolExecutor(4) as pool:
        actual = list(pool.map(open_engine, [folder] * 8))
    assert all(one is engine for one in actual)


def test_weights_go_with_the_last_who_uses_them(folder: Path) -> None:
    lm, other = charwise.load(folder), charwise.load(folder, preset="fast")
    state = lm.state("import nu")
    weights = weakref.ref(lm.engine.model.lm_head.weight)  # type: ignore[attr-defined]
    del lm, other
    gc.collect()
    assert weights() is not None, "the state uses them"
    assert charwise.load(folder).engine.model.lm_head.weight is weights()  # type: ignore[attr-defined]
    del state
    gc.collect()
    assert weights() is None


@pytest.mark.slow
def test_an_engine_opened_by_name_is_opened_where_its_copy_arrives(
    folder: Path, elsewhere: dict[str, list[str]]
) -> None:
    engine = open_engine(folder, dtype="bfloat16")
    pickled = pickle.dumps(engine)
    assert len(pickled) < 1000
    assert pickle.loads(pickled) is engine
    assert copy.deepcopy(engine) is engine
    assert elsewhere[COPY] == ["bfloat16", WIDTH]


def test_an_engine_of_a_model_that_one_has_takes_its_weights_along() -> None:
    model, _ = read_pretrained("embedded")
    made = TransformersLM(model, read_vocabulary("embedded"), window=100)
    other = pickle.loads(pickle.dumps(made))
    assert other.model is not model
    assert other.window == 100
    before, after = (lm.tree(lm.vocabulary.bos_ids).logprobs([0]) for lm in (made, other))
    assert torch.equal(before, after)


def test_a_device_map_is_the_loaders(folder: Path) -> None:
    """Layers that stay on the disk, and are read when they are wanted."""
    where = dict.fromkeys(
        ["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"], "cpu"
    )
    where["model.layers"] = "disk"
    engine = open_engine(folder, device_map=where)
    assert engine.model.hf_device_map == where  # type: ignore[attr-defined]
    assert open_engine(folder, device_map=dict(where)) is engine
    actual, expected = (
        lm.tree([1, 2, 3]).logprobs([0]) for lm in (engine, open_engine(folder, device_map="cpu"))
    )
    assert torch.allclose(actual, expected, atol=1e-5)


def test_a_quantization_config_is_the_loaders(folder: Path, monkeypatch: Any) -> None:
    """Quantised weights may not be moved: they are made where they stay."""
    loader, seen = AutoModelForCausalLM.from_pretrained, dict[str, Any]()

    def noting(*args: Any, quantization_config: Any, **options: Any) -> Any:
        seen.update(options, config=quantization_config)
        return loader(*args, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", noting)
    wanted = {"load_in_8bit": True}
    engine = open_engine(folder, device="cpu", quantization_config=wanted)
    assert (seen["config"], seen["device_map"]) == (wanted, {"": "cpu"})
    assert open_engine(folder, device="cpu", quantization_config=wanted) is engine


def written_with_code(folder: Path) -> Path:
    """A model whose Python code is beside it: a Llama that calls itself something else."""
    (folder / "modeling_own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n"
        "    model_type = 'own'\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n"
        "    config_class = OwnConfig\n"
    )
    config = json.loads((folder / "config.json").read_text())
    config["model_type"], config["architectures"] = "own", ["OwnForCausalLM"]
    config["auto_map"] = {
        "AutoConfig": "modeling_own.OwnConfig",
        "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow
def test_code_that_comes_with_a_model_runs_when_it_is_trusted(
    folder: Path, elsewhere: dict[str, list[str]]
) -> None:
    written_with_code(folder)
    for read in (charwise.load, open_engine, read_pretrained):
        with pytest.raises(SettingError, match=r"Python code of its own.*trust_remote_code=True"):
            read(str(folder))
    assert elsewhere[OWN_CODE] == ["OwnForCausalLM", "tree", "attention", "y", WIDTH]


def with_revisions(folder: Path, cache: Path) -> Path:
    """A repository with two revisions, as the hub's library keeps them."""
    repository = cache / "models--some--model"
    for revision, commit, context in (("main", "1" * 40, 1024), ("v2", "2" * 40, 512)):
        snapshot = Path(shutil.copytree(folder, repository / "snapshots" / commit))
        config = json.loads((snapshot / "config.json").read_text())
        (snapshot / "config.json").write_text(
            json.dumps(config | {"max_position_embeddings": context})
        )
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / revision).write_text(commit)
    return cache


@pytest.mark.slow
def test_a_revision_is_looked_for_in_the_hubs_cache(elsewhere: dict[str, list[str]]) -> None:
    assert " ".join(elsewhere[REVISIONS]) == "1024 512 512 no model 'some/model@v3'"


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (
            {"config.json": None},
            r"no model in the folder .*: it has no config.json\. Give a folder",
        ),
        ({"config.json": None, "small.gguf": b"GGUF"}, r"Give the file .*small\.gguf\.$"),
        ({"config.json": b"{"}, "not a valid JSON"),
        ({"config.json": b'{"model_type": "t5"}'}, "does not load: .*T5Config"),
        ({"model.safetensors": None}, "no model that loads: .*model.safetensors"),
        ({"model.safetensors": b"abc" * 99}, "does not load: .*header"),
        ({"tokenizer.json": None}, "no tokenizer that loads: "),
    ],
)
def test_a_folder_whose_model_does_not_load(
    folder: Path, files: dict[str, bytes | None], complaint: str
) -> None:
    for name, contents in files.items():
        (folder / name).unlink(missing_ok=True)
        if contents is not None:
            (folder / name).write_bytes(contents)
    with pytest.raises(ModelError, match=complaint) as caught:
        open_engine(folder)
    assert "\n" not in str(caught.value)
    assert "generation_config" not in str(caught.value)


def test_a_model_larger_than_the_memory(folder: Path) -> None:
    """Sparse files: a tensor of 2**40 float16 numbers, read as float32 or as it is."""
    tensor = {"dtype": "F16", "shape": [2**40], "data_offsets": [0, 2**41]}
    header = json.dumps({"lm_head.weight": tensor}).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(file, 8 + len(header) + 2**41)
    for dtype, size in ((None, "4,398.0"), ("bfloat16", "2,199.0")):
        with pytest.raises(ModelError, match=rf"smaller one.*{size} GB, and [\d.]+ GB are free"):
            open_engine(folder, dtype=dtype)
    file.rename(folder / "large.gguf")
    with pytest.raises(ModelError, match=r"fit into memory.* 2,199.0 GB"):
        open_engine(folder / "large.gguf", engine="llama.cpp")


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    with pytest.raises(ModelError, match=r"\(no network\): give a folder that has it"):
        open_engine("nobody/nothing")


def test_a_file_is_loaded_by_its_name(data: Data) -> None:
    pytest.importorskip("gguf", reason="reading a GGUF file needs: pip install gguf")
    stories = data.folder / "models" / "tinystories-656k" / "TinyStories-656K-Q8_0.gguf"
    lm = charwise.load(stories, engine="transformers")
    assert (lm.vocabulary.bos_ids, lm.vocabulary.end_ids) == ((1,), (2,))
    text = "Once upon a time, there was a little girl named Lily."
    assert 0 < lm.score(text).bits / len(text) < 2
    if not opens_in_llama_cpp(str(stories)):
        assert charwise.load(stories).engine is lm.engine
        assert read_vocabulary(str(stories)).tokens == lm.vocabulary.tokens


@pytest.mark.slow
def test_a_real_file_and_its_folder(smollm2: Path) -> None:
    """SmolLM2 separates documents by <|endoftext|>; its first words are dearer after a turn."""
    pytest.importorskip("gguf", reason="reading a GGUF file needs: pip install gguf")
    file = charwise.load(smollm2.parent / f"{smollm2.name}.gguf", engine="transformers")
    folder = charwise.load(smollm2)
    for lm in (folder, file):
        assert lm.vocabulary.bos_ids == (0,)
        assert {0, 2} <= set(lm.vocabulary.end_ids)
    assert file.info()["start"].startswith("<|endoftext|>, which ends a document")
    costs = [lm.score("The cat sat on the mat.").bits for lm in (folder, file)]
    assert costs[0] == pytest.approx(costs[1], rel=0.05)

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


#: The copy of an engine is what the process begins with.
ELSEWHERE = """
import pickle
engine = pickle.load(open("copy", "rb"))
print(engine.info()["dtype"], engine.vocabulary.width)

import charwise
from charwise.engines.pretrained import read_vocabulary
lm = charwise.load("own", trust_remote_code=True)
print(lm.info()["model"], lm.info()["path"], lm.next("import nump").top(1)[0][0])
print(read_vocabulary("own", trust_remote_code=True).width)

for revision in (None, "v2", "2" * 40):
    print(charwise.load("some/model", revision=revision).engine.window)
try:
    charwise.load("some/model", revision="v3")
except charwise.errors.ModelError as error:
    print(str(error).split(":")[0])
"""

#: The code of a model that comes with its own: a Llama that calls itself something else.
OWN = """
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def configured(folder: Path, **settings: Any) -> Path:
    """The copy of a model with other settings in its configuration."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return folder


@pytest.mark.slow
def test_what_another_process_opens(folder: Path, tmp_path: Path) -> None:
    """An engine's copy, by its name; code that comes with a model; revisions in the hub's cache."""
    engine = open_engine(folder, dtype="bfloat16")
    pickled = pickle.dumps(engine)
    assert len(pickled) < 1000
    assert pickle.loads(pickled) is engine
    assert copy.deepcopy(engine) is engine
    (tmp_path / "copy").write_bytes(pickled)

    own = Path(shutil.copytree(folder, tmp_path / "own"))
    (own / "modeling_own.py").write_text(OWN)
    kinds = {"AutoConfig": "OwnConfig", "AutoModelForCausalLM": "OwnForCausalLM"}
    code = {kind: f"modeling_own.{name}" for kind, name in kinds.items()}
    configured(own, model_type="own", architectures=["OwnForCausalLM"], auto_map=code)
    for read in (charwise.load, open_engine, read_pretrained):
        with pytest.raises(SettingError, match=r"Python code of its own.*trust_remote_code=True"):
            read(str(own))

    repository = tmp_path / "hub" / "models--some--model"
    (repository / "refs").mkdir(parents=True)
    for revision, commit, context in (("main", "1" * 40, 1024), ("v2", "2" * 40, 512)):
        snapshot = Path(shutil.copytree(folder, repository / "snapshots" / commit))
        configured(snapshot, max_position_embeddings=context)
        (repository / "refs" / revision).write_text(commit)

    hub = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ELSEWHERE],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | hub | {"HF_MODULES_CACHE": str(tmp_path / "modules")},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"bfloat16 {WIDTH}",
        "OwnForCausalLM tree attention y",
        WIDTH,
        *("1024", "512", "512", "no model 'some/model@v3'"),
    ]


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

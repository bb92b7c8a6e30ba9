"""A GGUF file becomes a safetensors checkpoint once: same numbers, same tokenizer, whoever asks at once."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import gguf
import pytest
import torch
from filelock import FileLock
from support.models.gguf_files import BOS, EOS, TOKENS, UNK, tiny_llama, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from millstream_worker.engine.runner.checkpoint import conversion_cache
from millstream_worker.engine.runner.checkpoint.gguf_cache import GGUFCache, GGUFError

Type = gguf.GGMLQuantizationType


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", tiny_llama())


@pytest.fixture
def cache(tmp_path: Path) -> GGUFCache:
    return GGUFCache(tmp_path / "cache")


class Told(list[str]):
    """What was reported."""

    def __call__(self, message: str) -> None:
        self.append(message)


@pytest.mark.parametrize(
    ("kind", "dtype", "error"),
    [(Type.F32, torch.float32, 0.0), (Type.F16, torch.float16, 5e-4)],
)
def test_converted_weights_and_logits_equal_those_of_the_file(
    tmp_path: Path, cache: GGUFCache, kind: Type, dtype: torch.dtype, error: float
) -> None:
    original = tiny_llama()
    folder = cache.folder_of(write_gguf(tmp_path / "tiny.gguf", original, kind), Told())

    kept = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)
    assert kept.dtype == dtype
    expected = original.state_dict()
    assert kept.state_dict().keys() == expected.keys()
    for name, tensor in kept.state_dict().items():
        allowed = error * expected[name].abs().max()
        assert (tensor.float() - expected[name]).abs().max() <= allowed, name
    assert kept.generation_config.eos_token_id == EOS
    ids = torch.arange(3, 43)[None]
    with torch.no_grad():
        assert error or torch.equal(kept(ids).logits, original(ids).logits)


def test_the_tokenizer_comes_along_with_its_chat_template(file: Path, cache: GGUFCache) -> None:
    folder = cache.folder_of(file, Told())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "the théâtre, 2 × 3 🎈"

    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer("the")["input_ids"]) == 1
    assert tokenizer.eos_token_id == EOS
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, return_dict=True
    )["input_ids"]
    assert tokenizer.decode(chat) == "<|im_start|>user hi<|im_end|><|im_start|>assistant "
    assert chat[0] == BOS


def test_ends_of_turn_and_message_are_ends_of_the_model(tmp_path: Path, cache: GGUFCache) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), eot=UNK, eom=BOS)
    kept = GenerationConfig.from_pretrained(cache.folder_of(file, Told()))
    assert kept.eos_token_id == [EOS, UNK, BOS]


def test_an_end_that_is_no_token_is_left_out(tmp_path: Path, cache: GGUFCache) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), eot=len(TOKENS), eom=UNK)
    with pytest.warns(UserWarning, match=f"eot_token_id {len(TOKENS)} is none of the file's"):
        kept = GenerationConfig.from_pretrained(cache.folder_of(file, Told()))
    assert kept.eos_token_id == [EOS, UNK]


def test_a_file_is_converted_once_and_again_for_other_weights(
    file: Path, cache: GGUFCache, tmp_path: Path
) -> None:
    told = Told()
    first = cache.folder_of(file, told)
    inode = (first / "model.safetensors").stat().st_ino
    copy = tmp_path / "elsewhere" / file.name
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes())

    assert cache.folder_of(copy, told) == first
    assert (first / "model.safetensors").stat().st_ino == inode
    assert len(told) == 1
    assert cache.folder_of(write_gguf(file, tiny_llama(seed=1)), told) != first


def test_what_a_killed_conversion_left_is_no_checkpoint(file: Path, cache: GGUFCache) -> None:
    folder = cache.folder_of(file, Told())
    partial = folder.rename(folder.with_name(folder.name + ".partial"))
    (partial / "model.safetensors").write_bytes(b"torn")
    (partial / "stray").touch()

    assert cache.folder_of(file, Told()) == folder
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() > 0
    assert not (folder / "stray").exists()
    assert not partial.exists()


def test_two_at_once_convert_once(file: Path, cache: GGUFCache) -> None:
    told, folders = Told(), []
    threads = [threading.Thread(target=lambda: folders.append(cache.folder_of(file, told))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(told) == 1
    assert len(folders) == 2
    assert folders[0] == folders[1]


def test_one_that_waits_for_a_conversion_says_so(
    file: Path, cache: GGUFCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not taken for stuck."""
    monkeypatch.setattr(conversion_cache, "_TELL_S", 0.05)
    folder, told = cache.folder_of(file, Told()), Told()
    folder.rename(folder.with_name("aside"))
    other = FileLock(f"{folder}.lock", is_singleton=False)
    other.acquire()

    def tell(line: str) -> None:
        told(line)
        if len(told) == 3:
            folder.with_name("aside").rename(folder)
            other.release()

    assert cache.folder_of(file, tell) == folder
    assert told == [f"waiting for another worker, which converts {file.name}"] * 3


@pytest.mark.parametrize("damage", ["empty", "text", "cut in the metadata", "cut in the weights", "mamba"])
def test_a_broken_file_is_refused_and_leaves_nothing_behind(
    file: Path, cache: GGUFCache, tmp_path: Path, damage: str
) -> None:
    data = file.read_bytes()
    broken = {
        "empty": b"",
        "text": b"no weights at all " * 100,
        "cut in the metadata": data[:900],
        "cut in the weights": data[: len(data) - 40_000],
        "mamba": data.replace(b"llama", b"marba"),
    }
    file.write_bytes(broken[damage])

    with pytest.raises(GGUFError):
        cache.folder_of(file, Told())
    assert not [path for path in (tmp_path / "cache").glob("tiny-*") if path.suffix == "" and path.is_dir()]


def test_a_full_disk_gets_back_what_the_conversion_took(
    file: Path, cache: GGUFCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(AutoTokenizer, "from_pretrained", full)  # the last to be written, after the weights
        with pytest.raises(GGUFError, match="No space left on device"):
            cache.folder_of(file, Told())

    assert not list((tmp_path / "cache").glob("*.partial"))
    assert (cache.folder_of(file, Told()) / "model.safetensors").is_file()


def test_one_file_of_several_is_no_model(tmp_path: Path, cache: GGUFCache) -> None:
    """The first part of a split model names all its layers, and has the weights of some."""
    part = tiny_llama()
    whole = part.state_dict()
    weights = {name: tensor for name, tensor in whole.items() if ".layers.1." not in name}
    part.state_dict = lambda: weights  # type: ignore[method-assign, assign]

    with pytest.raises(
        GGUFError, match=r"lacks 9 of .* first is model.layers.1.input_layernorm.* merge them first"
    ):
        cache.folder_of(write_gguf(tmp_path / "tiny-00001-of-00002.gguf", part), Told())
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_a_cache_that_cannot_be_written_is_named(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()

    with pytest.raises(GGUFError, match=str(tmp_path / "cache")):
        GGUFCache(tmp_path / "cache").folder_of(file, Told())

"""What cannot be served is refused with advice that is true."""

import json
from pathlib import Path

import pytest

from inlay.core.errors import InlayError, ModelFileError
from inlay.core.model_config import read_shape
from inlay.models.gguf.architectures import row_of
from inlay.models.shard_files import find_shards
from inlay.models.source import resolve_model
from inlay.models.text import Text
from tests.support.tiny_tokenizers import write_tokenizer

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        (["model.gguf", "model.onnx"], r"name its GGUF file to serve that, such as .*model\.gguf"),
        (["model.onnx"], "ONNX is not read: take the model's safetensors or GGUF files"),
        (["pytorch_model.bin"], "take the model's safetensors or GGUF files, or convert it"),
        ([], r"holds no \*\.safetensors: download the model's weights"),
    ],
)
def test_weights_of_other_formats(tmp_path: Path, files: list[str], advice: str) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InlayError, match=advice):
        find_shards(tmp_path)


def test_a_directory_of_gguf_files(tmp_path: Path) -> None:
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(b"")
    with pytest.raises(InlayError, match=r"name the one to serve, such as .*model-Q4_K_M\.gguf"):
        resolve_model(str(tmp_path))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InlayError, match=r"there is no file .*other\.gguf"):
        resolve_model(str(tmp_path / "other.gguf"))
    with pytest.raises(InlayError, match="nor a directory here"):
        resolve_model("models/mine", offline=True)


def test_the_image_part_of_a_model() -> None:
    with pytest.raises(InlayError, match="the image part that goes with a model"):
        row_of("clip", "mmproj.gguf")


def test_a_config_without_a_model_type(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFileError, match="lacks 'model_type'"):
        read_shape(tmp_path)


def test_quantisation_that_is_not_known(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 8}
    config |= {"max_position_embeddings": 64, "num_attention_heads": 2, "intermediate_size": 64}
    config["quantization_config"] = {"quant_method": "hqq"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InlayError, match="take such files of the model, or a GGUF file"):
        read_shape(tmp_path)


@pytest.mark.parametrize("encodes", [False, True])
def test_tokenizers(tmp_path: Path, encodes: bool) -> None:
    """A byte-order mark is passed over; what is wrong is said once."""
    write_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    whole = file.read_text()
    file.write_text("\ufeff" + whole)
    assert Text.load(tmp_path, encodes=encodes).token_text(300)
    for content, said in ((whole[:5000], "download it again"), (POINTER, "pointer of Git LFS")):
        file.write_text(content)
        with pytest.raises(ModelFileError, match=said) as caught:
            Text.load(tmp_path, encodes=encodes)
        assert str(caught.value).count("damaged") <= 1

"""A model's tokenizer, and folders of data."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from inlay.models.text import Text
from tests.support.tiny_tokenizers import write_tokenizer

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    directory = tmp_path_factory.mktemp("model")
    write_tokenizer(directory)
    return Text.load(directory)


@pytest.fixture
def data(tmp_path: Path) -> Write:
    """Writes files and dataset_info.json, and gives their folder."""

    def write(info: Mapping[str, Any], **files: Any) -> Path:
        (tmp_path / "dataset_info.json").write_text(json.dumps(info), encoding="utf-8")
        for name, content in files.items():
            file = tmp_path / name.replace("_", ".")
            if isinstance(content, bytes):
                file.write_bytes(content)
            elif isinstance(content, str):
                file.write_text(content, encoding="utf-8")
            else:
                file.write_text(json.dumps(content, indent=1), encoding="utf-8")
        return tmp_path

    return write

"""A model directory around a GGUF file that has no tokenizer."""

import json
from pathlib import Path

from inlay.models.gguf.config import config_of
from inlay.models.gguf.reader import LINK, GgufFile
from tests.support.tiny_tokenizers import write_tokenizer


def gguf_folder(folder: Path, file: Path) -> Path:
    """Make it: what the engine reads of the file, a link to it, and a small tokenizer."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of(GgufFile(file)), indent=2), "utf-8")
    write_tokenizer(folder)
    (folder / LINK).symlink_to(file)
    return folder

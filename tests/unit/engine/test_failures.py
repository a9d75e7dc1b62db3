import numpy as np
import pytest
import torch

from inlay.core.errors import EngineError
from inlay.engine.failures import step_failure


def test_a_step_that_ran_out_of_memory_names_settings():
    with pytest.raises(MemoryError) as numpys:
        np.empty(1 << 60, np.uint8)
    with pytest.raises(RuntimeError) as torchs:
        torch.empty(1 << 60, dtype=torch.uint8)
    for failure in (numpys.value, torchs.value):  # 1 EiB was lacking, which is half of the pool
        error = step_failure(failure, tokens=2048, pool_bytes=2 << 60)
        assert type(error) is EngineError
        assert "a step of 2048 tokens ran out of memory" in str(error)
        assert "scheduler.prefill_chunk=1024" in str(error)
        assert f"cache.memory={1 << 20}TiB" in str(error)
    small = str(step_failure(torchs.value, tokens=1, pool_bytes=1 << 30))
    assert "prefill_chunk" not in small and "cache.memory" not in small
    assert "a weight_format of fewer bits" in small


def test_what_a_gpu_lacks_is_read_from_its_message():
    message = "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 8 GiB"
    error = str(step_failure(torch.OutOfMemoryError(message), tokens=512, pool_bytes=4 << 30))
    assert "scheduler.prefill_chunk=256" in error and "cache.memory=2560MiB" in error


def test_another_failure_of_a_step_says_nothing_of_memory():
    error = step_failure(ValueError("wrong"), tokens=9, pool_bytes=1)
    assert str(error) == "a step failed: ValueError('wrong')"

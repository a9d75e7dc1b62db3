"""Whether streams take turns with the host, on a GPU."""

import pytest
import torch

from inlay.models.stream_check import streams_take_turns

pytestmark = pytest.mark.gpu


def test_streams_take_turns(caplog):
    streams_take_turns.cache_clear()
    assert streams_take_turns(torch.device("cuda", 0)), caplog.text
    assert not caplog.messages

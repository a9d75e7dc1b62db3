"""What a recorder asks of PyTorch, with a stand-in for its part for CUDA."""

from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from inlay.models.recorder import CudaRecorder, make_current  # noqa: E402


@pytest.fixture
def calls(monkeypatch):
    """What was called, in order; `stream` is the current one."""
    calls = []
    state = {"stream": "own"}

    class Graph:
        def replay(self):
            calls.append("replay")

    class Recording:
        def __init__(self, graph, **options):
            calls.append(options)

        def __enter__(self):
            state["stream"] = "recording"

        def __exit__(self, *failure):
            if failure[0] is not None:
                raise RuntimeError("what was recorded is not valid")
            state["stream"] = "own"

    @contextmanager
    def device(of):
        calls.append(f"device {of}")
        yield

    def set_stream(stream):
        state["stream"] = stream

    stand_in = {
        "CUDAGraph": Graph,
        "graph": Recording,
        "device": device,
        "Stream": lambda of: f"stream of {of}",
        "graph_pool_handle": lambda: "pool",
        "current_stream": lambda of: state["stream"],
        "set_stream": set_stream,
        "set_device": lambda of: calls.append(f"current {of}"),
    }
    for name, value in stand_in.items():
        monkeypatch.setattr(torch.cuda, name, value)
    calls.append(state)
    return calls


OPTIONS = {"pool": "pool", "stream": "stream of cuda:1", "capture_error_mode": "thread_local"}


def test_graphs_share_a_pool_and_disturb_no_other_thread(calls):
    recorder = CudaRecorder(torch.device("cuda", 1))
    replays = [recorder.record(lambda name=name: calls.append(name)) for name in ("one", "two")]
    assert calls[1:] == [OPTIONS, "device cuda:1", "one", OPTIONS, "device cuda:1", "two"]
    replays[0]()
    assert calls[-1] == "replay"
    assert calls[0] == {"stream": "own"}


def test_what_follows_a_failed_recording_is_in_its_own_stream(calls):
    def run():
        raise ValueError("waited for the device")

    with pytest.raises(RuntimeError, match="not valid") as raised:
        CudaRecorder(torch.device("cuda", 1)).record(run)
    assert isinstance(raised.value.__context__, ValueError)
    assert calls[0] == {"stream": "own"}


def test_only_a_gpu_with_a_number_is_made_current(calls):
    for name in ("cpu", "cuda", "cuda:1"):
        make_current(torch.device(name))
    assert calls[1:] == ["current cuda:1"]

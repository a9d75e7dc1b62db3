"""How much Python a decode step runs, counted in calls: no clock, so no noise.

On large shapes a call costs 1 to 5 us, because the kernels push Python's own data out of the
caches. The limits leave about half as much again as there is; what grows past them multiplies
with layers or requests.
"""

import sys

import pytest

from tests.integration.engine.engines import Loaded, request
from tests.support.tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return {
        layers: make_tiny_model(tmp_path_factory.mktemp("model"), num_hidden_layers=layers)
        for layers in (2, 6)
    }


def count_calls(directory, requests, **params):
    """Calls of Python and C functions in one decode step."""
    calls = 0

    def note(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    with Loaded(directory).engine(max_running=16) as engine:
        params = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 40} | params
        for number in range(requests):
            engine.add(request(number, [5 + number] * 20, **params))
        for _ in range(5):  # 20 + 5 tokens: a step in the middle of a page
            engine.step()
        sys.setprofile(note)
        try:
            engine.step()
        finally:
            sys.setprofile(None)
        for number in range(requests):
            engine.cancel(str(number))
    return calls


def test_calls_of_a_step(directories):
    alone = count_calls(directories[2], 1)
    per_layer = (count_calls(directories[6], 1) - alone) / 4
    per_request = (count_calls(directories[2], 16) - alone) / 15
    assert per_layer <= 30
    assert per_request <= 70
    assert alone - 2 * per_layer - per_request <= 220


@pytest.mark.parametrize(
    ("params", "limit"),
    [({"temperature": 1.0}, 16), ({"temperature": 1.0, "top_k": 20, "top_p": 0.9}, 87)],
)
def test_calls_of_a_draw(directories, params, limit):
    greedy = count_calls(directories[2], 16)
    assert (count_calls(directories[2], 16, **params) - greedy) / 16 <= limit

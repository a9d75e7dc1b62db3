"""What the door to a stream's words refuses; the words themselves are tested in native/tests."""

import subprocess
import sys

import numpy as np
import pytest

from inlay import kernels
from inlay.core.errors import ArgumentError, ResourceError


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (np.zeros((3, 2), np.int32), "words_L2: must be uint32"),
        (np.zeros((3, 3), np.uint32), "words_L2"),
        (np.zeros((4, 2), np.uint32)[::2], "words_L2"),
        (np.zeros(4, np.uint32), "words_L2"),
    ],
)
def test_words_have_the_form_of_a_hand_over(words, says):
    with pytest.raises(ArgumentError, match=says):
        kernels.StreamWords(words, 0)


NO_DRIVER = """
import ctypes, sys
import numpy as np
from inlay import kernels
from inlay.core.errors import ResourceError
try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    pass
else:
    sys.exit("there is a driver")
try:
    kernels.StreamWords(np.zeros((1, 2), np.uint32), 0)
except ResourceError as error:
    print(error)
"""


def test_without_a_driver_it_says_so():
    done = subprocess.run([sys.executable, "-c", NO_DRIVER], capture_output=True, text=True)
    if done.stderr.strip() == "there is a driver":
        pytest.skip("this machine has an NVIDIA driver")
    assert done.stdout.startswith("the NVIDIA driver's library cannot be loaded"), done.stderr


def test_without_the_compiled_core_it_says_so(monkeypatch):
    monkeypatch.setattr("inlay.kernels._backend.is_native", False)
    monkeypatch.setattr("inlay.kernels._backend.problem", "switched off by INLAY_NATIVE=0")
    with pytest.raises(ResourceError, match="compiled core: switched off by INLAY_NATIVE=0"):
        kernels.StreamWords(np.zeros((1, 2), np.uint32), 0)

"""Device memory without torch: the few calls of the CUDA driver that tests need, by ctypes.

The driver is whatever `libcuda.so.1` the process finds: a real one, or the stand-in that
`build_standin` makes of `native/tests/cuda_driver.cpp`.
"""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build_standin(directory: Path) -> Path:
    """A folder for LD_LIBRARY_PATH that holds the stand-in."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    subprocess.run(
        [compiler, "-std=c++20", "-O1", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", "-o"]
        + [str(directory / "libcuda.so.1"), str(ROOT / "native/tests/cuda_driver.cpp")],
        check=True,
        timeout=300,
    )
    return directory


class Cuda:
    """The driver, started."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.is_standin = hasattr(self.library, "standin_hold")
        self._check(self.library.cuInit(0))
        self._contexts: dict[int, ctypes.c_void_p] = {}

    def num_devices(self) -> int:
        count = ctypes.c_int()
        self._check(self.library.cuDeviceGetCount(ctypes.byref(count)))
        return count.value

    @staticmethod
    def _check(result: int) -> None:
        assert result == 0, f"the CUDA driver returned {result}"

    def _call(self, device: int, name: str, *arguments: object) -> None:
        """With the device's context, which is this thread's no longer afterwards."""
        context = self._contexts.get(device)
        if context is None:
            context = ctypes.c_void_p()
            self._check(self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
            self._contexts[device] = context
        self._check(self.library.cuCtxPushCurrent_v2(context))
        try:
            self._check(getattr(self.library, name)(*arguments))
        finally:
            self._check(self.library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))

    def allocate(self, size: int, device: int = 0, call: str = "cuMemAlloc_v2") -> int:
        """An address."""
        address = ctypes.c_uint64()
        self._call(device, call, ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int, device: int = 0) -> None:
        self._call(device, "cuMemFree_v2", ctypes.c_uint64(address))

    def put(self, address: int, data: bytes, device: int = 0) -> None:
        self._call(
            device, "cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data))
        )

    def get(self, address: int, size: int, device: int = 0) -> bytes:
        data = ctypes.create_string_buffer(size)
        self._call(
            device, "cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size)
        )
        return data.raw

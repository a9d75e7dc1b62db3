"""Device memory without torch: the few calls of the CUDA driver that tests need, by ctypes.

The driver is whatever `libcuda.so.1` the process finds: a real one, or the stand-in that
`build_standin` makes of `native/tests/cuda_driver.cpp`.
"""

import ctypes
import os
import shutil
import subprocess
import sys
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


def run_cases(file: str, **environment: str) -> None:
    """Run the tests of `file` in a process of their own: CUDA survives no fork."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", file],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=240,
        env={**os.environ, **environment},
    )
    assert run.returncode == 0, run.stdout + run.stderr


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
        self._call(device, "cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw


class _Tensor(ctypes.Structure):
    """DLTensor and DLManagedTensor of DLPack 0."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype_code", ctypes.c_uint8),
        ("dtype_bits", ctypes.c_uint8),
        ("dtype_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class DeviceTensor:
    """Bytes on a device, as a tensor library offers them; `lent` counts who holds them."""

    def __init__(self, address: int, size: int, device: int = 0) -> None:
        self._shape = (ctypes.c_int64 * 1)(size)
        self._device = device
        self._address = address
        self.lent = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._device

    def __dlpack__(self, **_: object) -> object:
        tensor = _Tensor(
            self._address, 2, self._device, 1, 1, 8, 1, self._shape, None, 0, None, None
        )

        def give_back(_: int) -> None:
            self.lent -= 1

        deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(give_back)
        tensor.deleter = ctypes.cast(deleter, ctypes.c_void_p).value
        self._kept = tensor, deleter
        self.lent += 1
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        capsule: object = new(ctypes.addressof(tensor), b"dltensor", None)
        return capsule

#include "transfer_memory.h"

#include <fcntl.h>
#include <nanobind/ndarray.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <mutex>
#include <system_error>
#include <vector>

#include "../core/mappings.h"
#include "../core/status.h"
#include "../transfer/shared_file.h"
#include "array.h"

namespace inlay::bindings {

namespace {

struct Held {
  Held() = default;
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { PyBuffer_Release(&buffer); }

  Py_buffer buffer{};
  nb::ndarray<nb::ro> tensor;
};

// What was let go of on a thread that holds no GIL; the next registration releases it.
std::mutex limbo_mutex;
std::vector<const Held*>& limbo() {
  static auto* const held = new std::vector<const Held*>();
  return *held;
}

void empty_limbo() {
  std::vector<const Held*> released;
  {
    const std::lock_guard lock(limbo_mutex);
    released.swap(limbo());
  }
  for (const Held* held : released) delete held;
}

std::shared_ptr<Held> make_held() {
  return {new Held, [](const Held* held) {
            if (PyGILState_Check()) {
              delete held;
              return;
            }
            const std::lock_guard lock(limbo_mutex);
            limbo().push_back(held);
          }};
}

// Takes the pending Python error.
std::string python_error_text() {
  const nb::python_error error;
  return nb::str(error.value()).c_str();
}

Memory of_buffer(nb::handle object) {
  const auto held = make_held();
  const bool writable = PyObject_GetBuffer(object.ptr(), &held->buffer, PyBUF_WRITABLE) == 0;
  if (!writable) {
    PyErr_Clear();
    if (PyObject_GetBuffer(object.ptr(), &held->buffer, PyBUF_SIMPLE) != 0)
      fail("buffer: must be contiguous: ", python_error_text());
  }
  return {static_cast<std::byte*>(held->buffer.buf), static_cast<uint64_t>(held->buffer.len),
          writable, held};
}

Reached reached(nb::handle tensor) {
  const auto device = nb::steal(PyObject_CallMethod(tensor.ptr(), "__dlpack_device__", nullptr));
  if (!device.is_valid()) fail("buffer: ", python_error_text());
  int type = 0;
  int index = 0;
  if (!PyTuple_Check(device.ptr()) || !PyArg_ParseTuple(device.ptr(), "ii", &type, &index)) {
    PyErr_Clear();
    fail("buffer: its __dlpack_device__() is no pair of numbers");
  }
  switch (type) {
    case nb::device::cpu::value:
    case nb::device::cuda_host::value:
    case nb::device::rocm_host::value:
      return Reached::kByHost;
    case nb::device::cuda::value:
      return Reached::kByDevice;
    default:
      throw TransferFailure(Status::kTransportUnavailable,
                            joined("buffer: is memory of DLPack device ", type, ":", index,
                                   ", which no transport reaches; register a copy in host memory"));
  }
}

Memory of_tensor(nb::object object, const std::function<void()>& start_cuda) {
  const Reached by = reached(object);
  if (by == Reached::kByDevice) start_cuda();
  // A torch tensor that is given other memory (`parameter.data = ...`) takes it away from those who
  // hold that tensor, not from an alias.
  if (nb::hasattr(object, "detach")) object = object.attr("detach")();
  const auto held = make_held();
  // Asked for as writable first: only then does the exporter tell that it is not.
  nb::ndarray<> writable;
  const bool is_writable = nb::try_cast(object, writable, false) && writable.is_valid();
  if (is_writable)
    held->tensor = nb::ndarray<nb::ro>(writable);
  else if (!nb::try_cast(object, held->tensor, false) || !held->tensor.is_valid()) {
    // The exporter knows why: a layout without strides, say.
    const auto capsule = nb::steal(PyObject_CallMethod(object.ptr(), "__dlpack__", nullptr));
    fail("buffer: gives no DLPack tensor", capsule.is_valid() ? "" : ": " + python_error_text());
  }
  const nb::ndarray<nb::ro>& tensor = held->tensor;
  int64_t expected = 1;
  for (std::size_t i = tensor.ndim(); i-- > 0;) {
    if (tensor.size() > 0 && tensor.shape(i) != 1 && tensor.stride(i) != expected)
      fail("buffer: must be contiguous (tensor.contiguous() copies): dimension ", i, " has stride ",
           tensor.stride(i), " instead of ", expected);
    expected *= static_cast<int64_t>(tensor.shape(i));
  }
  const uint64_t item_bits = uint64_t{tensor.dtype().bits} * tensor.dtype().lanes;
  const uint64_t bytes = (tensor.size() * item_bits + 7) / 8;
  return {static_cast<std::byte*>(const_cast<void*>(tensor.data())), bytes, is_writable, held, by};
}

Memory of_address(nb::handle object) {
  uint64_t numbers[2];
  for (Py_ssize_t i = 0; i < 2; ++i) {
    PyObject* item = PyTuple_GET_ITEM(object.ptr(), i);
    const char* what = i == 0 ? "address" : "length";
    if (!PyLong_Check(item)) fail("buffer: ", what, " must be an int");
    numbers[i] = PyLong_AsUnsignedLongLong(item);
    if (PyErr_Occurred() != nullptr || numbers[i] == 0) {
      PyErr_Clear();
      fail("buffer: ", what, " must be in 1..2^64-1, got ", nb::str(item).c_str());
    }
  }
  const auto [address, length] = numbers;
  const Protection found = protection_of(address, length);
  const bool here = address + length >= address && found.readable;
  return {reinterpret_cast<std::byte*>(address), length, found.writable || !here, nullptr,
          here ? Reached::kByHost : Reached::kPerhapsByDevice};
}

[[noreturn]] void fail_file(const std::string& path) {
  fail("path: ", path, ": ", std::generic_category().message(errno));
}

}  // namespace

SharedFile open_shared_file(const std::string& path, transfer::Access access) {
  struct Locked {
    net::Descriptor file;
    transfer::Allocation allocation;
  };
  const auto locked = std::make_shared<Locked>();
  locked->file = net::Descriptor(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!locked->file.valid()) fail_file(path);
  if (flock(locked->file.get(), LOCK_EX | LOCK_NB) != 0)
    fail("path: ", path, " is locked by another process, whose segment it is");
  struct stat about{};
  if (fstat(locked->file.get(), &about) != 0) fail_file(path);
  locked->allocation = transfer::map_shared_file(locked->file, access);
  return {{locked, locked->allocation.bytes.get()},
          static_cast<uint64_t>(about.st_size),
          locked->allocation.memory};
}

Memory memory_of(nb::handle object, const std::function<void()>& start_cuda) {
  empty_limbo();
  Memory memory;
  if (PyObject_CheckBuffer(object.ptr()) != 0)
    memory = of_buffer(object);
  else if (PyTuple_Check(object.ptr()) && PyTuple_GET_SIZE(object.ptr()) == 2)
    memory = of_address(object);
  else if (nb::hasattr(object, "__dlpack_device__") && nb::hasattr(object, "__dlpack__"))
    memory = of_tensor(nb::borrow(object), start_cuda);
  else
    fail("buffer: must offer the buffer protocol or DLPack, or be a pair (address, length), got ",
         nb::type_name(object.type()).c_str());
  if (memory.size == 0) fail("buffer: has no bytes");
  return memory;
}

}  // namespace inlay::bindings

#include "store_values.h"

#include <nanobind/stl/string.h>

#include <algorithm>

#include "array.h"
#include "transfer.h"

namespace inlay::bindings {

void KeyList::add(nb::handle key) {
  if (PyUnicode_Check(key.ptr())) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(key.ptr(), &size);
    if (text == nullptr) throw nb::python_error();
    text_.append(text, static_cast<std::size_t>(size));
  } else if (PyBytes_Check(key.ptr())) {
    text_.append(PyBytes_AS_STRING(key.ptr()),
                 static_cast<std::size_t>(PyBytes_GET_SIZE(key.ptr())));
  } else {
    fail("key: must be str or bytes, got ", nb::type_name(key.type()).c_str());
  }
  ends_.push_back(text_.size());
}

void KeyList::finish() {
  std::size_t begin = 0;
  views_.reserve(ends_.size());
  for (const std::size_t end : ends_) {
    views_.emplace_back(text_.data() + begin, end - begin);
    begin = end;
  }
}

KeyList KeyList::of_one(nb::handle key) {
  KeyList keys;
  // Short text lies in the object itself, where a move would leave the views behind.
  keys.text_.reserve(64);
  keys.add(key);
  keys.finish();
  return keys;
}

KeyList KeyList::of_sequence(nb::handle sequence) {
  if (PyUnicode_Check(sequence.ptr()) || PyBytes_Check(sequence.ptr()))
    fail("keys: must be a list of keys, got one ", nb::type_name(sequence.type()).c_str());
  const nb::object fast = nb::steal(PySequence_Fast(sequence.ptr(), ""));
  if (!fast.is_valid()) {
    PyErr_Clear();
    fail("keys: must be a list of keys, got ", nb::type_name(sequence.type()).c_str());
  }
  KeyList keys;
  const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(fast.ptr()));
  keys.text_.reserve(64 + count * 40);
  keys.ends_.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    keys.add(PySequence_Fast_GET_ITEM(fast.ptr(), static_cast<Py_ssize_t>(i)));
  keys.finish();
  return keys;
}

KeyList KeyList::of_parents(nb::handle parents, std::size_t count) {
  KeyList keys;
  if (parents.is_none()) return keys;
  if (PyUnicode_Check(parents.ptr()) || PyBytes_Check(parents.ptr())) {
    keys = of_one(parents);
    keys.views_.assign(count, keys.views_[0]);
    return keys;
  }
  keys.text_.reserve(64 + count * 40);
  each_item(parents, "parents", [&](nb::handle parent) {
    if (parent.is_none())
      keys.ends_.push_back(keys.text_.size());
    else
      keys.add(parent);
  });
  keys.finish();
  if (keys.size() != count)
    fail("parents: must be as many as keys, got ", keys.size(), " for ", count, " keys");
  return keys;
}

Buffers::~Buffers() {
  if (buffers_.empty() && keepers_.empty() && !on_devices_) return;
  const nb::gil_scoped_acquire locked;  // the last to hold them may be a thread of the store
  on_devices_.reset();
  keepers_.clear();
  for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
}

std::span<std::byte> Buffers::add(nb::handle object, bool writable, const char* name) {
  if (PyObject_CheckBuffer(object.ptr())) {
    Py_buffer buffer{};
    const int flags = writable ? PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(object.ptr(), &buffer, flags) != 0) {
      const nb::python_error error;
      fail(name, ": must be contiguous", writable ? " and writable" : "", ": ",
           nb::str(error.value()).c_str());
    }
    buffers_.push_back(buffer);
    return {static_cast<std::byte*>(buffer.buf), static_cast<std::size_t>(buffer.len)};
  }
  const Memory memory = memory_of(object, [] {
    const WithoutGil unlocked;
    transfer::CudaDevices::start();
  });
  if (writable && !memory.writable) fail(name, ": is read-only");
  if (memory.reached != Reached::kByHost) return add_device(memory, name);
  if (memory.keeper != nullptr) keepers_.push_back(memory.keeper);
  return {memory.data, memory.size};
}

std::span<std::byte> Buffers::add_device(const Memory& memory, const char* name) {
  const auto address = reinterpret_cast<uint64_t>(memory.data);
  if (!on_devices_) on_devices_.emplace(devices_);
  try {
    const WithoutGil unlocked;
    return on_devices_->add(address, memory.size, memory.keeper);
  } catch (const TransferFailure& failure) {
    if (memory.reached == Reached::kByDevice || failure.status != Status::kTransportUnavailable)
      throw;
    fail(name, ": ", memory.size, " bytes at address ", address,
         " are not all memory that this process may read; were they of a device: ", failure.what());
  }
}

void Buffers::fetch(store::Clock::time_point until) {
  if (on_devices_) on_devices_->fetch(until);
}

void Buffers::send(std::span<const store::Target> targets, store::Clock::time_point until) {
  if (!on_devices_) return;
  std::vector<transfer::CudaBuffers::Piece> pieces;
  for (const store::Target& target : targets) pieces.push_back({target.to, target.bytes});
  on_devices_->send(pieces, until);
}

std::vector<store::Target> targets_of(std::string_view key, const std::vector<Wanted>& wanted,
                                      uint64_t bytes, bool exactly) {
  std::vector<store::Target> targets;
  uint64_t at = 0;
  uint64_t room = 0;
  for (const auto& [buffer, range] : wanted) {
    room += buffer.size();
    if (range) {
      if (range->second > buffer.size())
        fail("ranges: ", range->second, " bytes do not fit into a buffer of ", buffer.size());
      if (range->first > bytes || range->second > bytes - range->first)
        fail("ranges: [", range->first, ", +", range->second, ") reaches beyond the ", bytes,
             " bytes of object '", key, "'");
      targets.push_back({range->first, buffer.data(), range->second});
      continue;
    }
    const uint64_t part = std::min<uint64_t>(buffer.size(), bytes - at);
    targets.push_back({at, buffer.data(), part});
    at += part;
  }
  const bool ranged = !wanted.empty() && wanted.front().range.has_value();
  if (!ranged && (room < bytes || (exactly && room != bytes)))
    fail("buffer: object '", key, "' has ", bytes, " bytes, the buffer",
         wanted.size() > 1 ? "s" : "", " ", room);
  return targets;
}

store::Part part_of(Buffers& buffers, nb::handle object) {
  const auto bytes = buffers.add(object, false, "value");
  return {bytes.data(), bytes.size()};
}

void each_item(nb::handle sequence, const char* name,
               const std::function<void(nb::handle)>& visit) {
  const nb::object fast = nb::steal(PySequence_Fast(sequence.ptr(), ""));
  if (!fast.is_valid()) {
    PyErr_Clear();
    fail(name, ": must be a list, got ", nb::type_name(sequence.type()).c_str());
  }
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast.ptr());
  for (Py_ssize_t i = 0; i < count; ++i) visit(nb::handle(PySequence_Fast_GET_ITEM(fast.ptr(), i)));
}

nb::object error_object(const char* python_class, const std::string& text) {
  return nb::module_::import_("inlay.core.errors").attr(python_class)(text);
}

store::Clock::time_point deadline_of(double timeout_s) {
  checked_seconds("timeout_s", timeout_s);
  return store::Clock::now() + std::chrono::duration_cast<store::Clock::duration>(
                                   std::chrono::duration<double>(timeout_s));
}

}  // namespace inlay::bindings

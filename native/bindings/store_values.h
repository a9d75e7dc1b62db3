// Keys and buffers of Python as the store's client takes them.
#pragma once

#include <nanobind/nanobind.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../store/client.h"
#include "../transfer/cuda_buffers.h"
#include "transfer_memory.h"

namespace inlay::bindings {

namespace nb = nanobind;

// Copies of keys, str (as UTF-8) or bytes: their list may change while the GIL is released.
class KeyList {
 public:
  // One, or a sequence of them. Throws ArgumentError.
  static KeyList of_one(nb::handle key);
  static KeyList of_sequence(nb::handle keys);
  // What `count` objects follow: None, one key for all of them, or a sequence of keys and None.
  // Throws ArgumentError.
  static KeyList of_parents(nb::handle parents, std::size_t count);

  std::span<const std::string_view> all() const { return views_; }
  std::size_t size() const { return views_.size(); }
  std::string_view operator[](std::size_t i) const { return views_[i]; }
  // Of parents: empty where there is none.
  std::string_view parent(std::size_t i) const {
    return views_.empty() ? std::string_view() : views_[i];
  }

 private:
  void add(nb::handle key);
  void finish();

  std::string text_;
  std::vector<std::size_t> ends_;
  std::vector<std::string_view> views_;
};

// Memory that Python objects lend: of bytes, arrays, tensors, pairs (address, length). Memory of
// the host stands for that of devices.
class Buffers {
 public:
  explicit Buffers(std::shared_ptr<transfer::CudaDevices> devices) : devices_(std::move(devices)) {}
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // Throws ArgumentError, naming `name`, for what is not contiguous memory, and for what cannot be
  // written where that is wanted; TransferFailure(kTransportUnavailable) for memory of a device
  // that is not reached.
  std::span<std::byte> add(nb::handle object, bool writable, const char* name);

  // Without the GIL. Before what was added is read: what lies on devices is brought.
  void fetch(store::Clock::time_point until);
  // After it was written: what lies on devices is taken there. Both throw TransferFailure.
  void send(std::span<const store::Target> targets, store::Clock::time_point until);

 private:
  std::span<std::byte> add_device(const Memory& memory, const char* name);

  const std::shared_ptr<transfer::CudaDevices> devices_;
  std::optional<transfer::CudaBuffers> on_devices_;
  std::deque<Py_buffer> buffers_;
  std::vector<std::shared_ptr<const void>> keepers_;
};

// A buffer to fill, and which part of an object with.
struct Wanted {
  std::span<std::byte> buffer;
  std::optional<std::pair<uint64_t, uint64_t>> range;  // (offset, length); else what comes next
};
// For an object of `bytes` bytes. Throws ArgumentError where they do not fit; `exactly`: where
// something would be left over, too.
std::vector<store::Target> targets_of(std::string_view key, const std::vector<Wanted>& wanted,
                                      uint64_t bytes, bool exactly);

store::Part part_of(Buffers& buffers, nb::handle object);

// Calls visit(item) for each item of a Python sequence. Throws ArgumentError, naming `name`.
void each_item(nb::handle sequence, const char* name, const std::function<void(nb::handle)>& visit);

store::Clock::time_point deadline_of(double timeout_s);

// An exception that is a result, and not raised: of a class of inlay.core.errors.
nb::object error_object(const char* python_class, const std::string& text);

}  // namespace inlay::bindings

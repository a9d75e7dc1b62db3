// Reading objects into memory of Python, step by step: what needs Python is done between the steps.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store_values.h"

namespace inlay::bindings {

// Used by one thread at a time:
//
//   while (reading.prepare()) reading.step(client);  // step() without the GIL
class Reading {
 public:
  // Where the payload of the key at that position goes; called with the GIL, again for an object
  // that changed meanwhile. An ArgumentError is that key's result.
  using RoomFor =
      std::function<std::vector<store::Target>(std::size_t, std::string_view, uint64_t bytes)>;

  // `held`: the buffers that the room is in, if it is of a caller's.
  Reading(KeyList keys, RoomFor room_for, double timeout_s, Buffers* held = nullptr);

  bool prepare();
  // Throws what concerns all keys.
  void step(store::StoreClient& client);

  struct Result {
    int64_t bytes = -1;           // -1: there is no such object
    const char* error = nullptr;  // class of inlay.core.errors
    std::string text = {};
  };
  const std::vector<Result>& results() const { return results_; }
  // By key: what `value_of` makes of a payload's size, None, or an exception, which is not raised.
  nb::list list(const std::function<nb::object(std::size_t, int64_t)>& value_of) const;
  // Of the only key. Raises.
  nb::object only(const std::function<nb::object(std::size_t, int64_t)>& value_of) const;

 private:
  void take_read();

  const KeyList keys_;
  const RoomFor room_for_;
  Buffers* const held_;
  const double timeout_s_;
  const store::Clock::time_point until_;
  std::vector<Result> results_;
  std::vector<std::size_t> left_;
  bool finding_ = false;
  std::vector<store::LocationPtr> locations_;
  std::vector<std::size_t> found_;
  std::vector<std::vector<store::Target>> targets_;
  std::vector<store::Read> reads_;
  std::vector<bool> done_;
  std::vector<store::Damage> damaged_;
};

// Bytes objects that are made when the sizes are known.
class MadeBytes {
 public:
  explicit MadeBytes(std::size_t count) : made_(count) {}
  MadeBytes(const MadeBytes&) = delete;
  MadeBytes& operator=(const MadeBytes&) = delete;
  ~MadeBytes();  // by any thread

  std::vector<store::Target> room_for(std::size_t at, uint64_t bytes);
  nb::object take(std::size_t at) { return std::move(made_[at]); }

 private:
  std::vector<nb::object> made_;
};

// Buffers of the caller, by key; `ranges` by key and buffer. Throws ArgumentError where their
// numbers differ.
using ByteRanges = std::vector<std::vector<std::pair<uint64_t, uint64_t>>>;
std::vector<std::vector<Wanted>> wanted_of(Buffers& held, nb::handle buffers, std::size_t num_keys,
                                           bool in_parts, const std::optional<ByteRanges>& ranges);

}  // namespace inlay::bindings

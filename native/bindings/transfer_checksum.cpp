// Checksums of Python's memory.
#include <nanobind/nanobind.h>

#include <span>

#include "../core/crc32c.h"
#include "array.h"
#include "transfer.h"
#include "transfer_memory.h"

namespace inlay::bindings {

using namespace nb::literals;

namespace {

uint32_t crc32c_of(nb::handle buffer, uint32_t before) {
  const Memory memory = memory_of(buffer, [] {});
  if (memory.reached != Reached::kByHost) fail("crc32c: a device's memory cannot be summed here");
  const WithoutGil unlocked;
  return crc32c(std::span<const std::byte>(memory.data, memory.size), before);
}

// Of parts that lie one behind the other.
uint32_t crc32c_of_parts(nb::handle checksums, nb::handle lengths) {
  const Array sums(checksums, "checksums", 1);
  const Array sizes(lengths, "lengths", 1);
  sums.require_contiguous();
  sizes.require_contiguous();
  sizes.require_size(0, sums.size(0), "checksums");
  const auto* sum = sums.as<const uint32_t>(Kind::kU32);
  const auto* bytes = sizes.as<const int64_t>(Kind::kI64);
  uint32_t joined_sum = 0;
  for (int64_t i = 0; i < sums.size(0); ++i) {
    if (bytes[i] < 0) fail("lengths: must not be negative, got ", bytes[i]);
    joined_sum = crc32c_combine(joined_sum, sum[i], static_cast<uint64_t>(bytes[i]));
  }
  return joined_sum;
}

}  // namespace

void register_transfer_checksum(nb::module_& m) {
  m.def("crc32c", crc32c_of, "buffer"_a, "before"_a = 0);
  m.def("crc32c_of_parts", crc32c_of_parts, "checksums"_a, "lengths"_a,
        "The CRC32C of parts one behind the other: uint32 [P] of each, and their int64 [P] bytes.");
}

}  // namespace inlay::bindings

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

}  // namespace

void register_transfer_checksum(nb::module_& m) {
  m.def("crc32c", crc32c_of, "buffer"_a, "before"_a = 0);
}

}  // namespace inlay::bindings

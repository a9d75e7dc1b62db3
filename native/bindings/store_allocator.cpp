// Ranges of a segment as plain Python values.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

#include "../store/range_allocator.h"
#include "store.h"

namespace inlay::bindings {

namespace nb = nanobind;
using namespace nb::literals;
using store::Allocation;
using store::Range;
using store::RangeAllocator;
using store::RangeId;

namespace {

// (id, offset, bytes, free room before, free room behind)
nb::object tuple_or_none(const std::optional<Allocation>& made) {
  if (!made) return nb::none();
  return nb::make_tuple(made->range.id, made->range.offset, made->range.bytes, made->before,
                        made->behind);
}

nb::object allocate_range(RangeAllocator& self, uint64_t bytes, uint64_t alignment) {
  return tuple_or_none(self.allocate(bytes, alignment));
}

nb::object take(RangeAllocator& self, uint64_t offset, uint64_t bytes) {
  return tuple_or_none(self.take(offset, bytes));
}

nb::tuple at(const RangeAllocator& self, RangeId id) {
  const Range range = self.at(id);
  return nb::make_tuple(range.offset, range.bytes);
}

// (offset, bytes, free), by offset
nb::list ranges(const RangeAllocator& self) {
  nb::list all;
  for (const Range& range : self.ranges())
    all.append(nb::make_tuple(range.offset, range.bytes, range.free));
  return all;
}

}  // namespace

void register_store_allocator(nb::module_& store) {
  nb::class_<RangeAllocator>(store, "RangeAllocator")
      .def(nb::init<uint64_t>(), "bytes"_a)
      .def("allocate", allocate_range, "bytes"_a, "alignment"_a = store::kGrain)
      .def("take", take, "offset"_a, "bytes"_a)
      .def("split", &RangeAllocator::split, "id"_a, "bytes"_a)
      .def("free", &RangeAllocator::free, "id"_a)
      .def("at", at, "id"_a)
      .def("ranges", ranges)
      .def("fragmentation", &RangeAllocator::fragmentation)
      .def("unusable", &RangeAllocator::unusable, "bytes"_a)
      .def("largest_free_bytes", &RangeAllocator::largest_free_bytes)
      .def("memory_bytes", &RangeAllocator::memory_bytes)
      .def_prop_ro("bytes", &RangeAllocator::bytes)
      .def_prop_ro("free_bytes", &RangeAllocator::free_bytes)
      .def_prop_ro("used_bytes", &RangeAllocator::used_bytes)
      .def_prop_ro("num_ranges", &RangeAllocator::num_ranges);
}

}  // namespace inlay::bindings

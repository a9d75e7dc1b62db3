#include "../core/token_ids.h"

#include <bit>

#include "array.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;

namespace {

nb::object parse_token_ids(const nb::bytes& json, uint64_t limit, std::size_t start) {
  if (start > json.size()) fail("start: is ", start, " of ", json.size(), " bytes");
  const std::span<const uint8_t> all(static_cast<const uint8_t*>(json.data()), json.size());
  const auto found = inlay::parse_token_ids(all.subspan(start), limit);
  if (!found) return nb::none();
  if constexpr (std::endian::native == std::endian::big)
    for (std::size_t i = 0; i < found->count; ++i) found->ids[i] = __builtin_bswap32(found->ids[i]);
  return nb::make_tuple(nb::bytes(found->ids.get(), found->count * sizeof(uint32_t)),
                        start + found->bytes_read);
}

}  // namespace

void register_token_ids(nb::module_& m) {
  m.def("parse_token_ids", parse_token_ids, "json"_a, "limit"_a, "start"_a);
}

}  // namespace inlay::bindings

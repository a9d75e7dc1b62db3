#include "../core/token_ids.h"

#include <bit>

#include "array.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;

namespace {

nb::object parse_token_ids(const nb::bytes& json, uint64_t limit) {
  auto ids = inlay::parse_token_ids({static_cast<const uint8_t*>(json.data()), json.size()}, limit);
  if (!ids) return nb::none();
  if constexpr (std::endian::native == std::endian::big)
    for (uint32_t& id : *ids) id = __builtin_bswap32(id);
  return nb::bytes(ids->data(), ids->size() * sizeof(uint32_t));
}

}  // namespace

void register_token_ids(nb::module_& m) {
  m.def("parse_token_ids", parse_token_ids, "json"_a, "limit"_a);
}

}  // namespace inlay::bindings

#include "../core/block_hash.h"

#include <nanobind/stl/string.h>

#include "array.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;

namespace {

std::span<const uint8_t> view(const nb::bytes& bytes) {
  return {static_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

nb::bytes block_hash_chain(const nb::bytes& namespace_key, const nb::bytes& parent,
                           nb::handle token_ids, int64_t block_tokens) {
  if (namespace_key.size() > 64)
    fail("namespace_key: must have at most 64 bytes, got ", namespace_key.size());
  if (parent.size() != kDigestBytes)
    fail("parent: must have ", kDigestBytes, " bytes, got ", parent.size());
  if (block_tokens < 1) fail("block_tokens: must be at least 1, got ", block_tokens);
  const Array ids(token_ids, "token_ids", 1);
  ids.require_contiguous();
  const uint32_t* data = ids.as<const uint32_t>(Kind::kU32);
  std::vector<uint8_t> digests;
  {
    const nb::gil_scoped_release unlocked;
    digests = inlay::block_hash_chain(view(namespace_key), view(parent).first<kDigestBytes>(),
                                      {data, static_cast<std::size_t>(ids.size(0))},
                                      static_cast<std::size_t>(block_tokens));
  }
  return nb::bytes(digests.data(), digests.size());
}

}  // namespace

void register_block_hash(nb::module_& m) {
  m.def("block_hash_chain", block_hash_chain, "namespace_key"_a, "parent"_a, "token_ids"_a.none(),
        "block_tokens"_a);
}

}  // namespace inlay::bindings

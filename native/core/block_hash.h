// The block hash chain, in batch. The contract is src/inlay/core/block_hash.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace inlay {

constexpr std::size_t kDigestBytes = 16;

// Digests of all full blocks of `token_ids`, kDigestBytes each; a shorter tail has no name.
std::vector<uint8_t> block_hash_chain(std::span<const uint8_t> namespace_key,
                                      std::span<const uint8_t, kDigestBytes> parent,
                                      std::span<const uint32_t> token_ids,
                                      std::size_t block_tokens);

}  // namespace inlay

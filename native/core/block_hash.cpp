#include "block_hash.h"

#include <algorithm>

#include "blake2b.h"

namespace inlay {

std::vector<uint8_t> block_hash_chain(std::span<const uint8_t> namespace_key,
                                      std::span<const uint8_t, kDigestBytes> parent,
                                      std::span<const uint32_t> token_ids,
                                      std::size_t block_tokens) {
  const std::size_t blocks = token_ids.size() / block_tokens;
  std::vector<uint8_t> digests(blocks * kDigestBytes);
  std::vector<uint8_t> message(kDigestBytes + 4 * block_tokens);
  std::copy(parent.begin(), parent.end(), message.begin());
  for (std::size_t b = 0; b < blocks; ++b) {
    for (std::size_t t = 0; t < block_tokens; ++t) {
      const uint32_t id = token_ids[b * block_tokens + t];
      for (std::size_t byte = 0; byte < 4; ++byte)
        message[kDigestBytes + 4 * t + byte] = static_cast<uint8_t>(id >> (8 * byte));
    }
    const std::span<uint8_t> digest(digests.data() + b * kDigestBytes, kDigestBytes);
    blake2b(message, namespace_key, digest);
    std::copy(digest.begin(), digest.end(), message.begin());
  }
  return digests;
}

}  // namespace inlay

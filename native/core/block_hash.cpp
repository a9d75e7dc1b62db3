#include "block_hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "blake2b.h"

namespace inlay {

std::vector<uint8_t> block_hash_chain(std::span<const uint8_t> namespace_key,
                                      std::span<const uint8_t, kDigestBytes> parent,
                                      std::span<const uint32_t> token_ids,
                                      std::size_t block_tokens) {
  const std::size_t blocks = token_ids.size() / block_tokens;
  std::vector<uint8_t> digests(blocks * kDigestBytes);
  const KeyedBlake2b hash(namespace_key, kDigestBytes);
  std::vector<uint8_t> message(kDigestBytes + 4 * block_tokens);
  std::copy(parent.begin(), parent.end(), message.begin());
  for (std::size_t b = 0; b < blocks; ++b) {
    uint8_t* tokens = message.data() + kDigestBytes;
    const std::span<const uint32_t> block = token_ids.subspan(b * block_tokens, block_tokens);
    if constexpr (std::endian::native == std::endian::little) {
      std::memcpy(tokens, block.data(), block.size_bytes());
    } else {
      for (std::size_t at = 0; at < 4 * block_tokens; ++at)
        tokens[at] = static_cast<uint8_t>(block[at / 4] >> (8 * (at % 4)));
    }
    hash(message, {message.data(), kDigestBytes});
    std::copy_n(message.begin(), kDigestBytes,
                digests.begin() + static_cast<long>(b * kDigestBytes));
  }
  return digests;
}

}  // namespace inlay

// Token ids of a prompt, as JSON has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace inlay {

// Of a list in JSON: its numbers, and how many bytes it took with the space before it.
struct TokenIds {
  std::unique_ptr<uint32_t[]> ids;
  std::size_t count = 0;
  std::size_t bytes_read = 0;
};

// A list such as `[5, 17]`, whatever follows it, with numbers that are each less than `limit`.
// Nothing where it is any other JSON, is empty, or is none: who reads JSON in earnest says what is
// wrong with it.
std::optional<TokenIds> parse_token_ids(std::span<const uint8_t> json, uint64_t limit);

}  // namespace inlay

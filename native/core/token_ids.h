// Token ids of a prompt, as JSON has them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace inlay {

// The numbers of a list such as `[5, 17]`, each less than `limit`. Nothing where it is any other
// JSON, is empty, or is none: who reads JSON in earnest says what is wrong with it.
std::optional<std::vector<uint32_t>> parse_token_ids(std::span<const uint8_t> json, uint64_t limit);

}  // namespace inlay

#include "token_ids.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

namespace inlay {
namespace {

constexpr std::size_t kWord = 8;

// The next eight bytes, the first of them lowest; zeros behind the end.
uint64_t load(const uint8_t* at, const uint8_t* end) {
  uint64_t word = 0;
  const auto left = static_cast<std::size_t>(end - at);
  if (left >= kWord)  // a copy of so many bytes as are left would be a call
    std::memcpy(&word, at, kWord);
  else
    std::memcpy(&word, at, left);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

// How many digits a word begins with.
std::size_t count_digits(uint64_t word) {
  // A digit's upper half is 3, and stays so when 6 is added.
  const uint64_t upper = 0xf0f0f0f0f0f0f0f0;
  const uint64_t carried = (word & 0x0f0f0f0f0f0f0f0f) + 0x0606060606060606;
  const uint64_t other = ((word ^ 0x3030303030303030) | carried) & upper;
  return static_cast<std::size_t>(std::countr_zero(other)) / 8;
}

// The value of eight digits, of which the lowest byte is the first: pairs, then fours, then all.
uint64_t value_of(uint64_t digits) {
  digits = (digits & 0x0f0f0f0f0f0f0f0f) * (1 + (10 << 8)) >> 8;
  digits = (digits & 0x00ff00ff00ff00ff) * (1 + (100 << 16)) >> 16;
  return (digits & 0x0000ffff0000ffff) * (1 + (uint64_t{10000} << 32)) >> 32;
}

const uint8_t* skip_space(const uint8_t* at, const uint8_t* end) {
  while (at != end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) ++at;
  return at;
}

}  // namespace

// A loop over digits would be mispredicted at the end of each number, at twice the cost.
std::optional<TokenIds> parse_token_ids(std::span<const uint8_t> json, uint64_t limit) {
  const uint8_t* const end = json.data() + json.size();
  const uint8_t* at = skip_space(json.data(), end);
  if (at == end || *at++ != '[') return std::nullopt;
  limit = std::min(limit, uint64_t{1} << 32);
  // A number has a digit, and a comma or bracket behind it.
  TokenIds found{std::make_unique_for_overwrite<uint32_t[]>(json.size() / 2)};
  while (true) {
    at = skip_space(at, end);
    const uint64_t word = load(at, end);
    const std::size_t digits = count_digits(word);
    if (digits == 0 || (digits > 1 && *at == '0')) return std::nullopt;
    uint64_t value = value_of(word << 8 * (kWord - digits));
    at += digits;
    if (digits == kWord)
      for (; at != end && *at >= '0' && *at <= '9' && value < limit; ++at)
        value = 10 * value + (*at - '0');
    if (value >= limit) return std::nullopt;
    found.ids[found.count++] = static_cast<uint32_t>(value);
    at = skip_space(at, end);
    if (at == end) return std::nullopt;
    const uint8_t separator = *at++;
    if (separator == ']') break;
    if (separator != ',') return std::nullopt;
  }
  found.bytes_read = static_cast<std::size_t>(at - json.data());
  return found;
}

}  // namespace inlay

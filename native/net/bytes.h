// Little-endian integers in byte strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace inlay::net {

template <typename T>
void store(std::byte* at, T value) {
  static_assert(std::is_unsigned_v<T>);
  for (std::size_t i = 0; i < sizeof(T); ++i)
    at[i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
}

template <typename T>
T load(const std::byte* at) {
  static_assert(std::is_unsigned_v<T>);
  uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<uint64_t>(at[i]) << (8 * i);
  return static_cast<T>(value);
}

}  // namespace inlay::net

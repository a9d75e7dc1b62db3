// BLAKE2b as RFC 7693 defines it, for messages that fit into memory.
#pragma once

#include <cstdint>
#include <span>

namespace inlay {

// Fills `digest` (1 to 64 bytes) with the keyed (0 to 64 bytes of key) hash of `message`.
void blake2b(std::span<const uint8_t> message, std::span<const uint8_t> key,
             std::span<uint8_t> digest);

}  // namespace inlay

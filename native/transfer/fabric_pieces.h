// What a slice asks of a provider, one operation for each piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../net/fabric/endpoint.h"
#include "fabric_words.h"
#include "request.h"

namespace inlay::transfer {

struct FabricPiece {
  std::byte* local;
  uint64_t bytes;
  net::fabric::RemoteRange remote;
};

// Ranges that are neighbours on both sides become one piece.
inline std::vector<FabricPiece> fabric_pieces(const Slice& slice, const FabricKey& key) {
  std::vector<FabricPiece> pieces;
  pieces.reserve(slice.num_ranges);
  slice.each([&](const Range& range) {
    std::byte* local = slice.request->local->base + range.local;
    const uint64_t remote = key.base + range.remote;
    if (!pieces.empty()) {
      FabricPiece& last = pieces.back();
      if (last.local + last.bytes == local && last.remote.address + last.bytes == remote) {
        last.bytes += range.length;
        return;
      }
    }
    pieces.push_back({local, range.length, {remote, key.key}});
  });
  return pieces;
}

}  // namespace inlay::transfer

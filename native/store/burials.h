// Which keys were removed, so that a node that comes back does not bring them back.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace inlay::store {

// The hashes have 65,536 parts. Each remembers its last seven removals by key; the older ones bury
// whatever else has that part and is as old.
//
// Cost: two cache lines per call. Memory: 128 bytes per part, in pieces of 128 KiB.
class Burials {
 public:
  // No record of the key up to that generation is to be taken any more.
  void add(uint64_t hash, uint64_t generation) {
    std::unique_ptr<Piece>& piece = pieces_[piece_of(hash)];
    if (piece == nullptr) piece = std::make_unique<Piece>();
    Part& part = (*piece)[hash % kParts];
    const auto same = std::ranges::find(part.exact, hash, &Removal::hash);
    if (same != part.exact.end()) {
      same->generation = std::max(same->generation, generation);
      return;
    }
    const auto oldest = std::ranges::min_element(part.exact, {}, &Removal::generation);
    if (generation < oldest->generation) {
      part.rest = std::max(part.rest, generation);
      return;
    }
    part.rest = std::max(part.rest, oldest->generation);
    *oldest = {hash, generation};
  }

  // The last such generation; 0: none.
  uint64_t of(uint64_t hash) const {
    const Piece* const piece = pieces_[piece_of(hash)].get();
    if (piece == nullptr) return 0;
    const Part& part = (*piece)[hash % kParts];
    const auto same = std::ranges::find(part.exact, hash, &Removal::hash);
    return same == part.exact.end() ? part.rest : std::max(part.rest, same->generation);
  }

  uint64_t memory_bytes() const {
    return sizeof(Piece) * static_cast<uint64_t>(std::ranges::count_if(
                               pieces_, [](const auto& piece) { return piece != nullptr; }));
  }

 private:
  struct Removal {
    uint64_t hash = 0;
    uint64_t generation = 0;  // 0: free
  };
  struct alignas(64) Part {
    std::array<Removal, 7> exact{};
    uint64_t rest = 0;
  };
  static constexpr std::size_t kParts = 1024;  // of a piece
  static constexpr std::size_t kPieces = 64;
  using Piece = std::array<Part, kParts>;

  static std::size_t piece_of(uint64_t hash) { return hash / kParts % kPieces; }

  std::array<std::unique_ptr<Piece>, kPieces> pieces_;
};

}  // namespace inlay::store

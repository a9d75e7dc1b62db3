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
  // No record of the key up to that generation is to be taken any more. `may_return`: a later one
  // was lost with its nodes, and is as good as before if they come back.
  void add(uint64_t hash, uint64_t generation, bool may_return) {
    std::unique_ptr<Piece>& piece = pieces_[piece_of(hash)];
    if (piece == nullptr) piece = std::make_unique<Piece>();
    Part& part = (*piece)[hash % kParts];
    const auto same = std::ranges::find(part.exact, hash, &Removal::hash);
    if (same != part.exact.end()) {
      bool& known = part.may_return[position(part, same)];
      known = may_return || (known && generation <= same->generation);
      same->generation = std::max(same->generation, generation);
      return;
    }
    const auto oldest = std::ranges::min_element(part.exact, {}, &Removal::generation);
    if (generation < oldest->generation) {
      part.rest = std::max(part.rest, generation);
      part.rest_may_return |= may_return;
      return;
    }
    bool& oldest_may_return = part.may_return[position(part, oldest)];
    part.rest = std::max(part.rest, oldest->generation);
    part.rest_may_return |= oldest_may_return;
    *oldest = {hash, generation};
    oldest_may_return = may_return;
  }

  // The last such generation; 0: none.
  uint64_t of(uint64_t hash) const { return both(hash).generation; }
  // Whether a later record may come back.
  bool may_return(uint64_t hash) const { return both(hash).may_return; }

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
    std::array<bool, 7> may_return{};  // of those in `exact`
    bool rest_may_return = false;
  };
  static_assert(sizeof(Part) == 128);
  struct Found {
    uint64_t generation = 0;
    bool may_return = false;
  };
  static constexpr std::size_t kParts = 1024;  // of a piece
  static constexpr std::size_t kPieces = 64;
  using Piece = std::array<Part, kParts>;

  template <typename At>
  static std::size_t position(const Part& part, At at) {
    return static_cast<std::size_t>(at - part.exact.begin());
  }
  Found both(uint64_t hash) const {
    const Piece* const piece = pieces_[piece_of(hash)].get();
    if (piece == nullptr) return {};
    const Part& part = (*piece)[hash % kParts];
    const auto same = std::ranges::find(part.exact, hash, &Removal::hash);
    if (same == part.exact.end()) return {part.rest, part.rest_may_return};
    const bool own = part.may_return[position(part, same)];
    // What is known of the key itself says more where it is later.
    if (same->generation > part.rest) return {same->generation, own};
    return {part.rest, part.rest_may_return || own};
  }

  static std::size_t piece_of(uint64_t hash) { return hash / kParts % kPieces; }

  std::array<std::unique_ptr<Piece>, kPieces> pieces_;
};

}  // namespace inlay::store

// From the keys of a tenant to objects: what the master knows of each, in as few bytes as possible.
//
// The hash table is made of pages of 4 KiB. A directory says which page holds the keys whose hash
// begins with certain bits; a full page splits in two, and no other is touched, so that no insert
// waits for a table to be built anew. Objects and keys lie in chunks that never move.
//
// With keys of 32 bytes an object costs 32 bytes, its key 32, and its slot in the table 9 to 19,
// by how long ago pages have split.
//
// Source of the table's form: Fagin et al., Extendible hashing, 1979.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "eviction_order.h"
#include "key_hash.h"
#include "object.h"

namespace inlay::store {

// An ObjectId is given again after its object is erased.

// Halves, so that nothing is padded.
struct Half64 {
  uint32_t low = 0;
  uint32_t high = 0;

  Half64() = default;
  Half64(uint64_t value)  // NOLINT: it stands for the number
      : low(static_cast<uint32_t>(value)), high(static_cast<uint32_t>(value >> 32)) {}
  operator uint64_t() const { return uint64_t{high} << 32 | low; }  // NOLINT
};

// An object, as the master sees it. Where it has one replica this is `segment` and `range`; where
// it has more, `range` is their list's number.
struct Object {
  Half64 generation;
  uint32_t payload_low = 0;
  uint16_t payload_high = 0;
  uint16_t segment = 0;
  uint32_t range = 0;
  uint32_t lease_end = 0;   // the master's ticks
  uint16_t flags : 3 = 0;   // ObjectFlag
  uint16_t hits : 4 = 0;    // up to kMaxHits
  uint16_t wanted : 4 = 1;  // replicas
  uint16_t listed : 1 = 0;  // `range` is a list's number
  uint16_t grouped : 1 = 0;
  uint16_t busy : 1 = 0;    // being copied, demoted or promoted
  uint16_t ranked : 1 = 0;  // the eviction policy knows it
  uint16_t key_bytes = 0;   // the index's; 0: not used

  uint64_t payload_bytes() const { return uint64_t{payload_high} << 32 | payload_low; }
  void set_payload_bytes(uint64_t bytes) {
    payload_low = static_cast<uint32_t>(bytes);
    payload_high = static_cast<uint16_t>(bytes >> 32);
  }
};
inline constexpr uint16_t kMaxHits = 15;
inline constexpr uint64_t kMaxPayloadBytes = (uint64_t{1} << 48) - 1;

class Index {
 public:
  explicit Index(const KeyHash& hash);
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;

  // Keys have 1 to kMaxKeyBytes bytes; others are never found.
  ObjectId find(std::string_view key) const;
  // The same for many, which wait for memory together. `found` is as long as `keys`.
  void find(std::span<const std::string_view> keys, std::span<ObjectId> found) const;
  // Asks memory for where the key is, or would be: who goes through many does so some steps ahead.
  static constexpr std::size_t kAhead = 16;
  void expect(std::string_view key) const;
  // The key must not be there. Throws ResourceError when ids or memory are used up. Cost: constant;
  // about 3 us when a page splits.
  ObjectId insert(std::string_view key);
  void erase(ObjectId id);

  Object& operator[](ObjectId id) { return slot(id).object; }
  const Object& operator[](ObjectId id) const { return slot(id).object; }
  std::string_view key(ObjectId id) const;
  uint64_t hash(ObjectId id) const { return hash_(key(id)); }
  uint64_t hash_of(std::string_view key) const { return hash_(key); }

  uint64_t size() const { return size_; }
  // For walks in slices: ids are below this, and used() or not.
  ObjectId end() const { return made_; }
  bool used(ObjectId id) const { return slot(id).object.key_bytes != 0; }
  // Of the table, objects and keys, free ones too.
  uint64_t memory_bytes() const;

 private:
  // An object that is not used: the next such in `key`.
  struct Slot {
    Object object;
    uint32_t key;
  };
  static_assert(sizeof(Slot) == 32);

  // The tag is the upper half of the hash: its first bits chose the page, its last say where in the
  // page to look first.
  struct Cell {
    ObjectId id;
    uint32_t tag;
  };
  static constexpr uint32_t kCells = 512;
  static constexpr uint32_t kLineCells = 64 / sizeof(Cell);
  static constexpr uint32_t kMaxUsed = kCells * 7 / 8;
  struct Page {
    uint16_t used = 0;
    uint8_t depth = 0;
  };

  // Keys whose lengths are alike, in pieces of one size.
  struct Shelf {
    std::vector<std::unique_ptr<char[]>> chunks;
    uint32_t free = kNoObject;
    uint32_t made = 0;
  };
  static constexpr std::size_t kStep = 8;
  static constexpr unsigned kShelfBits = 10;  // pieces in a chunk
  static constexpr unsigned kSlotBits = 12;
  static constexpr unsigned kPageBits = 4;

  Slot& slot(ObjectId id) { return slots_[id >> kSlotBits][id & ((1U << kSlotBits) - 1)]; }
  const Slot& slot(ObjectId id) const {
    return slots_[id >> kSlotBits][id & ((1U << kSlotBits) - 1)];
  }
  Cell* cells(uint32_t page) {
    return &cells_[page >> kPageBits][(page & ((1U << kPageBits) - 1)) * kCells];
  }
  const Cell* cells(uint32_t page) const {
    return &cells_[page >> kPageBits][(page & ((1U << kPageBits) - 1)) * kCells];
  }
  uint32_t page_of(uint32_t tag) const {
    return directory_[depth_ == 0 ? 0 : tag >> (32 - depth_)];
  }
  static std::size_t piece_bytes(std::size_t shelf) { return (shelf + 1) * kStep; }
  static std::size_t shelf_of(std::size_t key_bytes) { return (key_bytes - 1) / kStep; }
  char* piece(std::size_t shelf, uint32_t number);
  const char* piece(std::size_t shelf, uint32_t number) const;

  bool matches(ObjectId id, std::string_view key) const;
  ObjectId look(uint32_t tag, std::string_view key) const;
  static void put(Cell* cells, Cell cell);
  uint32_t make_page(uint8_t depth);
  void split(uint32_t tag);
  uint32_t store_key(std::string_view key);
  void drop_key(std::size_t key_bytes, uint32_t number);

  const KeyHash hash_;
  uint64_t size_ = 0;
  unsigned depth_ = 0;
  std::vector<uint32_t> directory_;
  std::vector<Page> pages_;
  std::vector<std::unique_ptr<Cell[]>> cells_;
  std::vector<std::unique_ptr<Slot[]>> slots_;
  ObjectId free_ = kNoObject;
  ObjectId made_ = 0;
  std::array<Shelf, kMaxKeyBytes / kStep> shelves_;
};

}  // namespace inlay::store

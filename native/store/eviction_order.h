// Lists of objects, coldest to hottest, in arrays by the objects' numbers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace inlay::store {

using ObjectId = uint32_t;
inline constexpr ObjectId kNoObject = UINT32_MAX;

// Whether an object may not be evicted now: leased, pinned, or on its way.
using Held = std::function<bool(ObjectId)>;
inline constexpr uint64_t kHeldRecheckNs = 1'000'000'000;

// An array that grows without moving what is there, in pieces of 64 to 128 KiB.
template <typename T>
class Chunks {
 public:
  T& operator[](ObjectId id) { return (*chunks_[id >> kShift])[id & kMask]; }
  const T& operator[](ObjectId id) const { return (*chunks_[id >> kShift])[id & kMask]; }
  bool has(ObjectId id) const { return (id >> kShift) < chunks_.size() && chunks_[id >> kShift]; }
  void ensure(ObjectId id) {
    const std::size_t chunk = id >> kShift;
    if (chunk >= chunks_.size()) chunks_.resize(chunk + 1);
    if (!chunks_[chunk]) {
      chunks_[chunk] = std::make_unique<Chunk>();
      ++num_chunks_;
    }
  }
  uint64_t memory_bytes() const {
    return num_chunks_ * sizeof(Chunk) + chunks_.capacity() * sizeof(chunks_[0]);
  }

 private:
  static constexpr unsigned kShift = 13;
  static constexpr ObjectId kMask = (ObjectId{1} << kShift) - 1;
  using Chunk = std::array<T, std::size_t{1} << kShift>;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::size_t num_chunks_ = 0;
};

// An object is in one list or in none. All calls take constant time, but restore(), which takes it
// per list, and ids().
class Order {
 public:
  explicit Order(uint32_t num_lists) : lists_(num_lists), aside_(num_lists) {}

  void ensure(ObjectId id) { links_.ensure(id); }
  bool has(ObjectId id) const { return links_.has(id); }
  bool listed(ObjectId id) const { return links_[id].colder != kUnlisted; }
  // A word of the caller's in the place of the links of an object that is in no list. 0 at first
  // and when the object has left a list.
  uint32_t& word(ObjectId id) { return links_[id].hotter; }

  ObjectId coldest(uint32_t list) const { return lists_[list].coldest; }
  ObjectId hottest(uint32_t list) const { return lists_[list].hottest; }
  ObjectId colder(ObjectId id) const { return links_[id].colder; }
  ObjectId hotter(ObjectId id) const { return links_[id].hotter; }
  void push_hot(uint32_t list, ObjectId id);
  // On the cold side of `hotter`, which is in the list; kNoObject: at the hot end.
  void insert_below(uint32_t list, ObjectId id, ObjectId hotter);
  void unlink(uint32_t list, ObjectId id);

  // The coldest object of the list that is not held. Those before it are set aside: out of reach,
  // until restore(), but in the list for every other purpose.
  ObjectId coldest_free(uint32_t list, const Held& held, uint64_t now_ns);
  // Puts back what is set aside, in its old order, when that was kHeldRecheckNs ago.
  void restore(uint64_t now_ns);

  std::vector<ObjectId> ids(uint32_t list) const;
  uint64_t memory_bytes() const { return links_.memory_bytes(); }

 private:
  static constexpr ObjectId kUnlisted = kNoObject - 1;
  struct Link {
    ObjectId colder = kUnlisted;
    ObjectId hotter = 0;
  };
  struct Ends {
    ObjectId coldest = kNoObject;
    ObjectId hottest = kNoObject;
  };
  void push_hot(Ends& ends, ObjectId id);
  void unlink(Ends& ends, ObjectId id);
  // Only an end of a list tells which of the two it is an end of.
  Ends& ends_of(uint32_t list, ObjectId id) {
    const bool aside = aside_[list].coldest == id || aside_[list].hottest == id;
    return aside ? aside_[list] : lists_[list];
  }

  Chunks<Link> links_;
  std::vector<Ends> lists_;
  std::vector<Ends> aside_;  // the cold ends of the lists that were set aside
  bool any_aside_ = false;
  uint64_t aside_since_ns_ = 0;  // of the first of them
};

}  // namespace inlay::store

#include "eviction_cost.h"

#include <algorithm>
#include <bit>
#include <ranges>

namespace inlay::store {
namespace {

constexpr unsigned kClockShift = 30;  // ns to units
constexpr uint32_t kAgeMask = (1 << 20) - 1;
// A hit so soon belongs to the same use: a decode instance that fetches what a prefill instance
// has put, a request that was sent again.
constexpr uint32_t kSettled = 2;

// Of a chain only a quarter is remembered when it is evicted: neighbours share their fate.
constexpr uint32_t kSampling = 4;
constexpr bool sampled(uint64_t hash) { return hash >> 62 == 0; }

constexpr uint32_t kLately = 2;  // generations of ghosts: half the objects that there are
constexpr double kLeastShare = 0.02;
constexpr double kMostShare = 0.9;

// Steps from either end of a list to an object's place by age.
constexpr int kPlaceSteps = 8;

// log2 of ns per byte; range 8 is 1 ns per byte, a 70B model's on an 8-GPU machine about 0.4.
uint32_t range_of(uint64_t recompute_ns, uint64_t bytes) {
  if (recompute_ns == 0) return 8;
  const uint64_t worth =
      (std::min<uint64_t>(recompute_ns, UINT64_MAX >> 8) << 8) / std::max<uint64_t>(bytes, 1);
  return static_cast<uint32_t>(std::clamp(static_cast<int>(std::bit_width(worth)) - 1, 0, 15));
}

}  // namespace

void CostAware::set_clock(uint64_t now_ns) {
  clock_ = std::max(clock_, static_cast<uint32_t>(now_ns >> kClockShift));
}

uint32_t CostAware::age(ObjectId id) const { return (clock_ - nodes_[id].touched) & kAgeMask; }

void CostAware::count(const Node& node, int by) {
  num_[node.part][node.range] += static_cast<uint32_t>(by);
  size_ += static_cast<uint32_t>(by);
}

bool CostAware::has_parent(const Node& node) const {
  return node.parent != kNoObject && contains(node.parent) &&
         nodes_[node.parent].incarnation == node.parent_incarnation;
}

void CostAware::follow(Node& node, ObjectId parent) {
  node.parent = parent != kNoObject && contains(parent) ? parent : kNoObject;
  if (node.parent == kNoObject) return;
  node.parent_incarnation = nodes_[parent].incarnation;
  if (order_.listed(parent)) order_.unlink(list_of(nodes_[parent]), parent);
  ++order_.word(parent);
}

// Whether an object was evicted lately; moves the border between newcomers and the main part.
bool CostAware::remembers(const Newcomer& newcomer, bool alone) {
  const Ghosts::Memory memory = ghosts_.take(newcomer.hash);
  const double step = (alone ? 1.0 : kSampling) / std::max(size_, 1u);
  if (memory.found && memory.list == Ghosts::kMain) {
    share_ = std::max(kLeastShare, share_ - step);
  } else if (memory.found && memory.age < kLately) {
    share_ = std::min(kMostShare, share_ + step);
  }
  return memory.found;
}

// A child is evicted before its parent, so where one block of a chain is not remembered, those
// behind it are not either: they are not looked up, which keeps mistakes of the ghosts rare and
// newcomers from being held by a child in the main part.
void CostAware::add(std::span<const Newcomer> chain, uint64_t now_ns) {
  set_clock(now_ns);
  enum { kOpen, kKnown, kUnknown } verdict = kOpen;
  std::size_t open = 0;  // the first of the chain that waits for a verdict
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const Newcomer& newcomer = chain[i];
    const ObjectId id = newcomer.id;
    order_.ensure(id);
    nodes_.ensure(id);
    Node& node = nodes_[id];
    follow(node, newcomer.parent);
    const bool alone = node.parent == kNoObject;
    if (i == 0 || alone || node.parent != chain[i - 1].id) {
      verdict = !alone && nodes_[node.parent].part == kNew ? kUnknown : kOpen;
      open = i;
    }
    if (verdict != kUnknown && (alone || sampled(newcomer.hash))) {
      verdict = remembers(newcomer, alone) ? kKnown : kUnknown;
      for (; open < i && verdict == kKnown; ++open) promote(chain[open].id);
    }
    node.touched = clock_ & kAgeMask;
    node.range = range_of(newcomer.recompute_ns, newcomer.bytes) & 15;
    const bool proven = newcomer.wanted || verdict == kKnown;
    node.part = newcomer.soft_pin ? kSoft : proven ? kMain : kNew;
    node.present = 1;
    count(node, 1);
    full_[node.range] = num_[kNew][node.range] + num_[kMain][node.range];
    order_.push_hot(list_of(node), id);
  }
}

// To the main part, if it is new.
void CostAware::promote(ObjectId id) {
  Node& node = nodes_[id];
  if (node.part != kNew) return;
  count(node, -1);
  node.part = kMain;
  count(node, 1);
}

void CostAware::hit(std::span<const ObjectId> chain, uint64_t now_ns) {
  set_clock(now_ns);
  // Of a prompt whose blocks came without their parents the first is to be the hottest.
  for (const ObjectId id : std::views::reverse(chain)) {
    if (!contains(id)) continue;
    Node& node = nodes_[id];
    if (node.part == kNew && age(id) < kSettled) continue;
    const bool listed = order_.listed(id);
    if (listed) order_.unlink(list_of(node), id);
    promote(id);
    node.touched = clock_ & kAgeMask;
    if (listed) order_.push_hot(list_of(node), id);
  }
}

uint64_t CostAware::staleness(ObjectId oldest, uint32_t range) const {
  return uint64_t{age(oldest) + 1} << (kNumRanges - 1 - range);
}

ObjectId CostAware::victim(uint64_t now_ns, const Held& held) {
  set_clock(now_ns);
  order_.restore(now_ns);
  ObjectId victim = kNoObject;
  uint64_t most = 0;
  for (uint32_t range = 0; range < kNumRanges; ++range) {
    if (num_[kNew][range] + num_[kMain][range] == 0) continue;
    const ObjectId young = order_.coldest_free(kNew * kNumRanges + range, held, now_ns);
    const ObjectId proven = order_.coldest_free(kMain * kNumRanges + range, held, now_ns);
    if (young == kNoObject && proven == kNoObject) continue;
    // The main part says how long this range is kept.
    const uint64_t stale = staleness(proven != kNoObject ? proven : young, range);
    if (stale <= most) continue;
    most = stale;
    // Room is made before newcomers come, so the main part is measured against the whole: else it
    // would lose to a long prompt what it can't get back.
    const bool fits = num_[kMain][range] <= (1.0 - share_) * full_[range];
    victim = proven == kNoObject || (fits && young != kNoObject) ? young : proven;
  }
  return victim != kNoObject ? victim : stalest_soft(now_ns, held);
}

ObjectId CostAware::stalest_soft(uint64_t now_ns, const Held& held) {
  ObjectId victim = kNoObject;
  uint64_t most = 0;
  for (uint32_t range = 0; range < kNumRanges; ++range) {
    if (num_[kSoft][range] == 0) continue;
    const ObjectId oldest = order_.coldest_free(kSoft * kNumRanges + range, held, now_ns);
    if (oldest == kNoObject || staleness(oldest, range) <= most) continue;
    victim = oldest;
    most = staleness(oldest, range);
  }
  return victim;
}

void CostAware::evict(ObjectId id, uint64_t hash) {
  if (!contains(id)) return;
  const Node& node = nodes_[id];
  const auto list = node.part == kNew ? Ghosts::kNew : Ghosts::kMain;
  ghosts_.evicted(list, hash, node.parent == kNoObject || sampled(hash), size_);
  leave(id);
}

void CostAware::remove(ObjectId id) {
  if (contains(id)) leave(id);
}

void CostAware::leave(ObjectId id) {
  Node& node = nodes_[id];
  if (order_.listed(id)) {
    order_.unlink(list_of(node), id);
  } else {
    order_.word(id) = 0;
    node.incarnation = (node.incarnation + 1) & 3;
  }
  count(node, -1);
  node.present = 0;
  if (has_parent(node) && !order_.listed(node.parent) && --order_.word(node.parent) == 0) {
    place(node.parent);
  }
}

// An object has lost its last child and goes to the place that its last use gives it. That is near
// the cold end when the child was the oldest there, and near the hot end when it was a newcomer.
void CostAware::place(ObjectId id) {
  const uint32_t list = list_of(nodes_[id]);
  const uint32_t own = age(id);
  ObjectId from_cold = order_.coldest(list);
  for (int step = 0; step < kPlaceSteps && from_cold != kNoObject; ++step) {
    if (age(from_cold) <= own) break;
    from_cold = order_.hotter(from_cold);
  }
  if (from_cold == kNoObject || age(from_cold) <= own) {
    return order_.insert_below(list, id, from_cold);
  }
  ObjectId from_hot = order_.hottest(list);
  for (int step = 0; step < kPlaceSteps; ++step) {
    if (age(from_hot) >= own) return order_.insert_below(list, id, order_.hotter(from_hot));
    from_hot = order_.colder(from_hot);
  }
  order_.insert_below(list, id, kNoObject);
}

uint64_t CostAware::memory_bytes() const {
  return order_.memory_bytes() + nodes_.memory_bytes() + ghosts_.memory_bytes();
}

std::vector<EvictionPolicy::Listing> CostAware::order() const {
  static constexpr std::array kNames = {"new", "main", "soft"};
  std::vector<Listing> all;
  for (uint32_t list = 0; list < kNumLists; ++list) {
    std::vector<ObjectId> ids = order_.ids(list);
    if (ids.empty()) continue;
    all.push_back({std::string(kNames[list / kNumRanges]) + " " + std::to_string(list % kNumRanges),
                   std::move(ids)});
  }
  return all;
}

}  // namespace inlay::store

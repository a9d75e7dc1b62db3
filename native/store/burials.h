// Which keys were removed, so that a node that comes back does not bring them back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

namespace inlay::store {

// By key as long as there is room for it; then by a part of the key's hash, where a removal buries
// what else has that part and is as old.
class Burials {
 public:
  // No record of the key up to that generation is to be taken any more.
  void add(uint64_t hash, uint64_t generation) {
    const auto [found, is_new] = exact_.try_emplace(hash, generation);
    found->second = std::max(found->second, generation);
    if (!is_new) return;
    order_.push_back(hash);
    if (order_.size() <= kMaxExact) return;
    const auto oldest = exact_.find(order_.front());
    order_.pop_front();
    if (rest_.empty()) rest_.resize(kBuckets);
    uint64_t& bucket = rest_[oldest->first % kBuckets];
    bucket = std::max(bucket, oldest->second);
    exact_.erase(oldest);
  }

  // The last such generation; 0: none.
  uint64_t of(uint64_t hash) const {
    const auto found = exact_.find(hash);
    const uint64_t exact = found == exact_.end() ? 0 : found->second;
    return rest_.empty() ? exact : std::max(exact, rest_[hash % kBuckets]);
  }

 private:
  static constexpr std::size_t kMaxExact = std::size_t{1} << 18;
  static constexpr std::size_t kBuckets = 65536;

  std::unordered_map<uint64_t, uint64_t> exact_;
  std::deque<uint64_t> order_;
  std::vector<uint64_t> rest_;
};

}  // namespace inlay::store

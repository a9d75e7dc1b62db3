// A million objects that come and go, in chains, with hits, removals and leases: what every policy
// promises then, and what a call costs (printed: this test runs on machines of every speed).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "../store/eviction.h"
#include "check.h"

using namespace inlay::store;

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

uint64_t hash_of(uint64_t key) {
  key = (key + 1) * 0x9E3779B97F4A7C15;
  key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9;
  return key ^ key >> 31;
}

class Churn {
 public:
  Churn(const char* name, uint32_t num_objects) : policy_(make_eviction_policy(name)) {
    name_ = name;
    keys_.resize(num_objects);
    parents_.assign(num_objects, kNoObject);
    children_.assign(num_objects, 0);
    for (ObjectId id = num_objects; id-- > 0;) free_.push_back(id);
  }

  void run(uint64_t num_chains) {
    for (uint64_t i = 0; i < num_chains; ++i) {
      now_ += kSecond / 1000;
      const uint32_t blocks = 1 + draw() % 64;
      std::vector<ObjectId> prefix = draw() % 2 == 0 ? some_prefix() : std::vector<ObjectId>{};
      timed([&] { policy_->hit(prefix, now_); }, prefix.size());
      make_room(blocks);
      if (!prefix.empty() && !policy_->contains(prefix.back())) prefix.clear();
      add(prefix, blocks);
      if (draw() % 16 == 0) remove_one();
    }
  }

  void finish() {
    CHECK(policy_->size() + free_.size() == keys_.size());
    now_ += kHeldRecheckNs;
    while (policy_->size() > 0) evict(policy_->victim(now_, {}));
    CHECK(policy_->victim(now_, {}) == kNoObject);
    std::printf("%-7s %zu objects: %.0f ns per object and call, longest call %.2f ms, %.1f bytes\n",
                name_, keys_.size(), static_cast<double>(total_ns_) / num_calls_,
                static_cast<double>(longest_ns_) / 1e6,
                static_cast<double>(policy_->memory_bytes()) / keys_.size());
  }

 private:
  uint32_t draw() { return static_cast<uint32_t>(random_()); }

  template <typename Call>
  void timed(Call call, std::size_t objects) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    const auto ns = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
    total_ns_ += static_cast<uint64_t>(ns);
    longest_ns_ = std::max(longest_ns_, static_cast<uint64_t>(ns));
    num_calls_ += objects;
  }

  std::vector<ObjectId> some_prefix() {
    std::vector<ObjectId> chain;
    ObjectId id = draw() % keys_.size();
    if (!policy_->contains(id)) return chain;
    for (; id != kNoObject && chain.size() < 256; id = parents_[id]) chain.push_back(id);
    std::reverse(chain.begin(), chain.end());
    return chain;
  }

  // A few are leased: those whose key and second say so.
  bool held(ObjectId id) const { return (keys_[id] + now_ / kSecond) % 1000 == 0; }

  void make_room(uint32_t blocks) {
    while (free_.size() < blocks) {
      ObjectId id = kNoObject;
      timed([&] { id = policy_->victim(now_, [this](ObjectId other) { return held(other); }); }, 1);
      CHECK(id != kNoObject && !held(id));
      evict(id);
    }
  }

  void evict(ObjectId id) {
    CHECK(policy_->contains(id));
    if (std::strcmp(name_, "cost") == 0) CHECK(children_[id] == 0);
    timed([&] { policy_->evict(id, hash_of(keys_[id])); }, 1);
    gone(id);
  }

  void add(const std::vector<ObjectId>& prefix, uint32_t blocks) {
    std::vector<Newcomer> chain;
    ObjectId parent = prefix.empty() ? kNoObject : prefix.back();
    for (uint32_t i = 0; i < blocks; ++i) {
      const ObjectId id = free_.back();
      free_.pop_back();
      // Some keys come back.
      keys_[id] = draw() % 8 == 0 && next_key_ > 0 ? draw() % next_key_ : next_key_++;
      chain.push_back({id, parent, hash_of(keys_[id]), 1 << 20, uint64_t{100'000} << draw() % 4});
      parents_[id] = parent;
      if (parent != kNoObject) ++children_[parent];
      parent = id;
    }
    timed([&] { policy_->add(chain, now_); }, chain.size());
  }

  // With children or without: who is left follows nobody.
  void remove_one() {
    const ObjectId id = draw() % keys_.size();
    if (!policy_->contains(id) || children_[id] > 1) return;
    if (children_[id] == 1 && keys_.size() > 100'000) return;  // a child is searched for
    for (ObjectId other = 0; children_[id] > 0; ++other) {
      if (policy_->contains(other) && parents_[other] == id) {
        parents_[other] = kNoObject;
        --children_[id];
      }
    }
    timed([&] { policy_->remove(id); }, 1);
    gone(id);
  }

  void gone(ObjectId id) {
    CHECK(!policy_->contains(id));
    if (parents_[id] != kNoObject) --children_[parents_[id]];
    parents_[id] = kNoObject;
    free_.push_back(id);
  }

  std::unique_ptr<EvictionPolicy> policy_;
  const char* name_;
  std::vector<uint64_t> keys_;
  std::vector<ObjectId> parents_;
  std::vector<uint32_t> children_;
  std::vector<ObjectId> free_;
  std::mt19937_64 random_{1};
  uint64_t next_key_ = 0;
  uint64_t now_ = 0;
  uint64_t total_ns_ = 0;
  uint64_t longest_ns_ = 0;
  uint64_t num_calls_ = 0;
};

}  // namespace

// Arguments: objects, chains of 32 on average.
int main(int count, char** arguments) {
  const uint32_t objects = count > 1 ? static_cast<uint32_t>(std::atol(arguments[1])) : 100'000;
  const uint64_t chains = count > 2 ? static_cast<uint64_t>(std::atoll(arguments[2])) : 10'000;
  for (const char* name : {"lru", "s3fifo", "cost"}) {
    Churn churn(name, objects);
    churn.run(chains);
    churn.finish();
  }
  CHECK(make_eviction_policy("fifo") == nullptr);
}

// Blocks that one tier behind the devices holds, and which of them go when others come: by the
// store's own policies. Contents are left out, and so is how long moving them takes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "../cluster/digest.h"
#include "../store/eviction.h"
#include "page_cache.h"

namespace inlay::sim {

struct TierConfig {
  uint32_t blocks = 0;  // that there is room for; 0: there is no such tier
  double read_bytes_per_s = 0.0;
  double write_bytes_per_s = 0.0;
  double latency_s = 0.0;         // of each call
  std::string eviction = "cost";  // see store::make_eviction_policy
  bool hits = true;               // false: what is read is kept no longer, as in a disk's log
};

// A block, and the one before it in its chain.
struct NamedBlock {
  Digest name;
  Digest parent;  // kNoBlock: it is the first
};

class Tier {
 public:
  Tier(const TierConfig& config, double block_bytes);

  const TierConfig& config() const { return config_; }
  std::size_t size() const { return ids_.size(); }
  bool has(Digest name) const { return ids_.contains(name); }

  // These, which are there, are read from now on, and stay until end_read().
  void begin_read(std::span<const Digest> names, double now_s);
  void end_read(std::span<const Digest> names);
  // Stores what is not there, parents before their children, and appends the names of what goes for
  // it. What finds no room, since all that is there is being read, is left out.
  void put(std::span<const NamedBlock> blocks, uint64_t recompute_ns, double now_s,
           std::vector<Digest>& evicted);
  // All is gone.
  void forget();

  // Changes of prompts' blocks since they were last cleared.
  std::vector<BlockChange>& changes() { return changes_; }

  // Throws EngineError where the counts do not agree. Cost: all blocks; for tests.
  void audit() const;

 private:
  struct Hash {
    std::size_t operator()(Digest name) const;
  };

  store::ObjectId find(Digest name) const;
  bool make_room(double now_s, std::vector<Digest>& evicted);
  void tell(Digest name, bool stored);

  TierConfig config_;
  uint64_t block_bytes_;
  std::unique_ptr<store::EvictionPolicy> policy_;
  std::unordered_map<Digest, store::ObjectId, Hash> ids_;  // never walked through but in audit()
  std::vector<Digest> names_;                              // by id
  std::vector<uint32_t> readers_;                          // by id
  std::vector<store::ObjectId> unused_;
  std::vector<store::Newcomer> newcomers_;  // of put()
  std::vector<store::ObjectId> hit_;        // of begin_read()
  std::vector<BlockChange> changes_;
};

}  // namespace inlay::sim

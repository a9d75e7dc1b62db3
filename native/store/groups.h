// Which objects belong together. Costs 16 bytes for each object number near one that has a group,
// and an entry of a hash table for each group.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "index.h"

namespace inlay::store {

class Groups {
 public:
  // `id` has no group; `group` is not 0.
  void join(ObjectId id, uint64_t group) {
    const std::size_t chunk = id >> kBits;
    if (chunk >= chunks_.size()) chunks_.resize(chunk + 1);
    if (chunks_[chunk] == nullptr) chunks_[chunk] = std::make_unique<Link[]>(kSize);
    const auto [head, fresh] = heads_.try_emplace(group, id);
    at(id) = {group, kNoObject, fresh ? kNoObject : head->second};
    if (!fresh) at(head->second).before = id;
    head->second = id;
  }
  // `id` has a group.
  void leave(ObjectId id) {
    const Link link = at(id);
    if (link.behind != kNoObject) at(link.behind).before = link.before;
    if (link.before != kNoObject)
      at(link.before).behind = link.behind;
    else if (link.behind != kNoObject)
      heads_[link.group] = link.behind;
    else
      heads_.erase(link.group);
  }
  uint64_t of(ObjectId id) const { return at(id).group; }

  ObjectId first(uint64_t group) const {
    const auto found = heads_.find(group);
    return found == heads_.end() ? kNoObject : found->second;
  }
  ObjectId next(ObjectId id) const { return at(id).behind; }

 private:
  struct Link {
    uint64_t group = 0;
    ObjectId before = kNoObject;
    ObjectId behind = kNoObject;
  };
  static constexpr unsigned kBits = 12;
  static constexpr std::size_t kSize = std::size_t{1} << kBits;

  Link& at(ObjectId id) { return chunks_[id >> kBits][id & (kSize - 1)]; }
  const Link& at(ObjectId id) const { return chunks_[id >> kBits][id & (kSize - 1)]; }

  std::vector<std::unique_ptr<Link[]>> chunks_;
  std::unordered_map<uint64_t, ObjectId> heads_;
};

}  // namespace inlay::store

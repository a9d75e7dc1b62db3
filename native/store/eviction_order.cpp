#include "eviction_order.h"

namespace inlay::store {

void Order::push_hot(Ends& ends, ObjectId id) {
  links_[id] = {ends.hottest, kNoObject};
  if (ends.hottest == kNoObject) {
    ends.coldest = id;
  } else {
    links_[ends.hottest].hotter = id;
  }
  ends.hottest = id;
}

void Order::push_hot(uint32_t list, ObjectId id) { push_hot(lists_[list], id); }

void Order::insert_below(uint32_t list, ObjectId id, ObjectId hotter) {
  if (hotter == kNoObject) return push_hot(list, id);
  const ObjectId colder = links_[hotter].colder;
  links_[id] = {colder, hotter};
  links_[hotter].colder = id;
  if (colder == kNoObject) {
    ends_of(list, hotter).coldest = id;
  } else {
    links_[colder].hotter = id;
  }
}

void Order::unlink(Ends& ends, ObjectId id) {
  const Link link = links_[id];
  if (link.colder == kNoObject) {
    ends.coldest = link.hotter;
  } else {
    links_[link.colder].hotter = link.hotter;
  }
  if (link.hotter == kNoObject) {
    ends.hottest = link.colder;
  } else {
    links_[link.hotter].colder = link.colder;
  }
  links_[id] = {};
}

void Order::unlink(uint32_t list, ObjectId id) { unlink(ends_of(list, id), id); }

ObjectId Order::coldest_free(uint32_t list, const Held& held, uint64_t now_ns) {
  for (;;) {
    const ObjectId id = lists_[list].coldest;
    if (id == kNoObject || !held || !held(id)) return id;
    if (!any_aside_) aside_since_ns_ = now_ns;
    any_aside_ = true;
    unlink(lists_[list], id);
    push_hot(aside_[list], id);
  }
}

void Order::restore(uint64_t now_ns) {
  // A clock that was set back does not keep objects aside.
  if (!any_aside_ || (now_ns >= aside_since_ns_ && now_ns - aside_since_ns_ < kHeldRecheckNs)) {
    return;
  }
  any_aside_ = false;
  for (std::size_t list = 0; list < lists_.size(); ++list) {
    Ends& back = aside_[list];
    Ends& ends = lists_[list];
    if (back.coldest == kNoObject) continue;
    if (ends.coldest == kNoObject) {
      ends = back;
    } else {
      links_[back.hottest].hotter = ends.coldest;
      links_[ends.coldest].colder = back.hottest;
      ends.coldest = back.coldest;
    }
    back = {};
  }
}

std::vector<ObjectId> Order::ids(uint32_t list) const {
  std::vector<ObjectId> all;
  for (const Ends& ends : {aside_[list], lists_[list]}) {
    for (ObjectId id = ends.coldest; id != kNoObject; id = links_[id].hotter) all.push_back(id);
  }
  return all;
}

}  // namespace inlay::store

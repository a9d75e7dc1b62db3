// Eviction policies for the simulator and tests; the master uses the classes themselves.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "../store/eviction.h"
#include "../store/eviction_cost.h"
#include "array.h"
#include "store.h"

namespace inlay::bindings {

using namespace nb::literals;
using store::EvictionPolicy;
using store::Held;
using store::kNoObject;
using store::Newcomer;
using store::ObjectId;

namespace {

// Far from the numbers that mean something, and what a pool of 2^31 blocks never needs.
constexpr ObjectId kMaxObjects = ObjectId{1} << 31;

using Row = std::tuple<ObjectId, std::optional<ObjectId>, uint64_t, uint64_t, uint64_t, bool>;

std::unique_ptr<EvictionPolicy> make(const std::string& name) {
  std::unique_ptr<EvictionPolicy> policy = store::make_eviction_policy(name);
  if (!policy) fail("eviction: no policy is called '", name, "'; there are lru, s3fifo, cost");
  return policy;
}

void add(EvictionPolicy& self, const std::vector<Row>& rows, uint64_t now_ns) {
  std::vector<Newcomer> chain;
  chain.reserve(rows.size());
  std::unordered_set<ObjectId> fresh;
  for (const auto& [id, parent, hash, bytes, recompute_ns, soft_pin] : rows) {
    if (id >= kMaxObjects) fail("id: must be below ", kMaxObjects, ", got ", id);
    if (self.contains(id) || !fresh.insert(id).second) fail("id: ", id, " is there already");
    if (bytes == 0) fail("bytes: object ", id, " must have at least 1");
    chain.push_back({id, parent.value_or(kNoObject), hash, bytes, recompute_ns, soft_pin});
  }
  self.add(chain, now_ns);
}

void hit(EvictionPolicy& self, const std::vector<ObjectId>& chain, uint64_t now_ns) {
  self.hit(chain, now_ns);
}

std::optional<ObjectId> victim(EvictionPolicy& self, uint64_t now_ns, const nb::object& held) {
  Held ask;
  if (!held.is_none()) ask = [&held](ObjectId id) { return nb::cast<bool>(held(id)); };
  const ObjectId id = self.victim(now_ns, ask);
  return id == kNoObject ? std::nullopt : std::optional(id);
}

void evict(EvictionPolicy& self, ObjectId id, uint64_t hash) {
  if (!self.contains(id)) fail("id: ", id, " is not there");
  self.evict(id, hash);
}

std::vector<std::pair<std::string, std::vector<ObjectId>>> order(const EvictionPolicy& self) {
  std::vector<std::pair<std::string, std::vector<ObjectId>>> all;
  for (EvictionPolicy::Listing& listing : self.order()) {
    all.emplace_back(std::move(listing.name), std::move(listing.ids));
  }
  return all;
}

std::optional<double> newcomers_share(const EvictionPolicy& self) {
  const auto* cost = dynamic_cast<const store::CostAware*>(&self);
  return cost == nullptr ? std::nullopt : std::optional(cost->newcomers_share());
}

}  // namespace

void register_store_eviction(nb::module_& store) {
  nb::class_<EvictionPolicy>(store, "EvictionPolicy")
      .def(nb::new_(&make), "name"_a = std::string(store::kDefaultEviction))
      .def("add", add, "chain"_a, "now_ns"_a)
      .def("hit", hit, "chain"_a, "now_ns"_a)
      .def("victim", victim, "now_ns"_a, "held"_a = nb::none())
      .def("evict", evict, "id"_a, "hash"_a)
      .def("remove", &EvictionPolicy::remove, "id"_a)
      .def("order", order)
      .def("__contains__", &EvictionPolicy::contains, "id"_a)
      .def("__len__", &EvictionPolicy::size)
      .def("memory_bytes", &EvictionPolicy::memory_bytes)
      .def_prop_ro("newcomers_share", newcomers_share);
}

}  // namespace inlay::bindings

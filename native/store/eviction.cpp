#include "eviction.h"

#include "eviction_cost.h"
#include "eviction_lru.h"
#include "eviction_s3fifo.h"

namespace inlay::store {

std::unique_ptr<EvictionPolicy> make_eviction_policy(std::string_view name) {
  if (name == "lru") return std::make_unique<Lru>();
  if (name == "s3fifo") return std::make_unique<S3Fifo>();
  if (name == "cost") return std::make_unique<CostAware>();
  return nullptr;
}

}  // namespace inlay::store

// The prefix index as Python has it, for several threads; the simulator's world feeds the same one.
#pragma once

#include <nanobind/nanobind.h>

#include <mutex>

#include "../cluster/prefix_index.h"
#include "array.h"

namespace inlay::bindings {

using cluster::Chain;
using cluster::Digest;

inline Chain chain_of(const nb::bytes& digests) {
  if (digests.size() % sizeof(Digest) != 0)
    fail("digests: must have ", sizeof(Digest), " bytes each, got ", digests.size());
  return Chain({static_cast<const uint8_t*>(digests.data()), digests.size()});
}

// Calls that may take long let other threads of Python run, which then wait for each other here.
class SharedIndex {
 public:
  template <typename Do>
  auto slow(Do work) {
    const nb::gil_scoped_release unlocked;
    const std::lock_guard lock(mutex_);
    return work(index_);
  }
  // Keeps the GIL, unless another thread is at work.
  template <typename Do>
  auto quick(Do work) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return slow(work);
    return work(index_);
  }

  SharedIndex(uint64_t seed0, uint64_t seed1) : index_(seed0, seed1) {}

  std::size_t add() {
    return quick([](auto& index) { return index.add(); });
  }
  void remove(std::size_t slot) {
    slow([=](auto& index) { index.remove(slot); });
  }
  void apply(std::size_t slot, bool stored, const nb::bytes& digests) {
    const Chain blocks = chain_of(digests);
    if (blocks.size() < kFew) {
      quick([=](auto& index) { index.apply(slot, stored, blocks); });
    } else {
      slow([=](auto& index) { index.apply(slot, stored, blocks); });
    }
  }
  void load(std::size_t slot, const nb::bytes& digests) {
    const Chain blocks = chain_of(digests);
    slow([=](auto& index) { index.load(slot, blocks); });
  }
  void expect(std::size_t slot, const nb::bytes& digests) {
    const Chain blocks = chain_of(digests);
    quick([=](auto& index) { index.expect(slot, blocks); });
  }
  void turn() {
    slow([](auto& index) { index.turn(); });
  }
  void match(const nb::bytes& digests, nb::handle lengths) {
    const Chain chain = chain_of(digests);
    const Array out(lengths, "lengths", 1, Access::kWrite);
    out.require_contiguous();
    int32_t* data = out.as<int32_t>(Kind::kI32);
    const auto size = static_cast<std::size_t>(out.size(0));
    quick([&](auto& index) {
      if (size < index.num_slots())
        fail("lengths: must have at least ", index.num_slots(), " elements, got ", size);
      index.match(chain, {data, size});
    });
  }
  void match_many(const nb::bytes& digests, nb::handle num_blocks, nb::handle lengths) {
    const Chain all = chain_of(digests);
    const Array counts(num_blocks, "num_blocks", 1);
    const Array out(lengths, "lengths", 2, Access::kWrite);
    counts.require_contiguous();
    out.require_contiguous();
    out.require_size(0, counts.size(0), "chains");
    const uint32_t* count = counts.as<const uint32_t>(Kind::kU32);
    int32_t* data = out.as<int32_t>(Kind::kI32);
    const auto chains = static_cast<std::size_t>(counts.size(0));
    const auto size = static_cast<std::size_t>(out.size(1));
    uint64_t sum = 0;
    for (std::size_t i = 0; i < chains; ++i) sum += count[i];
    if (sum != all.size()) fail("num_blocks: sum is ", sum, ", there are ", all.size(), " digests");
    slow([&](auto& index) {
      if (size < index.num_slots())
        fail("lengths: must have at least ", index.num_slots(), " columns, got ", size);
      Chain rest = all;
      for (std::size_t i = 0; i < chains; ++i) {
        index.match(rest.first(count[i]), {data + i * size, size});
        rest = rest.from(count[i]);
      }
    });
  }
  std::size_t num_slots() {
    return quick([](auto& index) { return index.num_slots(); });
  }
  std::size_t num_blocks(std::size_t slot) {
    return quick([=](auto& index) { return index.num_blocks(slot); });
  }
  std::size_t num_expected() {
    return quick([](auto& index) { return index.num_expected(); });
  }
  std::size_t size() {
    return quick([](auto& index) { return index.size(); });
  }
  std::size_t memory_bytes() {
    return quick([](auto& index) { return index.memory_bytes(); });
  }

 private:
  static constexpr std::size_t kFew = 256;

  std::mutex mutex_;
  cluster::PrefixIndex index_;
};

}  // namespace inlay::bindings

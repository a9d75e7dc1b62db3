// What is loaded for whom, from a request's arrival until it needs nothing more from a tier: what
// inlay.cache.Loader does. The rules of one request's blocks are in prefetch.h.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <unordered_set>
#include <vector>

#include "load_costs.h"
#include "page_cache.h"
#include "prefetch.h"
#include "sequence.h"

namespace inlay::sim {

class Loader {
 public:
  // `now_s` is the time, whenever something is called; a load has at most `batch` blocks.
  Loader(PageCache& cache, LoadCosts& costs, uint32_t batch, const double& now_s);

  // For the scheduler: begin() when a request is queued, admit() when it runs, then before each of
  // its steps advance() and limit(), and end() at any time, before its pages are given back.
  void begin(Sequence& sequence);
  void admit(Sequence& sequence);
  // Takes what has arrived behind what is computed; how many tokens need no computing now.
  uint32_t advance(Sequence& sequence);
  // Up to where to compute now, at most `stop`; what is computed already: it waits.
  uint32_t limit(Sequence& sequence, uint32_t stop);
  void end(Sequence& sequence);
  // Takes the pages of the last one behind this one that waits with some; false: none does.
  bool shed(const Sequence& sequence);

  // Keeps as much under way as a step may take, and something more.
  void start();
  // When a request that waits will have waited for long enough; infinite: none waits so.
  double wake_s() const { return wake_s_; }
  void woken() { wake_s_ = std::numeric_limits<double>::infinity(); }

  // Look-ups that are to be made, since the last call.
  std::vector<std::shared_ptr<Prefetch>> take_finds();
  void found(Prefetch& prefetch, uint32_t num_blocks, double seconds);
  // The load that is under way, or the next one; null: there is none.
  LoadJob* next() { return loads_.empty() ? nullptr : loads_.front().get(); }
  // That one is over; loaded() is to be told of it, before the next step.
  std::unique_ptr<LoadJob> take_next();
  void loaded(const LoadJob& load);
  // Nothing is loaded any more, nor wanted by a request.
  void stop();

  // Tokens that need no computing when their turn comes, of all requests.
  uint64_t coming_tokens() const;
  // Tokens that tiers had, but computing was quicker.
  uint64_t cut_tokens() const { return cut_tokens_; }

 private:
  struct Hash {
    std::size_t operator()(Digest name) const { return name.low * 0x9e3779b97f4a7c15 ^ name.high; }
  };

  bool left_to_compute(Prefetch& prefetch, Stretch& gate, uint32_t computed);
  bool give_up(Prefetch& prefetch, Stretch& gate, bool renew);
  double expected_s(const Prefetch& prefetch, const Stretch& gate) const;
  double recompute_s(const Stretch& stretch) const;
  uint32_t wait(uint32_t computed, double until_s);
  bool comes_anyway(const Prefetch& prefetch, const Stretch& stretch) const;
  bool find_pages(Prefetch& prefetch);
  void start_load(const std::shared_ptr<Prefetch>& prefetch, std::size_t number);
  bool cancel(Stretch& stretch);
  void drop(const LoadJob& load);
  void withdraw(Prefetch& prefetch);
  uint32_t adopt(Prefetch& prefetch);

  PageCache& cache_;
  LoadCosts& costs_;
  uint32_t batch_;
  uint32_t page_tokens_;
  const double& now_s_;
  std::vector<std::shared_ptr<Prefetch>> prefetches_;
  std::vector<std::shared_ptr<Prefetch>> finds_;
  std::vector<std::unique_ptr<LoadJob>> loads_;  // in the order in which they are done
  std::unordered_set<Digest, Hash> loading_;
  bool unsorted_ = false;
  double wake_s_ = std::numeric_limits<double>::infinity();
  uint64_t cut_tokens_ = 0;
};

}  // namespace inlay::sim

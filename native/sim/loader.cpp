#include "loader.h"

#include <algorithm>
#include <utility>

namespace inlay::sim {

namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr double kLeastFindWait_s = 0.005;
constexpr double kLeastAhead_s = 0.02;
// Between two times at which a request that waits is given pages: where they are taken from it
// again for one that finds too few all the same, both would go on so for as long as loads are
// quick.
constexpr double kLeastLoan_s = 1e-3;

}  // namespace

Loader::Loader(PageCache& cache, LoadCosts& costs, uint32_t batch, const double& now_s)
    : cache_(cache),
      costs_(costs),
      batch_(batch),
      page_tokens_(cache.page_tokens()),
      now_s_(now_s) {}

uint64_t Loader::coming_tokens() const {
  uint64_t blocks = 0;
  for (const auto& prefetch : prefetches_) blocks += prefetch->coming();
  return blocks * page_tokens_;
}

// For the scheduler.

void Loader::begin(Sequence& sequence) {
  const uint32_t reusable = sequence.num_tokens - 1;
  const uint32_t first = cache_.match(sequence.names, reusable);
  const uint32_t last = reusable / page_tokens_;
  if (first >= last) return;
  prefetches_.push_back(std::make_shared<Prefetch>(Prefetch{&sequence, first, last, now_s_}));
  sequence.prefetch = prefetches_.back().get();
  finds_.push_back(prefetches_.back());
  unsorted_ = true;
}

void Loader::admit(Sequence& sequence) {
  sequence.prefetch->admitted = true;
  unsorted_ = true;
}

// Blocks that have names now; the pages that their loads still write to stay theirs.
uint32_t Loader::adopt(Prefetch& prefetch) {
  PageHold& hold = prefetch.sequence->hold;
  const auto before = static_cast<uint32_t>(hold.named.size());
  const uint32_t named = cache_.adopt(hold, prefetch.sequence->names, prefetch.last);
  if (named == before) return named;
  for (const auto& load : loads_) {
    if (load->prefetch.get() != &prefetch) continue;
    const uint32_t start = std::max(before, load->start);
    const uint32_t stop = std::min(named, load->stop);
    if (start >= stop || prefetch.stretches[load->stretch].load != load.get()) continue;
    cache_.take(stop - start);  // that are free, as they have just been given back
    load->own_pages += stop - start;
  }
  return named;
}

uint32_t Loader::advance(Sequence& sequence) {
  Prefetch& prefetch = *sequence.prefetch;
  uint32_t computed = sequence.computed;
  for (;;) {
    computed = std::max(computed, adopt(prefetch) * page_tokens_);
    const uint32_t block = computed / page_tokens_;
    const uint32_t reached = computed % page_tokens_ != 0 ? block : prefetch.reach(block);
    if (reached == block) break;
    cache_.publish(sequence.hold, sequence.names, reached * page_tokens_, true);
    prefetch.take(block, reached);
    computed = reached * page_tokens_;
  }
  const uint32_t spared = computed - sequence.computed;
  sequence.computed = computed;
  return spared;
}

uint32_t Loader::limit(Sequence& sequence, uint32_t stop) {
  Prefetch& prefetch = *sequence.prefetch;
  const uint32_t computed = sequence.computed;
  if (prefetch.asked_s >= 0.0) {
    const double at_stake_s = costs_.prefill_s(prefetch.last * page_tokens_ - computed);
    const double patience_s = std::min(
        at_stake_s, std::max({kLeastFindWait_s, 4.0 * costs_.find_s(), at_stake_s / 20.0}));
    if (now_s_ < prefetch.asked_s + patience_s)
      return wait(computed, prefetch.asked_s + patience_s);
  }
  stop = std::min(stop, prefetch.next_arrived(computed / page_tokens_) * page_tokens_);
  for (;;) {
    Stretch* gate = prefetch.gate(computed / page_tokens_);
    if (gate == nullptr || gate->start * page_tokens_ >= stop) break;
    const uint32_t start = gate->start * page_tokens_;
    if (left_to_compute(prefetch, *gate, computed)) continue;
    if (start > computed) {
      stop = start;
      break;
    }
    const double deadline_s = gate->blocked_s + recompute_s(*gate);
    return wait(computed, now_s_ < deadline_s ? deadline_s : kForever);
  }
  prefetch.front = (stop + page_tokens_ - 1) / page_tokens_;
  return stop;
}

void Loader::end(Sequence& sequence) {
  if (sequence.prefetch == nullptr) return;
  Prefetch& prefetch = *std::exchange(sequence.prefetch, nullptr);
  if (sequence.preemptions == 0)
    for (std::size_t tier = 0; tier < kNumTiers; ++tier)
      sequence.tier_tokens[tier] += prefetch.taken[tier] * page_tokens_;
  withdraw(prefetch);
  prefetch.sequence = nullptr;
  std::erase_if(prefetches_, [&](const auto& one) { return one.get() == &prefetch; });
}

bool Loader::shed(const Sequence& sequence) {
  Prefetch* last = nullptr;
  for (const auto& one : prefetches_) {
    if (one->admitted || !one->sequence->hold.held || !sequence.before(*one->sequence)) continue;
    if (last == nullptr || last->sequence->before(*one->sequence)) last = one.get();
  }
  if (last == nullptr) return false;
  withdraw(*last);
  return true;
}

// Decisions.

// Whether computing does not wait for a stretch; if so, it is given up.
bool Loader::left_to_compute(Prefetch& prefetch, Stretch& gate, uint32_t computed) {
  const bool blocked = gate.start * page_tokens_ <= computed;
  bool quicker = expected_s(prefetch, gate) > costs_.prefill_s(gate.stop * page_tokens_ - computed);
  if (blocked) {
    if (gate.blocked_s < 0.0) gate.blocked_s = now_s_;
    quicker = quicker || now_s_ >= gate.blocked_s + recompute_s(gate);
  }
  const uint32_t blocks = gate.num_blocks();
  if (!quicker || !give_up(prefetch, gate, blocked)) return false;
  cut_tokens_ += uint64_t{blocks} * page_tokens_;
  return true;
}

// Makes sure that nothing more is written to the pages of a stretch.
bool Loader::give_up(Prefetch& prefetch, Stretch& gate, bool renew) {
  if (gate.state == Stretch::kQueued && !cancel(gate)) {
    if (!renew) return false;
    const auto named = static_cast<uint32_t>(prefetch.sequence->hold.named.size());
    const uint32_t pages = gate.stop - std::max(gate.start, named);
    if (!cache_.take(pages)) return false;
    gate.load->own_pages += pages;
  }
  gate.state = Stretch::kOver;
  gate.load = nullptr;
  return true;
}

// When it will have come: those queued before it and those behind it come first.
double Loader::expected_s(const Prefetch& prefetch, const Stretch& gate) const {
  std::size_t blocks = 0;
  for (const auto& load : loads_) {
    blocks += load->names.size();
    if (load.get() == gate.load) return costs_.load_s(static_cast<double>(blocks));
  }
  for (auto one = prefetch.stretches.rbegin(); one != prefetch.stretches.rend(); ++one) {
    if (one->state == Stretch::kOver) continue;
    if (one->start < gate.start) break;
    if (one->state == Stretch::kTodo) blocks += one->num_blocks();
  }
  return costs_.load_s(static_cast<double>(blocks));
}

double Loader::recompute_s(const Stretch& stretch) const {
  return costs_.prefill_s(stretch.num_blocks() * page_tokens_);
}

uint32_t Loader::wait(uint32_t computed, double until_s) {
  wake_s_ = std::min(wake_s_, until_s);
  return computed;
}

// Jobs.

void Loader::start() {
  if (prefetches_.empty()) return;
  if (std::exchange(unsorted_, false)) {
    std::stable_sort(prefetches_.begin(), prefetches_.end(), [](const auto& a, const auto& b) {
      if (a->admitted != b->admitted) return a->admitted;
      return a->sequence->before(*b->sequence);
    });
  }
  double ahead_s = 0.0;
  for (const auto& load : loads_) ahead_s += costs_.load_s(static_cast<double>(load->names.size()));
  const double enough_s = std::max(kLeastAhead_s, 1.5 * costs_.step_s());
  for (const auto& prefetch : prefetches_) {
    for (std::size_t i = prefetch->stretches.size(); i-- > 0;) {
      Stretch& stretch = prefetch->stretches[i];
      if (stretch.state == Stretch::kOver) continue;
      if (ahead_s > enough_s && loads_.size() > 1) return;
      if (stretch.state != Stretch::kTodo || comes_anyway(*prefetch, stretch)) continue;
      if (!prefetch->sequence->hold.held && !find_pages(*prefetch)) return;
      ahead_s += costs_.load_s(stretch.num_blocks());
      start_load(prefetch, i);
    }
  }
}

// Whether another request loads it, or it is on the device already.
bool Loader::comes_anyway(const Prefetch& prefetch, const Stretch& stretch) const {
  const Digest name = prefetch.sequence->names[stretch.stop - 1];
  return loading_.contains(name) || cache_.has(name);
}

// Pages for a request that waits, of those that running ones leave alone.
bool Loader::find_pages(Prefetch& prefetch) {
  if (prefetch.lent_s >= 0.0 && now_s_ < prefetch.lent_s + kLeastLoan_s) return false;
  Sequence& sequence = *prefetch.sequence;
  const uint32_t end = prefetch.stretches.back().stop;
  const uint32_t match = cache_.match(sequence.names, end * page_tokens_);
  uint32_t lent = 0;
  for (const auto& one : prefetches_)
    if (!one->admitted && one->sequence->hold.held) lent += one->sequence->hold.num_pages;
  const uint32_t total = cache_.num_pages();
  const uint32_t room = cache_.num_free() + cache_.num_idle();
  const uint32_t wanted = end - match;
  if (lent + wanted > total / 2 || wanted + total / 8 > room) return false;
  if (!cache_.hold(sequence.hold, sequence.names, match, end * page_tokens_)) return false;
  prefetch.lent_s = now_s_;
  return true;
}

void Loader::start_load(const std::shared_ptr<Prefetch>& prefetch, std::size_t number) {
  Stretch& stretch = prefetch->stretches[number];
  // Some of its blocks may have come from others since the tiers were asked.
  stretch.start =
      std::max(stretch.start, static_cast<uint32_t>(prefetch->sequence->hold.named.size()));
  if (stretch.start >= stretch.stop) {
    stretch.state = Stretch::kOver;
    return;
  }
  auto load = std::make_unique<LoadJob>();
  load->prefetch = prefetch;
  load->stretch = number;
  load->start = stretch.start;
  load->stop = stretch.stop;
  for (uint32_t i = stretch.start; i < stretch.stop; ++i)
    load->names.push_back(prefetch->sequence->names[i]);
  stretch.state = Stretch::kQueued;
  stretch.load = load.get();
  loading_.insert(load->names.begin(), load->names.end());
  loads_.push_back(std::move(load));
}

// Takes a queued stretch back if its load has not begun.
bool Loader::cancel(Stretch& stretch) {
  if (stretch.load->begun) return false;
  drop(*stretch.load);
  std::erase_if(loads_, [&](const auto& one) { return one.get() == stretch.load; });
  stretch.load = nullptr;
  return true;
}

// Its pages are free again.
void Loader::drop(const LoadJob& load) {
  for (const Digest name : load.names) loading_.erase(name);
  cache_.give_back(load.own_pages);
}

// Cancels loads, and of a request that waits gives the pages back. What is written to by a load
// that has begun stays with it.
void Loader::withdraw(Prefetch& prefetch) {
  PageHold& hold = prefetch.sequence->hold;
  for (Stretch& stretch : prefetch.stretches) {
    if (stretch.state == Stretch::kQueued && !cancel(stretch)) {
      const uint32_t start =
          std::max(stretch.load->start, static_cast<uint32_t>(hold.named.size()));
      if (start < stretch.load->stop) {
        const uint32_t pages = stretch.load->stop - start;
        hold.num_pages -= pages;
        stretch.load->own_pages += pages;
      }
      stretch.load = nullptr;
    }
    stretch.state = Stretch::kTodo;
  }
  if (!hold.held || prefetch.admitted) return;
  cache_.release(hold);
  prefetch.sequence->computed = 0;
  prefetch.forget_arrived();
}

std::vector<std::shared_ptr<Prefetch>> Loader::take_finds() { return std::exchange(finds_, {}); }

void Loader::found(Prefetch& prefetch, uint32_t num_blocks, double seconds) {
  if (prefetch.sequence == nullptr) return;  // it has ended meanwhile
  costs_.observe_find(seconds);
  prefetch.found(num_blocks, batch_);
}

std::unique_ptr<LoadJob> Loader::take_next() {
  std::unique_ptr<LoadJob> load = std::move(loads_.front());
  loads_.erase(loads_.begin());
  return load;
}

void Loader::stop() {
  for (const auto& load : loads_) drop(*load);
  loads_.clear();
  finds_.clear();
}

void Loader::loaded(const LoadJob& load) {
  Prefetch& prefetch = *load.prefetch;
  Stretch& stretch = prefetch.stretches[load.stretch];
  const bool current = stretch.state == Stretch::kQueued && stretch.load == &load;
  if (current) {
    stretch.state = Stretch::kOver;
    stretch.load = nullptr;
    for (uint32_t block = load.start; block < load.stop; ++block) {
      const uint8_t tier = load.tiers[block - load.start];
      if (tier == kNoTier) continue;
      prefetch.arrived[block] = tier;
      ++prefetch.num_arrived;
    }
  }
  costs_.observe_load(static_cast<uint32_t>(load.names.size()), load.seconds);
  drop(load);
  if (!current || !prefetch.over() || prefetch.admitted) return;
  // Others may use what has arrived for a request that still waits.
  Sequence& sequence = *prefetch.sequence;
  sequence.computed = static_cast<uint32_t>(sequence.hold.named.size()) * page_tokens_;
  advance(sequence);
}

}  // namespace inlay::sim

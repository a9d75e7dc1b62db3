#include "scheduler.h"

#include <algorithm>
#include <string>

#include "../core/errors.h"

namespace inlay::sim {

Scheduler::Scheduler(const SchedulerConfig& config, PageCache& cache)
    : config_(config), cache_(cache) {
  if (config.max_running == 0 || config.prefill_chunk == 0 ||
      config.max_batch_tokens < config.max_running)
    throw ArgumentError(
        "scheduler: max_running and prefill_chunk must be at least 1, and "
        "max_batch_tokens at least max_running, got " +
        std::to_string(config.max_running) + ", " + std::to_string(config.prefill_chunk) + " and " +
        std::to_string(config.max_batch_tokens));
}

void Scheduler::add(Sequence& sequence) {
  sequence.state = State::kWaiting;
  waiting_.insert(&sequence);
  const uint32_t there =
      sequence.hold.held
          ? sequence.computed
          : cache_.match(sequence.names, sequence.num_tokens - 1) * cache_.page_tokens();
  sequence.tokens_ahead = sequence.num_tokens - there;
  waiting_tokens_ += sequence.tokens_ahead;
  if (loader_ != nullptr && !sequence.hold.held) loader_->begin(sequence);
}

void Scheduler::leave_queue(Sequence& sequence) {
  waiting_.erase(&sequence);
  waiting_tokens_ -= sequence.tokens_ahead;
}

void Scheduler::remove(Sequence& sequence, bool keep_pages) {
  if (sequence.state == State::kRunning) {
    running_.erase(std::find(running_.begin(), running_.end(), &sequence));
  } else if (sequence.state == State::kWaiting) {
    leave_queue(sequence);
  }
  if (sequence.chunk != Sequence::kNoChunk) {
    // Its memory is used again, by a sequence of any instance.
    chunks_[sequence.chunk].sequence = nullptr;
    sequence.chunk = Sequence::kNoChunk;
  }
  end_prefetch(sequence);
  if (!keep_pages) cache_.release(sequence.hold);
  sequence.state = State::kFinished;
}

std::span<const Chunk> Scheduler::schedule() {
  for (const Chunk& chunk : chunks_)
    if (chunk.sequence != nullptr) chunk.sequence->chunk = Sequence::kNoChunk;
  chunks_.clear();
  num_planned_ = 0;
  uint32_t budget = config_.max_batch_tokens;
  budget = schedule_running(true, budget);
  if (!config_.decode_first || num_planned_ == 0) {
    if (num_planned_ < running_.size()) budget = schedule_running(false, budget);
    if (!waiting_.empty()) admit(budget);
  }
  if (num_planned_ < chunks_.size()) {
    std::erase_if(chunks_, [](const Chunk& chunk) { return chunk.sequence == nullptr; });
    for (std::size_t i = 0; i < chunks_.size(); ++i)
      chunks_[i].sequence->chunk = static_cast<uint32_t>(i);
  }
  return chunks_;
}

// What is left of the budget; more than there was, where chunks were taken out for earlier ones.
uint32_t Scheduler::schedule_running(bool decodes, uint32_t budget) {
  // Whoever is preempted is the last, so that those before stay where they are.
  for (std::size_t i = 0; i < running_.size() && budget != 0; ++i) {
    Sequence& sequence = *running_[i];
    if (decodes ? sequence.num_tokens - sequence.computed != 1 || sequence.prefetch != nullptr
                : sequence.chunk != Sequence::kNoChunk)
      continue;
    const uint32_t stop = next_stop(sequence, budget);
    if (stop == sequence.computed) continue;  // it waits for a load
    while (sequence.hold.held) {
      if (cache_.reserve(sequence.hold, stop)) {
        plan(sequence, stop);
        budget -= stop - sequence.computed;
        break;
      }
      if (shed(sequence)) continue;
      Sequence& victim = *running_.back();
      budget += drop_chunk(victim);
      preempt(victim);
    }
  }
  return budget;
}

uint32_t Scheduler::next_stop(Sequence& sequence, uint32_t budget) {
  const uint32_t limit = std::min(budget, config_.prefill_chunk);
  if (sequence.prefetch != nullptr) return load(sequence, limit);
  return std::min(sequence.num_tokens, sequence.computed + limit);
}

// Steps over what has been loaded, and returns up to where to compute now.
uint32_t Scheduler::load(Sequence& sequence, uint32_t limit) {
  const uint32_t spared = loader_->advance(sequence);
  // What a preemption threw away is no hit.
  if (sequence.preemptions == 0) sequence.cached_tokens += spared;
  uint32_t stop = sequence.computed + limit;
  if (sequence.prefetch->done(sequence.computed / cache_.page_tokens())) {
    end_prefetch(sequence);
  } else {
    stop = loader_->limit(sequence, stop);
  }
  return std::min(sequence.num_tokens, stop);
}

void Scheduler::end_prefetch(Sequence& sequence) {
  if (sequence.prefetch != nullptr) loader_->end(sequence);
}

void Scheduler::plan(Sequence& sequence, uint32_t stop) {
  sequence.chunk = static_cast<uint32_t>(chunks_.size());
  ++num_planned_;
  chunks_.push_back({&sequence, sequence.computed, stop});
}

// Tokens that it would have computed.
uint32_t Scheduler::drop_chunk(Sequence& sequence) {
  if (sequence.chunk == Sequence::kNoChunk) return 0;
  Chunk& chunk = chunks_[sequence.chunk];
  chunk.sequence = nullptr;
  --num_planned_;
  sequence.chunk = Sequence::kNoChunk;
  return chunk.stop - chunk.start;
}

void Scheduler::admit(uint32_t budget) {
  while (budget != 0 && !waiting_.empty()) {
    Sequence& sequence = **waiting_.begin();
    if (!make_slot(sequence) || !find_pages(sequence)) return;
    leave_queue(sequence);
    sequence.state = State::kRunning;
    sequence.begun = true;
    running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, Earlier{}),
                    &sequence);
    const uint32_t stop = next_stop(sequence, budget);
    if (stop == sequence.computed) continue;  // it waits for a load
    plan(sequence, stop);
    budget -= stop - sequence.computed;
  }
}

bool Scheduler::make_slot(const Sequence& sequence) {
  while (running_.size() >= config_.max_running)
    if (!preempt_for(sequence)) return false;
  return true;
}

bool Scheduler::find_pages(Sequence& sequence) {
  const uint32_t page_tokens = cache_.page_tokens();
  for (;;) {
    const uint32_t blocks =
        sequence.hold.held ? 0 : cache_.match(sequence.names, sequence.num_tokens - 1);
    const uint64_t there =
        uint64_t{sequence.hold.held ? sequence.hold.num_pages : blocks} * page_tokens;
    // Each that runs may soon need a page; without room for that, the newcomer would be preempted
    // at once.
    const uint64_t spare = running_.size() * page_tokens;
    const uint64_t room = uint64_t{cache_.num_free() + cache_.num_idle()} * page_tokens;
    if (running_.empty() || sequence.num_tokens + spare <= room + there) {
      if (sequence.hold.held) {
        if (cache_.reserve(sequence.hold, sequence.num_tokens)) {
          if (sequence.prefetch != nullptr) found_pages(sequence);
          return true;
        }
      } else if (cache_.hold(sequence.hold, sequence.names, blocks, sequence.num_tokens)) {
        found_pages(sequence);
        return true;
      }
    }
    if (!shed(sequence) && !preempt_for(sequence)) return false;
  }
}

// They are held; those that have names, from the cache or from a tier, are computed.
void Scheduler::found_pages(Sequence& sequence) {
  sequence.computed = static_cast<uint32_t>(sequence.hold.named.size()) * cache_.page_tokens();
  if (!sequence.begun) {
    sequence.cached_tokens = sequence.computed;
    sequence.tier_tokens = {};  // of pages that another instance filled, and others took
  }
  if (sequence.prefetch != nullptr) loader_->admit(sequence);
}

// Takes the pages of the last one behind this one that waits with some.
bool Scheduler::shed(const Sequence& sequence) {
  if (loader_ != nullptr && loader_->shed(sequence)) return true;
  for (auto last = waiting_.rbegin(); last != waiting_.rend() && sequence.before(**last); ++last) {
    if (!(*last)->hold.held) continue;
    cache_.release((*last)->hold);
    (*last)->computed = 0;
    return true;
  }
  return false;
}

bool Scheduler::preempt_for(const Sequence& sequence) {
  if (running_.empty() || running_.back()->priority <= sequence.priority) return false;
  drop_chunk(*running_.back());
  preempt(*running_.back());
  return true;
}

void Scheduler::preempt(Sequence& sequence) {
  end_prefetch(sequence);
  running_.pop_back();
  cache_.release(sequence.hold);
  sequence.computed = 0;
  ++sequence.preemptions;
  add(sequence);
}

void Scheduler::computed(const Chunk& chunk) {
  Sequence& sequence = *chunk.sequence;
  sequence.computed = chunk.stop;
  if (chunk.stop / cache_.page_tokens() > sequence.hold.named.size())
    cache_.publish(sequence.hold, sequence.names, chunk.stop);
}

}  // namespace inlay::sim

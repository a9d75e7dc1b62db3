// A request at one instance: its tokens, its pages, and where it is on its way.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "page_cache.h"
#include "prefetch.h"

namespace inlay::sim {

enum class State : uint8_t {
  kReceiving,  // another instance computes its prompt
  kWaiting,
  kRunning,
  kSending,  // computed; pages are kept until they have landed elsewhere
  kFinished
};

struct Sequence {
  static constexpr uint32_t kNoChunk = UINT32_MAX;

  // Who runs first: priority, then arrival, then order of submission.
  int32_t priority = 0;
  double arrival_s = 0.0;
  uint64_t order = 0;

  uint64_t request = 0;  // the caller's number
  uint16_t slot = 0;
  State state = State::kFinished;
  bool begun = false;     // was scheduled once
  bool answered = false;  // has put out a token at this instance
  bool sends = false;     // its prompt is computed for another one
  bool gone = false;      // was taken back, but is still in a step, or its prompt is landing
  uint32_t prompt_tokens = 0;
  uint32_t num_tokens = 0;     // prompt and output so far
  uint32_t computed = 0;       // leading tokens whose KV is in the pages
  uint32_t output_tokens = 0;  // after so many it is finished; a copy of blocks has none
  uint32_t produced = 0;       // of its output before it came here, now a part of its prompt
  uint32_t cached_tokens = 0;  // of the prompt, that were not computed
  uint32_t preemptions = 0;
  uint32_t tokens_ahead = 0;  // to be computed, as seen when it began to wait
  uint32_t chunk = kNoChunk;  // in the step that is planned
  BlockNames names;
  PageHold hold;
  uint16_t computed_at = 0;  // slot that computed, or computes, the prompt

  // Of tiers behind the device.
  Prefetch* prefetch = nullptr;                   // what is loaded for it; null: nothing is
  std::array<uint32_t, kNumTiers> tier_tokens{};  // of `cached_tokens`, those that were loaded

  // Of prompts that are computed for another instance.
  Sequence* other = nullptr;    // the one that computes this one's prompt, or decodes it
  bool aimed = false;           // the receiver has pages for it
  double since_s = 0.0;         // when it began to wait for pages, or for what is computed
  double due_s = 0.0;           // of a copy: when nobody waits for it any more
  double asked_bytes = 0.0;     // of the pages that are to be filled
  uint32_t offered = 0;         // leading tokens that were sent, or need not be
  double streamed_bytes = 0.0;  // of the step that runs
  uint32_t flow = 0;

  // What a token is timed by: see StepLog.
  double first_s = -1.0;
  double last_s = 0.0;
  uint64_t run_begin = 0;  // step of the first token of the latest run without a pause
  uint64_t last_step = 0;
  std::vector<float> gaps;  // between tokens, before that run

  bool before(const Sequence& later) const {
    if (priority != later.priority) return priority < later.priority;
    if (arrival_s != later.arrival_s) return arrival_s < later.arrival_s;
    return order < later.order;
  }
};

}  // namespace inlay::sim

// What is known of all instances, as rows of numbers over their slots: what was sent there, what
// they report, and what time has done since then. The contract is src/inlay/cluster/state.py, and
// the same in Python is src/inlay/cluster/_reference_state.py. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "timing.h"

namespace inlay::cluster {

inline constexpr std::size_t kLevels = 3;
inline constexpr std::size_t kNormal = 1;
inline constexpr double kNever_s = 1e9;
inline constexpr double kWorkMemory_s = 10.0;  // over which recent work is a decaying sum
// The mean of the worst tenth of steps, in standard deviations above the mean.
inline constexpr double kWorstTenth = 1.75;

// Rows of the numbers, in the order of inlay.cluster.columns.
enum class Column : std::size_t {
  kBase,
  kToken,
  kHalfPair,
  kRelativeStd,
  kStep,
  kNextStep,
  kRow,
  kContext,
  kChunkTime,
  kRows,
  kContextTokens,
  kRecentWork,
  kClosedPrefill,
  kClosedDecode,
  kClosedShort,
  kChunk,
  kFreeAt,  // kLevels of them
  kComingRows = kFreeAt + kLevels,
  kComingTokens,
  kMaxRows,
  kPagesFree,
  kPagesCached,
  kPagesTotal,
  kComingPages,
  kSendingBytes,
  kFind,
  kLoadBlock,
  kLinkLatency,
  kLinkBandwidth,
  kLinkStd,
  kLinkBytes,
  kLinkTime,
  kLeft,  // kLevels of them
  kForeign = kLeft + kLevels,
  kEndSum,
  kReachSum,
  kOwnRows,
  kCount,
};

// A request that was sent to instances and is not finished; see inlay.cluster.live.
struct LiveRequest {
  std::string id;
  std::size_t prefill = 0;
  std::size_t decode = 0;
  std::size_t level = kNormal;
  int64_t num_tokens = 0;
  int64_t new_tokens = 0;
  double work_s = 0.0;
  double outputs = 0.0;
  int64_t pages = 0;
  double sent_s = 0.0;
  double reach_s = 0.0;
  double end_s = 0.0;
  bool decoding = false;
  uint64_t order = 0;   // of all, in which they were sent
  uint64_t unseen = 0;  // the latest report that cannot know of it
};

// Of core.instance_messages.LoadReport.
struct LoadNumbers {
  int64_t waiting = 0;
  int64_t running = 0;
  int64_t receiving = 0;
  int64_t prefill_tokens = 0;
  int64_t context_tokens = 0;
  int64_t pages_total = 0;
  int64_t pages_free = 0;
  int64_t pages_cached = 0;
  double find_s = kNever_s;
  double load_block_s = kNever_s;
};

// Of cluster.decision.Decision and RequestView, what the state counts by.
struct Dispatch {
  std::size_t prefill = 0;
  std::size_t decode = 0;
  std::size_t level = kNormal;
  int64_t num_tokens = 0;
  int64_t max_output_tokens = 0;
  int64_t reused_blocks = 0;
  int64_t loaded_blocks = 0;
  double ttft_s = 0.0;
  double tbt_s = 0.0;
  double work_s = 0.0;
};

struct LoadAfter {
  double rows;
  double context_tokens;
};

class State {
 public:
  State(int64_t page_tokens, int64_t page_bytes);
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // The numbers lie there from now on, a row of `slots` for each column; they are the caller's.
  void bind(double* numbers, std::size_t slots);

  // Somebody is in a slot, and gone. `timing` lasts as long as it is there, and is its kind's.
  void join(std::size_t slot, Timing& timing, int64_t chunk);
  // Returns the ids of requests that were there, in the order in which they were sent.
  std::vector<std::string> leave(std::size_t slot);

  // Each throws ArgumentError where nobody is in a slot. Ids that are not known count for nothing.
  void report(std::size_t slot, const LoadNumbers& load, std::span<const StepSample> samples,
              double now_s);
  void dispatched(std::string_view id, const Dispatch& sent, double now_s);
  void prefill_done(std::string_view id, double now_s);
  // With no tokens where it was cut off and tells nothing.
  void finished(std::string_view id, const int64_t* output_tokens);
  void sending(std::size_t slot, double bytes);
  // With negative seconds where it failed.
  void sent(std::size_t slot, double bytes, double seconds);
  // Time passes: what was sent counts less and less.
  void pass(double now_s);

  LoadAfter load_after(std::size_t slot, double ahead_s, double now_s) const;
  // See inlay.cluster.slot_times.
  double tbt_at_s(std::size_t slot, double rows, double context_tokens) const;
  // In the order in which they were sent; those that decode at a slot at the lowest level.
  std::vector<const LiveRequest*> live() const;
  std::vector<const LiveRequest*> best_effort(std::size_t slot) const;

  std::size_t num_slots() const { return slots_.size(); }
  int64_t page_tokens() const { return page_tokens_; }
  int64_t page_bytes() const { return page_bytes_; }
  // Mean tokens of an output, over the latest requests.
  double outputs() const { return outputs_; }
  const double* row(Column column) const {
    return numbers_ + static_cast<std::size_t>(column) * slots_.size();
  }
  double get(Column column, std::size_t slot) const { return row(column)[slot]; }
  double free_at_s(std::size_t level, std::size_t slot) const {
    return row(Column::kFreeAt)[level * slots_.size() + slot];
  }

 private:
  using Requests = std::vector<LiveRequest*>;
  struct Slot {
    Timing* timing = nullptr;  // null: nobody is there
    int64_t chunk = 1;
    double position = 0.0;  // mean of the tokens that were sent there to compute
    double part = std::numeric_limits<double>::infinity();  // mean tokens of a prompt in a step
    Requests here;                                          // in the order in which they were sent
    Requests coming;       // of them, those whose prompt is not known to be computed
    uint64_t version = 0;  // of the coefficients that the numbers were made of
  };

  void require_row(std::size_t slot) const;
  Slot& there(std::size_t slot);
  const Slot& there(std::size_t slot) const;
  double& at(Column column, std::size_t slot) {
    return numbers_[static_cast<std::size_t>(column) * slots_.size() + slot];
  }
  double& at(Column column, std::size_t level, std::size_t slot) {
    return numbers_[(static_cast<std::size_t>(column) + level) * slots_.size() + slot];
  }
  void refresh(std::size_t slot);
  void reconcile_queue(std::size_t slot, const Slot& one, int64_t prefill_tokens, double now_s);
  void end_prefill(LiveRequest& live, const double* now_s);

  int64_t page_tokens_;
  int64_t page_bytes_;
  double* numbers_ = nullptr;
  std::vector<Slot> slots_;
  std::unordered_map<std::string, std::unique_ptr<LiveRequest>> live_;
  double outputs_;
  double num_outputs_ = 1.0;  // the guess
  double worked_s_ = 0.0;     // time to which recent work has decayed
  uint64_t sent_ = 0;
  uint64_t reports_ = 0;
};

}  // namespace inlay::cluster

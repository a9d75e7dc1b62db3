#include "choice.h"

#include <algorithm>
#include <cmath>

namespace inlay::cluster {

namespace {

constexpr double kCopySteps = 2.0;
constexpr double kRow_s = 1e-6;  // only to choose among empty queues

std::size_t lowest(const double* cost, std::size_t slots) {
  return static_cast<std::size_t>(std::min_element(cost, cost + slots) - cost);
}

// One request beside what the state knows.
class Asked {
 public:
  Asked(const State& state, const Request& request, double now_s)
      : state_(state),
        request_(request),
        now_s_(now_s),
        slots_(state.num_slots()),
        page_tokens_(static_cast<double>(state.page_tokens())),
        num_tokens_(static_cast<double>(request.num_tokens)),
        outputs_(std::min(state.outputs(), static_cast<double>(request.max_output_tokens))),
        // The last token is always computed.
        reusable_((request.num_tokens - 1) / state.page_tokens()) {
    const double* prefill = row(Column::kClosedPrefill);
    const double* decode = row(Column::kClosedDecode);
    const double* both = row(Column::kClosedShort);
    for (std::size_t s = 0; s < slots_; ++s) {
      num_open_ += both[s] == 0;
      num_prefill_ += prefill[s] == 0;
      num_splits_ += both[s] == 0 && decode[s] != 0;
    }
  }

  std::size_t slots() const { return slots_; }
  double num_tokens() const { return num_tokens_; }
  double outputs() const { return outputs_; }
  double short_of_pages() const { return num_tokens_ / page_tokens_; }
  bool any_splits() const { return num_splits_ > 0; }
  bool splits(std::size_t slot) const {
    return get(Column::kClosedShort, slot) == 0 && get(Column::kClosedDecode, slot) != 0;
  }
  const double* row(Column column) const { return state_.row(column); }
  double get(Column column, std::size_t slot) const { return state_.get(column, slot); }

  // Blocks that a slot need not compute.
  int64_t blocks(std::size_t slot) const {
    const int64_t found = slot < request_.matches.size() ? request_.matches[slot] : 0;
    return std::min(found, reusable_);
  }
  void blocks(double* out) const {
    for (std::size_t s = 0; s < slots_; ++s) out[s] = static_cast<double>(blocks(s));
  }
  // Who has most of them, the first of those that have as many.
  std::size_t source() const {
    std::size_t best = 0;
    for (std::size_t s = 1; s < slots_; ++s)
      if (blocks(s) > blocks(best)) best = s;
    return best;
  }

  void wait_s(double* out) const {
    const double* free_at_s = row(Column::kFreeAt) + request_.level * slots_;
    for (std::size_t s = 0; s < slots_; ++s) out[s] = std::max(free_at_s[s] - now_s_, 0.0);
  }

  // Predicted time to compute the prompt behind so many blocks; those that the store has more are
  // loaded if that is sooner.
  double work_s(std::size_t slot, double blocks) const {
    const double computing_s = compute_s(slot, blocks);
    if (request_.store_blocks == 0) return computing_s;
    const auto stored = static_cast<double>(std::min(request_.store_blocks, reusable_));
    const double there = std::max(blocks, stored);
    double loading_s = (there - blocks) * get(Column::kLoadBlock, slot);
    loading_s += get(Column::kFind, slot);
    loading_s += compute_s(slot, there);
    return std::min(computing_s, loading_s);
  }

  // 0 where the prompt may go, infinite elsewhere: its rest is long for instances that decode.
  double closed_s(std::size_t slot, double work_s, double late) const {
    if (num_open_ == num_prefill_) return get(Column::kClosedPrefill, slot);
    const double rest = num_tokens_ - static_cast<double>(blocks(slot)) * page_tokens_;
    // All that decode there wait for the step that computes it.
    const bool slow = std::isfinite(request_.gap_s) && work_s * late > request_.gap_s;
    const bool is_long = rest > get(Column::kChunk, slot) || slow;
    return get(is_long ? Column::kClosedPrefill : Column::kClosedShort, slot);
  }

  // Of a request that is computed elsewhere: how much later it would be finished at a slot.
  double decode_cost_s(std::size_t slot) const {
    const double rows = get(Column::kRows, slot) + get(Column::kComingRows, slot);
    const double tokens = get(Column::kContextTokens, slot) + get(Column::kComingTokens, slot);
    const double step_s = tbt_s(slot, rows + 1.0, tokens + num_tokens_);
    const double need = (num_tokens_ + outputs_) / page_tokens_ - static_cast<double>(blocks(slot));
    const double room = get(Column::kPagesFree, slot) + get(Column::kPagesCached, slot) -
                        get(Column::kComingPages, slot) - need;
    double over = std::max(rows + 1.0 - get(Column::kMaxRows, slot), 0.0);
    // A row, or the pages of one, come free when a request ends.
    over += std::max(-room, 0.0) / std::max(need, 1.0);
    return step_s * outputs_ * (1.0 + over) + get(Column::kClosedDecode, slot);
  }
  std::size_t best_decode() const {
    std::size_t best = 0;
    double least = decode_cost_s(0);
    for (std::size_t s = 1; s < slots_; ++s)
      if (const double cost = decode_cost_s(s); cost < least) {
        least = cost;
        best = s;
      }
    return best;
  }

  double send_s(std::size_t slot, double blocks) const {
    const double bytes = blocks * static_cast<double>(state_.page_bytes());
    return get(Column::kLinkLatency, slot) +
           (bytes + get(Column::kSendingBytes, slot)) / get(Column::kLinkBandwidth, slot);
  }
  // Both look at it between two steps only: the one that asks, the one that sends, and at the end
  // the first again, each half through a step on average that has parts of one or two prompts.
  double copy_s(std::size_t source, double blocks) const {
    const double step_s = get(Column::kStep, source) + get(Column::kChunkTime, source);
    return kCopySteps * step_s + send_s(source, blocks);
  }

  // What is to be expected of a prefill at `slot`. Where the request would decode elsewhere, on an
  // instance that has all of its prompt, it is not divided.
  Choice decide(std::size_t slot, WantedCopy copy, int64_t wanted_decode) const {
    Choice choice;
    choice.source = source();
    choice.held_blocks = blocks(choice.source);
    std::size_t decode = slot;
    if (splits(slot))
      decode = wanted_decode == kNowhere ? best_decode() : static_cast<std::size_t>(wanted_decode);
    if (decode != slot && blocks(decode) >= reusable_ && reusable_ > 0) {
      slot = decode;
      copy = {};
    }
    int64_t num_blocks = blocks(slot);
    double copying_s = 0.0;
    if (copy.num_blocks > 0) {
      num_blocks = copy.first_block + copy.num_blocks;
      copying_s = copy_s(copy.source, static_cast<double>(copy.num_blocks));
    }
    double work_s = compute_at_s(slot, num_blocks);
    const int64_t more = std::min(request_.store_blocks, reusable_) - num_blocks;
    if (copy.num_blocks == 0 && more > 0) {
      const double load_s =
          get(Column::kFind, slot) + static_cast<double>(more) * get(Column::kLoadBlock, slot);
      const double sooner_s = load_s + compute_at_s(slot, num_blocks + more);
      if (sooner_s < work_s) {
        work_s = sooner_s;
        num_blocks += more;
        choice.loaded_blocks = more;
      }
    }
    choice.wait_s = std::max(0.0, state_.free_at_s(request_.level, slot) - now_s_);
    // Blocks come while others are computed.
    choice.ttft_s = std::max(choice.wait_s, copying_s) + work_s;
    const double rows = get(Column::kRows, decode) + get(Column::kComingRows, decode) + 1.0;
    const double tokens =
        get(Column::kContextTokens, decode) + get(Column::kComingTokens, decode) + num_tokens_;
    choice.tbt_s = state_.tbt_at_s(decode, rows, tokens);
    if (decode != slot) {
      const double moved = num_tokens_ / page_tokens_ - static_cast<double>(blocks(decode));
      // It streams behind the computing: what is seen of it is what lasts longer, and the end.
      const double latency_s = get(Column::kLinkLatency, slot);
      choice.ttft_s += std::max(latency_s, send_s(slot, moved) - work_s) + choice.tbt_s;
    }
    choice.prefill = slot;
    choice.decode = decode;
    choice.reused_blocks = num_blocks;
    choice.copy = copy;
    choice.work_s = work_s;
    return choice;
  }

 private:
  double compute_s(std::size_t slot, double blocks) const {
    const double known = blocks * page_tokens_;
    double work_s = get(Column::kHalfPair, slot) * (known + num_tokens_);
    work_s += get(Column::kToken, slot);
    work_s *= num_tokens_ - known;
    return work_s + get(Column::kBase, slot);
  }
  double compute_at_s(std::size_t slot, int64_t blocks) const {
    const double known = static_cast<double>(blocks) * page_tokens_;
    const double rate_s =
        get(Column::kToken, slot) + get(Column::kHalfPair, slot) * (num_tokens_ + known);
    return get(Column::kBase, slot) + (num_tokens_ - known) * rate_s;
  }
  // As in inlay.cluster.slot_times.
  double tbt_s(std::size_t slot, double rows, double tokens) const {
    const double mixed = std::min(get(Column::kRecentWork, slot) * (10.0 / kWorkMemory_s), 1.0);
    double step_s = get(Column::kStep, slot) +
                    get(Column::kRow, slot) * (rows - get(Column::kRows, slot)) +
                    get(Column::kContext, slot) * (tokens - get(Column::kContextTokens, slot));
    step_s += mixed * get(Column::kChunkTime, slot);
    return step_s * (get(Column::kRelativeStd, slot) * kWorstTenth + 1.0);
  }

  const State& state_;
  const Request& request_;
  double now_s_;
  std::size_t slots_;
  double page_tokens_;
  double num_tokens_;
  double outputs_;
  int64_t reusable_;
  std::size_t num_open_ = 0;
  std::size_t num_prefill_ = 0;
  std::size_t num_splits_ = 0;
};

}  // namespace

Choice choose_lowest(const State& state, const Request& request, double now_s, Columns& columns) {
  const Asked asked(state, request, now_s);
  return asked.decide(lowest(columns.row(0), columns.slots()), {}, kNowhere);
}

Choice choose_least_loaded(const State& state, const Request& request, double now_s,
                           Columns& columns) {
  const Asked asked(state, request, now_s);
  double* cost = columns.row(0);
  double* wait_s = columns.row(1);
  asked.wait_s(wait_s);
  for (std::size_t s = 0; s < asked.slots(); ++s) {
    const double rows = asked.get(Column::kRows, s) + asked.get(Column::kComingRows, s);
    cost[s] = wait_s[s] + rows * kRow_s + asked.get(Column::kClosedPrefill, s);
  }
  return asked.decide(lowest(cost, asked.slots()), {}, kNowhere);
}

Choice choose_local_cache_aware(const State& state, const Request& request, double now_s,
                                Columns& columns) {
  const Asked asked(state, request, now_s);
  double* cost = columns.row(0);
  double* blocks = columns.row(1);
  double* wait_s = columns.row(2);
  double* work_s = columns.row(3);
  asked.blocks(blocks);
  asked.wait_s(wait_s);
  for (std::size_t s = 0; s < asked.slots(); ++s) {
    work_s[s] = asked.work_s(s, blocks[s]);
    cost[s] = wait_s[s] + work_s[s] + asked.get(Column::kClosedPrefill, s);
  }
  return asked.decide(lowest(cost, asked.slots()), {}, kNowhere);
}

Choice choose_kv_centric(const State& state, const Request& request, double now_s, bool copies,
                         double threshold, Columns& columns) {
  const Asked asked(state, request, now_s);
  double* cost = columns.row(0);
  double* blocks = columns.row(1);
  double* copied = columns.row(2);
  double* copy_s = columns.row(3);
  double* wait_s = columns.row(4);
  double* work_s = columns.row(5);
  asked.blocks(blocks);
  asked.wait_s(wait_s);
  const std::size_t source = asked.source();
  const double best = blocks[source];
  // Where nobody has any, there may be nobody at all in that slot.
  const bool given = copies && best > 0;
  const double first_s = given ? asked.copy_s(source, 0) : 0.0;
  const double block_s = given ? asked.copy_s(source, 1) - first_s : 0.0;
  for (std::size_t s = 0; s < asked.slots(); ++s) {
    copied[s] = given && best > threshold * blocks[s] ? best - blocks[s] : 0.0;
    copy_s[s] = copied[s] > 0 ? first_s + copied[s] * block_s : 0.0;
    work_s[s] = asked.work_s(s, blocks[s] + copied[s]);
    cost[s] = copy_s[s] + wait_s[s] + work_s[s] + asked.get(Column::kClosedPrefill, s);
  }
  const std::size_t slot = lowest(cost, asked.slots());
  const auto moved = static_cast<int64_t>(copied[slot]);
  return asked.decide(slot, {source, static_cast<int64_t>(best) - moved, moved}, kNowhere);
}

Choice choose_inlay(const State& state, const Request& request, double now_s,
                    const InlayWeights& weights, Columns& columns) {
  const Asked asked(state, request, now_s);
  const std::size_t slots = asked.slots();
  double* cost = columns.row(0);
  double* blocks = columns.row(1);
  double* wait_s = columns.row(2);
  double* work_s = columns.row(3);
  double* late = columns.row(4);
  double* weight = columns.row(5);
  double* prompt_s = columns.row(6);
  double* decode_s = columns.row(7);
  double* lost_s = columns.row(8);
  asked.blocks(blocks);
  const double* free_at_s = asked.row(Column::kFreeAt) + request.level * slots;
  for (std::size_t s = 0; s < slots; ++s) {
    work_s[s] = asked.work_s(s, blocks[s]);
    late[s] = asked.get(Column::kRelativeStd, s) * weights.caution + 1.0;
    // Infinite from here on where the request may not go.
    wait_s[s] = std::max(free_at_s[s] - now_s, asked.closed_s(s, work_s[s], late[s]));
  }
  // How many such prompts wait even in the shortest queue: so many more will wait for this.
  const double shortest_s = wait_s[lowest(wait_s, slots)];
  const double alone_s = work_s[asked.source()];
  double pressure = shortest_s > 0 ? weights.max_pressure : 0.0;
  if (alone_s > 0) pressure = std::min(shortest_s / alone_s, weights.max_pressure);
  const double outputs_later = asked.outputs() * weights.later;
  std::size_t decode = 0;
  double there_s = 0.0;
  if (asked.any_splits()) {
    decode = asked.best_decode();
    there_s = asked.decode_cost_s(decode) * weights.later;
  }
  const double need = asked.short_of_pages();
  std::size_t num_short = 0;
  for (std::size_t s = 0; s < slots; ++s) {
    // What each second of computing takes from the request and from others.
    weight[s] = asked.get(Column::kRows, s) * weights.later + (1.0 + pressure);
    prompt_s[s] = (weight[s] * work_s[s] + wait_s[s]) * late[s];
    decode_s[s] = asked.get(Column::kContext, s) * asked.num_tokens();
    decode_s[s] = (decode_s[s] + asked.get(Column::kNextStep, s)) * outputs_later;
    if (asked.splits(s)) decode_s[s] = there_s;
    cost[s] = prompt_s[s] + decode_s[s];
    num_short += asked.get(Column::kPagesFree, s) < need;
  }
  if (num_short > 0) {
    // The blocks that a slot has not will displace others.
    const double more = weights.eviction * weights.displaced * (1.0 + pressure);
    for (std::size_t s = 0; s < slots; ++s) {
      lost_s[s] = asked.get(Column::kPagesFree, s) < need ? work_s[s] * more : 0.0;
      cost[s] += lost_s[s];
    }
  }
  Choice choice = asked.decide(lowest(cost, slots), {},
                               asked.any_splits() ? static_cast<int64_t>(decode) : kNowhere);
  choice.num_columns = num_short > 0 ? 9 : 8;
  return choice;
}

}  // namespace inlay::cluster

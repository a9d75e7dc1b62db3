#include "state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "../core/errors.h"

namespace inlay::cluster {

namespace {

// What was sent less than that before a report came is taken not to be in it.
constexpr double kReportLag_s = 0.02;
constexpr double kOutputsGuess = 200.0;  // tokens of an output, before any was seen
constexpr double kSoon_s = 1e-3;

// Of events that lie evenly around `mean_s` from now, the share that is over by `ahead_s`.
double share_by(double ahead_s, double mean_s) {
  return std::min(std::max(ahead_s, 0.0) / (2.0 * std::max(mean_s, kSoon_s)), 1.0);
}

void drop(std::vector<LiveRequest*>& all, const LiveRequest* one) { std::erase(all, one); }

template <typename Do>
void for_each_slot(const LiveRequest& live, Do work) {
  work(live.prefill);
  if (live.decode != live.prefill) work(live.decode);
}

}  // namespace

State::State(int64_t page_tokens, int64_t page_bytes)
    : page_tokens_(page_tokens), page_bytes_(page_bytes), outputs_(kOutputsGuess) {}

void State::bind(double* numbers, std::size_t slots) {
  numbers_ = numbers;
  slots_.resize(slots);
}

State::Slot& State::there(std::size_t slot) {
  return const_cast<Slot&>(std::as_const(*this).there(slot));
}

const State::Slot& State::there(std::size_t slot) const {
  if (slot < slots_.size() && slots_[slot].timing != nullptr) return slots_[slot];
  throw ArgumentError("cluster state: nobody is in slot " +
                      std::to_string(static_cast<int64_t>(slot)));
}

// Who has left may still be heard to send.
void State::require_row(std::size_t slot) const {
  if (slot >= slots_.size())
    throw ArgumentError("cluster state: there are " + std::to_string(slots_.size()) +
                        " slots, got " + std::to_string(slot));
}

void State::join(std::size_t slot, Timing& timing, int64_t chunk) {
  require_row(slot);
  slots_[slot] = {};
  slots_[slot].timing = &timing;
  slots_[slot].chunk = chunk;
  refresh(slot);
}

std::vector<std::string> State::leave(std::size_t slot) {
  there(slot);
  std::vector<std::string> lost;
  for (const LiveRequest* one : live())
    if (one->prefill == slot || one->decode == slot) lost.push_back(one->id);
  for (const std::string& id : lost) finished(id, nullptr);
  slots_[slot] = {};
  return lost;
}

void State::report(std::size_t slot, const LoadNumbers& load, std::span<const StepSample> samples,
                   double now_s) {
  Slot& one = there(slot);
  pass(now_s);  // here, too: what is said of a busy past must not keep requests away
  if (!samples.empty()) one.timing->observe(samples);
  at(Column::kPagesFree, slot) = static_cast<double>(load.pages_free);
  at(Column::kPagesCached, slot) = static_cast<double>(load.pages_cached);
  at(Column::kPagesTotal, slot) = static_cast<double>(load.pages_total);
  at(Column::kFind, slot) = load.find_s;
  at(Column::kLoadBlock, slot) = load.load_block_s;
  const int64_t rows = samples.empty() ? load.running : samples.back().decodes;
  at(Column::kRows, slot) = load.context_tokens ? static_cast<double>(rows) : 0.0;
  at(Column::kContextTokens, slot) = static_cast<double>(load.context_tokens);
  refresh(slot);
  ++reports_;
  // Requests that the report cannot know of, the newest ones: those just sent, and as many as the
  // instance counts fewer than were sent. The first rule holds with several dispatchers, the second
  // where the instance was busy for long.
  const int64_t missing =
      static_cast<int64_t>(one.here.size()) - (load.waiting + load.running + load.receiving);
  int64_t unseen = 0;
  for (auto live = one.here.rbegin(); live != one.here.rend(); ++live, ++unseen) {
    if (unseen >= missing && (*live)->sent_s < now_s - kReportLag_s) break;
    (*live)->unseen = reports_;
  }
  reconcile_queue(slot, one, load.prefill_tokens, now_s);
  int64_t pages = 0;
  for (const LiveRequest* live : one.coming)
    if (live->decode == slot && (live->prefill == slot || live->unseen == reports_))
      pages += live->pages;
  at(Column::kComingPages, slot) = static_cast<double>(pages);
}

// Sets the queue to what an instance says it has to compute, and what it does not know of. What it
// says is divided by level as own requests are; what is more than these is normal.
void State::reconcile_queue(std::size_t slot, const Slot& one, int64_t prefill_tokens,
                            double now_s) {
  double tokens[kLevels] = {};
  double unseen_s[kLevels] = {};
  double own = 0.0;
  for (const LiveRequest* live : one.coming) {
    if (live->prefill != slot) continue;
    if (live->unseen == reports_) {
      unseen_s[live->level] += live->work_s;
    } else {
      tokens[live->level] += static_cast<double>(live->new_tokens);
      own += static_cast<double>(live->new_tokens);
    }
  }
  const auto said = static_cast<double>(prefill_tokens);
  const double share = own != 0.0 ? std::min(1.0, said / own) : 0.0;
  const double foreign = std::max(0.0, said - own);
  const double rate_s = at(Column::kToken, slot) + at(Column::kHalfPair, slot) * 2 * one.position;
  double sum_s = 0.0;
  double foreign_s = 0.0;
  for (std::size_t level = 0; level < kLevels; ++level) {
    if (level == kNormal) {
      foreign_s = foreign * rate_s;
      sum_s += foreign_s;
    }
    sum_s += tokens[level] * share * rate_s + unseen_s[level];
    at(Column::kFreeAt, level, slot) = now_s + sum_s;
  }
  at(Column::kForeign, slot) = foreign_s;
}

void State::dispatched(std::string_view id, const Dispatch& sent, double now_s) {
  Slot& one = there(sent.prefill);
  there(sent.decode);
  finished(id, nullptr);
  const auto page_tokens = static_cast<double>(page_tokens_);
  const double outputs = std::min(outputs_, static_cast<double>(sent.max_output_tokens));
  const auto blocks = static_cast<int64_t>(
      std::ceil((static_cast<double>(sent.num_tokens) + outputs) / page_tokens));
  auto made = std::make_unique<LiveRequest>();
  LiveRequest& live = *made;
  live.id = id;
  live.prefill = sent.prefill;
  live.decode = sent.decode;
  live.level = sent.level;
  live.num_tokens = sent.num_tokens;
  live.new_tokens = sent.num_tokens - sent.reused_blocks * page_tokens_;
  live.work_s = sent.work_s;
  live.outputs = outputs;
  live.pages = blocks - (sent.prefill != sent.decode ? 0 : sent.reused_blocks - sent.loaded_blocks);
  live.sent_s = now_s;
  live.reach_s = now_s + sent.ttft_s;
  live.end_s = now_s + sent.ttft_s + outputs * sent.tbt_s;
  live.order = ++sent_;
  live_.emplace(live.id, std::move(made));
  for_each_slot(live, [&](std::size_t slot) {
    slots_[slot].here.push_back(&live);
    slots_[slot].coming.push_back(&live);
  });
  const auto num_tokens = static_cast<double>(live.num_tokens);
  const auto new_tokens = static_cast<double>(live.new_tokens);
  one.position += 0.1 * (num_tokens - new_tokens / 2 - one.position);
  const double part = std::min(new_tokens, static_cast<double>(one.chunk));
  one.part = std::isinf(one.part) ? part : one.part + 0.1 * (part - one.part);
  for (std::size_t behind = live.level; behind < kLevels; ++behind) {
    double& free_at_s = at(Column::kFreeAt, behind, live.prefill);
    free_at_s = std::max(free_at_s, now_s) + live.work_s;
    at(Column::kLeft, behind, live.prefill) += live.work_s;
  }
  pass(now_s);
  at(Column::kRecentWork, live.prefill) += live.work_s;
  at(Column::kComingRows, live.decode) += 1;
  at(Column::kComingTokens, live.decode) += num_tokens;
  at(Column::kComingPages, live.decode) += static_cast<double>(live.pages);
  at(Column::kReachSum, live.decode) += live.reach_s;
}

void State::prefill_done(std::string_view id, double now_s) {
  const auto found = live_.find(std::string(id));
  if (found == live_.end() || found->second->decoding) return;
  LiveRequest& live = *found->second;
  end_prefill(live, &now_s);
  const std::size_t slot = live.decode;
  live.decoding = true;
  live.end_s += now_s - live.reach_s;
  at(Column::kRows, slot) += 1;
  at(Column::kOwnRows, slot) += 1;
  at(Column::kContextTokens, slot) += static_cast<double>(live.num_tokens);
  at(Column::kEndSum, slot) += live.end_s;
  refresh(slot);
}

void State::finished(std::string_view id, const int64_t* output_tokens) {
  const auto found = live_.find(std::string(id));
  if (found == live_.end()) return;
  const std::unique_ptr<LiveRequest> live = std::move(found->second);
  live_.erase(found);
  if (output_tokens != nullptr) {
    num_outputs_ += 1;
    outputs_ += (static_cast<double>(*output_tokens) - outputs_) * std::max(0.02, 1 / num_outputs_);
  }
  for_each_slot(*live, [&](std::size_t slot) { drop(slots_[slot].here, live.get()); });
  if (!live->decoding) {
    end_prefill(*live, nullptr);
    return;
  }
  const std::size_t slot = live->decode;
  double& rows = at(Column::kRows, slot);
  double& tokens = at(Column::kContextTokens, slot);
  rows = std::max(0.0, rows - 1);
  tokens = std::max(0.0, tokens - static_cast<double>(live->num_tokens));
  at(Column::kOwnRows, slot) -= 1;
  at(Column::kEndSum, slot) -= live->end_s;
  refresh(slot);
}

// A request's prompt is computed; without a time, it is not wanted any more.
void State::end_prefill(LiveRequest& live, const double* now_s) {
  const std::size_t slot = live.prefill;
  const std::size_t decode = live.decode;
  for_each_slot(live, [&](std::size_t where) { drop(slots_[where].coming, &live); });
  if (slot != decode) drop(slots_[slot].here, &live);
  const double foreign_s = at(Column::kForeign, slot);
  for (std::size_t level = 0; level < kLevels; ++level) {
    const double own_s = level >= live.level ? live.work_s : 0.0;
    double& left_s = at(Column::kLeft, level, slot);
    left_s = std::max(0.0, left_s - own_s);
    double& free_at_s = at(Column::kFreeAt, level, slot);
    if (now_s == nullptr) {
      free_at_s -= own_s;
    } else {
      // What the queue was late or early by is settled with the request that left it.
      free_at_s = *now_s + left_s + (level >= kNormal ? foreign_s : 0.0);
    }
  }
  double& rows = at(Column::kComingRows, decode);
  double& pages = at(Column::kComingPages, decode);
  rows = std::max(0.0, rows - 1);
  at(Column::kComingTokens, decode) -= static_cast<double>(live.num_tokens);
  pages = std::max(0.0, pages - static_cast<double>(live.pages));
  at(Column::kReachSum, decode) -= live.reach_s;
}

void State::sending(std::size_t slot, double bytes) {
  require_row(slot);
  at(Column::kSendingBytes, slot) += bytes;
}

// As TransferModel.observe: what the sender has still to send goes first.
void State::sent(std::size_t slot, double bytes, double seconds) {
  require_row(slot);
  double& ahead = at(Column::kSendingBytes, slot);
  ahead = std::max(0.0, ahead - bytes);
  if (seconds < 0) return;
  there(slot);
  if (seconds == 0 || bytes <= 0) return;
  double& latency_s = at(Column::kLinkLatency, slot);
  double& bandwidth = at(Column::kLinkBandwidth, slot);
  double& relative_std = at(Column::kLinkStd, slot);
  const double moving_s = seconds - latency_s;
  if (moving_s < latency_s) {
    // Too short to say something of bandwidth; it bounds the latency.
    latency_s = 0.9 * latency_s + 0.1 * std::min(seconds, latency_s);
    return;
  }
  const double expected_s = latency_s + (bytes + ahead) / bandwidth;
  const double error = std::min(std::abs(seconds / expected_s - 1.0), 1.0);
  relative_std = std::sqrt(0.9 * (relative_std * relative_std) + 0.1 * (error * error));
  double& sum_bytes = at(Column::kLinkBytes, slot);
  double& sum_s = at(Column::kLinkTime, slot);
  sum_bytes = 0.9 * sum_bytes + bytes + ahead;
  sum_s = 0.9 * sum_s + moving_s;
  bandwidth = sum_bytes / sum_s;
}

void State::pass(double now_s) {
  const double keep = std::exp(std::min(0.0, worked_s_ - now_s) / kWorkMemory_s);
  double* work_s = &at(Column::kRecentWork, 0);
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) work_s[slot] *= keep;
  worked_s_ = std::max(worked_s_, now_s);
}

// Those that come begin, and those that decode end, evenly around the mean of their expected times:
// that takes sums by slot, and no look at each request.
LoadAfter State::load_after(std::size_t slot, double ahead_s, double now_s) const {
  there(slot);
  double gone = 0.0;
  double begun = 0.0;
  if (const double own = get(Column::kOwnRows, slot); own != 0.0) {
    // Where they run longer than expected, what is left is no shorter for it.
    const double least_s = outputs_ * get(Column::kStep, slot) / 2;
    gone = share_by(ahead_s, std::max(get(Column::kEndSum, slot) / own - now_s, least_s));
  }
  const double coming = get(Column::kComingRows, slot);
  if (coming != 0.0) begun = share_by(ahead_s, get(Column::kReachSum, slot) / coming - now_s);
  return {
      get(Column::kRows, slot) * (1.0 - gone) + coming * begun,
      get(Column::kContextTokens, slot) * (1.0 - gone) + get(Column::kComingTokens, slot) * begun};
}

double State::tbt_at_s(std::size_t slot, double rows, double context_tokens) const {
  const double mixed = std::min(get(Column::kRecentWork, slot) * (10.0 / kWorkMemory_s), 1.0);
  double step_s = get(Column::kStep, slot) + mixed * get(Column::kChunkTime, slot);
  step_s += get(Column::kRow, slot) * (rows - get(Column::kRows, slot));
  step_s += get(Column::kContext, slot) * (context_tokens - get(Column::kContextTokens, slot));
  return step_s * (1.0 + kWorstTenth * get(Column::kRelativeStd, slot));
}

std::vector<const LiveRequest*> State::live() const {
  std::vector<const LiveRequest*> all;
  for (const auto& entry : live_) all.push_back(entry.second.get());
  std::sort(all.begin(), all.end(),
            [](const LiveRequest* a, const LiveRequest* b) { return a->order < b->order; });
  return all;
}

std::vector<const LiveRequest*> State::best_effort(std::size_t slot) const {
  std::vector<const LiveRequest*> all;
  for (const LiveRequest* one : there(slot).here)
    if (one->decoding && one->level == kLevels - 1) all.push_back(one);
  return all;
}

// Brings the times of steps up to what decodes there now.
void State::refresh(std::size_t slot) {
  Slot& one = slots_[slot];
  const auto [c0, c1, c2, d0, d1, d2] = one.timing->coefficients();
  if (one.version != one.timing->version()) {  // they changed, or this is the first time
    one.version = one.timing->version();
    at(Column::kHalfPair, slot) = c2 / 2;
    at(Column::kRelativeStd, slot) = one.timing->relative_std();
    at(Column::kRow, slot) = d1;
    at(Column::kContext, slot) = d2;
  }
  const double decoding_s = d1 * at(Column::kRows, slot) + d2 * at(Column::kContextTokens, slot);
  const double base_s = c0 + decoding_s;
  const auto chunk = static_cast<double>(one.chunk);
  at(Column::kBase, slot) = base_s;
  at(Column::kToken, slot) = c1 + base_s / chunk;
  at(Column::kStep, slot) = d0 + decoding_s;
  at(Column::kNextStep, slot) = d0 + decoding_s + d1;
  at(Column::kChunkTime, slot) = std::max(0.0, c0 - d0) + c1 * std::min(one.part, chunk);
}

}  // namespace inlay::cluster

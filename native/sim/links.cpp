#include "links.h"

#include <algorithm>
#include <utility>

namespace inlay::sim {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kWidest = 1e15;   // bytes per second: shares of an infinite rate are no numbers
constexpr double kNothing = 1e-6;  // bytes: what rounding leaves of a backlog

}  // namespace

uint16_t Links::add_end(double out_bytes_per_s, double in_bytes_per_s) {
  ends_.push_back({std::min(out_bytes_per_s, kWidest)});
  ends_.push_back({std::min(in_bytes_per_s, kWidest)});
  return static_cast<uint16_t>(ends_.size() / 2 - 1);
}

Links::Flow Links::open(uint16_t source, uint16_t target) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<Flow>(flows_.size()));
    flows_.emplace_back();
  }
  const Flow flow = unused_.back();
  unused_.pop_back();
  flows_[flow] = {};
  flows_[flow].out = 2 * uint32_t{source};
  flows_[flow].in = 2 * uint32_t{target} + 1;
  flows_[flow].open = true;
  open_.push_back(flow);
  return flow;
}

void Links::put(Flow flow, double bytes) {
  flows_[flow].backlog += bytes;
  changed_ = true;
}

void Links::produce(Flow flow, double bytes_per_s) {
  flows_[flow].produced = bytes_per_s;
  changed_ = true;
}

void Links::close(Flow flow) {
  flows_[flow].open = false;
  std::erase(open_, flow);
  unused_.push_back(flow);
  changed_ = true;
}

double Links::next_s() {
  if (changed_) solve();
  return drained_.empty() ? next_s_ : now_s_;
}

std::vector<Links::Flow> Links::take_drained() { return std::exchange(drained_, {}); }

void Links::advance(double now_s) {
  if (changed_) solve();
  const double seconds = now_s - now_s_;
  now_s_ = now_s;
  for (const Flow number : open_) {
    State& flow = flows_[number];
    const double bytes = flow.rate * seconds;
    ends_[flow.out].moved_bytes += bytes;
    const bool waited = flow.backlog > 0.0;
    if (!waited && flow.rate >= flow.produced) continue;  // goes as it is produced
    flow.backlog += flow.produced * seconds - bytes;
    // The clock has steps of its own: what moves in one of them is nothing, too.
    if (!waited || flow.backlog > kNothing + flow.rate * now_s * 1e-15) continue;
    flow.backlog = 0.0;
    drained_.push_back(number);
    changed_ = true;
  }
}

// Progressive filling: the end with the least for each of its flows fixes their rates, then the
// next one; a flow that wants less than that is fixed first. Source: Bertsekas, Gallager, Data
// Networks (1992), section 6.5.2.
void Links::solve() {
  changed_ = false;
  for (End& end : ends_) {
    end.left = end.bytes_per_s;
    end.flows = 0;
  }
  std::size_t left = 0;
  for (const Flow number : open_) {
    State& flow = flows_[number];
    flow.rate = 0.0;
    flow.fixed = flow.backlog <= 0.0 && flow.produced <= 0.0;
    if (flow.fixed) continue;
    ++left;
    ++ends_[flow.out].flows;
    ++ends_[flow.in].flows;
  }
  const auto wanted = [](const State& flow) { return flow.backlog > 0.0 ? kNever : flow.produced; };
  while (left != 0) {
    double least = kNever;
    for (const Flow number : open_) {
      const State& flow = flows_[number];
      if (flow.fixed) continue;
      least = std::min({least, wanted(flow), ends_[flow.out].left / ends_[flow.out].flows,
                        ends_[flow.in].left / ends_[flow.in].flows});
    }
    least = std::max(least, 0.0);
    for (const Flow number : open_) {
      State& flow = flows_[number];
      if (flow.fixed) continue;
      const double share = std::min({wanted(flow), ends_[flow.out].left / ends_[flow.out].flows,
                                     ends_[flow.in].left / ends_[flow.in].flows});
      if (share > least * (1.0 + 1e-12)) continue;
      flow.fixed = true;
      flow.rate = least;
      --left;
      for (End* end : {&ends_[flow.out], &ends_[flow.in]}) {
        end->left -= least;
        --end->flows;
      }
    }
  }
  next_s_ = kNever;
  for (const Flow number : open_) {
    const State& flow = flows_[number];
    if (flow.backlog > 0.0 && flow.rate > flow.produced)
      next_s_ = std::min(next_s_, now_s_ + flow.backlog / (flow.rate - flow.produced));
  }
}

}  // namespace inlay::sim

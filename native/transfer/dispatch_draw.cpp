// Which part is next, and which path takes its next slice.
#include <algorithm>
#include <array>
#include <limits>

#include "dispatch.h"

namespace inlay::transfer {

namespace {

// Larger submissions leave the paths of small ones alone.
constexpr uint64_t kSmallBytes = uint64_t{64} << 10;
// A part gives way to others after this much.
constexpr uint64_t kTurnBytes = uint64_t{1} << 20;
constexpr int kMaxLooked = 32;  // parts that are looked at for one that has a path with room
constexpr std::size_t kMaxPaths = 64;

}  // namespace

bool Dispatch::Earlier::operator()(const Part* a, const Part* b) const {
  if (a->turn != b->turn) return a->turn < b->turn;
  if (a->batch->deadline_ != b->batch->deadline_) return a->batch->deadline_ < b->batch->deadline_;
  return a->batch->id_ < b->batch->id_;
}

void Dispatch::enqueue(Part& part) {
  if (part.queued) return;
  part.turn = std::max(part.turn, turn_);
  queue_.insert(&part);
  part.queued = true;
}

void Dispatch::dequeue(Part& part) {
  if (!part.queued) return;
  queue_.erase(&part);
  part.queued = false;
}

Dispatch::Sent* Dispatch::draw() {
  if (failed_ != Status::kOk) return nullptr;
  int looked = 0;
  for (auto at = queue_.begin(); at != queue_.end() && looked < kMaxLooked; ++looked) {
    Part& part = **at++;
    if (Sent* sent = draw_from(part)) return sent;
  }
  return nullptr;
}

Dispatch::Sent* Dispatch::draw_from(Part& part) {
  Batch& batch = *part.batch;
  while (!part.again.empty() || part.has_next()) {
    const bool tried = !part.again.empty();
    const uint32_t index = tried ? part.again.back().request : part.requests[part.request];
    const Request& request = batch.requests_[index];
    bool unreachable = false;
    const Clock::time_point now = Clock::now();
    const uint64_t left = tried ? part.again.back().slice.bytes : part.left;
    const Way way = choose(part, request, std::max<uint64_t>(left, 1), time_of(now), unreachable);
    if (unreachable) {
      fail_request(part, index, Status::kTransportUnavailable);
      continue;
    }
    if (way.entry == nullptr) return nullptr;
    Entry& entry = *way.entry;
    if (free_.empty()) free_.push_back(&sent_.emplace_back());
    Sent& sent = *free_.back();
    free_.pop_back();
    if (tried) {
      Retry& retry = part.again.back();
      sent.slice = cut(retry.slice, way.bytes);
      sent.slice_id = retry.slice_id;
      sent.number = retry.number;
      sent.damaged = retry.damaged;
      if (retry.slice.bytes == 0)
        part.again.pop_back();
      else
        retry.slice_id = part.next_slice++;  // the rest is a slice of its own
    } else {
      sent.slice = cut(part, request, way.bytes);
      sent.slice_id = part.next_slice++;
      sent.number = 0;
      sent.damaged = 0;
      part.left -= sent.slice.bytes;
    }
    sent.owner = &batch;
    sent.transfer = batch.id_;
    sent.submission_bytes = part.bytes;
    sent.sent = now;
    sent.sum.reset();
    sent.mark = Mark::kPosted;
    sent.posting = true;
    sent.over = false;
    sent.request = index;
    sent.part = &part;
    sent.entry = &entry;
    sent.ticket = entry.estimate->posted(sent.slice.bytes, time_of(now));
    ++entry.posting;
    if (entry.posted++ == 0) ++version_;
    ++part.outstanding;
    turn_ = part.turn;
    part.turn_bytes += sent.slice.bytes;
    if (part.again.empty() && !part.has_next()) {
      dequeue(part);
    } else if (part.turn_bytes >= kTurnBytes) {
      part.turn_bytes = 0;
      auto node = queue_.extract(&part);
      ++part.turn;
      queue_.insert(std::move(node));
    }
    return &sent;
  }
  dequeue(part);
  finish_if_over(part);
  return nullptr;
}

// The path on which the next slice is expected to be complete first. Of several transports those
// that are expected to be the fastest for this pair of memories; the others when all of those rest.
// Small submissions keep to paths of their own where there are some.
Dispatch::Way Dispatch::choose(const Part& part, const Request& request, uint64_t left, TimeNs now,
                               bool& unreachable) {
  std::array<Entry*, kMaxPaths> reaching;
  std::array<PathView, kMaxPaths> views;
  std::size_t count = 0;
  std::size_t living = 0;
  std::size_t resting = 0;
  std::string_view transport;
  double best_s = std::numeric_limits<double>::infinity();
  for (const auto& entry : entries_) {
    if (entry->lost) continue;
    living += entry->path->passes_on() ? 0 : 1;
    if (request.verify && !entry->path->verifies()) continue;
    const auto reach = entry->path->reach(*request.local, *request.remote, request.op);
    if (!reach) continue;
    if (entry->record->held || now < time_of(entry->rests_until)) {
      ++resting;
      continue;
    }
    reaching[count] = entry.get();
    if (!entry->estimate) entry->estimate.emplace(reach->bandwidth, reach->base_s, now);
    views[count++] = {&*entry->estimate, entry->estimate->bandwidth() / reach->bandwidth};
    const double score_s = seconds_to_compare(*reach);
    if (score_s < best_s) {
      best_s = score_s;
      transport = entry->path->transport();
    }
    if (count == kMaxPaths) break;
  }
  unreachable = count + resting == 0 && living > 0 && now >= time_of(ending_until_);
  const Traffic wanted = part.bytes <= kSmallBytes ? Traffic::kSmall : Traffic::kBulk;
  bool some_fit = false;
  const auto fits = [&](const Entry& entry) {
    const Traffic traffic = entry.path->traffic();
    return traffic == Traffic::kAny || traffic == wanted;
  };
  for (std::size_t i = 0; i < count; ++i) {
    views[i].open = reaching[i]->path->transport() == transport;
    some_fit |= views[i].open && fits(*reaching[i]);
  }
  for (std::size_t i = 0; i < count; ++i) views[i].open &= !some_fit || fits(*reaching[i]);
  const Choice choice = transfer::choose(std::span(views).first(count), left, now);
  if (!choice) return {nullptr, 0};
  return {reaching[static_cast<std::size_t>(choice.path)], choice.bytes};
}

Slice Dispatch::cut(Part& part, const Request& request, uint64_t most) {
  Slice slice{&request, part.range, 0, part.skip, 0};
  while (part.range < request.ranges.size() && slice.num_ranges < net::kMaxRanges &&
         slice.bytes < most) {
    const uint64_t length = request.ranges[part.range].length;
    const uint64_t step = std::min(length - part.skip, most - slice.bytes);
    slice.bytes += step;
    part.skip += step;
    ++slice.num_ranges;
    if (part.skip == length) {
      ++part.range;
      part.skip = 0;
    }
  }
  return slice;
}

// Takes the first `most` bytes out of a slice.
Slice Dispatch::cut(Slice& from, uint64_t most) {
  Slice slice{from.request, from.first, 0, from.skip, 0};
  while (from.bytes > 0 && slice.bytes < most) {
    const uint64_t length = from.request->ranges[from.first].length;
    const uint64_t step = std::min({length - from.skip, most - slice.bytes, from.bytes});
    slice.bytes += step;
    ++slice.num_ranges;
    from.bytes -= step;
    from.skip += step;
    if (from.skip < length) continue;
    ++from.first;
    --from.num_ranges;
    from.skip = 0;
  }
  return slice;
}

}  // namespace inlay::transfer

#include "lane.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "peer.h"

namespace inlay::transfer {

using net::Io;
using net::Kind;

namespace {

// Over loopback 1 MiB and 4 MiB slices are equally fast, 256 KiB lose a tenth.
constexpr uint64_t kSliceBytes = uint64_t{1} << 20;
// What may be unanswered: enough to keep a 10 Gbit/s link with 10 ms of round trip full.
constexpr uint64_t kWindowBytes = uint64_t{16} << 20;
constexpr std::size_t kWindowSlices = 64;
// Frames wait with their batch, not in the lane: what is not begun can be dropped.
constexpr uint64_t kMaxUnsent = kSliceBytes;

}  // namespace

Lane::Lane(net::Loop& loop, net::Descriptor socket, std::weak_ptr<Peer> peer)
    : loop_(loop), socket_(std::move(socket)), peer_(std::move(peer)) {}

void Lane::start() {
  const std::lock_guard lock(mutex_);
  events_ = EPOLLIN;
  loop_id_ = loop_.add(socket_, events_, shared_from_this());
}

void Lane::watch() {
  if (lost_) return;
  const uint32_t events =
      driver_ != nullptr ? 0U : uint32_t{EPOLLIN} | (outbox_.empty() ? 0U : uint32_t{EPOLLOUT});
  if (events == events_) return;
  events_ = events;
  loop_.change(loop_id_, socket_, events);
}

void Lane::add(Part& part) {
  bool broken = false;
  {
    ++wanted_;
    const std::lock_guard lock(mutex_);
    --wanted_;
    part.added = true;
    parts_.push_back(&part);
    held_.push_back(part.batch->shared_from_this());
    if (lost_) {
      fail_part(part, lost_why_);
      return;
    }
    if (part.stopped)  // before it came here
      finish_if_over(part);
    else
      ready_.push_back(&part);
    post();
    if (!outbox_.empty()) broken = outbox_.flush(socket_.get()) == Io::kClosed;
    if (driver_ != nullptr && !outbox_.empty()) driver_->signal();
    watch();
  }
  if (!broken) return;
  if (const auto peer = peer_.lock()) peer->lose(Status::kPeerDied, true);
}

void Lane::post() {
  while (!ready_.empty() && sent_.size() < kWindowSlices && in_flight_bytes_ < kWindowBytes &&
         outbox_.bytes() < kMaxUnsent) {
    Part& part = *ready_.front();
    ready_.pop_front();
    if (part.lookup)
      post_lookup(part);
    else if (part.has_next() && post_next(part))
      ready_.push_back(&part);
    finish_if_over(part);
  }
}

// Posts one slice; true when the part has more.
bool Lane::post_next(Part& part) {
  const uint32_t index = part.requests[part.request];
  Request& request = part.batch->requests_[index];
  std::vector<net::WireRange> ranges;
  net::Pieces local;
  while (part.range < request.ranges.size() && ranges.size() < net::kMaxRanges &&
         local.bytes() < kSliceBytes) {
    const Range& range = request.ranges[part.range];
    const uint64_t step = std::min(range.length - part.skip, kSliceBytes - local.bytes());
    ranges.push_back({range.remote + part.skip, step});
    local.add(request.local->base + range.local + part.skip, step);
    part.skip += step;
    if (part.skip == range.length) {
      ++part.range;
      part.skip = 0;
    }
  }
  const bool is_read = request.op == Op::kRead;
  net::Frame frame;
  frame.kind = is_read ? Kind::kRead : Kind::kWrite;
  frame.bytes = local.bytes();
  frame.slot = request.remote->descriptor.slot;
  frame.epoch = request.remote->descriptor.epoch;
  Slice slice{0, nullptr, &part, index, is_read, false, false, frame.bytes, {}};
  net::Pieces payload;
  (is_read ? slice.landing : payload) = std::move(local);
  push(frame, std::move(slice), ranges, std::move(payload));
  return part.has_next();
}

void Lane::post_lookup(Part& part) {
  part.asked = true;
  std::string& name = part.lookup->name;
  net::Frame frame;
  frame.kind = Kind::kLookup;
  frame.bytes = name.size();
  net::Pieces payload;
  payload.add(reinterpret_cast<std::byte*>(name.data()), name.size());
  push(frame, {0, nullptr, &part, 0, true, true, false, name.size(), {}}, {}, std::move(payload));
}

void Lane::push(net::Frame frame, Slice slice, std::span<const net::WireRange> ranges,
                net::Pieces payload) {
  slice.serial = ++last_serial_;
  slice.batch = slice.part->batch->shared_from_this();
  frame.transfer = slice.batch->id_;
  frame.slice = static_cast<uint32_t>(slice.serial);
  ++slice.part->outstanding;
  in_flight_bytes_ += slice.bytes;
  outbox_.push({slice.serial, net::encode(frame, ranges), std::move(payload), slice.batch});
  sent_.push_back(std::move(slice));
}

const char* Lane::on_frame(const net::Frame& frame, std::span<const net::WireRange>,
                           net::Pieces& landing) {
  if (sent_.empty()) return "an answer to no request";
  Slice& slice = sent_.front();
  const Kind expected = slice.is_lookup ? Kind::kSegment
                        : slice.is_read ? Kind::kData
                                        : Kind::kDone;
  if (frame.kind != expected || frame.transfer != slice.batch->id_ ||
      frame.slice != static_cast<uint32_t>(slice.serial))
    return "an answer to another request";
  answer_ = frame.status;
  if (frame.kind == Kind::kData && answer_ == Status::kOk && frame.bytes != slice.bytes)
    return "an answer of another size";
  if (slice.part == nullptr || frame.bytes == 0) return nullptr;
  if (slice.is_lookup) {
    std::vector<std::byte>& answer = slice.part->lookup->answer;
    answer.resize(frame.bytes);
    landing.add(answer.data(), answer.size());
  } else {
    landing = std::move(slice.landing);
  }
  return nullptr;
}

const char* Lane::on_payload_end() {
  Slice slice = std::move(sent_.front());
  sent_.pop_front();
  in_flight_bytes_ -= slice.bytes;
  settle(slice, answer_);
  return nullptr;
}

void Lane::settle(Slice& slice, Status status) {
  if (slice.given_up) --slice.batch->unsettled_;
  if (slice.part == nullptr) return;
  Part& part = *slice.part;
  --part.outstanding;
  if (slice.is_lookup) {
    part.lookup->status = status;
  } else {
    Batch::Progress& progress = slice.batch->progress_[slice.request];
    if (status == Status::kOk)
      progress.bytes_done += slice.bytes;
    else if (progress.error == Status::kOk)
      progress.error = status;
    if (status == Status::kSegmentClosed)
      slice.batch->requests_[slice.request].remote->closed = true;
  }
  finish_if_over(part);
}

void Lane::finish_if_over(Part& part) {
  if (part.finished || part.outstanding > 0) return;
  if (!part.stopped && (part.lookup ? !part.asked : part.has_next())) return;
  part.finished = true;
  std::erase(ready_, &part);
  const auto found = std::ranges::find(parts_, &part);
  const auto index = found - parts_.begin();
  parts_.erase(found);
  const std::shared_ptr<Batch> batch = std::move(held_[static_cast<std::size_t>(index)]);
  held_.erase(held_.begin() + index);
  batch->part_finished();
}

void Lane::stop(Part& part) {
  ++wanted_;
  const std::lock_guard lock(mutex_);
  --wanted_;
  if (part.finished) return;
  part.stopped = true;
  if (!part.added) return;
  std::erase(ready_, &part);
  const auto is_its = [&](uint64_t serial) {
    return std::ranges::any_of(
        sent_, [&](const Slice& slice) { return slice.serial == serial && slice.part == &part; });
  };
  std::vector<uint64_t> dropped;
  outbox_.drop([&](const net::OutFrame& frame) {
    const bool its = is_its(frame.serial);
    if (its) dropped.push_back(frame.serial);
    return its;
  });
  std::erase_if(sent_, [&](const Slice& slice) {
    if (std::ranges::find(dropped, slice.serial) == dropped.end()) return false;
    --part.outstanding;
    in_flight_bytes_ -= slice.bytes;
    return true;
  });
  for (std::size_t i = 0; i < sent_.size(); ++i) {
    Slice& slice = sent_[i];
    if (slice.part != &part || !slice.is_read || slice.is_lookup) continue;
    // From here on nothing of it lands; the answer is skipped when it comes.
    if (i == 0 && inbox_.in_payload()) inbox_.skip_rest();
    slice.part = nullptr;
    slice.landing.clear();
    --part.outstanding;
  }
  finish_if_over(part);
  watch();
}

void Lane::give_up(Part& part) {
  bool half_sent = false;
  {
    ++wanted_;
    const std::lock_guard lock(mutex_);
    --wanted_;
    if (part.finished || !part.added) return;
    for (std::size_t i = 0; i < sent_.size(); ++i) {
      Slice& slice = sent_[i];
      if (slice.part != &part) continue;
      half_sent |= outbox_.begun() && outbox_.frames().front().serial == slice.serial;
      if (slice.is_lookup && i == 0 && inbox_.in_payload()) inbox_.skip_rest();
      if (!slice.is_read) {
        slice.given_up = true;
        ++slice.batch->unsettled_;
      }
      slice.part = nullptr;
    }
    part.outstanding = 0;
    if (!half_sent) finish_if_over(part);
  }
  if (!half_sent) return;
  const auto peer = peer_.lock();
  if (peer != nullptr) peer->lose(Status::kPeerUnreachable, false);
}

void Lane::fail_part(Part& part, Status why) {
  for (const uint32_t index : part.requests) {
    Batch::Progress& progress = part.batch->progress_[index];
    if (progress.error == Status::kOk && progress.bytes_done < part.batch->requests_[index].bytes)
      progress.error = why;
  }
  if (part.lookup) part.lookup->status = why;
  part.outstanding = 0;
  part.stopped = true;
  finish_if_over(part);
}

void Lane::lose(Status why, bool remote_gone) {
  ++wanted_;
  const std::lock_guard lock(mutex_);
  --wanted_;
  if (lost_) return;
  lost_ = true;
  lost_why_ = why;
  loop_.remove(loop_id_, socket_);
  net::disconnect(socket_);
  for (const Slice& slice : sent_) {
    const bool counted = slice.given_up;
    if (remote_gone && counted) --slice.batch->unsettled_;
    if (!remote_gone && !counted && !slice.is_read) ++slice.batch->unsettled_;
  }
  sent_.clear();
  outbox_ = {};
  in_flight_bytes_ = 0;
  while (!parts_.empty()) fail_part(*parts_.back(), why);
}

bool Lane::pump() {
  // The lock is not fair: without this a driver would keep others out for long.
  while (wanted_.load(std::memory_order_relaxed) > 0) std::this_thread::yield();
  bool moved = false;
  bool broken = false;
  const char* problem = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (lost_) return false;
    post();
    if (!outbox_.empty()) {
      const Io out = outbox_.flush(socket_.get());
      moved |= out == Io::kMoved;
      broken |= out == Io::kClosed;
    }
    const Io in = inbox_.receive(socket_.get(), *this);
    moved |= in == Io::kMoved;
    broken |= in == Io::kClosed;
    problem = inbox_.problem();
    post();
    watch();
  }
  if (!broken) return moved;
  if (const auto peer = peer_.lock())
    peer->lose(problem == nullptr ? Status::kPeerDied : Status::kProtocol, problem == nullptr);
  return true;
}

bool Lane::on_events(uint32_t) {
  if (locked([this] { return driver_ != nullptr; })) return false;
  return pump();
}

bool Lane::try_drive(const net::WakeUp& driver) {
  const std::lock_guard lock(mutex_);
  if (driver_ != nullptr || lost_) return false;
  driver_ = &driver;
  watch();
  return true;
}

void Lane::stop_driving() {
  const std::lock_guard lock(mutex_);
  driver_ = nullptr;
  watch();
}

bool Lane::has_unsent() {
  const std::lock_guard lock(mutex_);
  return !outbox_.empty();
}

std::vector<std::shared_ptr<Batch>> Lane::batches() {
  const std::lock_guard lock(mutex_);
  return held_;
}

}  // namespace inlay::transfer

#include "lane.h"

#include <sys/epoll.h>

#include <algorithm>
#include <thread>

#include "lane_question.h"

namespace inlay::transfer {

using net::Io;
using net::Kind;

Lane::Lane(net::Loop& loop, Made made, std::weak_ptr<PathOwner> owner)
    : loop_(loop), made_(std::move(made)), owner_(std::move(owner)) {}

void Lane::start(NicShares* shares) {
  NicShare* const send =
      shares == nullptr ? nullptr : shares->find(made_.socket, net::Direction::kSend);
  NicShare* const fetch =
      shares == nullptr ? nullptr : shares->find(made_.socket, net::Direction::kReceive);
  for (NicShare* share : {send, fetch})
    if (share != nullptr) share->join(weak_from_this());
  const std::lock_guard lock(mutex_);
  outbox_.share(send, fetch);
  if (!net::is_loopback(made_.socket)) inbox_.acknowledge_early();
  events_ = EPOLLIN;
  loop_id_ = loop_.add(made_.socket, events_, shared_from_this());
}

Lane::Turn Lane::enter() {
  Turn turn{owner_.lock(), {}};
  ++wanted_;
  turn.lock = std::unique_lock(mutex_);
  --wanted_;
  owner_now_ = turn.owner.get();
  return turn;
}

void Lane::tell(Turn& turn) {
  std::vector<Told> told;
  told.swap(told_);
  turn.lock.unlock();
  for (Told& one : told) one.then(one.status, one.text == nullptr ? Bytes{} : std::move(*one.text));
}

void Lane::lose(Turn& turn, Status why, bool remote_gone) {
  if (lost_) return tell(turn);
  end_all(why, remote_gone);
  std::vector<Told> told;
  told.swap(told_);
  turn.lock.unlock();
  if (turn.owner != nullptr) turn.owner->lost(*this, why);
  // Then those who ask again find the lanes that are left.
  for (Told& one : told) one.then(one.status, one.text == nullptr ? Bytes{} : std::move(*one.text));
}

void Lane::shut(Status why) {
  Turn turn = enter();
  lose(turn, why, false);
}

Lane::Health Lane::look(Clock::time_point now) {
  // What is sent twice is acknowledged at once, one segment perhaps 40 ms later.
  constexpr std::chrono::milliseconds kNoAnswer(16);
  bool ask_now = false;
  Health health;
  {
    const Turn turn = enter();
    if (lost_ || sent_.empty()) return {};
    const net::TcpState state = net::tcp_state(made_.socket);
    if (state.unacknowledged == 0) acknowledged_ = now;
    const auto silent =
        std::min<Clock::duration>(state.since_ack, std::max(now - acknowledged_, {}));
    health = {true, state.unacknowledged, silent.count(),
              std::chrono::nanoseconds(state.round_trip).count()};
    ask_now = state.unacknowledged == 0 && state.since_data >= kNoAnswer &&
              now - asked_ >= 4 * kNoAnswer && now - busy_since_ >= kNoAnswer;
    if (ask_now) asked_ = now;
  }
  if (ask_now)
    for (int i = 0; i < 2; ++i)
      ask(Kind::kAsk, net::encode_question(transport(), {}), [](Status, const Bytes&) {});
  return health;
}

bool Lane::hear() {
  constexpr std::chrono::seconds kLately(1);
  {
    const Turn turn = enter();
    if (lost_) return false;
    const net::TcpState state = net::tcp_state(made_.socket);
    if (std::min(state.since_ack, state.since_data) < kLately) return true;
    // A stopped process's kernel acknowledges, but only what it gets.
    if (state.unacknowledged > 0) return false;
  }
  ask(Kind::kAsk, net::encode_question(transport(), {}), [](Status, const Bytes&) {});
  return false;
}

void Lane::close(Status why) {
  Turn turn = enter();
  if (!lost_) end_all(why, false);
  tell(turn);
}

void Lane::end_all(Status why, bool remote_gone) {
  lost_ = true;
  lost_why_ = why;
  loop_.remove(loop_id_, made_.socket);
  net::disconnect(made_.socket);
  for (Sent& sent : sent_) {
    if (sent.then) told_.push_back({std::move(sent.then), why, nullptr});
    if (sent.attempt == nullptr || owner_now_ == nullptr) continue;
    if (!sent.given_up)
      owner_now_->completed(*sent.attempt, why, sent.answer == Kind::kData || remote_gone);
    else if (remote_gone)
      owner_now_->settled(*sent.attempt);
  }
  if (owner_now_ != nullptr)
    for (const Held& held : held_) owner_now_->completed(*held.sent.attempt, why, true);
  sent_.clear();
  held_.clear();
  outbox_ = {};
  if (driver_ != nullptr) driver_->signal();
}

void Lane::watch() {
  if (lost_) return;
  const uint32_t events =
      driver_ != nullptr ? 0U : uint32_t{EPOLLIN} | (outbox_.ready() ? uint32_t{EPOLLOUT} : 0U);
  if (events == events_) return;
  events_ = events;
  loop_.change(loop_id_, made_.socket, events);
}

std::optional<Reach> Lane::reach(const Segment& local, const RemoteSegment& remote, Op) const {
  // Through buffers of the target, for as long as nothing better is known at the speed of a disk.
  constexpr Reach kStaged{2e9, 300e-6};
  const net::Place there = remote.descriptor.location.place;
  if (local.location.place != net::Place::kHost) return std::nullopt;
  return there == net::Place::kHost ? made_.reach : kStaged;
}

Bytes Lane::fence() const { return encode(LaneQuestion{LaneAsk::kShut, made_.connection}); }

void Lane::push(net::Frame frame, Sent sent, std::span<const net::WireRange> ranges,
                net::Pieces payload, std::shared_ptr<const void> kept) {
  if (sent_.empty()) {
    acknowledged_ = busy_since_ = Clock::now();
    loop_.wake_by(acknowledged_ + Clock::duration(look_every_.load()));
  }
  // For beat().
  if (frame.kind == Kind::kWrite) loop_.wake_by(Clock::now() + LaneLease::kRenewAfter);
  sent.serial = ++last_serial_;
  frame.transfer = sent.transfer;
  frame.slice = sent.slice;
  frame.attempt = sent.number;
  frame.bytes = sent.bytes;
  frame.verified = sent.verified;
  const uint64_t fetches = sent.answer == Kind::kData ? sent.bytes : 0;
  outbox_.push({sent.serial, net::encode(frame, ranges), std::move(payload), std::move(kept),
                net::has_trailer(frame), fetches});
  sent_.push_back(std::move(sent));
}

PostResult Lane::post(Attempt& attempt) {
  const Slice& slice = attempt.slice;
  const Request& request = *slice.request;
  std::vector<net::WireRange> ranges;
  ranges.reserve(slice.num_ranges);
  net::Pieces local;
  slice.each([&](const Range& range) {
    ranges.push_back({range.remote, range.length});
    local.add(request.local->base + range.local, range.length);
  });
  const bool is_read = request.op == Op::kRead;
  net::Frame frame;
  frame.kind = is_read ? Kind::kRead : Kind::kWrite;
  frame.slot = request.remote->descriptor.slot;
  frame.epoch = request.remote->descriptor.epoch;
  if (!is_read && request.remote->descriptor.guarded) frame.grant = request.grant;
  Sent sent{};
  sent.answer = is_read ? Kind::kData : Kind::kDone;
  sent.transfer = attempt.transfer;
  sent.slice = attempt.slice_id;
  sent.number = attempt.number;
  sent.bytes = slice.bytes;
  sent.verified = request.verify;
  sent.attempt = &attempt;
  // Now, so that the bytes are in the caches when they are sent.
  if (!is_read && request.checksum) attempt.sum = local.crc(slice.bytes, 0);
  net::Pieces payload;
  (is_read ? sent.landing : payload) = std::move(local);
  const Turn turn = enter();
  if (lost_) return {Posted::kRefused, lost_why_};
  if (!is_read && (!lease_.good(Clock::now()) || gave_up())) {
    held_.push_back({frame, std::move(sent), std::move(ranges), std::move(payload)});
    return {Posted::kTaken};
  }
  push(frame, std::move(sent), ranges, std::move(payload));
  return {Posted::kTaken};
}

void Lane::kick() {
  Turn turn = enter();
  if (lost_) return;
  std::optional<uint64_t> lease;
  if (!held_.empty() && !gave_up()) {
    if (lease_.good(Clock::now())) {
      for (Held& held : held_)
        push(held.frame, std::move(held.sent), held.ranges, std::move(held.payload));
      held_.clear();
    } else {
      lease = lease_.ask(writes_out());
    }
  }
  if (!outbox_.empty()) {
    const Io out = outbox_.flush(made_.socket.get());
    if (out == Io::kClosed) return lose(turn, Status::kPeerDied, true);
    if (out == Io::kBroken) return lose(turn, Status::kPeerUnreachable, false);
    if (driver_ != nullptr && outbox_.ready()) driver_->signal();
    watch();
  }
  if (!lease || turn.owner == nullptr) return;
  turn.lock.unlock();
  ask_lease(*turn.owner, *lease);
}

void Lane::ask(Kind kind, Bytes question, PathOwner::Then then) {
  Turn turn = enter();
  if (lost_) {
    told_.push_back({std::move(then), lost_why_, nullptr});
    return tell(turn);
  }
  const auto kept = std::make_shared<Bytes>(std::move(question));
  Sent sent{};
  sent.answer = kind == Kind::kLookup ? Kind::kSegment : Kind::kAnswer;
  sent.slice = static_cast<uint32_t>(last_serial_);
  sent.bytes = kept->size();
  sent.then = std::move(then);
  sent.text = std::make_shared<Bytes>();
  net::Frame frame;
  frame.kind = kind;
  net::Pieces payload;
  payload.add(kept->data(), kept->size());
  push(frame, std::move(sent), {}, std::move(payload), kept);
  turn.lock.unlock();
  kick();
}

const char* Lane::on_frame(const net::Frame& frame, std::span<const net::WireRange>,
                           net::Pieces& landing) {
  if (sent_.empty()) return "an answer to no request";
  Sent& sent = sent_.front();
  if (frame.kind != sent.answer || frame.transfer != sent.transfer || frame.slice != sent.slice ||
      frame.attempt != sent.number)
    return "an answer to another request";
  answer_ = frame.status;
  if (frame.kind == Kind::kData && answer_ == Status::kOk && frame.bytes != sent.bytes)
    return "an answer of another size";
  if (frame.verified != sent.verified)
    return "an answer with or without a CRC, against the request";
  if (sent.text != nullptr) {
    sent.text->resize(frame.bytes);
    landing.add(sent.text->data(), sent.text->size());
  } else if (sent.attempt != nullptr && frame.bytes > 0) {
    landing = std::move(sent.landing);
    if (sent.attempt->slice.request->checksum) inbox_.sum_payload();
  }
  return nullptr;
}

const char* Lane::on_payload_end() {
  const Sent sent = std::move(sent_.front());
  sent_.pop_front();
  if (answer_ == Status::kOk && !inbox_.intact()) answer_ = Status::kChecksum;
  const bool read = sent.attempt != nullptr && sent.answer == Kind::kData;
  if (read && sent.attempt->slice.request->checksum) sent.attempt->sum = inbox_.sum();
  if (sent.then) told_.push_back({sent.then, answer_, sent.text});
  if (sent.attempt != nullptr && sent.given_up)
    owner_now_->settled(*sent.attempt);
  else if (sent.attempt != nullptr)
    owner_now_->completed(*sent.attempt, answer_, true);
  return nullptr;
}

void Lane::revoke(const void* owner) {
  const Turn turn = enter();
  if (lost_ || owner_now_ == nullptr) return;
  end_revocable(owner);
}

void Lane::end_revocable(const void* owner) {
  std::erase_if(held_, [&](const Held& held) {
    const bool drops = held.sent.attempt->owner == owner;
    if (drops) owner_now_->completed(*held.sent.attempt, Status::kCancelled, true);
    return drops;
  });
  std::vector<uint64_t> its;
  for (const Sent& sent : sent_)
    if (sent.attempt != nullptr && sent.attempt->owner == owner) its.push_back(sent.serial);
  if (its.empty()) return;
  std::vector<uint64_t> dropped;
  outbox_.drop([&](const net::OutFrame& frame) {
    const bool drops = std::ranges::binary_search(its, frame.serial);
    if (drops) dropped.push_back(frame.serial);
    return drops;
  });
  for (std::size_t i = 0; i < sent_.size(); ++i) {
    Sent& sent = sent_[i];
    if (sent.attempt == nullptr || sent.given_up || sent.attempt->owner != owner) continue;
    const bool begun = !std::ranges::binary_search(dropped, sent.serial);
    if (begun && sent.answer != Kind::kData) continue;
    // From here on nothing of it lands; the answer, if one comes, is skipped.
    if (i == 0 && inbox_.in_payload()) inbox_.skip_rest();
    Attempt& attempt = *sent.attempt;
    sent.attempt = nullptr;
    sent.landing.clear();
    owner_now_->completed(attempt, Status::kCancelled, true);
  }
  std::erase_if(sent_,
                [&](const Sent& sent) { return std::ranges::binary_search(dropped, sent.serial); });
  watch();
}

void Lane::abandon(const void* owner) {
  Turn turn = enter();
  if (lost_ || owner_now_ == nullptr) return;
  // What was posted since revoke(): afterwards only begun writes are left.
  end_revocable(owner);
  bool half_sent = false;
  for (Sent& sent : sent_) {
    if (sent.attempt == nullptr || sent.given_up || sent.attempt->owner != owner) continue;
    half_sent |= outbox_.begun() && outbox_.frames().front().serial == sent.serial;
    sent.given_up = true;
    owner_now_->completed(*sent.attempt, Status::kCancelled, false);
  }
  if (half_sent) lose(turn, Status::kPeerUnreachable, false);
}

bool Lane::pump() {
  // The lock is not fair: without this a driver would keep others out for long.
  while (wanted_.load(std::memory_order_relaxed) > 0) std::this_thread::yield();
  Turn turn{owner_.lock(), std::unique_lock(mutex_)};
  owner_now_ = turn.owner.get();
  if (lost_ || owner_now_ == nullptr) return false;
  const int socket = made_.socket.get();
  const Io out = outbox_.empty() ? Io::kBlocked : outbox_.flush(socket);
  const Io in = inbox_.receive(socket, *this);
  const char* problem = inbox_.problem();
  if (problem != nullptr) {
    lose(turn, Status::kProtocol, false);
  } else if (in == Io::kClosed || out == Io::kClosed) {
    lose(turn, Status::kPeerDied, true);
  } else if (in == Io::kBroken || out == Io::kBroken) {
    lose(turn, Status::kPeerUnreachable, false);
  } else {
    watch();
    const bool held = !held_.empty() && in == Io::kMoved;
    if (held || !told_.empty()) tell(turn);
    if (held) kick();
    return in == Io::kMoved || out == Io::kMoved;
  }
  return true;
}

bool Lane::on_events(uint32_t) {
  {
    const std::lock_guard lock(mutex_);
    if (driver_ != nullptr) return false;
  }
  const bool moved = pump();
  if (const auto owner = owner_.lock()) owner->fill();
  return moved;
}

net::Load Lane::take_load(net::Direction direction) {
  const Turn turn = enter();
  if (lost_) return {};
  if (direction == net::Direction::kSend) return outbox_.take_load(made_.socket.get());
  net::Load load{0, inbox_.take_received()};
  for (const Sent& sent : sent_)
    if (sent.answer == Kind::kData) load.queued += sent.bytes;
  return load;
}

bool Lane::try_drive(const net::WakeUp& driver) {
  const std::lock_guard lock(mutex_);
  if (driver_ != nullptr || lost_) return false;
  driver_ = &driver;
  watch();
  return true;
}

void Lane::stop_driving(const net::WakeUp&) {
  const std::lock_guard lock(mutex_);
  driver_ = nullptr;
  watch();
}

pollfd Lane::sleep_on() {
  const std::lock_guard lock(mutex_);
  if (lost_) return {-1, 0, 0};
  const int events = outbox_.ready() ? POLLIN | POLLOUT : POLLIN;
  return {made_.socket.get(), static_cast<short>(events), 0};
}

}  // namespace inlay::transfer

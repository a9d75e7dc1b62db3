#include "served_lane.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <ctime>
#include <string>

#include "../core/errors.h"
#include "lane_lease.h"
#include "server.h"

namespace inlay::transfer {

using net::Clock;
using net::Io;
using net::Kind;

namespace {

// Per event, so that other descriptors get their turn.
constexpr int kMaxTurns = 8;
// How long a lane that ends waits for far memory to take what is under way to it.
constexpr std::chrono::seconds kFarTime(2);

// Goes on while the machine sleeps.
uint64_t boot_ms() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1'000'000;
}

Refusal refusal_of(const net::ServerHandshake& handshake) {
  switch (handshake.status()) {
    case Status::kPeerRefused:
      return Refusal::kToken;
    case Status::kProtocolVersion:
      return Refusal::kVersion;
    default:
      return Refusal::kGarbage;
  }
}

}  // namespace

ServedLane::ServedLane(Server& server, net::Descriptor socket, const net::Nonce& nonce)
    : server_(server),
      socket_(std::move(socket)),
      handshake_(server.engine_, nonce, server.token_) {}

void ServedLane::start() {
  events_ = EPOLLIN;
  loop_id_ = server_.loop_.add(socket_, EPOLLIN, shared_from_this());
}

void ServedLane::end() {
  server_.loop_.remove(loop_id_, socket_);
  socket_.close();
  use_ = nullptr;
  outbox_ = {};
  staged_ = nullptr;
  wait_for_writes();
}

uint64_t ServedLane::extend_lease(uint64_t since) {
  const uint64_t now = boot_ms();
  // A new lease is asked for while nothing is on its way; else only what was told counts.
  const uint64_t from = since == 0 ? now : std::min(since, now);
  lease_end_ms_ = std::max<uint64_t>(lease_end_ms_, from + LaneLease::kLength.count());
  return now;
}

bool ServedLane::on_events(uint32_t) {
  if (!socket_.valid()) return false;  // dropped by an event before this one
  const Turn turn = proven_ ? serve() : shake_hands();
  if (turn == Turn::kOver)
    server_.drop(*this);
  else
    watch();
  return turn == Turn::kWorked;
}

void ServedLane::watch() {
  const uint32_t events = (paused() && !inbox_.in_payload() ? 0U : uint32_t{EPOLLIN}) |
                          (outbox_.ready() || has_more_ ? uint32_t{EPOLLOUT} : 0U);
  if (events == events_) return;
  events_ = events;
  server_.loop_.change(loop_id_, socket_, events);
}

bool ServedLane::send_output() {
  const auto output = handshake_.output();
  // At most 96 bytes into the empty buffer of a new socket.
  return output.empty() || send(socket_.get(), output.data(), output.size(), MSG_NOSIGNAL) ==
                               static_cast<ssize_t>(output.size());
}

ServedLane::Turn ServedLane::shake_hands() {
  using State = net::ServerHandshake::State;
  const std::size_t before = received_.size();
  received_.resize(handshake_.wanted());
  const ssize_t n =
      recv(socket_.get(), received_.data() + before, received_.size() - before, MSG_DONTWAIT);
  if (n <= 0 && !(n < 0 && errno == EAGAIN)) {
    server_.counts_.count(Refusal::kLeft);
    return Turn::kOver;
  }
  received_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  if (received_.size() < handshake_.wanted()) return Turn::kIdle;
  handshake_.take(received_);
  received_.clear();
  if (handshake_.state() == State::kAccepted) {
    // Before the WELCOME, which tells the initiator that nothing earlier can land any more.
    server_.welcome(*this);
    proven_ = true;
    if (!net::is_loopback(socket_)) inbox_.acknowledge_early();
    // What it receives is asked for by initiators, which keep to their shares of it.
    if (server_.shares_ != nullptr)
      if (auto* share = server_.shares_->find(socket_, net::Direction::kSend)) {
        share->join(weak_from_this());
        outbox_.share(share, nullptr);
      }
  }
  if (handshake_.state() == State::kRefused || handshake_.state() == State::kNotInlay)
    server_.counts_.count(refusal_of(handshake_));
  if (!send_output()) return Turn::kOver;
  const bool goes_on =
      handshake_.state() == State::kRunning || handshake_.state() == State::kAccepted;
  return goes_on ? Turn::kWorked : Turn::kOver;
}

net::Load ServedLane::take_load(net::Direction) {
  return socket_.valid() ? outbox_.take_load(socket_.get()) : net::Load{};
}

void ServedLane::resume() {
  if (outbox_.held()) on_events(0);
}

ServedLane::Turn ServedLane::serve() {
  bool worked = false;
  has_more_ = false;
  for (int turn = 0; turn < kMaxTurns; ++turn) {
    if (request_.kind == Kind::kWrite && use_ != nullptr && boot_ms() > lease_end_ms_)
      end_write(Status::kPeerUnreachable);
    if (!guarded_.empty() && !begin_piece()) end_write(Status::kGrant);
    const Io in = inbox_.receive(socket_.get(), *this);
    piece_.reset();
    if (in == Io::kClosed || in == Io::kBroken) return Turn::kOver;
    const Io out = outbox_.empty() ? Io::kBlocked : outbox_.flush(socket_.get());
    if (out == Io::kClosed || out == Io::kBroken) return Turn::kOver;
    if (in == Io::kBlocked && out == Io::kBlocked) return worked ? Turn::kWorked : Turn::kIdle;
    worked = true;
  }
  // Requests that are received but not looked at cause no event: a writable socket does.
  has_more_ = true;
  return Turn::kWorked;
}

Status ServedLane::check(const net::Frame& frame, std::span<const net::WireRange> ranges,
                         net::Pieces& memory) {
  use_ = server_.segments_.use(frame.slot, frame.epoch);
  if (use_ == nullptr) return Status::kSegmentClosed;
  const Segment& segment = use_->segment();
  const Access needed = frame.kind == Kind::kRead ? Access::kRead : Access::kWrite;
  if (segment.access < needed) return Status::kSegmentAccess;
  for (const net::WireRange& range : ranges)
    if (!segment.contains(range.offset, range.length)) return Status::kSegmentRange;
  if (frame.kind == Kind::kWrite && segment.guard != nullptr) {
    guarded_.assign(ranges.begin(), ranges.end());
    if (!begin_piece()) return Status::kGrant;
  }
  if (segment.far != nullptr) return stage(frame, ranges);
  for (const net::WireRange& range : ranges) memory.add(segment.base + range.offset, range.length);
  return Status::kOk;
}

bool ServedLane::begin_piece() {
  const Segment& segment = use_->segment();
  piece_.emplace(segment);
  return std::ranges::all_of(guarded_, [&](const net::WireRange& range) {
    return segment.allows(range.offset, range.length, request_.grant.value_or(0));
  });
}

// Not while there is no buffer for what far memory may be asked.
bool ServedLane::paused() const {
  return outbox_.size() + answers_.size() >= kMaxQueued ||
         (stages_ && !server_.staging().has_free());
}

Status ServedLane::stage(const net::Frame& frame, std::span<const net::WireRange> ranges) {
  if (frame.bytes > StagingPool::kBufferBytes) return Status::kFile;  // our slices are smaller
  std::shared_ptr<std::byte> buffer;
  try {
    buffer = server_.staging().take();
    // Before its first such request the lane did not wait for one.
    if (buffer == nullptr) buffer = StagingPool::take_another();
  } catch (const ResourceError&) {
    return Status::kFile;
  }
  piece_.reset();  // the use goes on with the move
  guarded_.clear();
  stages_ = true;
  use_->segment().far->pass_through(server_.staging().memory(), StagingPool::kBytes);
  const bool write = frame.kind == Kind::kWrite;
  staged_ = std::make_shared<StagedMove>(write, std::move(use_), std::move(buffer), ranges);
  return Status::kOk;
}

void ServedLane::start_staged() {
  const auto move = std::exchange(staged_, nullptr);
  net::Frame answer = request_;
  answer.kind = move->write ? Kind::kDone : Kind::kData;
  const uint64_t place = answers_.reserve();
  moves_.push_back(move);
  move->start([&loop = server_.loop_, weak = weak_from_this(), move, place, answer](Status status) {
    loop.post([weak, move, place, answer, status] {
      net::Frame ended = answer;
      ended.status = status;
      if (const auto lane = weak.lock()) lane->end_staged(move, place, ended);
    });
  });
}

void ServedLane::end_staged(const std::shared_ptr<StagedMove>& move, uint64_t place,
                            net::Frame answer) {
  if (!socket_.valid()) return;
  std::erase(moves_, move);
  net::Pieces payload;
  if (move->write || answer.status != Status::kOk) answer.bytes = 0;
  if (answer.bytes > 0) payload.add(move->buffer.get(), answer.bytes);
  answers_.fill(
      place,
      {answer.slice, net::encode(answer), std::move(payload), move, net::has_trailer(answer)},
      outbox_);
  on_events(0);
}

// A later connection may write the same bytes: what is under way has to land before.
void ServedLane::wait_for_writes() {
  const Clock::time_point end = Clock::now() + kFarTime;
  for (const auto& move : moves_) move->cancel();
  for (const auto& move : moves_)
    while (move->write && !move->is_over() && Clock::now() < end) poll(nullptr, 0, 1);
  moves_.clear();
}

const char* ServedLane::on_frame(const net::Frame& frame, std::span<const net::WireRange> ranges,
                                 net::Pieces& landing) {
  request_ = frame;
  request_status_ = Status::kOk;
  switch (frame.kind) {
    case Kind::kRead: {
      net::Pieces memory;
      request_status_ = check(frame, ranges, memory);
      if (staged_ != nullptr) {
        start_staged();
        return nullptr;
      }
      const bool good = request_status_ == Status::kOk;
      answer(Kind::kData, request_status_, good ? frame.bytes : 0, std::move(memory),
             good ? std::move(use_) : nullptr);
      use_ = nullptr;
      return nullptr;
    }
    case Kind::kWrite:
      if (boot_ms() > lease_end_ms_) {  // it may be on another lane by now
        request_status_ = Status::kPeerUnreachable;
        return nullptr;
      }
      request_status_ = check(frame, ranges, landing);
      if (request_status_ != Status::kOk) leave_segment();
      if (staged_ != nullptr) landing.add(staged_->buffer.get(), frame.bytes);
      return nullptr;
    case Kind::kLookup:
    case Kind::kAsk:
      text_.resize(frame.bytes);
      landing.add(text_.data(), text_.size());
      return nullptr;
    default:
      return "an answer instead of a request";
  }
}

const char* ServedLane::on_payload_end() {
  if (request_.kind == Kind::kWrite) {
    if (request_status_ == Status::kOk && !inbox_.intact()) request_status_ = Status::kChecksum;
    if (staged_ != nullptr && boot_ms() > lease_end_ms_) request_status_ = Status::kPeerUnreachable;
    if (staged_ != nullptr && request_status_ == Status::kOk) {
      start_staged();
      return nullptr;
    }
    staged_ = nullptr;
    leave_segment();
    answer(Kind::kDone, request_status_);
  } else if (request_.kind == Kind::kLookup) {
    answer_lookup();
  } else if (request_.kind == Kind::kAsk) {
    answer_question();
  }
  return nullptr;
}

void ServedLane::answer(Kind kind, Status status, uint64_t bytes, net::Pieces payload,
                        std::shared_ptr<const void> kept) {
  net::Frame frame = request_;
  frame.kind = kind;
  frame.status = status;
  frame.bytes = bytes;
  answers_.push({frame.slice, net::encode(frame), std::move(payload), std::move(kept),
                 net::has_trailer(frame)},
                outbox_);
}

void ServedLane::answer_text(Kind kind, Status status, Bytes text) {
  const auto kept = std::make_shared<Bytes>(std::move(text));
  net::Pieces payload;
  payload.add(kept->data(), kept->size());
  answer(kind, status, kept->size(), std::move(payload), kept);
}

void ServedLane::answer_lookup() {
  net::SegmentDescriptor descriptor;
  const std::string name(reinterpret_cast<const char*>(text_.data()), text_.size());
  const Status status = server_.segments_.find(name, descriptor);
  if (status == Status::kOk) return answer_text(Kind::kSegment, status, net::encode(descriptor));
  const std::string names = server_.segments_.names();
  const auto bytes = std::as_bytes(std::span(names));
  answer_text(Kind::kSegment, status, {bytes.begin(), bytes.end()});
}

void ServedLane::answer_question() {
  Transport::Answer said = server_.answerer_(handshake_.hello().engine, text_);
  text_ = {};
  if (said.bytes.size() > net::kMaxQuestionBytes) said = {Status::kProtocol, {}};
  answer_text(Kind::kAnswer, said.status, std::move(said.bytes));
}

void ServedLane::end_write(Status why) {
  inbox_.skip_rest();
  request_status_ = why;
  leave_segment();
}

void ServedLane::leave_segment() {
  piece_.reset();  // which is of the segment
  guarded_.clear();
  use_ = nullptr;
}

void ServedLane::end_use(const Segment& segment) {
  if (use_ != nullptr && &use_->segment() == &segment) end_write(Status::kSegmentClosed);
  if (staged_ != nullptr && staged_->is_of(segment)) {
    end_write(Status::kSegmentClosed);
    staged_ = nullptr;
  }
  for (const auto& move : moves_)
    if (move->is_of(segment)) move->cancel();
  if (segment.far != nullptr) return;
  // An answer that names its length has to send as many bytes, so the lane ends instead.
  for (const net::OutFrame& frame : outbox_.frames()) {
    if (frame.payload.bytes() == 0) continue;
    iovec part;
    frame.payload.fill(&part, 1);
    const auto* data = static_cast<const std::byte*>(part.iov_base);
    if (data < segment.base || data >= segment.base + segment.size) continue;
    server_.drop(*this);
    return;
  }
}

}  // namespace inlay::transfer

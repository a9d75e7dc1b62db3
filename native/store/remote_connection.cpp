// The connection of a link: made, watched, lost and made again.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "remote_link.h"

namespace inlay::store {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause(10);
constexpr milliseconds kLongestPause(500);
constexpr milliseconds kDialTime(1000);
constexpr milliseconds kPingEvery(500);
constexpr std::size_t kReceive = 65536;
constexpr std::size_t kMaxUnsent = std::size_t{64} << 20;

}  // namespace

// The loop keeps this one, and the link waits for the loop's end before its own.
class RemoteLink::Events final : public net::Handler {
 public:
  explicit Events(RemoteLink& link) : link_(link) {}
  bool on_events(uint32_t) override {
    bool moved = false;
    {
      const std::lock_guard lock(link_.mutex_);
      if (!link_.driven_) moved = link_.pump();
    }
    link_.tell_all();
    return moved;
  }

 private:
  RemoteLink& link_;
};

void RemoteLink::send(const Bytes& frame) {
  Bytes& out = connection_->out;
  if (out.size() - connection_->sent > kMaxUnsent) return;  // its time will be over
  out.insert(out.end(), frame.begin(), frame.end());
  flush();
}

void RemoteLink::flush() {
  Connection& c = *connection_;
  while (c.sent < c.out.size()) {
    const ssize_t n = ::send(c.socket.get(), c.out.data() + c.sent, c.out.size() - c.sent,
                             MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) return watch();
    if (n <= 0) return lose(std::string("sending failed: ") + std::strerror(errno));
    c.sent += static_cast<std::size_t>(n);
  }
  c.out.clear();
  c.sent = 0;
  watch();
}

void RemoteLink::watch() {
  if (connection_ == nullptr || connection_->lost) return;
  // The other's end is looked for always.
  uint32_t events = EPOLLRDHUP;
  const bool minded = connection_->minded || !welcome_ || told_later_ > 0;
  if (!driven_ && minded) events |= EPOLLIN;
  if (!driven_ && connection_->sent < connection_->out.size()) events |= EPOLLOUT;
  if (events == connection_->events) return;
  connection_->events = events;
  loop_.change(connection_->loop_id, connection_->socket, events);
}

bool RemoteLink::pump() {
  if (connection_ == nullptr || connection_->lost) return false;
  const std::shared_ptr<Connection> mine = connection_;
  if (mine->sent < mine->out.size()) flush();
  if (mine->lost) return true;
  const ssize_t n = recv(mine->socket.get(), mine->in.data() + mine->end,
                         mine->in.size() - mine->end, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    lose(n == 0 ? "it closed the connection" : std::string("receiving: ") + std::strerror(errno));
    return true;
  }
  mine->end += static_cast<std::size_t>(n);
  mine->heard = Clock::now();
  std::size_t begin = 0;
  const char* problem = nullptr;
  while (!mine->lost) {
    std::size_t taken = 0;
    const auto frame =
        parse_frame(std::span(mine->in).subspan(begin, mine->end - begin), taken, problem);
    if (!frame) break;
    take(*frame);
    begin += taken;
  }
  if (problem != nullptr) {
    lose(std::string("it sent ") + problem);
    return true;
  }
  if (begin > 0) std::memmove(mine->in.data(), mine->in.data() + begin, mine->end - begin);
  mine->end -= begin;
  if (mine->end == mine->in.size())
    mine->in.resize(std::min(mine->in.size() * 2, kFrameHead + kMaxFrame));
  return true;
}

void RemoteLink::take(const Frame& frame) {
  if (frame.kind == kGreeting) return take_welcome(frame);
  if (frame.kind == kPing) return;
  const auto found = pending_.find(frame.serial);
  if (found == pending_.end()) return;  // its time was over
  Answer answer;
  if (found->second->kind != frame.kind || !decode(frame.kind, frame.body, answer))
    return lose("it sent an answer that is none");
  finish(frame.serial, StoreStatus::kOk, std::move(answer));
}

void RemoteLink::take_welcome(const Frame& frame) {
  Welcome welcome;
  if (welcome_ || !decode(frame.body, welcome)) return lose("it sent a greeting that is none");
  if (frame.status != StoreStatus::kOk) {
    refused_ = StoreStatus::kVersion;
    lose("it speaks versions " + std::to_string(welcome.min_version) + " to " +
         std::to_string(welcome.max_version));
    return fail_all(StoreStatus::kVersion);
  }
  if (welcome.terms.epoch < terms_.epoch)
    return lose("its epoch is " + std::to_string(welcome.terms.epoch) + ", and " +
                std::to_string(terms_.epoch) + " was seen");
  terms_ = welcome.terms;
  welcome_ = true;
  refused_ = StoreStatus::kOk;
  pause_ = {};
  // In their order. What the last master did before it was lost is asked again.
  for (const auto& [serial, pending] : pending_) {
    if (connection_ == nullptr || connection_->lost) break;
    send(pending->frame);
  }
  changed_.notify_all();
}

void RemoteLink::lose(const std::string& why) {
  const std::shared_ptr<Connection> lost = std::move(connection_);
  connection_ = nullptr;
  welcome_ = false;
  problem_ = why;
  if (lost == nullptr) return;
  lost->lost = true;
  loop_.remove(lost->loop_id, lost->socket);
  net::disconnect(lost->socket);
  changed_.notify_all();
  loop_.wake_by(Clock::now());
}

void RemoteLink::dial() {
  net::Hello hello;
  hello.connection = credential_.id;
  std::copy(client_.begin(), client_.end(), hello.engine.begin());
  net::fill_random(hello.nonce);
  std::string address;
  {
    const std::lock_guard lock(mutex_);
    address = addresses_[next_address_ % addresses_.size()];
  }
  dialled_ = Clock::now();
  dial_ = net::Dial::start(loop_, {}, address, hello, credential_.proof,
                           [this](net::Dial::Result result) { dialled(std::move(result)); });
}

void RemoteLink::dialled(net::Dial::Result result) {
  dial_ = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const std::string address = addresses_[next_address_ % addresses_.size()];
    if (closed_) return;
    if (!result.socket.valid()) {
      ++next_address_;
      pause_ = std::clamp(pause_ * 2, kFirstPause, kLongestPause);
      dial_again_ = Clock::now() + pause_;
      problem_ = !result.unknown.empty() ? result.unknown
                 : result.refused        ? "nobody listens there"
                                         : "it does not answer as a master does";
      if (result.why == Status::kPeerRefused || result.why == Status::kProtocolVersion) {
        refused_ =
            result.why == Status::kPeerRefused ? StoreStatus::kRefused : StoreStatus::kVersion;
        fail_all(refused_);
      } else {
        refused_ = StoreStatus::kOk;
      }
      loop_.wake_by(dial_again_);
    } else {
      auto fresh = std::make_shared<Connection>();
      fresh->socket = std::move(result.socket);
      fresh->address = address;
      fresh->in.resize(kReceive);
      fresh->events = EPOLLIN | EPOLLRDHUP;
      fresh->loop_id = loop_.add(fresh->socket, fresh->events, std::make_shared<Events>(*this));
      connection_ = std::move(fresh);
      Bytes frame;
      begin_frame(frame);
      encode(Greeting{.client = client_, .epoch_seen = terms_.epoch}, frame);
      finish_frame(frame, 0, kGreeting, StoreStatus::kOk, 0);
      send(frame);
      loop_.wake_by(Clock::now() + kPingEvery);
    }
  }
  tell_all();
}

void RemoteLink::expire(Clock::time_point now) {
  std::vector<uint64_t> over;
  for (const auto& [serial, pending] : pending_)
    if (pending->then && pending->until <= now) over.push_back(serial);
  for (const uint64_t serial : over)
    finish(serial, welcome_ ? StoreStatus::kTimeout : StoreStatus::kUnavailable, {});
}

Clock::time_point RemoteLink::tick(Clock::time_point now) {
  bool wants_dial = false;
  Clock::time_point again;
  Clock::time_point next = now + kPingEvery;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return Clock::time_point::max();
    expire(now);
    for (const auto& [serial, pending] : pending_)
      if (pending->then) next = std::min(next, pending->until);
    if (connection_ != nullptr) {
      if (now - connection_->heard > options_.silence) {
        lose("it was silent for " + std::to_string(options_.silence.count()) + " ms");
      } else if (now - connection_->pinged >= kPingEvery && welcome_) {
        connection_->pinged = now;
        connection_->minded = true;
        Bytes frame;
        begin_frame(frame);
        finish_frame(frame, 0, kPing, StoreStatus::kOk, 0);
        send(frame);
      }
    }
    wants_dial = connection_ == nullptr;
    again = dial_again_;
  }
  tell_all();
  if (wants_dial && dial_ != nullptr && now - dialled_ > kDialTime) {
    dial_->cancel();
    dialled({});
  } else if (wants_dial && dial_ == nullptr) {
    if (now >= again)
      dial();
    else
      next = std::min(next, again);
  }
  return next;
}

}  // namespace inlay::store

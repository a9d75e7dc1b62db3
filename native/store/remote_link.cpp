#include "remote_link.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "../core/errors.h"
#include "../core/interrupt.h"

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

struct RemoteLink::Connection {
  net::Descriptor socket;
  std::string address;
  net::Loop::Id loop_id = 0;
  uint32_t events = 0;
  bool lost = false;
  Bytes in = Bytes(kReceive);
  std::size_t end = 0;
  Bytes out;
  std::size_t sent = 0;
  Clock::time_point heard = Clock::now();
  Clock::time_point pinged{};
};

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

RemoteLink::RemoteLink(RemoteLinkOptions options)
    : options_(std::move(options)),
      credential_(credential_of(options_.token)),
      client_(options_.client),
      addresses_(options_.addresses),
      loop_(options_.spin_us, [this](Clock::time_point now) { return tick(now); }) {
  if (addresses_.empty()) throw ArgumentError("a link needs the address of at least one master");
  for (const std::string& address : addresses_)
    if (address.find(':') == std::string::npos)
      throw ArgumentError("a master's address is \"host:port\", and not \"" + address + "\"");
  if (client_ == Uuid{}) net::fill_random(client_);
  loop_.wake_by(Clock::now());
  loop_.start();
}

RemoteLink::~RemoteLink() {
  close();
  loop_.stop();
  if (dial_ != nullptr) dial_->cancel();
}

void RemoteLink::close() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    if (connection_ != nullptr) lose("the link is closed");
    fail_all(StoreStatus::kClosed);
  }
  tell_all();
}

Terms RemoteLink::terms() const {
  const std::lock_guard lock(mutex_);
  return terms_;
}

bool RemoteLink::connected() const {
  const std::lock_guard lock(mutex_);
  return welcome_;
}

std::string RemoteLink::address() const {
  const std::lock_guard lock(mutex_);
  return connection_ != nullptr ? connection_->address
                                : addresses_[next_address_ % addresses_.size()];
}

void RemoteLink::set_addresses(std::vector<std::string> addresses) {
  if (addresses.empty()) throw ArgumentError("a link needs the address of at least one master");
  const std::lock_guard lock(mutex_);
  addresses_ = std::move(addresses);
  next_address_ = 0;
  if (connection_ != nullptr &&
      std::ranges::find(addresses_, connection_->address) == addresses_.end())
    lose("another master is to be asked");
  dial_again_ = {};
  loop_.wake_by(Clock::now());
}

void RemoteLink::fail(StoreStatus status) const {
  std::string master;
  std::string problem;
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& address : addresses_) master += (master.empty() ? "" : ", ") + address;
    problem = problem_;
  }
  switch (status) {
    case StoreStatus::kClosed:
      throw StoreFailure(status, "the link to the master at " + master + " is closed");
    case StoreStatus::kRefused:
      throw StoreFailure(status, "the master at " + master +
                                     " holds another token: give this process the one that the "
                                     "master was started with");
    case StoreStatus::kVersion:
      throw StoreFailure(status, "the master at " + master +
                                     " speaks no version of the protocol that this process does, "
                                     "which is " +
                                     std::to_string(kProtocolVersion) + ": " + problem +
                                     "; install the same version of inlay on both");
    case StoreStatus::kTimeout:
      throw StoreFailure(status, "the master at " + master +
                                     " did not answer in time: it waits for nodes, or has too "
                                     "much to do; allow the call more time");
    default:
      throw StoreFailure(status, "the master at " + master + " cannot be reached: " + problem +
                                     "; is it running, and is the address right?");
  }
}

// --- asking ---

std::shared_ptr<RemoteLink::Pending> RemoteLink::post(const Question& question,
                                                      Clock::time_point until, Then then) {
  auto pending = std::make_shared<Pending>();
  pending->kind = question.index();
  pending->until = until;
  pending->then = std::move(then);
  const uint64_t serial = ++last_serial_;
  const std::size_t begin = begin_frame(pending->frame);
  encode(question, pending->frame);
  if (pending->frame.size() > kFrameHead + kMaxFrame)
    throw ArgumentError(
        "a question to the master has more than 16 MiB: ask for fewer keys at once");
  finish_frame(pending->frame, begin, static_cast<uint16_t>(pending->kind), StoreStatus::kOk,
               serial);
  pending_.emplace(serial, pending);
  if (welcome_) send(pending->frame);
  return pending;
}

void RemoteLink::start(const Question& question, Clock::time_point until, Then then) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_)
      told_.push_back({std::move(then), StoreStatus::kClosed, {}});
    else if (refused_ != StoreStatus::kOk)
      told_.push_back({std::move(then), refused_, {}});
    else
      (void)post(question, until, std::move(then));
  }
  loop_.wake_by(until);
  tell_all();
}

void RemoteLink::tell(const Touch& touch) {
  const std::lock_guard lock(mutex_);
  // It is worth no queue: what was not sent soon is forgotten.
  if (!welcome_ || connection_->out.size() > kReceive) return;
  Bytes frame;
  begin_frame(frame);
  const Question question(touch);
  encode(question, frame);
  if (frame.size() > kFrameHead + kMaxFrame) return;
  finish_frame(frame, 0, static_cast<uint16_t>(question.index()), StoreStatus::kOk, ++last_serial_);
  send(frame);
}

Answer RemoteLink::wait(const Question& question, Clock::time_point until, bool while_connected) {
  std::unique_lock lock(mutex_);
  if (closed_ || refused_ != StoreStatus::kOk) {
    const StoreStatus why = closed_ ? StoreStatus::kClosed : refused_;
    lock.unlock();
    fail(why);
  }
  const auto pending = post(question, until, nullptr);
  const uint64_t serial = last_serial_;
  Clock::time_point spin_end = Clock::now() + std::chrono::microseconds(options_.spin_us);
  bool broken_off = false;
  while (!pending->done && !broken_off) {
    const Clock::time_point now = Clock::now();
    if (now >= until) {
      finish(serial, welcome_ ? StoreStatus::kTimeout : StoreStatus::kUnavailable, {});
      break;
    }
    if (!welcome_ && while_connected) {
      finish(serial, StoreStatus::kUnavailable, {});
      break;
    }
    if (!welcome_ || driven_) {
      if (!can_be_interrupted()) {
        changed_.wait_until(lock, until);
        continue;
      }
      const bool quiet = changed_.wait_until(lock, std::min(until, now + kInterruptEvery)) ==
                         std::cv_status::timeout;
      lock.unlock();
      broken_off = quiet && interrupted();
      lock.lock();
      continue;
    }
    // From here this thread receives for all.
    const std::shared_ptr<Connection> mine = connection_;
    driven_ = true;
    watch();
    while (!pending->done && !mine->lost && !broken_off) {
      if (pump()) continue;
      const Clock::time_point time = Clock::now();
      if (time >= until) break;
      const bool unsent = mine->sent < mine->out.size();
      // Others who ask get the lock in between.
      lock.unlock();
      if (time >= spin_end) {
        pollfd waiting{mine->socket.get(), static_cast<short>(unsent ? POLLIN | POLLOUT : POLLIN),
                       0};
        const auto left = std::chrono::ceil<milliseconds>(until - time).count();
        if (poll(&waiting, 1, static_cast<int>(std::clamp<int64_t>(left, 1, 100))) <= 0)
          broken_off = interrupted();
      }
      lock.lock();
    }
    driven_ = false;
    watch();
    changed_.notify_all();
  }
  if (broken_off) finish(serial, StoreStatus::kClosed, {});
  lock.unlock();
  tell_all();
  if (broken_off) throw Interrupted();
  if (pending->status != StoreStatus::kOk) fail(pending->status);
  return std::move(pending->answer);
}

void RemoteLink::finish(uint64_t serial, StoreStatus status, Answer answer) {
  const auto found = pending_.find(serial);
  if (found == pending_.end()) return;
  const auto pending = std::move(found->second);
  pending_.erase(found);
  if (pending->then) {
    told_.push_back({std::move(pending->then), status, std::move(answer)});
    return;
  }
  pending->status = status;
  pending->answer = std::move(answer);
  pending->done = true;
  changed_.notify_all();
}

void RemoteLink::fail_all(StoreStatus status) {
  while (!pending_.empty()) finish(pending_.begin()->first, status, {});
}

void RemoteLink::tell_all() {
  std::vector<Told> told;
  {
    const std::lock_guard lock(mutex_);
    told.swap(told_);
  }
  for (Told& one : told) one.then(one.status, std::move(one.answer));
}

// --- the connection ---

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
  const uint32_t events =
      driven_ ? 0U
              : uint32_t{EPOLLIN} |
                    (connection_->sent < connection_->out.size() ? uint32_t{EPOLLOUT} : 0U);
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
      problem_ = result.refused ? "nobody listens there" : "it does not answer as a master does";
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
      fresh->events = EPOLLIN;
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

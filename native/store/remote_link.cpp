#include "remote_link.h"

#include <poll.h>

#include <algorithm>

#include "../core/errors.h"
#include "../core/interrupt.h"

namespace inlay::store {

using std::chrono::milliseconds;

namespace {

constexpr std::size_t kMaxUntold = 65536;  // bytes

}  // namespace

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
  told_later_ += pending->then ? 1 : 0;
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
  if (!welcome_ || connection_->out.size() > kMaxUntold) return;
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
  if (connection_ != nullptr) connection_->minded = false;
  watch();
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
      if (time < spin_end) {
        std::this_thread::yield();  // to who is to answer, where they share this core
      } else {
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
    --told_later_;
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

}  // namespace inlay::store

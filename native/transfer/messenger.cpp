#include "messenger.h"

#include <algorithm>
#include <condition_variable>

#include "../core/errors.h"
#include "../net/bytes.h"

namespace inlay::transfer {

namespace {

// Between tries of a message that a full peer did not take.
constexpr std::chrono::milliseconds kMaxPause(50);

Bytes text_of(bool notification, const std::string& topic, const Bytes& body) {
  Bytes text(2 + topic.size() + body.size());
  text[0] = std::byte(notification ? 1 : 0);
  text[1] = static_cast<std::byte>(topic.size());
  std::ranges::copy(std::as_bytes(std::span(topic)), text.begin() + 2);
  std::ranges::copy(body, text.begin() + 2 + static_cast<std::ptrdiff_t>(topic.size()));
  return text;
}

}  // namespace

void Messenger::check(const std::string& topic, const Bytes& body) {
  if (topic.size() > Arrivals::kMaxTopicBytes)
    throw ArgumentError("topic: must have at most " + std::to_string(Arrivals::kMaxTopicBytes) +
                        " bytes, got " + std::to_string(topic.size()));
  if (body.size() > Arrivals::kMaxBodyBytes)
    throw ArgumentError("body: must have at most " + std::to_string(Arrivals::kMaxBodyBytes) +
                        " bytes, got " + std::to_string(body.size()) +
                        ": larger things go through a segment");
}

void Messenger::send(const std::shared_ptr<Peer>& peer, const std::string& topic, Bytes body,
                     double timeout_s, const std::function<void()>& interrupted) {
  check(topic, body);
  struct Waiting {
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
    Status status = Status::kOk;
  };
  const auto waiting = std::make_shared<Waiting>();
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(timeout_s));
  post(peer, text_of(false, topic, body), end, [waiting](Status status) {
    const std::lock_guard lock(waiting->mutex);
    waiting->status = status;
    waiting->over = true;
    waiting->changed.notify_all();
  });
  std::unique_lock lock(waiting->mutex);
  while (!waiting->changed.wait_for(lock, std::chrono::milliseconds(100),
                                    [&] { return waiting->over; })) {
    lock.unlock();
    interrupted();
    lock.lock();
  }
  const std::string what = "message '" + topic + "' to peer " + peer->address;
  switch (waiting->status) {
    case Status::kOk:
      return;
    case Status::kTimeout:
      throw TransferFailure(Status::kTimeout,
                            what +
                                " was not taken in time: it does not answer, or does not "
                                "receive what it has (Engine.recv)",
                            {}, peer->address);
    case Status::kEngineClosed:
      throw TransferFailure(Status::kEngineClosed, what + ": this engine, or the peer, is closed",
                            {}, peer->address);
    case Status::kTransportUnavailable:
      throw TransferFailure(Status::kTransportUnavailable, what + ": it knows no messages", {},
                            peer->address);
    default:
      throw TransferFailure(waiting->status,
                            what + ": the connection was lost; it may have arrived nevertheless",
                            {}, peer->address);
  }
}

void Messenger::post(std::shared_ptr<Peer> peer, Bytes text, Clock::time_point deadline,
                     Then then) {
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      number = ++last_number_;
      Outgoing& outgoing = outgoing_[number];
      outgoing.peer = std::move(peer);
      outgoing.text = std::move(text);
      outgoing.deadline = deadline;
      outgoing.then = std::move(then);
    }
  }
  if (number == 0) return then(Status::kEngineClosed);
  if (deadline != Clock::time_point::max()) loop_.wake_by(deadline);
  ask(number);
}

void Messenger::ask(uint64_t number) {
  std::shared_ptr<Peer> peer;
  Bytes question(16);
  {
    const std::lock_guard lock(mutex_);
    const auto found = outgoing_.find(number);
    if (found == outgoing_.end() || found->second.asked) return;
    Outgoing& outgoing = found->second;
    outgoing.asked = true;
    peer = outgoing.peer;
    net::store(question.data(), number);
    const auto oldest =
        std::ranges::find(outgoing_, peer, [](const auto& other) { return other.second.peer; });
    net::store(question.data() + 8, oldest->first);
    question.insert(question.end(), outgoing.text.begin(), outgoing.text.end());
  }
  peer->ask(Arrivals::kName, std::move(question),
            [weak = weak_from_this(), number](Status status, const Bytes& answer) {
              if (const auto self = weak.lock()) self->answered(number, status, answer);
            });
}

void Messenger::answered(uint64_t number, Status status, const Bytes& answer) {
  const bool understood = status == Status::kOk && answer.size() == 1;
  if (understood && answer[0] == std::byte{0}) return finish(number, Status::kOk);
  const bool full = understood && answer[0] == std::byte{1};
  if (status == Status::kOk && !full) return finish(number, Status::kProtocol);
  Clock::time_point next;
  {
    const std::lock_guard lock(mutex_);
    const auto found = outgoing_.find(number);
    if (found == outgoing_.end()) return;
    Outgoing& outgoing = found->second;
    // A lane that broke: another one may be left, or come.
    const bool again = full || (outgoing.peer->alive() && (status == Status::kPeerUnreachable ||
                                                           status == Status::kPeerDied));
    if (again) {
      outgoing.asked = false;
      next = outgoing.next_try = Clock::now() + outgoing.pause;
      outgoing.pause = std::min<Clock::duration>(2 * outgoing.pause, kMaxPause);
    }
    if (!again) next = Clock::time_point::max();
  }
  if (next != Clock::time_point::max())
    loop_.wake_by(next);
  else
    finish(number, status);
}

void Messenger::finish(uint64_t number, Status status) {
  Then then;
  {
    const std::lock_guard lock(mutex_);
    const auto found = outgoing_.find(number);
    if (found == outgoing_.end()) return;
    then = std::move(found->second.then);
    outgoing_.erase(found);
  }
  then(status);
}

void Messenger::notify_after(Batch& batch, std::vector<std::shared_ptr<Peer>> peers,
                             const Bytes& body, Clock::time_point deadline) {
  uint64_t key = 0;
  {
    const std::lock_guard lock(mutex_);
    key = ++last_key_;
    notifications_[key] = {batch.weak_from_this(), std::move(peers), text_of(true, {}, body),
                           deadline};
  }
  if (!batch.tell(shared_from_this(), key)) send_notification(key);
}

// With locks of the batch held: the loop's thread does the work. It keeps the batch, which nobody
// else may hold any more when that thread gets there.
void Messenger::over(uint64_t key) {
  std::shared_ptr<Batch> batch;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = notifications_.find(key); found != notifications_.end())
      batch = found->second.batch.lock();
  }
  loop_.post([self = shared_from_this(), key, batch] { self->send_notification(key); });
}

void Messenger::send_notification(uint64_t key) {
  Notification notification;
  {
    const std::lock_guard lock(mutex_);
    const auto found = notifications_.find(key);
    if (found == notifications_.end()) return;
    notification = std::move(found->second);
    notifications_.erase(found);
  }
  const auto batch = notification.batch.lock();
  if (batch == nullptr || batch->state() != State::kDone) return;
  for (const auto& peer : notification.peers)
    post(peer, notification.text, notification.deadline, [](Status) {});
}

Clock::time_point Messenger::tick(Clock::time_point now) {
  std::vector<uint64_t> late;
  std::vector<uint64_t> due;
  Clock::time_point next = Clock::time_point::max();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, outgoing] : outgoing_) {
      if (outgoing.deadline <= now)
        late.push_back(number);
      else if (!outgoing.asked && outgoing.next_try <= now)
        due.push_back(number);
      else
        next = std::min({next, outgoing.deadline,
                         outgoing.asked ? Clock::time_point::max() : outgoing.next_try});
      if (outgoing.deadline > now) next = std::min(next, outgoing.deadline);
    }
  }
  for (const uint64_t number : late) finish(number, Status::kTimeout);
  for (const uint64_t number : due) ask(number);
  return next;
}

void Messenger::close() {
  std::map<uint64_t, Outgoing> left;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    left.swap(outgoing_);
    notifications_.clear();
  }
  for (const auto& [number, outgoing] : left) outgoing.then(Status::kEngineClosed);
}

}  // namespace inlay::transfer

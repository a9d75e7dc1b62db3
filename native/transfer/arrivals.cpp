#include "arrivals.h"

#include "../net/bytes.h"

namespace inlay::transfer {

namespace {

constexpr std::size_t kHeadBytes = 18;

}  // namespace

Transport::Answer Arrivals::take(const net::EngineId& from, std::span<const std::byte> question) {
  if (question.size() < kHeadBytes) return {Status::kProtocol, {}};
  const auto number = net::load<uint64_t>(question.data());
  const auto floor = net::load<uint64_t>(question.data() + 8);
  const auto topic_bytes = static_cast<std::size_t>(question[17]);
  if (floor > number || question[16] > std::byte{1} || question.size() < kHeadBytes + topic_bytes ||
      question.size() > kHeadBytes + topic_bytes + kMaxBodyBytes)
    return {Status::kProtocol, {}};
  const auto topic = question.subspan(kHeadBytes, topic_bytes);
  const auto body = question.subspan(kHeadBytes + topic_bytes);

  const std::lock_guard lock(mutex_);
  if (closed_) return {Status::kEngineClosed, {}};
  const auto [found, is_new] = senders_.try_emplace(from);
  if (is_new) known_.push_back(from);
  Sender& sender = found->second;
  if (floor > sender.floor) {
    sender.floor = floor;
    sender.taken.erase(sender.taken.begin(), sender.taken.lower_bound(floor));
  }
  // Came before, or its sender has given it up.
  const bool known = number < sender.floor || sender.taken.contains(number);
  const bool full = messages_.size() >= kMaxMessages || bytes_ + body.size() > kMaxBytes;
  if (!known && !full) {
    sender.taken.insert(number);
    messages_.push_back({from,
                         question[16] == std::byte{1},
                         {reinterpret_cast<const char*>(topic.data()), topic.size()},
                         {body.begin(), body.end()}});
    bytes_ += body.size();
    changed_.notify_one();
    tell_all();
  }
  if (known_.size() > kMaxSenders) {
    senders_.erase(known_.front());
    known_.pop_front();
  }
  return {Status::kOk, {std::byte(known || !full ? 0 : 1)}};
}

bool Arrivals::receive(Message& message, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until, [this] { return closed_ || !messages_.empty(); });
  if (messages_.empty()) return false;
  message = std::move(messages_.front());
  messages_.pop_front();
  bytes_ -= message.body.size();
  return true;
}

bool Arrivals::tell(std::shared_ptr<Listener> listener, uint64_t key) {
  const std::lock_guard lock(mutex_);
  if (closed_ || !messages_.empty()) return false;
  told_.emplace_back(std::move(listener), key);
  return true;
}

void Arrivals::tell_all() {
  for (const auto& [listener, key] : told_) listener->over(key);
  told_.clear();
}

void Arrivals::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
  tell_all();
}

}  // namespace inlay::transfer

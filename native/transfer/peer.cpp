#include "peer.h"

#include "../core/errors.h"

namespace inlay::transfer {

void Peer::start(net::Loop& loop, std::array<net::Descriptor, 2> sockets) {
  for (std::size_t i = 0; i < lanes_.size(); ++i)
    lanes_[i] = std::make_shared<Lane>(loop, std::move(sockets[i]), weak_from_this());
  for (const auto& lane : lanes_) lane->start();
}

void Peer::lose(Status why, bool remote_gone) {
  Status none = Status::kOk;
  lost_.compare_exchange_strong(none, why);
  for (const auto& lane : lanes_) lane->lose(why, remote_gone);
}

std::vector<std::shared_ptr<Batch>> Peer::batches() const {
  std::vector<std::shared_ptr<Batch>> all;
  for (const auto& lane : lanes_)
    for (auto& batch : lane->batches()) all.push_back(std::move(batch));
  return all;
}

std::shared_ptr<RemoteSegment> Peer::segment(const std::string& name, double timeout_s,
                                             const std::function<void()>& interrupted) {
  if (name.empty() || name.size() > net::kMaxNameBytes)
    throw ArgumentError("name: must have 1.." + std::to_string(net::kMaxNameBytes) +
                        " bytes, got " + std::to_string(name.size()));
  {
    const std::lock_guard lock(mutex_);
    const auto known = segments_.find(name);
    if (known != segments_.end())
      if (auto segment = known->second.lock(); segment != nullptr && !segment->closed && alive())
        return segment;
  }
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(timeout_s));
  const auto question =
      std::make_shared<Batch>(name, lane(net::LaneKind::kSmall), end, timeout_s, spin_us_);
  question->start({});
  try {
    while (!question->wait(std::min(end, Clock::now() + std::chrono::milliseconds(100))))
      interrupted();
  } catch (...) {
    question->stop(Status::kCancelled, Clock::duration(0));
    throw;
  }
  const Lookup& lookup = question->lookup();
  const std::string answer(reinterpret_cast<const char*>(lookup.answer.data()),
                           lookup.answer.size());
  if (question->state() == State::kTimedOut)
    throw TransferFailure(Status::kTimeout,
                          "peer " + address + " did not tell of its segment '" + name + "' in time",
                          name, address);
  if (lookup.status == Status::kSegmentNotFound)
    throw TransferFailure(lookup.status,
                          "peer " + address + " has no segment '" + name + "'; it has " +
                              (answer.empty() ? "none" : answer),
                          name, address);
  if (lookup.status != Status::kOk)
    throw TransferFailure(lookup.status, "the connection to peer " + address + " is closed", {},
                          address);
  auto segment = std::make_shared<RemoteSegment>();
  segment->peer = shared_from_this();
  segment->name = name;
  if (!net::decode(lookup.answer, segment->descriptor))
    throw TransferFailure(Status::kProtocol, "peer " + address + " sent a damaged description",
                          name, address);
  const std::lock_guard lock(mutex_);
  segments_[name] = segment;
  return segment;
}

}  // namespace inlay::transfer

// What a path asks its target, and what becomes of it with time.
#include <algorithm>

#include "../net/bytes.h"
#include "fabric_path.h"

namespace inlay::transfer {

using namespace std::chrono_literals;

namespace {

// The manager of RDMA connections resolves routes first.
constexpr auto kConnectTime = 2s;
constexpr auto kSoftwareConnectTime = 300ms;
// Targets close ends without connections of which they hear nothing for longer.
constexpr auto kKeepAfter = 5s;
// With operations out that get nowhere it is asked whether the target has closed its end.
constexpr auto kDoubtAfter = 100ms;
// Without a completion for so long, and as long as the bytes would take at 100 Mbit/s, the way is
// cut: providers in software do not notice.
constexpr auto kStalledAfter = 1s;
constexpr double kSlowest = 12.5e6;

}  // namespace

void FabricPath::send_questions() {
  std::vector<Question> questions;
  {
    const std::lock_guard lock(mutex_);
    questions.swap(questions_);
  }
  if (questions.empty()) return;
  const auto owner = rail_->peer.lock();
  if (owner == nullptr) return end(Status::kPeerDied);
  for (const auto& [question, about] : questions)
    owner->ask(transport(), encode(question),
               [weak = weak_from_this(), ask = question.ask, about](Status status, Bytes answer) {
                 if (const auto self = weak.lock()) self->on_answer(ask, about, status, answer);
               });
}

void FabricPath::on_answer(FabricAsk ask, uint64_t about, Status status, const Bytes& answer) {
  const auto owner = rail_->peer.lock();
  if (ask == FabricAsk::kLease)
    on_lease(about, status, answer);
  else if (ask == FabricAsk::kSegment)
    on_segment(about, status);
  else if (status != Status::kOk)
    end(Status::kPeerUnreachable);
  else if (ask == FabricAsk::kOpen)
    on_connected(answer);
  kick();
  if (owner != nullptr) owner->fill();
}

void FabricPath::on_lease(uint64_t lease, Status status, const Bytes& answer) {
  if (status != Status::kOk || answer.size() != sizeof(uint64_t))
    return end(Status::kPeerUnreachable);
  const std::lock_guard lock(mutex_);
  if (!lease_.granted(lease, net::load<uint64_t>(answer.data()), Clock::now())) return;
  for (Work& work : works_)
    if (needs_lease(work) && !work.asked) enqueue(work);
}

void FabricPath::on_segment(uint64_t id, Status status) {
  const auto owner = rail_->peer.lock();
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(works_, id, &Work::id);
  if (found == works_.end()) return;
  owner_ = owner.get();
  found->asked = false;
  if (status == Status::kOk)
    enqueue(*found);
  else
    finish(found, status, true);
  owner_ = nullptr;
}

bool FabricPath::is_stalled(Clock::time_point now) const {
  // Reads do not wait for a target that stands still.
  if (!connected() && lease_.waiting_since() < now - kStalledAfter) return true;
  if (!queue_.empty() && turned_away_ != Clock::time_point() && now - turned_away_ > kStalledAfter)
    return true;
  const std::chrono::duration<double> transit(static_cast<double>(posted_bytes_) / kSlowest);
  return posted_bytes_ > 0 && now - last_completion_ > kStalledAfter + transit;
}

bool FabricPath::is_in_doubt(Clock::time_point now) const {
  const auto silent = now - last_question_;
  return silent > kKeepAfter ||
         (posted_bytes_ > 0 && now - last_completion_ > kDoubtAfter && silent > kDoubtAfter);
}

void FabricPath::beat(Clock::time_point now) {
  bool late = false;
  {
    const std::lock_guard lock(mutex_);
    const bool software = rail_->port->domain.in_software();
    if (state_ == State::kConnecting)
      late = now - started_ > (software && connected() ? kSoftwareConnectTime : kConnectTime);
    if (state_ == State::kReady) {
      const auto leased = [&](const Work& work) { return needs_lease(work); };
      const FabricLease::Beat beat = lease_.beat(now, std::ranges::any_of(works_, leased));
      late = beat.lapsed || is_stalled(now);
      if (beat.question)
        ask(*beat.question, beat.question->lease);
      else if (!connected() && is_in_doubt(now))
        ask({.ask = FabricAsk::kKeep}, 0);
    }
  }
  if (late) return end(Status::kPeerUnreachable);
  send_questions();
}

}  // namespace inlay::transfer

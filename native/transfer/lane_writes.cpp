// The lease of a lane's writes: asked for, renewed, and what becomes of them at its end.
#include <algorithm>

#include "../net/bytes.h"
#include "lane.h"
#include "lane_question.h"

namespace inlay::transfer {

using net::Kind;

Clock::time_point Lane::settled_by() {
  const std::lock_guard lock(mutex_);
  return lease_.over_at();
}

bool Lane::writes_out() const {
  return std::ranges::any_of(sent_, [](const Sent& sent) { return sent.answer == Kind::kDone; });
}

// Such a write is settled by its answer or by the end of the lease, which is not renewed then.
bool Lane::gave_up() const {
  return std::ranges::any_of(sent_, [](const Sent& sent) { return sent.given_up; });
}

void Lane::ask_lease(PathOwner& owner, uint64_t time, bool here) {
  Bytes question = encode(LaneQuestion{LaneAsk::kLease, made_.connection, time});
  PathOwner::Then then = [weak = weak_from_this(), here, time](Status status, const Bytes& answer) {
    if (const auto lane = weak.lock()) lane->take_lease(status, answer, here, time);
  };
  if (here)
    ask(Kind::kAsk, net::encode_question(transport(), question), std::move(then));
  else
    owner.ask(transport(), std::move(question), std::move(then));
}

void Lane::take_lease(Status status, const Bytes& time, bool here, uint64_t asked) {
  Turn turn = enter();
  if (lost_) return;
  if (status != Status::kOk || time.size() != sizeof(uint64_t)) {
    // The lane that was asked over is gone, or the target has closed this one.
    if (here) return lose(turn, Status::kPeerUnreachable, false);
    turn.lock.unlock();
    if (turn.owner != nullptr) ask_lease(*turn.owner, asked, true);
    return;
  }
  lease_.answered(net::load<uint64_t>(time.data()), Clock::now());
  turn.lock.unlock();
  kick();
}

Clock::time_point Lane::beat(Clock::time_point now) {
  Turn turn = enter();
  if (lost_ || turn.owner == nullptr || !writes_out()) return Clock::time_point::max();
  if (now >= lease_.over_at()) {
    lose(turn, Status::kPeerUnreachable, true);
    return Clock::time_point::max();
  }
  std::optional<uint64_t> lease;
  if (!gave_up() && now >= lease_.renew_at()) lease = lease_.ask(true);
  const Clock::time_point next =
      gave_up() ? lease_.over_at() : std::min(lease_.renew_at(), lease_.over_at());
  turn.lock.unlock();
  if (lease) ask_lease(*turn.owner, *lease);
  return next;
}

}  // namespace inlay::transfer

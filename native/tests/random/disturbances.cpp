// What a worker does while its transfers and those of the others are under way.
#include <algorithm>

#include "../../core/errors.h"
#include "worker.h"

namespace random_test {

namespace {

using std::chrono::milliseconds;

struct Weighted {
  bool (Worker::*act)();  // false: there was nothing to do it to
  uint64_t weight;
};

}  // namespace

void Worker::disturb() {
  constexpr std::array kAll = {
      Weighted{&Worker::send_message, 30},    Weighted{&Worker::cancel, 30},
      Weighted{&Worker::deregister_slot, 10}, Weighted{&Worker::hold_path, 5},
      Weighted{&Worker::register_again, 8},   Weighted{&Worker::pause_target, 6},
      Weighted{&Worker::kill_target, 5},      Weighted{&Worker::end_target, 1},
      Weighted{&Worker::close_initiator, 2},
  };
  uint64_t sum = 0;
  for (const Weighted& one : kAll) sum += one.weight;
  uint64_t drawn = dice_.below(sum);
  for (const Weighted& one : kAll) {
    if (drawn < one.weight) {
      left_ -= (this->*one.act)() ? 1 : 0;
      return;
    }
    drawn -= one.weight;
  }
}

bool Worker::cancel() {
  if (flights_.empty()) return false;
  Flight& flight = flights_[dice_.below(flights_.size())];
  std::this_thread::sleep_for(std::chrono::microseconds(dice_.below(3) * dice_.below(1000)));
  const milliseconds grace(dice_.below(200));
  count(flight.batch->over() ? "cancel late" : "cancel");
  flight.cancelled = true;
  flight.initiator->engine.cancel(*flight.batch, grace);
  flight.over_by = std::min(flight.over_by, Clock::now() + grace + milliseconds(20000));
  return true;
}

bool Worker::deregister_slot() {
  if (flights_.empty()) return false;
  Flight& flight = flights_[dice_.below(flights_.size())];
  Slot& slot = *slots_[static_cast<std::size_t>(flight.slot)];
  if (slot.segment() == nullptr) return false;
  const bool cancel = dice_.one_in(2);
  if (cancel) flight.cancelled = true;
  count(cancel ? "deregister local, cancelling" : "deregister local");
  slot.remove(cancel);
  EXPECT(flight.batch->over(), "a batch outlives its segment");
  return true;
}

// As an operator who drains a port for a moment.
bool Worker::hold_path() {
  const auto engine = initiator();
  try {
    const auto paths = engine->engine.paths();
    if (paths.empty()) return false;
    const auto& path = paths[dice_.below(paths.size())];
    engine->engine.hold(path.peer, path.transport, path.name, true);
    std::this_thread::sleep_for(milliseconds(dice_.below(10)));
    count("hold path");
    engine->engine.hold(path.peer, path.transport, path.name, false);
  } catch (const inlay::ArgumentError&) {  // its peer is gone
    count("hold nothing");
  } catch (const TransferFailure& failure) {
    EXPECT(failure.status == Status::kEngineClosed && engine->closing.load(), failure.what());
  }
  return true;
}

bool Worker::register_again() {
  Target& target = *episode_.targets[dice_.below(kTargets)];
  const Kind kind = kKinds[dice_.below(target.has_disk() ? 3 : 2)];
  const bool cancel = dice_.one_in(2);
  const std::unique_lock busy(target.busy, std::try_to_lock);
  if (!busy) return false;
  count(std::string("deregister remote ") + name_of(kind) + (cancel ? ", cancelling" : ""));
  target.register_again(kind, cancel, milliseconds(dice_.below(5)));
  return true;
}

bool Worker::pause_target() {
  Target& target = *episode_.targets[dice_.below(kHome)];
  const std::unique_lock busy(target.busy, std::try_to_lock);
  if (!busy) return false;
  count("stop");
  target.pause(milliseconds(5 + dice_.below(46)));
  return true;
}

bool Worker::kill_target() {
  Target& target = *episode_.targets[dice_.below(kHome)];
  const std::unique_lock busy(target.busy, std::try_to_lock);
  if (!busy) return false;
  count("kill");
  target.kill();
  target.start();
  return true;
}

bool Worker::end_target() {
  Target& target = *episode_.targets[dice_.below(kTargets)];
  const std::unique_lock busy(target.busy, std::try_to_lock);
  if (!busy) return false;
  count(target.is_home() ? "close home" : "end");
  target.end();
  target.start();
  return true;
}

bool Worker::close_initiator() {
  if (index_ != 1) return false;
  count("close initiator");
  const auto old = initiator();
  episode_.roamer.renew();
  for (const Flight& flight : flights_)
    EXPECT(flight.initiator != old || flight.batch->over(), "a batch outlives its engine");
  return true;
}

Bytes Worker::body_of(const MessageHead& head, uint64_t more) {
  Bytes body(sizeof(head));
  std::memcpy(body.data(), &head, sizeof(head));
  body.insert(body.end(), noise_.begin(), noise_.begin() + static_cast<std::ptrdiff_t>(more));
  return body;
}

bool Worker::send_message() {
  Target& target = *episode_.targets[dice_.below(kTargets)];
  const auto from = initiator();
  Link* const way = link(target, from);
  if (way == nullptr) return false;
  const uint64_t bytes = dice_.below(dice_.one_in(10) ? 200000 : 500);
  const uint32_t number = ++episode_.last_message;
  const uint32_t sum = inlay::crc32c(std::span(noise_).first(bytes));
  try {
    from->engine.messenger().send(way->peer, "random", body_of({number, sum, 0, 0, 0}, bytes), 20,
                                  [] {});
  } catch (const TransferFailure& failure) {
    EXPECT(way->explains(failure.status, target, Kind::kShared) ||
               (failure.status == Status::kEngineClosed && target.events.ends.load() > way->ends),
           failure.what());
    count("message status " + std::to_string(static_cast<int>(failure.status)));
    return true;
  }
  arrives(number, *way, target, "message", Clock::time_point::max());
  return true;
}

// Waits for it, except where what was done to either end explains that it does not come.
void Worker::arrives(uint32_t number, const Link& way, const Target& target,
                     const std::string& what, Clock::time_point tried_until) {
  std::atomic<Arrived>& arrived = episode_.world.arrived(number);
  const auto end = in_s(20);
  while (arrived.load() == Arrived::kNothing) {
    if (way.explains(Status::kPeerDied, target, Kind::kShared) || Clock::now() > tried_until) {
      Arrived nothing = Arrived::kNothing;
      if (arrived.compare_exchange_strong(nothing, Arrived::kForgotten))
        return count(what + " forgotten");
      break;
    }
    EXPECT(Clock::now() < end, "a " + what + " does not arrive");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  EXPECT(arrived.load() == Arrived::kWhole,
         "a " + what + " arrived as " + std::to_string(static_cast<int>(arrived.load())));
  count(what + " done");
}

}  // namespace random_test

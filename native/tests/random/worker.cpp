#include "worker.h"

#include <algorithm>

namespace random_test {

namespace {

using inlay::transfer::Request;
using inlay::transfer::State;

// No transfer here takes that long, whatever is done to it.
constexpr double kLongDeadline_s = 30;
// Beyond what an engine promises; the machine may be busy.
constexpr double kPatience_s = 20;

const char* name_of(State state) {
  constexpr std::array kNames = {"running", "done", "failed", "cancelled", "timed out"};
  return kNames[static_cast<std::size_t>(state)];
}

std::string text_of(Status status) { return "status " + std::to_string(static_cast<int>(status)); }

// Where the wrong bytes that begin at `wrong` end, more or less: single ones may be right by
// chance.
uint64_t first_right(const std::byte* found, const std::vector<std::byte>& wanted, uint64_t wrong) {
  constexpr uint64_t kSure = 8;
  uint64_t right = 0;
  for (uint64_t at = wrong; at < wanted.size(); ++at) {
    right = found[at] == wanted[at] ? right + 1 : 0;
    if (right == kSure) return at + 1 - kSure;
  }
  return wanted.size();
}

// Whose local byte that is.
std::string owner_of(const Flight& flight, uint64_t byte) {
  for (const Part& part : flight.parts)
    for (const Range& range : part.ranges)
      if (byte >= range.local && byte - range.local < range.length)
        return std::string(part.op == Op::kRead ? "read" : "written") + ", byte " +
               std::to_string(byte - range.local) + " of " + std::to_string(range.length) +
               " from byte " + std::to_string(range.remote) + " of segment " +
               random_test::name_of(part.plot->kind) + " of target " +
               std::to_string(part.plot->target.index());
  return "of no range";
}

}  // namespace

std::shared_ptr<Initiator> Worker::initiator() {
  if (index_ != 0) return episode_.roamer.get();
  return episode_.targets[kHome]->where().host->initiator();
}

void Worker::run(int64_t operations) {
  left_ = operations;
  while (left_ > 0) {
    const auto from = initiator();
    const auto slots = static_cast<int>(1 + dice_.below(kSlots));
    for (int slot = 0; slot < slots; ++slot) submit(slot, from);
    while (dice_.one_in(2)) disturb();
    land_all();
  }
}

void Worker::check_all() {
  const auto end = in_s(kPatience_s);
  for (const auto& plot : plots_) {
    while (plot->rests()) {
      EXPECT(Clock::now() < end, "a write is not settled");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    plot->check(0, kPlotBytes);
  }
  for (const auto& slot : slots_) slot->check_untouched(kMostBytes);
}

Link* Worker::link(Target& target, const std::shared_ptr<Initiator>& initiator) {
  Link& link = links_[static_cast<std::size_t>(target.index())];
  if (link.peer != nullptr && link.initiator == initiator && link.peer->alive() &&
      link.generation == target.generation())
    return &link;
  link.peer = nullptr;
  link.initiator = initiator;
  link.ends = target.over.ends.load();
  link.evictions = target.over.evictions.load();
  const auto where = target.where();
  link.generation = where.generation;
  // The peer may be another worker's, too, and remember what that one looked up earlier.
  link.deregistrations = {};
  try {
    link.peer = initiator->engine.connect(where.address, kPatience_s, [] {});
  } catch (const TransferFailure& failure) {
    EXPECT(link.explains(failure.status, target, Kind::kShared), failure.what());
    count("connect " + text_of(failure.status));
    return nullptr;
  }
  // The port of one that was killed may be another one's by now, of this run or of any other.
  if (link.peer->engine != where.engine) {
    EXPECT(link.explains(Status::kPeerDied, target, Kind::kShared), "another engine answers");
    link.peer = nullptr;
    count("connect another");
    return nullptr;
  }
  count("connect done");
  return &link;
}

std::shared_ptr<RemoteSegment> Worker::find(const Plot& plot, Link& link) {
  Target& target = plot.target;
  if (plot.kind == Kind::kDisk && target.is_home() && index_ == 0) {
    // An engine names its own file otherwise.
    const std::unique_lock busy(target.busy, std::try_to_lock);
    const auto host = target.where().host;
    if (!busy || host->initiator() != link.initiator) return nullptr;
    return host->segment(plot.kind)->as_remote;
  }
  try {
    return link.peer->segment(name_of(plot.kind), kPatience_s, [] {});
  } catch (const TransferFailure& failure) {
    EXPECT(link.explains(failure.status, target, plot.kind), failure.what());
    count("look-up " + text_of(failure.status));
    return nullptr;
  }
}

// One more part of a flight, whose local bytes begin at `local`; false: there is none.
bool Worker::plan(Flight& flight, uint64_t& local, const std::byte* source) {
  Plot& plot = *plots_[dice_.below(plots_.size())];
  const auto uses_plot = [&](const Flight& other) {
    return std::ranges::any_of(other.parts, [&](const Part& part) { return part.plot == &plot; });
  };
  if (uses_plot(flight) || std::ranges::any_of(flights_, uses_plot) || plot.rests()) return false;
  Link* const way = link(plot.target, flight.initiator);
  if (way == nullptr) return false;
  Part part{dice_.one_in(2) ? Op::kRead : Op::kWrite, &plot, *way, nullptr, {}, {}};
  for (std::size_t i = 0; i < kKinds.size(); ++i)
    part.deregistrations[i] = plot.target.over.deregistrations[i].load();
  part.remote = find(plot, *way);
  if (part.remote == nullptr) return false;

  constexpr uint64_t kMaxRanges = 400;
  constexpr uint64_t kGap = 3;  // at most, between local ranges
  const uint64_t room = kMostBytes - local;
  if (room < 2 * kGap * kMaxRanges) return false;
  const uint64_t wanted =
      dice_.one_in(4) ? 1 + dice_.below(kMostBytes) : dice_.magnitude(kMostBytes);
  const uint64_t bytes = std::min(wanted, room - kGap * kMaxRanges);
  const uint64_t count = std::min(bytes, 1 + dice_.below(dice_.one_in(5) ? kMaxRanges : 4));
  const uint64_t window = std::min(kPlotBytes, bytes + dice_.below(bytes / 4 + 8192));
  part.at = dice_.below(kPlotBytes - window + 1);
  if (part.op == Op::kWrite) part.after.assign(plot.known(part.at), plot.known(part.at) + window);
  uint64_t left = bytes;
  uint64_t slack = window - bytes;
  uint64_t remote = 0;
  for (uint64_t more = count; more > 0; --more) {
    const uint64_t most = std::min(left - (more - 1), 2 * (left / more));
    const uint64_t length = more == 1 ? left : 1 + dice_.below(most);
    const uint64_t gap = dice_.below(slack / more + 1);
    slack -= gap;
    remote += gap;
    local += dice_.below(kGap);
    if (part.op == Op::kRead) remote = dice_.below(window - length + 1);
    part.ranges.push_back({local, plot.begin + part.at + remote, length});
    if (part.op == Op::kWrite) std::memcpy(part.after.data() + remote, source + local, length);
    remote += length;
    local += length;
    left -= length;
  }
  for (std::size_t i = part.ranges.size(); i > 1; --i)
    std::swap(part.ranges[i - 1], part.ranges[dice_.below(i)]);
  flight.parts.push_back(std::move(part));
  return true;
}

void Worker::submit(int slot_index, const std::shared_ptr<Initiator>& initiator) {
  Slot& slot = *slots_[static_cast<std::size_t>(slot_index)];
  Flight flight;
  flight.initiator = initiator;
  flight.slot = slot_index;
  const std::byte* source = noise_.data() + dice_.below(kNoiseOffsets);
  uint64_t local_bytes = 0;
  for (uint64_t parts = dice_.one_in(5) ? 1 + dice_.below(3) : 1; parts > 0; --parts)
    plan(flight, local_bytes, source);
  if (flight.parts.empty()) return;

  slot.check_untouched(dice_.one_in(20) ? kMostBytes : slot.refilled());
  flight.before = source;
  flight.after.assign(source, source + local_bytes);
  std::memcpy(slot.base(), source, local_bytes);
  for (const Part& part : flight.parts)
    if (part.op == Op::kRead)
      for (const Range& range : part.ranges)
        std::memcpy(flight.after.data() + range.local,
                    part.plot->known(range.remote - part.plot->begin), range.length);

  flight.deadline_s = dice_.one_in(2) ? kLongDeadline_s : dice_.seconds(0.001, 5);
  const Part& first = flight.parts[0];
  std::optional<Bytes> body;
  if (flight.parts.size() == 1 && first.op == Op::kWrite && first.plot->kind != Kind::kDisk &&
      dice_.one_in(4)) {
    flight.notification = ++episode_.last_message;
    body = body_of({flight.notification, inlay::crc32c(first.after), first.after.size(),
                    first.plot->begin + first.at, static_cast<uint64_t>(first.plot->kind)},
                   0);
  }
  try {
    slot.register_in(initiator);
    std::vector<Request> requests;
    for (const Part& part : flight.parts) {
      requests.push_back({part.op, slot.segment(), part.remote, part.ranges});
      const bool own_file = part.remote->own.lock() != nullptr;
      requests.back().verify = episode_.verifies && !own_file && dice_.one_in(3);
    }
    flight.submitted = Clock::now();
    flight.batch = initiator->engine.submit(std::move(requests), flight.deadline_s, body);
  } catch (const TransferFailure& failure) {
    EXPECT(flight.parts[0].link.explains(failure.status, first.plot->target, first.plot->kind),
           failure.what());
    slot.refill(local_bytes);
    return count("submit " + text_of(failure.status));
  }
  --left_;
  flight.over_by = in_s(flight.deadline_s + kPatience_s);
  flights_.push_back(std::move(flight));
}

void Worker::land_all() {
  while (!flights_.empty()) {
    const auto at = flights_.begin() + static_cast<std::ptrdiff_t>(dice_.below(flights_.size()));
    Flight flight = std::move(*at);
    flights_.erase(at);
    land(flight);
  }
}

void Worker::land(Flight& flight) {
  Batch& batch = *flight.batch;
  if (dice_.one_in(3))
    while (!batch.over() && Clock::now() < flight.over_by)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
  else
    (void)batch.wait(flight.over_by);
  EXPECT(batch.over(),
         "a batch goes on long after its deadline of " + std::to_string(flight.deadline_s) + " s");
  const bool settled = batch.settled();
  const State state = batch.state();
  if (state == State::kTimedOut)
    EXPECT(flight.deadline_s < kLongDeadline_s &&
               Clock::now() >= flight.submitted + (in_s(flight.deadline_s) - in_s(0)),
           "late after less than " + std::to_string(flight.deadline_s) + " s");
  // Who deregisters a file ends also this engine's own transfers with it.
  const bool ended_with_file = std::ranges::any_of(flight.parts, [](const Part& part) {
    return part.plot->kind == Kind::kDisk && part.plot->target.is_home() &&
           part.plot->target.events.evictions.load() > part.link.evictions;
  });
  if (state == State::kCancelled)
    EXPECT(flight.cancelled || ended_with_file, "nobody cancelled it");

  bool all_read = true;
  bool all = true;
  for (std::size_t i = 0; i < flight.parts.size(); ++i) {
    Part& part = flight.parts[i];
    Plot& plot = *part.plot;
    const Batch::Progress progress = batch.progress(i);
    all &= progress.complete;
    if (progress.complete) {
      Link& now = links_[static_cast<std::size_t>(plot.target.index())];
      const auto kind = static_cast<std::size_t>(plot.kind);
      if (now.peer == part.link.peer)
        now.deregistrations[kind] = std::max(now.deregistrations[kind], part.deregistrations[kind]);
    }
    EXPECT(
        progress.error == Status::kOk || part.link.explains(progress.error, plot.target, plot.kind),
        std::string("a ") + (part.op == Op::kRead ? "read" : "write") + " of segment " +
            random_test::name_of(plot.kind) + " of target " + std::to_string(plot.target.index()) +
            " ended with " + text_of(progress.error) + " (" + name_of(state) + ")");
    if (part.op == Op::kRead) {
      all_read &= progress.complete;
      count(std::string("read ") + random_test::name_of(plot.kind) + " " + name_of(state));
      continue;
    }
    count(std::string("write ") + random_test::name_of(plot.kind) + " " + name_of(state));
    const bool killed = plot.target.events.ends.load() > part.link.ends;
    if (progress.complete) {
      plot.written(part.at, part.after);
    } else if (settled && !(killed && plot.kind == Kind::kDisk)) {
      plot.half_written(part.at, part.after);
    } else {
      if (!settled) count("write unsettled");
      plot.doubt({flight.initiator, flight.batch, part.link.generation, part.at,
                  std::move(part.after),
                  killed ? Clock::now() + kDiskGoesOnFor : Clock::time_point()});
    }
  }
  EXPECT(all == (state == State::kDone), std::string("a batch that is ") + name_of(state));
  const bool only_reads =
      std::ranges::none_of(flight.parts, [](const Part& part) { return part.op == Op::kWrite; });
  EXPECT(settled || !only_reads, "reads that are not settled");

  Slot& slot = *slots_[static_cast<std::size_t>(flight.slot)];
  const uint64_t bytes = flight.after.size();
  const std::byte* before = all_read ? flight.after.data() : flight.before;
  const uint64_t wrong = first_of_neither(slot.base(), before, flight.after.data(), bytes);
  EXPECT(wrong == bytes, std::string("local byte ") + std::to_string(wrong) +
                             " of a batch that is " + name_of(state) + " is " +
                             std::to_string(static_cast<int>(slot.base()[wrong])) + ", neither " +
                             std::to_string(static_cast<int>(before[wrong])) + " nor " +
                             std::to_string(static_cast<int>(flight.after[wrong])) + " (" +
                             owner_of(flight, wrong) + ", until byte " +
                             std::to_string(first_right(slot.base(), flight.after, wrong)) + ")");
  slot.refill(bytes);

  if (flight.notification == 0) return;
  const Part& part = flight.parts[0];
  if (state == State::kDone) {
    // It is tried until the deadline of its batch.
    arrives(flight.notification, part.link, part.plot->target, "notification",
            flight.submitted + (in_s(flight.deadline_s) - in_s(0)));
    return;
  }
  Arrived nothing = Arrived::kNothing;
  EXPECT(episode_.world.arrived(flight.notification)
             .compare_exchange_strong(nothing, Arrived::kUnwanted),
         "a notification of a batch that is not done");
}

}  // namespace random_test

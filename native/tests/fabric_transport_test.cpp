// Transport fabric over libfabric's tcp provider, with connections and without: two engines' worth
// of transports and loops, with the engines' own parts (peers, lanes) played by the test.
#include <poll.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "../net/loop.h"
#include "../transfer/fabric.h"
#include "../transfer/fabric_words.h"
#include "check.h"

namespace {

using namespace inlay;
using namespace inlay::transfer;
using namespace std::chrono_literals;

// How endpoints meet; all tests run with either.
std::unique_ptr<Transport> (*make_transport)(const Site&) = &make_fabric;
bool connected() { return make_transport == &make_fabric; }

void wait_until(const std::function<bool()>& done, std::chrono::milliseconds most = 10s) {
  const Clock::time_point end = Clock::now() + most;
  while (!done()) {
    CHECK(Clock::now() < end);
    std::this_thread::sleep_for(1ms);
  }
}

struct Side {
  explicit Side(std::byte id, std::byte token = std::byte{7})
      : site{loop, segments, {}, net::Token(32, token), {}, 0, "127.0.0.1", true} {
    site.engine.fill(id);
    transport = make_transport(site);
    if (!transport->problem().empty()) std::fprintf(stderr, "%s\n", transport->problem().c_str());
    CHECK(transport->problem().empty());
    loop.start();
  }
  ~Side() { stop(); }
  void stop() {
    loop.stop();
    transport->close();
  }

  std::shared_ptr<Segment> add(std::vector<std::byte>& memory, Access access,
                               bool writable = true) {
    auto segment = std::make_shared<Segment>(memory.data(), memory.size(), writable, access,
                                             std::to_string(++names), nullptr);
    segments.add(segment);
    if (Bytes key = transport->attach(*segment); !key.empty())
      segment->keys.push_back({"fabric", std::move(key)});
    segments.publish(*segment);
    return segment;
  }
  void remove(const std::shared_ptr<Segment>& segment) {
    segment->close();
    CHECK(transport->detach(*segment, Clock::now() + 1s));
    segments.remove(*segment);
  }

  net::Loop loop{0, [](Clock::time_point) { return Clock::time_point::max(); }};
  SegmentRegistry segments;
  Site site;
  std::unique_ptr<Transport> transport;
  int names = 0;
};

std::shared_ptr<RemoteSegment> remote_of(const Segment& segment) {
  auto remote = std::make_shared<RemoteSegment>();
  remote->name = segment.name;
  remote->descriptor = {segment.slot,
                        segment.epoch,
                        segment.size,
                        segment.access != Access::kNone,
                        segment.access == Access::kWrite,
                        segment.location,
                        segment.keys};
  return remote;
}

// Vectors of bytes are compared byte by byte, which takes seconds with a sanitizer.
bool same(const std::vector<std::byte>& some, const std::vector<std::byte>& others) {
  return some.size() == others.size() && std::memcmp(some.data(), others.data(), some.size()) == 0;
}

// Bytes begin to arrive. Looking is a race, which the thread sanitizer would report.
void wait_for_bytes(const std::vector<std::byte>& memory, const std::vector<std::byte>& before) {
#ifdef __SANITIZE_THREAD__
  (void)memory, (void)before;
  std::this_thread::sleep_for(2ms);
#else
  const Clock::time_point end = Clock::now() + 10s;
  while (std::memcmp(memory.data(), before.data(), 64) == 0) CHECK(Clock::now() < end);
#endif
}

struct Outcome {
  Status status;
  bool settled;
};

// The initiator's picture of the target. Questions go to the target's loop, as over a lane.
struct Owner : PathOwner, std::enable_shared_from_this<Owner> {
  explicit Owner(Side& initiator, Side& target)
      : initiator(initiator), target(target), id(target.site.engine) {}

  void completed(Attempt& attempt, Status status, bool settled) override {
    const std::lock_guard lock(mutex);
    CHECK(!outcomes.contains(&attempt));
    outcomes[&attempt] = {status, settled};
  }
  void settled(Attempt&) override {}
  void lost(Path& path, Status) override {
    const std::lock_guard lock(mutex);
    ++losses;
    std::erase_if(paths, [&](const auto& known) { return known.get() == &path; });
  }
  void add(std::shared_ptr<Path> path) override {
    const std::lock_guard lock(mutex);
    paths.push_back(std::move(path));
  }
  void fill() override {}
  void ask(std::string_view transport, Bytes question, Then then) override {
    CHECK(transport == "fabric");
    const auto question_of = decode_fabric_question(question);
    CHECK(question_of);
    // Those about leases.
    if (question_of->ask == FabricAsk::kLease || question_of->ask == FabricAsk::kReturn) ++asked;
    if (question_of->ask == FabricAsk::kReturn) ++returned;
    if (cut.load()) return;  // a lane that carries nothing, and does not end
    const net::EngineId from = initiator.site.engine;
    target.loop.post([this, from, question, then, self = shared_from_this()] {
      const Transport::Answer answer = target.transport->answer(from, question);
      initiator.loop.post([then, answer] { then(answer.status, answer.bytes); });
    });
  }
  const net::EngineId& engine_id() const override { return id; }
  const std::string& peer_address() const override { return address; }

  void connect() {
    const Bytes offer = target.transport->offer();
    const auto connected =
        initiator.transport->connect(shared_from_this(), offer, Clock::now() + 5s);
    const std::lock_guard lock(mutex);
    problem = connected.problem;
    paths = connected.paths;
  }
  std::shared_ptr<Path> path() {
    const std::lock_guard lock(mutex);
    return paths.empty() ? nullptr : paths.front();
  }
  std::size_t num_paths() {
    const std::lock_guard lock(mutex);
    return paths.size();
  }
  bool is_over(const Attempt& attempt) {
    const std::lock_guard lock(mutex);
    return outcomes.contains(&attempt);
  }
  Outcome outcome(const Attempt& attempt) {
    wait_until([&] { return is_over(attempt); });
    const std::lock_guard lock(mutex);
    return outcomes.at(&attempt);
  }
  void close() {
    std::vector<std::shared_ptr<Path>> all;
    {
      const std::lock_guard lock(mutex);
      all.swap(paths);
    }
    for (const auto& path : all) path->close(Status::kEngineClosed);
  }

  Side& initiator;
  Side& target;
  const net::EngineId id;
  const std::string address = "test";
  std::string problem;
  std::atomic<bool> cut{false};
  std::atomic<int> asked{0};
  std::atomic<int> returned{0};
  std::mutex mutex;
  std::vector<std::shared_ptr<Path>> paths;
  std::map<const Attempt*, Outcome> outcomes;
  std::atomic<int> losses{0};
};

std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i + 8 <= size; i += 8) {
    const uint64_t value = random();
    std::memcpy(&bytes[i], &value, 8);
  }
  return bytes;
}

struct Work {
  Request request;
  Attempt attempt;
  Work(Op op, const std::shared_ptr<Segment>& local, const std::shared_ptr<RemoteSegment>& remote,
       std::vector<Range> ranges)
      : request{op, local, remote, std::move(ranges)} {
    for (const Range& range : request.ranges) request.bytes += range.length;
    attempt.slice = {&request, 0, request.ranges.size(), 0, request.bytes};
    attempt.owner = this;
  }
};

// An initiator and a target with a connection, and a segment on either side.
struct Pair {
  explicit Pair(std::size_t size = 1 << 20, Access access = Access::kWrite)
      : ours(pattern(size, 1)), theirs(pattern(size, 2)) {
    local = a.add(ours, Access::kNone);
    shared = b.add(theirs, access);
    remote = remote_of(*shared);
    owner->connect();
    // Who is late is added when it is there.
    wait_until([&] { return owner->num_paths() == 1; });
  }
  ~Pair() {
    owner->close();
    a.stop();
    b.stop();  // before the memory goes
  }
  Work work(Op op, std::vector<Range> ranges) { return {op, local, remote, std::move(ranges)}; }
  PostResult post(Work& work) {
    const auto path = owner->path();
    if (path == nullptr) return {Posted::kRefused, Status::kPeerUnreachable};
    const PostResult result = path->post(work.attempt);
    path->kick();
    return result;
  }
  Outcome run(Work& work) {
    // A path tells how its attempts ended before it tells that it is lost.
    wait_until([&] { return post(work).how == Posted::kTaken; });
    return owner->outcome(work.attempt);
  }

  Side a{std::byte{1}};
  Side b{std::byte{2}};
  std::vector<std::byte> ours, theirs;
  std::shared_ptr<Segment> local, shared;
  std::shared_ptr<RemoteSegment> remote;
  std::shared_ptr<Owner> owner = std::make_shared<Owner>(a, b);
};

void reads_and_writes() {
  Pair pair;
  CHECK(pair.owner->path()->reach(*pair.local, *pair.remote, Op::kRead));
  const auto ours = pair.ours;
  const auto theirs = pair.theirs;
  Work read = pair.work(Op::kRead, {{0, 4096, 65536}, {65536, 0, 100}, {70000, 500000, 300000}});
  CHECK(pair.run(read).status == Status::kOk);
  CHECK(std::memcmp(&pair.ours[0], &theirs[4096], 65536) == 0);
  CHECK(std::memcmp(&pair.ours[65536], &theirs[0], 100) == 0);
  CHECK(std::memcmp(&pair.ours[65636], &ours[65636], 70000 - 65636) == 0);
  CHECK(std::memcmp(&pair.ours[70000], &theirs[500000], 300000) == 0);
  CHECK(std::memcmp(&pair.ours[370000], &ours[370000], ours.size() - 370000) == 0);

  // 256 ranges with gaps, from within a range on.
  std::vector<Range> ranges;
  for (uint64_t i = 0; i < 256; ++i) ranges.push_back({i * 1024, (255 - i) * 2048, 700});
  Work write = pair.work(Op::kWrite, ranges);
  write.attempt.slice.skip = 300;
  write.attempt.slice.bytes -= 300;
  CHECK(pair.run(write).status == Status::kOk);
  auto expected = theirs;
  for (std::size_t i = 0; i < 256; ++i) {
    const std::size_t skip = i == 0 ? 300 : 0;
    std::memcpy(&expected[(255 - i) * 2048 + skip], &pair.ours[i * 1024 + skip], 700 - skip);
  }
  CHECK(pair.theirs == expected);
}

// Many at once, driven by a waiter, by several and by the loop.
void many_slices() {
  for (const int drivers : {0, 1, 3}) {
    Pair pair(4 << 20);
    const auto theirs = pair.theirs;
    std::vector<std::unique_ptr<Work>> works;
    for (uint64_t at = 0; at < pair.theirs.size(); at += 65536) {
      works.push_back(std::make_unique<Work>(Op::kRead, pair.local, pair.remote,
                                             std::vector<Range>{{at, at, 65536}}));
      CHECK(pair.owner->path()->post(works.back()->attempt).how == Posted::kTaken);
    }
    pair.owner->path()->kick();
    std::vector<std::thread> threads;
    for (int i = 0; i < drivers; ++i)
      threads.emplace_back([&] {
        const auto path = pair.owner->path();
        const net::WakeUp wake;
        CHECK(path->try_drive(wake));
        while (!pair.owner->is_over(works.back()->attempt))
          if (!path->pump()) {
            pollfd waiting = path->sleep_on();
            poll(&waiting, 1, 10);
          }
        path->stop_driving(wake);
      });
    for (const auto& work : works) CHECK(pair.owner->outcome(work->attempt).status == Status::kOk);
    for (auto& thread : threads) thread.join();
    CHECK(same(pair.ours, theirs));
  }
}

// A write to what may only be read breaks the connection; it comes back, and the second attempt
// learns why.
void refused_access_is_told_at_the_second_attempt() {
  Pair pair(1 << 16, Access::kRead);
  const auto theirs = pair.theirs;
  Work write = pair.work(Op::kWrite, {{0, 0, 4096}});
  const Outcome first = pair.run(write);
  CHECK(first.status == Status::kPeerUnreachable && !first.settled);
  CHECK(same(pair.theirs, theirs));
  wait_until([&] { return pair.owner->path() != nullptr; });
  Work again = pair.work(Op::kWrite, {{0, 0, 4096}});
  again.attempt.number = 1;
  CHECK(pair.run(again).status == Status::kSegmentAccess);
  Work read = pair.work(Op::kRead, {{0, 0, 4096}});
  read.attempt.number = 1;
  CHECK(pair.run(read).status == Status::kOk);
  CHECK(std::memcmp(pair.ours.data(), theirs.data(), 4096) == 0);
}

void closed_segment_is_not_touched() {
  Pair pair(1 << 16);
  const auto theirs = pair.theirs;
  pair.b.remove(pair.shared);
  Work write = pair.work(Op::kWrite, {{0, 0, 4096}});
  // Without a connection its end is not told.
  if (connected())
    wait_until([&] { return pair.owner->losses > 0 && pair.owner->path() != nullptr; });
  CHECK(pair.run(write).status != Status::kOk);
  wait_until([&] { return pair.owner->path() != nullptr; });
  Work again = pair.work(Op::kWrite, {{0, 0, 4096}});
  again.attempt.number = 1;
  CHECK(pair.run(again).status == Status::kSegmentClosed);
  CHECK(same(pair.theirs, theirs));
}

// Nothing lands in local memory after a revoked read, also when it was half done.
void revoked_reads_land_nothing() {
  Pair pair(32 << 20);
  const auto ours = pair.ours;
  Work read = pair.work(Op::kRead, {{0, 0, pair.ours.size()}});
  Work other = pair.work(Op::kRead, {{0, 0, 4096}});
  CHECK(pair.post(read).how == Posted::kTaken);
  CHECK(pair.post(other).how == Posted::kTaken);
  wait_for_bytes(pair.ours, ours);
  const auto path = pair.owner->path();
  path->revoke(&read);
  CHECK(pair.owner->is_over(read.attempt) && pair.owner->is_over(other.attempt));
  const auto left = pair.ours;
  const Outcome outcome = pair.owner->outcome(read.attempt);
  if (outcome.status != Status::kOk) {
    CHECK(outcome.status == Status::kCancelled && outcome.settled);
    CHECK(pair.owner->outcome(other.attempt).status == Status::kPeerUnreachable);
  }
  std::this_thread::sleep_for(100ms);
  CHECK(same(pair.ours, left));
  // It connects again, unless all was over before it was revoked.
  wait_until([&] {
    const auto now = pair.owner->path();
    return now != nullptr && (now != path || outcome.status == Status::kOk);
  });
  Work third = pair.work(Op::kRead, {{0, 0, 4096}});
  CHECK(pair.run(third).status == Status::kOk);
}

// A write that is given up may land until its fence is answered, and not after. False: it was over
// before it could be given up.
bool gives_up_a_write() {
  Pair pair(64 << 20);
  const auto theirs = pair.theirs;
  Work write = pair.work(Op::kWrite, {{0, 0, pair.ours.size()}});
  CHECK(pair.post(write).how == Posted::kTaken);
  wait_for_bytes(pair.theirs, theirs);
  const auto path = pair.owner->path();
  path->revoke(&write);  // under way: it stays
  if (pair.owner->is_over(write.attempt)) return false;
  path->abandon(&write);
  const Outcome outcome = pair.owner->outcome(write.attempt);
  if (outcome.status == Status::kOk) return false;
  CHECK(outcome.status == Status::kCancelled && !outcome.settled);
  std::atomic<bool> fenced{false};
  std::vector<std::byte> left;
  pair.owner->ask("fabric", path->fence(), [&](Status status, const Bytes&) {
    CHECK(status == Status::kOk);
    left = pair.theirs;
    fenced = true;
  });
  wait_until([&] { return fenced.load(); });
  std::this_thread::sleep_for(100ms);
  CHECK(same(pair.theirs, left));
  return !same(left, pair.ours);
}

void abandoned_writes_are_fenced() {
  for (int tries = 1; !gives_up_a_write(); ++tries) CHECK(tries < 20);
}

void closed_path_refuses() {
  Pair pair(32 << 20);
  Work read = pair.work(Op::kRead, {{0, 0, pair.ours.size()}});
  CHECK(pair.post(read).how == Posted::kTaken);
  const auto path = pair.owner->path();
  path->close(Status::kPeerDied);
  const auto left = pair.ours;
  CHECK(pair.owner->outcome(read.attempt).status == Status::kPeerDied);
  Work other = pair.work(Op::kRead, {{0, 0, 4096}});
  const PostResult result = path->post(other.attempt);
  path->kick();
  CHECK(result.how == Posted::kRefused && result.why == Status::kPeerDied);
  std::this_thread::sleep_for(300ms);
  CHECK(same(pair.ours, left));
  // Nobody tells an owner that closed it, or connects again.
  CHECK(pair.owner->losses == 0 && pair.owner->num_paths() == 1);
}

double cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Two connected transports that have worked take next to nothing of a core.
void idle_is_idle() {
  Pair pair(1 << 20);
  Work read = pair.work(Op::kRead, {{0, 0, pair.ours.size()}});
  CHECK(pair.run(read).status == Status::kOk);
  Work write = pair.work(Op::kWrite, {{0, 0, pair.ours.size()}});
  CHECK(pair.run(write).status == Status::kOk);
  if (!connected()) wait_until([&] { return pair.owner->returned > 0; });
  std::this_thread::sleep_for(connected() ? 0ms : 200ms);
  const double before = cpu_s();
  std::this_thread::sleep_for(1s);
  const double used = cpu_s() - before;
  if (used >= 0.02) std::fprintf(stderr, "%.3f s of a core in a second\n", used);
  CHECK(used < 0.02);
}

// Writes wait for a lease, which is renewed while they are out and returned afterwards.
void leases_are_kept_and_returned() {
  Pair pair(1 << 16);
  Work first = pair.work(Op::kWrite, {{0, 0, 4096}});
  CHECK(pair.run(first).status == Status::kOk);
  CHECK(pair.owner->asked == 1);
  Work second = pair.work(Op::kWrite, {{0, 4096, 4096}});
  CHECK(pair.run(second).status == Status::kOk);
  CHECK(pair.owner->asked == 1);
  // Renewals, then the return, then silence; the connection outlives the lease.
  wait_until([&] { return pair.owner->returned == 1; });
  const int asked = pair.owner->asked;
  CHECK(!connected() || asked >= 3);
  std::this_thread::sleep_for(2200ms);
  CHECK(pair.owner->asked == asked && pair.owner->losses == 0);
  Work third = pair.work(Op::kWrite, {{0, 8192, 4096}});
  CHECK(pair.run(third).status == Status::kOk);
  CHECK(pair.owner->asked == asked + 1);
}

// An initiator that no question reaches the target of any more: the target closes the connection
// within the lease, and nothing lands after.
void a_lease_that_ends_is_a_fence() {
  Pair pair(1 << 16);
  Work first = pair.work(Op::kWrite, {{0, 0, 4096}});
  CHECK(pair.run(first).status == Status::kOk);
  pair.owner->cut = true;
  const auto begin = Clock::now();
  if (connected()) {
    wait_until([&] { return pair.owner->losses > 0; });
  } else {
    // Nobody tells the initiator: the target alone knows.
    std::atomic<bool> closed{false};
    const FabricQuestion question{.ask = FabricAsk::kKeep, .connection = 1};
    const auto look = [&] {
      const auto answer = pair.b.transport->answer(pair.a.site.engine, encode(question));
      closed = answer.status == Status::kPeerUnreachable;
    };
    while (!closed) {
      CHECK(Clock::now() - begin < 4s);
      pair.b.loop.post(look);
      std::this_thread::sleep_for(20ms);
    }
    Work second = pair.work(Op::kWrite, {{0, 4096, 4096}});
    CHECK(pair.run(second).status == Status::kPeerUnreachable);
    return;
  }
  CHECK(Clock::now() - begin < 2500ms);
}

// A read that gets nowhere ends, so that its slice goes another way.
void a_stalled_path_ends() {
  Pair pair(1 << 20);
  std::atomic<bool> went_on{false};
  pair.b.loop.post([&] {
    std::this_thread::sleep_for(2s);
    went_on = true;
  });
  Work read = pair.work(Op::kRead, {{0, 0, 4096}});
  CHECK(pair.run(read).status == Status::kPeerUnreachable);
  CHECK(!went_on);
  wait_until([&] { return pair.owner->path() != nullptr; });
  CHECK(went_on);
  Work again = pair.work(Op::kRead, {{0, 0, 4096}});
  CHECK(pair.run(again).status == Status::kOk);
}

// Who does not hold the token reaches nothing; who was seen to greet is not believed twice.
void strangers_are_refused() {
  Side target{std::byte{2}};
  Side stranger{std::byte{3}, std::byte{9}};
  const auto owner = std::make_shared<Owner>(stranger, target);
  // Without a connection the ends of lanes prove it, which the test plays.
  if (connected()) {
    const auto begin = Clock::now();
    owner->connect();
    CHECK(owner->num_paths() == 0 && !owner->problem.empty());
    CHECK(Clock::now() - begin < 4s);
  }
  CHECK(!decode_fabric_offer(Bytes(10)));
  Bytes offer = target.transport->offer();
  CHECK(decode_fabric_offer(offer));
  for (std::size_t i = 0; i < offer.size(); ++i)
    CHECK(!decode_fabric_offer(std::span(offer).first(i)));
  CHECK(target.transport->answer(owner->id, Bytes(3)).status == Status::kProtocol);
}

// A target that stands still for longer than a lease, with half a write in its sockets, lands
// nothing of it once it goes on. False: the write was over before that.
bool stands_still_in_a_write() {
  Pair pair(64 << 20);
  const auto theirs = pair.theirs;
  Work write = pair.work(Op::kWrite, {{0, 0, pair.ours.size()}});
  CHECK(pair.post(write).how == Posted::kTaken);
  wait_for_bytes(pair.theirs, theirs);
  std::vector<std::byte> left;
  std::atomic<bool> went_on{false};
  pair.b.loop.post([&] {
    left = pair.theirs;
    if (!same(left, pair.ours)) std::this_thread::sleep_for(3s);
    CHECK(same(pair.theirs, left));
    went_on = true;
  });
  const Outcome outcome = pair.owner->outcome(write.attempt);
  wait_until([&] { return went_on.load(); });
  if (same(left, pair.ours)) return false;
  CHECK(outcome.status == Status::kPeerUnreachable && !outcome.settled);
  wait_until([&] { return pair.owner->path() != nullptr; });
  CHECK(same(pair.theirs, left));
  return true;
}

void a_target_that_stood_still_lands_nothing() {
  for (int tries = 1; !stands_still_in_a_write(); ++tries) CHECK(tries < 20);
}

}  // namespace

int main(int argc, char**) {
  if (argc > 1) make_transport = &make_unconnected_fabric;
  reads_and_writes();
  many_slices();
  idle_is_idle();
  // These wait for leases and timeouts, so they wait together, and while others run.
  std::vector<std::thread> waiting;
  for (auto* const test :
       {leases_are_kept_and_returned, a_lease_that_ends_is_a_fence,
        a_target_that_stood_still_lands_nothing, a_stalled_path_ends, strangers_are_refused})
    waiting.emplace_back(test);
  refused_access_is_told_at_the_second_attempt();
  closed_segment_is_not_touched();
  revoked_reads_land_nothing();
  abandoned_writes_are_fenced();
  closed_path_refuses();
  for (auto& thread : waiting) thread.join();
}

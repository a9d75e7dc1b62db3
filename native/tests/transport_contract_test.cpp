// What transport.h promises, for every transport that moves bytes between two engines.
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "../transfer/local.h"
#include "../transfer/plugin.h"
#include "../transfer/shm.h"
#include "transport_target.h"

namespace transport_test {

using namespace inlay::transfer;
using inlay::Status;

bool Target::blind() { return prctl(PR_SET_DUMPABLE, 0) == 0; }

namespace {

struct Row {
  const char* name;
  MakeTransport make;
  bool foreign;  // the target's memory is not allocated by the engine
  bool same_process;
  // What a target that is stopped moves none of.
  bool target_moves_reads;
  bool target_moves_writes;
};

const std::vector<Row>& rows() {
  static const MakeTransport local = [](Site site) {
    return std::make_unique<LocalTransport>(std::move(site));
  };
  static const MakeTransport shm = [](Site site) {
    return std::make_unique<ShmTransport>(std::move(site));
  };
  static const MakeTransport plugin = [](const Site& site) {
    return make_plugin(site, {"unix-socket", INLAY_TEST_PLUGIN});
  };
  static const std::vector<Row> all = {
      {"local", local, false, true, false, false},
      {"shm, allocated", shm, false, false, false, false},
      {"shm, foreign", shm, true, false, false, true},
      {"plugin", plugin, true, false, true, true},
  };
  return all;
}

struct Outcome {
  Status status;
  bool settled;
};

// The peer's side of the interface: counts, and checks that it is told once.
class Owner : public PathOwner {
 public:
  explicit Owner(const inlay::net::EngineId& engine) : engine_(engine) {}

  void completed(Attempt& attempt, Status status, bool settled) override {
    const std::lock_guard lock(mutex_);
    CHECK(under_way_.erase(&attempt) == 1);
    outcomes_.push_back({status, settled});
    if (!settled) unsettled_.insert(&attempt);
  }
  void settled(Attempt& attempt) override {
    const std::lock_guard lock(mutex_);
    CHECK(unsettled_.erase(&attempt) == 1);
  }
  void lost(Path&, Status why) override { lost_.store(why); }
  void add(std::shared_ptr<Path>) override {}
  void fill() override {}
  void ask(std::string_view, Bytes, Then then) override { then(Status::kPeerUnreachable, {}); }
  const inlay::net::EngineId& engine_id() const override { return engine_; }
  const std::string& peer_address() const override { return address_; }

  void expect(Attempt& attempt) {
    const std::lock_guard lock(mutex_);
    under_way_.insert(&attempt);
  }
  void not_taken(Attempt& attempt) {
    const std::lock_guard lock(mutex_);
    CHECK(under_way_.erase(&attempt) == 1);
  }
  std::size_t under_way() {
    const std::lock_guard lock(mutex_);
    return under_way_.size();
  }
  std::size_t unsettled() {
    const std::lock_guard lock(mutex_);
    return unsettled_.size();
  }
  std::vector<Outcome> take_outcomes() {
    const std::lock_guard lock(mutex_);
    return std::exchange(outcomes_, {});
  }
  // Of a path that has ended and whose fence was answered.
  void settle_all() {
    const std::lock_guard lock(mutex_);
    unsettled_.clear();
    lost_.store(Status::kOk);
  }
  Status why_lost() const { return lost_.load(); }

 private:
  const inlay::net::EngineId engine_;
  const std::string address_ = "test";
  std::mutex mutex_;
  std::set<Attempt*> under_way_;
  std::set<Attempt*> unsettled_;
  std::vector<Outcome> outcomes_;
  std::atomic<Status> lost_{Status::kOk};
};

// One submission: a request, and its slices as attempts.
struct Submission {
  Request request;
  std::vector<std::unique_ptr<Attempt>> attempts;
  std::vector<Status> refused;

  void cut(uint64_t slice_bytes) {
    for (const Range& range : request.ranges) request.bytes += range.length;
    Slice slice{&request, 0, 0, 0, 0};
    for (std::size_t i = 0; i < request.ranges.size(); ++i)
      for (uint64_t at = 0; at < request.ranges[i].length;) {
        if (slice.num_ranges == 0) slice = {&request, i, 0, at, 0};
        const uint64_t step = std::min(request.ranges[i].length - at, slice_bytes - slice.bytes);
        slice.bytes += step;
        ++slice.num_ranges;
        at += step;
        if (slice.bytes < slice_bytes && slice.num_ranges < inlay::net::kMaxRanges) continue;
        add(slice);
        slice.num_ranges = 0;
      }
    if (slice.num_ranges > 0) add(slice);
  }

 private:
  void add(const Slice& slice) {
    attempts.push_back(std::make_unique<Attempt>());
    attempts.back()->slice = slice;
    attempts.back()->owner = this;
    attempts.back()->submission_bytes = request.bytes;
    attempts.back()->slice_id = static_cast<uint32_t>(attempts.size());
  }
};

class Bench {
 public:
  explicit Bench(const Row& row)
      : target(row.make, row.foreign, row.same_process),
        here(row.make),
        owner(std::make_shared<Owner>(target.engine)) {
    local = here.add("local", Access::kNone, row.foreign);
    for (const char* name : {"source", "sink"}) {
      auto segment = std::make_shared<RemoteSegment>();
      segment->name = name;
      segment->descriptor = target.descriptors[name];
      remote[name] = segment;
    }
    connect();
  }
  ~Bench() {
    path->close(Status::kEngineClosed);
    CHECK(owner->under_way() == 0);
  }

  void connect() {
    auto connected = here.transport->connect(owner, target.offer, in_ms(5000));
    if (connected.paths.empty()) std::fprintf(stderr, "%s\n", connected.problem.c_str());
    CHECK(!connected.paths.empty());
    path = connected.paths.front();
  }
  // As a peer does: what the path tells itself, or the fence of one that has ended.
  void settle(bool ended) {
    CHECK(pump_until([&] {
      ended |= owner->why_lost() != Status::kOk;
      return ended || owner->unsettled() == 0;
    }));
    if (ended && !path->fence().empty()) {
      CHECK(target.shut(here.engine, path->fence()) == Status::kOk);
      owner->settle_all();
    }
    CHECK(pump_until([&] { return owner->unsettled() == 0; }));
    if (ended) connect();
  }

  std::unique_ptr<Submission> submission(Op op, const char* name, std::vector<Range> ranges,
                                         uint64_t slice_bytes = 1 << 20) {
    auto made = std::make_unique<Submission>();
    made->request = {op, local, remote[name], std::move(ranges)};
    made->cut(slice_bytes);
    return made;
  }
  void post(Submission& submission) {
    for (const auto& attempt : submission.attempts) {
      owner->expect(*attempt);
      const PostResult result = path->post(*attempt);
      if (result.how == Posted::kTaken) continue;
      owner->not_taken(*attempt);
      if (result.how == Posted::kRefused) submission.refused.push_back(result.why);
    }
    path->kick();
  }
  bool pump_until(const std::function<bool()>& over, int ms = 10000) {
    const auto end = in_ms(ms);
    while (!over()) {
      if (Clock::now() >= end) return false;
      if (path->pump()) continue;
      pollfd sleep = path->sleep_on();
      poll(&sleep, 1, 1);
    }
    return true;
  }
  // What all attempts came to.
  Status run(Submission& submission) {
    owner->take_outcomes();
    post(submission);
    CHECK(pump_until([&] { return owner->under_way() == 0; }));
    for (const Status why : submission.refused) return why;
    for (const Outcome& outcome : owner->take_outcomes()) {
      CHECK(outcome.settled);
      if (outcome.status != Status::kOk) return outcome.status;
    }
    return Status::kOk;
  }
  Status move(Op op, const char* name, std::vector<Range> ranges) {
    auto made = submission(op, name, std::move(ranges));
    return run(*made);
  }
  void stop_target() {
    const pid_t pid = target.child()->pid();
    ::kill(pid, SIGSTOP);
    int status = 0;
    CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
  }
  void let_target_go_on() { ::kill(target.child()->pid(), SIGCONT); }
  void clear() { std::memset(local->base, static_cast<int>(kUntouched), kSize); }
  bool is_clear() const { return is_untouched(local->base); }

  Target target;
  Node here;
  std::shared_ptr<Owner> owner;
  std::shared_ptr<Segment> local;
  std::map<std::string, std::shared_ptr<RemoteSegment>> remote;
  std::shared_ptr<Path> path;
};

std::vector<Range> ragged(std::mt19937_64& random, uint64_t most, std::size_t count) {
  std::vector<Range> ranges;
  for (uint64_t at = 0; ranges.size() < count;) {
    const uint64_t length = 1 + random() % most;
    if (at + length > kSize) break;
    ranges.push_back({at, random() % (kSize - length + 1), length});
    at += length + random() % 3;
  }
  return ranges;
}

void test_reads(const Row& row) {
  Bench bench(row);
  std::mt19937_64 random(1);
  const std::pair<uint64_t, std::size_t> shapes[] = {{1, 3},       {4096, 1},   {500, 700},
                                                     {16384, 600}, {100000, 2}, {300000, 20},
                                                     {4 << 20, 4}, {kSize, 1}};
  for (const auto& [most, count] : shapes) {
    bench.clear();
    const std::vector<Range> ranges = ragged(random, most, count);
    CHECK(bench.move(Op::kRead, "source", ranges) == Status::kOk);
    std::vector<std::byte> expected = untouched();
    for (const Range& range : ranges)
      std::memcpy(expected.data() + range.local, patterns().data() + range.remote, range.length);
    CHECK(std::memcmp(bench.local->base, expected.data(), kSize) == 0);
  }
}

void test_writes(const Row& row) {
  Bench bench(row);
  std::mt19937_64 random(2);
  std::vector<std::byte> expected(kSize, kUntouched);
  const std::pair<uint64_t, std::size_t> shapes[] = {{1, 3},       {4096, 1},    {500, 700},
                                                     {16384, 600}, {300000, 20}, {kSize, 1}};
  for (uint64_t i = 0; i < kSize; ++i) bench.local->base[i] = static_cast<std::byte>(random());
  for (const auto& [most, count] : shapes) {
    std::vector<Range> ranges = ragged(random, most, count);
    for (Range& range : ranges) std::swap(range.local, range.remote);  // targets do not overlap
    CHECK(bench.move(Op::kWrite, "sink", ranges) == Status::kOk);
    for (const Range& range : ranges)
      std::memcpy(expected.data() + range.remote, bench.local->base + range.local, range.length);
    CHECK(bench.target.ask(Ask::kSum, "sink") == inlay::crc32c(expected));
  }
}

// An initiator that believes in more than it was offered.
void test_liar(const Row& row) {
  for (const uint64_t length : {uint64_t{4096}, uint64_t{1} << 20}) {
    Bench bench(row);
    const uint32_t source = bench.target.ask(Ask::kSum, "source");
    const uint32_t sink = bench.target.ask(Ask::kSum, "sink");
    bench.remote["sink"]->descriptor.size = 2 * kSize;
    CHECK(bench.move(Op::kWrite, "sink", {{0, kSize - 10, length}}) != Status::kOk);
    bench.remote["source"]->descriptor.writable = true;
    CHECK(bench.move(Op::kWrite, "source", {{0, 0, length}}) != Status::kOk);
    ++bench.remote["sink"]->descriptor.epoch;
    CHECK(bench.move(Op::kWrite, "sink", {{0, 0, length}}) == Status::kSegmentClosed);
    bench.remote["sink"]->descriptor.slot = 4000;
    CHECK(bench.move(Op::kWrite, "sink", {{0, 0, length}}) == Status::kSegmentClosed);
    bench.remote["sink"]->descriptor.slot = 1u << 30;
    CHECK(bench.move(Op::kWrite, "sink", {{0, 0, length}}) == Status::kSegmentClosed);
    CHECK(bench.target.ask(Ask::kSum, "source") == source);
    CHECK(bench.target.ask(Ask::kSum, "sink") == sink);
  }
}

void test_closed_segment(const Row& row) {
  for (const uint64_t length : {uint64_t{4096}, uint64_t{1} << 20}) {
    Bench bench(row);
    CHECK(bench.move(Op::kWrite, "sink", {{0, 0, length}}) == Status::kOk);
    CHECK(bench.target.ask(Ask::kRemove, "sink") == 1);
    CHECK(bench.move(Op::kWrite, "sink", {{0, 0, length}}) == Status::kSegmentClosed);
    CHECK(bench.move(Op::kRead, "source", {{0, 0, length}}) == Status::kOk);
    CHECK(bench.target.ask(Ask::kRemove, "source") == 1);
    CHECK(bench.move(Op::kRead, "source", {{0, 0, length}}) == Status::kSegmentClosed);
    CHECK(bench.target.ask(Ask::kUntouched, "sink") == 1);
  }
}

// Deregistered while it is written to: what its owner writes afterwards stays.
void test_nothing_lands_after_deregistration(const Row& row) {
  for (int round = 0; round < 12; ++round) {
    Bench bench(row);
    CHECK(bench.move(Op::kWrite, "sink", {{0, 0, 1 << 20}}) == Status::kOk);  // is known now
    std::atomic<bool> stop{false};
    std::atomic<int> writes{0};
    std::thread writer([&] {
      while (!stop.load()) {
        const Status status = bench.move(Op::kWrite, "sink", {{0, 0, kSize}});
        CHECK(status == Status::kOk || status == Status::kSegmentClosed);
        writes.fetch_add(1);
      }
    });
    while (writes.load() < round % 4) std::this_thread::yield();
    CHECK(bench.target.ask(Ask::kRemove, "sink") == 1);
    const int then = writes.load();
    while (writes.load() < then + 3) std::this_thread::yield();
    CHECK(bench.target.ask(Ask::kUntouched, "sink") == 1);
    stop.store(true);
    writer.join();
  }
}

// What the path says is over does not touch local memory any more; everything is reported.
void test_revoke_and_close(const Row& row) {
  for (int round = 0; round < 12; ++round) {
    Bench bench(row);
    if (round % 3 == 1) CHECK(bench.move(Op::kRead, "source", {{0, 0, 4096}}) == Status::kOk);
    auto reads = bench.submission(Op::kRead, "source", {{0, 0, kSize}}, 1 << 19);
    bench.owner->take_outcomes();
    bench.post(*reads);
    for (int i = 0; i < round; ++i) bench.path->pump();
    if (round % 2 == 0)
      bench.path->revoke(reads.get());
    else
      bench.path->close(Status::kEngineClosed);
    CHECK(bench.owner->under_way() == 0);
    for (const Outcome& outcome : bench.owner->take_outcomes()) {
      CHECK(outcome.settled);
      CHECK(outcome.status == Status::kOk ||
            outcome.status == (round % 2 == 0 ? Status::kCancelled : Status::kEngineClosed));
    }
    bench.clear();
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    CHECK(bench.is_clear());
    if (round % 2 == 0) {
      CHECK(bench.move(Op::kRead, "source", {{0, 0, kSize}}) == Status::kOk);
    } else {
      auto refused = bench.submission(Op::kRead, "source", {{0, 0, kSize}});
      bench.post(*refused);
      CHECK(refused->refused.size() == refused->attempts.size());
      CHECK(bench.owner->take_outcomes().empty());
      CHECK(bench.is_clear());
    }
  }
}

void test_killed_target(const Row& row) {
  if (row.same_process) return;
  for (const Op op : {Op::kRead, Op::kWrite}) {
    Bench bench(row);
    const char* name = op == Op::kRead ? "source" : "sink";
    CHECK(bench.move(op, name, {{0, 0, 4096}}) == Status::kOk);
    auto lost = bench.submission(op, name, {{0, 0, kSize}});
    bench.post(*lost);
    bench.path->pump();
    ::kill(bench.target.child()->pid(), SIGKILL);
    CHECK(bench.pump_until(
        [&] { return bench.owner->under_way() == 0 && bench.owner->why_lost() != Status::kOk; }));
    CHECK(bench.owner->why_lost() == Status::kPeerDied && bench.owner->unsettled() == 0);
    auto late = bench.submission(op, name, {{0, 0, 4096}});
    bench.post(*late);
    CHECK(late->refused.size() == 1);
  }
}

// A stopped target: what this end moves needs nothing of it. What it would have to do itself is
// given up, and settled when it runs again.
void test_stopped_target(const Row& row) {
  if (row.same_process) return;
  Bench bench(row);
  CHECK(bench.move(Op::kRead, "source", {{0, 0, 4096}}) == Status::kOk);
  CHECK(bench.move(Op::kWrite, "sink", {{0, 0, 4096}}) == Status::kOk);
  bench.stop_target();
  bench.clear();
  auto reads = bench.submission(Op::kRead, "source", {{0, 0, kSize}});
  if (row.target_moves_reads) {
    bench.post(*reads);
    bench.path->revoke(reads.get());
    CHECK(bench.owner->under_way() == 0);
  } else {
    CHECK(bench.run(*reads) == Status::kOk);
    bench.clear();
  }
  auto writes = bench.submission(Op::kWrite, "sink", {{0, 0, kSize}});
  if (row.target_moves_writes) {
    bench.owner->take_outcomes();
    bench.post(*writes);
    bench.path->revoke(writes.get());
    for (const Outcome& outcome : bench.owner->take_outcomes())
      CHECK(outcome.settled && outcome.status == Status::kCancelled);
    CHECK(bench.owner->under_way() > 0);
    bench.path->abandon(writes.get());
    CHECK(bench.owner->under_way() == 0);
    CHECK(bench.owner->unsettled() > 0);
    for (const Outcome& outcome : bench.owner->take_outcomes())
      CHECK(!outcome.settled && outcome.status == Status::kCancelled);
  } else {
    CHECK(bench.run(*writes) == Status::kOk);
  }
  bench.let_target_go_on();
  CHECK(bench.is_clear());
  bench.settle(false);
  CHECK(bench.move(Op::kWrite, "sink", {{0, 0, kSize}}) == Status::kOk);
  CHECK(bench.target.ask(Ask::kSum, "sink") == inlay::crc32c({bench.local->base, kSize}));
  CHECK(bench.move(Op::kRead, "source", {{0, 0, kSize}}) == Status::kOk);
}

// Closed while the target still works for it. When that is told to be over, it is.
void test_close_with_writes_under_way(const Row& row) {
  if (!row.target_moves_writes) return;
  Bench bench(row);
  bench.stop_target();
  auto writes = bench.submission(Op::kWrite, "sink", {{0, 0, kSize}});
  bench.owner->take_outcomes();
  bench.post(*writes);
  CHECK(!bench.path->fence().empty());
  bench.path->close(Status::kTimeout);
  CHECK(bench.owner->under_way() == 0);
  CHECK(bench.owner->unsettled() == writes->attempts.size());
  bench.let_target_go_on();
  bench.settle(true);
  const uint32_t then = bench.target.ask(Ask::kSum, "sink");
  CHECK(bench.move(Op::kRead, "source", {{0, 0, kSize}}) == Status::kOk);
  CHECK(bench.target.ask(Ask::kSum, "sink") == then);
}

void test_many_threads(const Row& row) {
  Bench bench(row);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load())
      if (!bench.path->pump()) std::this_thread::yield();
  });
  for (int i = 0; i < 30; ++i) {
    bench.clear();
    CHECK(bench.move(Op::kRead, "source", {{1, 3, kSize - 3}}) == Status::kOk);
    CHECK(std::memcmp(bench.local->base + 1, patterns().data() + 3, kSize - 3) == 0);
  }
  stop.store(true);
  other.join();
}

}  // namespace

}  // namespace transport_test

int main(int argc, char** argv) {
  using namespace transport_test;
  const std::pair<const char*, void (*)(const Row&)> cases[] = {
      {"reads", test_reads},
      {"writes", test_writes},
      {"liar", test_liar},
      {"closed segment", test_closed_segment},
      {"deregistration", test_nothing_lands_after_deregistration},
      {"revoke and close", test_revoke_and_close},
      {"killed target", test_killed_target},
      {"stopped target", test_stopped_target},
      {"close with writes under way", test_close_with_writes_under_way},
      {"many threads", test_many_threads},
  };
  for (const Row& row : rows()) {
    if (argc > 1 && std::string(row.name).find(argv[1]) == std::string::npos) continue;
    for (const auto& [name, test] : cases) {
      std::printf("%s: %s\n", row.name, name);
      std::fflush(stdout);
      test(row);
    }
  }
}

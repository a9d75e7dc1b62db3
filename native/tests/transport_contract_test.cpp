// What transport.h promises, for every transport that moves bytes between two engines.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "../core/errors.h"
#include "../transfer/fabric.h"
#include "../transfer/local.h"
#include "../transfer/plugin.h"
#include "../transfer/server.h"
#include "../transfer/shm.h"
#include "../transfer/tcp.h"
#include "transport_bench.h"

namespace transport_test {

using namespace inlay::transfer;
using inlay::Status;

namespace {

// Lanes of tcp, with the port that serves them.
class TcpLanes final : public Transport {
 public:
  explicit TcpLanes(const Site& site) : tcp_(site) {
    inlay::net::Listener listener = inlay::net::listen_at("127.0.0.1:0");
    address_ = listener.address;
    server_ = std::make_shared<Server>(site, std::move(listener.socket),
                                       [this](const auto& from, auto question) -> Answer {
                                         inlay::net::Question asked;
                                         if (!inlay::net::decode(question, asked))
                                           return {Status::kProtocol, {}};
                                         return answer(from, asked.body);
                                       });
    tcp_.serve(server_, address_);
    server_->start();
  }
  std::string_view name() const override { return tcp_.name(); }
  Bytes attach(Segment& segment) override { return tcp_.attach(segment); }
  bool detach(Segment& segment, Clock::time_point until) override {
    return tcp_.detach(segment, until);
  }
  Bytes offer() override {
    const auto bytes = std::as_bytes(std::span(address_));
    return {bytes.begin(), bytes.end()};
  }
  Connected connect(const std::shared_ptr<PathOwner>& peer, std::span<const std::byte> offer,
                    Clock::time_point end) override {
    const std::string address(reinterpret_cast<const char*>(offer.data()), offer.size());
    constexpr auto kBulk = inlay::net::LaneKind::kBulk;
    // Of one generation, so that one does not fence another.
    const uint64_t connection = (uint64_t{1} << 32) + ++last_;
    auto dialed =
        tcp_.dial(address, kBulk, connection, [](const auto&) { return false; }, end, [] {});
    return {{tcp_.make_lane(peer, std::move(dialed.socket), connection, kBulk)}, {}};
  }
  Answer answer(const inlay::net::EngineId& from, std::span<const std::byte> question) override {
    return tcp_.answer(from, question);
  }
  void close() override {
    server_->stop();
    tcp_.close();
  }

 private:
  TcpTransport tcp_;
  std::shared_ptr<Server> server_;
  std::string address_;
  uint32_t last_ = 0;
};

// Files have tests of their own: they are no memory that a peer could be asked about.
std::vector<Row> rows() {
  const MakeTransport local = [](const Site& site) {
    return std::make_unique<LocalTransport>(site);
  };
  const MakeTransport shm = [](const Site& site) { return std::make_unique<ShmTransport>(site); };
  const MakeTransport tcp = [](const Site& site) { return std::make_unique<TcpLanes>(site); };
  const MakeTransport plugin = [](const Site& site) {
    return make_plugin(site, {"unix-socket", INLAY_TEST_PLUGIN});
  };
  std::vector<Row> all{
      {.name = "local", .make = local, .same_process = true, .maps = true},
      {.name = "shm, allocated", .make = shm, .maps = true},
      {.name = "shm, shared file", .make = shm, .from = From::kSharedFile, .maps = true},
      {.name = "shm, foreign", .make = shm, .from = From::kForeign, .target_moves_writes = true},
      {.name = "tcp",
       .make = tcp,
       .from = From::kForeign,
       .target_moves_reads = true,
       .target_moves_writes = true},
      {.name = "plugin",
       .make = plugin,
       .from = From::kForeign,
       .target_moves_reads = true,
       .target_moves_writes = true,
       .comes_back = true,
       .grants = false},
  };
#ifdef INLAY_TEST_FABRIC
  for (const auto& make : {&make_fabric, &make_unconnected_fabric})
    all.push_back({.name = make == &make_fabric ? "fabric" : "fabric, unconnected",
                   .make = make,
                   .from = From::kForeign,
                   .same_process = true,  // libfabric does not outlive a fork
                   .comes_back = true,
                   .by_keys = true,
                   .silent = make != &make_fabric,
                   .grants = false});
#endif
  return all;
}

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
                                                     {16384, 200}, {100000, 2}, {300000, 8},
                                                     {2 << 20, 3}, {kSize, 1}};
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
  const std::pair<uint64_t, std::size_t> shapes[] = {{1, 3},       {4096, 1},   {500, 700},
                                                     {16384, 200}, {300000, 8}, {kSize, 1}};
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
    const int tries = row.silent ? 1 : 8;
    CHECK(bench.move(Op::kWrite, "sink", {{0, kSize - 10, length}}, tries) != Status::kOk);
    bench.remote["source"]->descriptor.writable = true;
    CHECK(bench.move(Op::kWrite, "source", {{0, 0, length}}) != Status::kOk);
    if (!row.by_keys) {
      ++bench.remote["sink"]->descriptor.epoch;
      CHECK(bench.move(Op::kWrite, "sink", {{0, 0, length}}) == Status::kSegmentClosed);
      for (const uint32_t slot : {4000u, 1u << 30}) {
        bench.remote["sink"]->descriptor.slot = slot;
        CHECK(bench.move(Op::kWrite, "sink", {{0, 0, length}}) == Status::kSegmentClosed);
      }
    }
    CHECK(bench.target.ask(Ask::kSum, "source") == source);
    CHECK(bench.target.ask(Ask::kSum, "sink") == sink);
    if (row.silent) return;
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
  for (int round = row.silent ? 7 : 0; round < 8; ++round) {
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
    while (writes.load() < then + (row.silent ? 1 : 3)) std::this_thread::yield();
    CHECK(bench.target.ask(Ask::kUntouched, "sink") == 1);
    stop.store(true);
    writer.join();
  }
}

// What the path says is over does not touch local memory any more; everything is reported.
void test_revoke_and_close(const Row& row) {
  for (int round = 0; round < 8; ++round) {
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
  if (!row.target_moves_writes || row.same_process) return;
  Bench bench(row);
  CHECK(bench.move(Op::kWrite, "sink", {{0, 0, 4096}}) == Status::kOk);
  bench.stop_target();
  auto writes = bench.submission(Op::kWrite, "sink", {{0, 0, kSize}});
  bench.owner->take_outcomes();
  bench.post(*writes);
  CHECK(!bench.path->fence().empty());
  bench.path->close(Status::kTimeout);
  CHECK(bench.owner->under_way() == 0);
  CHECK(bench.owner->unsettled() > 0);
  bench.let_target_go_on();
  bench.settle(true);
  const uint32_t then = bench.target.ask(Ask::kSum, "sink");
  CHECK(bench.move(Op::kRead, "source", {{0, 0, kSize}}) == Status::kOk);
  CHECK(bench.target.ask(Ask::kSum, "sink") == then);
}

void test_many_threads(const Row& row) {
  Bench bench(row);
  std::atomic<bool> stop{false};
  std::thread other([&, path = bench.path] {
    while (!stop.load())
      if (!path->pump()) std::this_thread::yield();
  });
  for (int i = 0; i < (row.silent ? 5 : 30); ++i) {
    bench.clear();
    CHECK(bench.move(Op::kRead, "source", {{1, 3, kSize - 3}}) == Status::kOk);
    CHECK(std::memcmp(bench.local->base + 1, patterns().data() + 3, kSize - 3) == 0);
  }
  stop.store(true);
  other.join();
}

struct Mapping {
  Status status;
  std::shared_ptr<const MappedSegment> segment;
};

Mapping map(Bench& bench, const char* name) {
  std::mutex mutex;
  std::optional<Mapping> mapping;
  bench.path->map(*bench.remote[name], [&](Status status, auto segment) {
    const std::lock_guard lock(mutex);
    CHECK(!mapping);
    mapping = {status, std::move(segment)};
  });
  CHECK(bench.pump_until([&] {
    const std::lock_guard lock(mutex);
    return mapping.has_value();
  }));
  CHECK((mapping->status == Status::kOk) == (mapping->segment != nullptr));
  return *mapping;
}

bool shows(const Mapping& mapping, const std::vector<std::byte>& bytes) {
  return std::ranges::equal(mapping.segment->bytes(), bytes);
}

// For reading: before, while and after bytes move, until it is let go of.
void test_mapping(const Row& row) {
  Bench bench(row);
  Mapping source = map(bench, "source");
  if (!row.maps) {
    CHECK(source.status == Status::kTransportUnavailable);
    return;
  }
  CHECK(shows(source, patterns()) && source.segment->is_open());
  CHECK(bench.move(Op::kRead, "source", {{0, 0, kSize}}) == Status::kOk);
  const Mapping again = map(bench, "source");
  CHECK(shows(again, patterns()));
  const Mapping sink = map(bench, "sink");
  CHECK(shows(sink, untouched()));
  std::memcpy(bench.local->base, patterns().data(), kSize);
  CHECK(bench.move(Op::kWrite, "sink", {{0, 0, kSize}}) == Status::kOk);
  CHECK(shows(sink, patterns()));
  CHECK(bench.target.ask(Ask::kRemove, "source") == 1);
  CHECK(!source.segment->is_open() && sink.segment->is_open());
  CHECK(shows(source, untouched()));  // as its owner has it now
  CHECK(map(bench, "source").status == Status::kSegmentClosed);
  source.segment = nullptr;
  if (row.same_process) return;
  ::kill(bench.target.child()->pid(), SIGKILL);
  CHECK(bench.pump_until([&] { return !sink.segment->is_open(); }));
  CHECK(shows(sink, patterns()));
  CHECK(map(bench, "sink").status == Status::kPeerDied);
}

void test_grants(const Row& row) {
  Bench bench(row);
  RemoteSegment& guarded = *bench.remote["guarded"];
  CHECK(guarded.descriptor.guarded && guarded.descriptor.writable);
  CHECK(!bench.remote["sink"]->descriptor.guarded);
  CHECK(bench.move(Op::kRead, "guarded", {{0, 0, kSize}}) == Status::kOk);
  CHECK(std::memcmp(bench.local->base, untouched().data(), kSize) == 0);
  bench.grant = FirstHalf::kGrant;
  if (!row.grants) {
    CHECK(!bench.path->reach(*bench.local, guarded, Op::kWrite));
    guarded.descriptor.guarded = false;  // of a liar
    CHECK(bench.move(Op::kWrite, "guarded", {{0, 0, 4096}}) != Status::kOk);
    CHECK(bench.target.ask(Ask::kUntouched, "guarded") == 1);
    return;
  }
  std::memcpy(bench.local->base, patterns().data(), kSize);
  for (const uint64_t length : {uint64_t{4096}, kSize / 2}) {
    for (const uint64_t wrong : {uint64_t{0}, FirstHalf::kGrant - 1}) {
      bench.grant = wrong;
      CHECK(bench.move(Op::kWrite, "guarded", {{0, 0, length}}) == Status::kGrant);
    }
    bench.grant = FirstHalf::kGrant;
    CHECK(bench.move(Op::kWrite, "guarded", {{0, kSize / 2, length}}) == Status::kGrant);
    CHECK(bench.target.ask(Ask::kUntouched, "guarded") == 1);
  }
  CHECK(bench.move(Op::kWrite, "guarded", {{0, 0, 99}, {99, 99, kSize / 2 - 99}}) == Status::kOk);
  std::vector<std::byte> expected = untouched();
  std::memcpy(expected.data(), patterns().data(), kSize / 2);
  CHECK(bench.target.ask(Ask::kSum, "guarded") == inlay::crc32c(expected));
  guarded.descriptor.guarded = false;  // of a liar
  CHECK(bench.move(Op::kWrite, "guarded", {{0, 0, 4096}}) != Status::kOk || row.same_process);
}

// Taken back while it is used: what its owner writes afterwards stays.
void test_nothing_lands_after_a_grant(const Row& row) {
  if (!row.grants) return;
  for (int round = 0; round < 8; ++round) {
    Bench bench(row);
    bench.grant = FirstHalf::kGrant;
    std::atomic<bool> stop{false};
    std::atomic<int> writes{0};
    std::thread writer([&] {
      while (!stop.load()) {
        const Status status = bench.move(Op::kWrite, "guarded", {{0, 0, kSize / 2}});
        CHECK(status == Status::kOk || status == Status::kGrant);
        writes.fetch_add(1);
      }
    });
    while (writes.load() < round % 4) std::this_thread::yield();
    CHECK(bench.target.ask(Ask::kTakeBack, "guarded") == 1);
    const int then = writes.load();
    while (writes.load() < then + (row.silent ? 1 : 3)) std::this_thread::yield();
    CHECK(bench.target.ask(Ask::kUntouched, "guarded") == 1);
    stop.store(true);
    writer.join();
  }
}

// What peers would not map is refused to its owner.
void test_shared_files() {
  const LockedFile good(kSize);
  CHECK(unsafe_to_map(good.descriptor(), kSize) == nullptr);
  CHECK(unsafe_to_map(good.descriptor(), kSize + 1) != nullptr);
  const auto refused = [](const inlay::net::Descriptor& file) {
    try {
      (void)map_shared_file(file, Access::kWrite);
      return false;
    } catch (const inlay::ArgumentError&) {
      return true;
    }
  };
  CHECK(refused(LockedFile(0).descriptor()));
  const LockedFile open_to_others(kSize);
  CHECK(fchmod(open_to_others.descriptor().get(), 0620) == 0);
  CHECK(refused(open_to_others.descriptor()));
  const LockedFile unlocked(kSize);
  CHECK(flock(unlocked.descriptor().get(), LOCK_UN) == 0);
  CHECK(refused(unlocked.descriptor()));
  std::array<int, 2> ends;
  CHECK(pipe(ends.data()) == 0);
  const inlay::net::Descriptor reads(ends[0]);
  const inlay::net::Descriptor writes(ends[1]);
  CHECK(unsafe_to_map(reads, 1) != nullptr);

  // The lock is the owner's alone: a mapping elsewhere does not keep it.
  Status status = Status::kOk;
  std::shared_ptr<const MappedSegment> mapped;
  inlay::net::Descriptor next;
  {
    const LockedFile owned(kSize);
    next = reopened(owned.descriptor(), true);
    const Allocation memory = map_shared_file(owned.descriptor(), Access::kRead);
    CHECK((fcntl(memory.memory->get(), F_GETFL) & O_ACCMODE) == O_RDONLY);
    std::memcpy(memory.bytes.get(), patterns().data(), kSize);
    mapped = MappedSegment::map(*memory.memory, kSize, [] { return true; }, status);
    CHECK(mapped != nullptr);
    CHECK(flock(next.get(), LOCK_EX | LOCK_NB) != 0);
  }
  CHECK(std::ranges::equal(mapped->bytes(), patterns()));
  CHECK(flock(next.get(), LOCK_EX | LOCK_NB) == 0);
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
      {"mapping", test_mapping},
      {"grants", test_grants},
      {"grants that are taken back", test_nothing_lands_after_a_grant},
  };
  test_shared_files();
  const std::vector<Row> all = rows();
  for (const Row& row : all) {
    if (argc > 1 && std::string(row.name).find(argv[1]) == std::string::npos) continue;
    for (const auto& [name, test] : cases) {
      std::printf("%s: %s\n", row.name, name);
      std::fflush(stdout);
      test(row);
    }
  }
}

// The path to files of this engine, as a dispatcher uses it.
#include "../transfer/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "../transfer/disk_file.h"
#include "check.h"

using namespace inlay;
using namespace inlay::transfer;

namespace {

constexpr uint64_t kFileBytes = 8 << 20;

class Owner final : public PathOwner {
 public:
  explicit Owner(const net::EngineId& id) : id_(id) {}

  struct End {
    Status status;
    bool settled;
  };
  void completed(Attempt& attempt, Status status, bool settled) override {
    const std::lock_guard lock(mutex_);
    CHECK(ends_.emplace(&attempt, End{status, settled}).second);
    changed_.notify_all();
  }
  void settled(Attempt&) override { CHECK(!"settled later"); }
  void lost(Path&, Status) override { CHECK(!"lost"); }
  void add(std::shared_ptr<Path>) override { CHECK(!"added"); }
  void fill() override { ++fills; }
  void ask(std::string_view, Bytes, Then) override { CHECK(!"asked"); }
  const net::EngineId& engine_id() const override { return id_; }
  const std::string& peer_address() const override { return address_; }

  End wait(Attempt& attempt) {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(20),
                            [&] { return ends_.contains(&attempt); }));
    return ends_.at(&attempt);
  }
  bool has(Attempt& attempt) {
    const std::lock_guard lock(mutex_);
    return ends_.contains(&attempt);
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    ends_.clear();
  }
  std::atomic<int> fills{0};

 private:
  const net::EngineId id_;
  const std::string address_ = "127.0.0.1:1";
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Attempt*, End> ends_;
};

struct Bench {
  explicit Bench(net::FileQueue::Way way)
      : queue(std::make_shared<net::FileQueue>(way)),
        transport(Site{loop, segments, id, {}, {}, 0, {}}) {
    char name[] = "file_test.XXXXXX";
    close(mkstemp(name));
    file = std::make_shared<DiskFile>(FileOptions{name, kFileBytes, true}, queue);
    unlink(name);
    disk = std::make_shared<Segment>(nullptr, kFileBytes, true, Access::kNone, "disk", file,
                                     net::Location{net::Place::kDisk, 0});
    disk->far = file.get();
    bytes.resize(kFileBytes);
    memory =
        std::make_shared<Segment>(bytes.data(), kFileBytes, true, Access::kNone, "memory", nullptr);
    segments.add(disk);
    segments.add(memory);
    segments.publish(*disk);
    segments.publish(*memory);
    remote = std::make_shared<RemoteSegment>();
    remote->name = "disk";
    remote->descriptor.slot = disk->slot;
    remote->descriptor.epoch = disk->epoch;
    remote->descriptor.size = kFileBytes;
    remote->descriptor.location = disk->location;
    owner = std::make_shared<Owner>(id);
    path = transport.connect(owner, {}, {}).paths.at(0);
  }
  ~Bench() {
    path->close(Status::kEngineClosed);
    queue->stop();
  }

  Request request(Op op, std::vector<Range> ranges) {
    Request made{op, memory, remote, std::move(ranges)};
    for (const Range& range : made.ranges) made.bytes += range.length;
    return made;
  }
  static Attempt attempt(const Request& request) {
    Attempt made;
    made.slice = {&request, 0, request.ranges.size(), 0, request.bytes};
    made.owner = &request;
    return made;
  }
  Status run(const Request& request) {
    Attempt one = attempt(request);
    const PostResult posted = path->post(one);
    if (posted.how == Posted::kRefused) return posted.why;
    CHECK(posted.how == Posted::kTaken);
    path->kick();
    const Owner::End end = owner->wait(one);
    owner->forget();
    CHECK(end.settled);
    return end.status;
  }

  net::EngineId id{};
  net::Loop loop{0, [](Clock::time_point) { return Clock::time_point::max(); }};
  SegmentRegistry segments;
  std::shared_ptr<net::FileQueue> queue;
  FileTransport transport;
  std::shared_ptr<DiskFile> file;
  std::vector<std::byte> bytes;
  std::shared_ptr<Segment> disk;
  std::shared_ptr<Segment> memory;
  std::shared_ptr<RemoteSegment> remote;
  std::shared_ptr<Owner> owner;
  std::shared_ptr<Path> path;
};

void moves_ranges(Bench& bench) {
  std::mt19937_64 random(1);
  for (std::byte& byte : bench.bytes) byte = static_cast<std::byte>(random());
  const std::vector<std::byte> before = bench.bytes;
  std::vector<Range> ranges;
  uint64_t at = 5;
  for (int i = 0; i < 200; ++i) {
    const uint64_t length = 1 + random() % 30000;
    ranges.push_back({at, at + 1000, length});
    at += length;
  }
  CHECK(bench.run(bench.request(Op::kWrite, ranges)) == Status::kOk);
  std::fill(bench.bytes.begin(), bench.bytes.end(), std::byte{0});
  CHECK(bench.run(bench.request(Op::kRead, ranges)) == Status::kOk);
  for (uint64_t i = 0; i < kFileBytes; ++i)
    CHECK(bench.bytes[i] == (i >= 5 && i < at ? before[i] : std::byte{0}));
  while (bench.owner->fills < 2) std::this_thread::yield();
}

void refuses(Bench& bench) {
  CHECK(bench.run(bench.request(Op::kRead, {{0, kFileBytes, 1}})) == Status::kSegmentRange);
  CHECK(bench.run(bench.request(Op::kRead, {{0, 0, 1}, {0, ~uint64_t{0}, 2}})) ==
        Status::kSegmentRange);
  ++bench.remote->descriptor.epoch;
  CHECK(bench.run(bench.request(Op::kRead, {{0, 0, 1}})) == Status::kSegmentClosed);
  --bench.remote->descriptor.epoch;
  bench.remote->descriptor.slot = bench.memory->slot;
  bench.remote->descriptor.epoch = bench.memory->epoch;
  CHECK(bench.run(bench.request(Op::kRead, {{0, 0, 1}})) == Status::kSegmentAccess);
  bench.remote->descriptor.slot = bench.disk->slot;
  bench.remote->descriptor.epoch = bench.disk->epoch;
  net::EngineId other{};
  other[0] = std::byte{1};
  CHECK(bench.transport.connect(std::make_shared<Owner>(other), {}, {}).paths.empty());
}

void revokes(Bench& bench) {
  const Request read = bench.request(Op::kRead, {{0, 0, kFileBytes}});
  const Request write = bench.request(Op::kWrite, {{0, 0, 4096}});
  Attempt idle = bench.attempt(read);
  CHECK(bench.path->post(idle).how == Posted::kTaken);
  bench.path->revoke(&write);
  CHECK(!bench.owner->has(idle));
  bench.path->revoke(&read);
  CHECK(bench.owner->wait(idle).status == Status::kCancelled);
  for (int round = 0; round < 20; ++round) {
    Attempt busy = bench.attempt(read);
    CHECK(bench.path->post(busy).how == Posted::kTaken);
    bench.path->kick();
    bench.path->revoke(&read);
    const Status status = bench.owner->wait(busy).status;
    CHECK(status == Status::kCancelled || status == Status::kOk);
    bench.owner->forget();
  }
}

// The disk goes on reading what it has begun to write: the end comes after that, and settled.
void abandons(Bench& bench) {
  for (int round = 0; round < 50; ++round) {
    const Request write = bench.request(Op::kWrite, {{7, 9, kFileBytes - 16}});
    Attempt attempt = bench.attempt(write);
    CHECK(bench.path->post(attempt).how == Posted::kTaken);
    bench.path->kick();
    bench.path->abandon(&write);
    const Owner::End end = bench.owner->wait(attempt);
    CHECK(end.settled && (end.status == Status::kCancelled || end.status == Status::kOk));
    bench.owner->forget();
  }
}

void closes(net::FileQueue::Way way) {
  for (int round = 0; round < 10; ++round) {
    Bench bench(way);
    std::vector<Request> requests;
    for (int i = 0; i < 8; ++i)
      requests.push_back(
          bench.request(i % 2 == 0 ? Op::kRead : Op::kWrite,
                        {{static_cast<uint64_t>(i) << 20, uint64_t(i) << 20, 1 << 20}}));
    std::vector<Attempt> attempts;
    for (const Request& request : requests) attempts.push_back(Bench::attempt(request));
    for (std::size_t i = 0; i < attempts.size(); ++i) {
      CHECK(bench.path->post(attempts[i]).how == Posted::kTaken);
      if (i < 6) bench.path->kick();
    }
    if (round % 3 == 1) bench.queue->stop();
    bench.path->close(Status::kEngineClosed);
    for (Attempt& attempt : attempts) {
      CHECK(bench.owner->has(attempt));
      const Status status = bench.owner->wait(attempt).status;
      CHECK(status == Status::kOk || status == Status::kEngineClosed ||
            (round % 3 == 1 && status == Status::kCancelled));
    }
    Attempt late = Bench::attempt(requests[0]);
    CHECK(bench.path->post(late).why == Status::kEngineClosed);
  }
}

}  // namespace

int main() {
  for (const auto way : {net::FileQueue::Way::kBest, net::FileQueue::Way::kThreads}) {
    {
      Bench bench(way);
      moves_ranges(bench);
      refuses(bench);
      revokes(bench);
      abandons(bench);
    }
    closes(way);
  }
  return 0;
}

// Far local memory through buffers: every step done, failed, stopped, given up and closed, over far
// memory and inner paths that do what the test says.
#include "../transfer/staged_path.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include "../transfer/peer.h"
#include "check.h"

namespace {

using namespace inlay;
using namespace inlay::transfer;

constexpr uint64_t kSize = 64 << 20;

template <typename Condition>
void wait_for(Condition&& condition) {
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    CHECK(Clock::now() < end);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

class FakeFar final : public FarMemory {
 public:
  class Move final : public FarMove {
   public:
    Move(FakeFar& far, bool write, Done done) : far_(far), write_(write), done_(std::move(done)) {}
    ~Move() override {
      const std::lock_guard lock(far_.mutex_);
      std::erase(far_.moves_, this);
    }
    void add(uint64_t offset, std::byte* host, uint64_t bytes) override {
      parts_.push_back({offset, host, bytes});
    }
    void start() override {
      const std::lock_guard lock(far_.mutex_);
      far_.moves_.push_back(this);
    }
    void cancel() override { cancelled_.store(true); }
    void finish(Status status) {
      {
        const std::lock_guard lock(far_.mutex_);
        std::erase(far_.moves_, this);
      }
      if (status == Status::kOk)
        for (const Part& part : parts_) {
          std::byte* far = far_.bytes.data() + part.offset;
          std::memcpy(write_ ? far : part.host, write_ ? part.host : far, part.bytes);
        }
      const Done done = std::move(done_);
      done(status);
    }
    bool cancelled() const { return cancelled_.load(); }
    bool writes() const { return write_; }

   private:
    struct Part {
      uint64_t offset;
      std::byte* host;
      uint64_t bytes;
    };
    FakeFar& far_;
    const bool write_;
    Done done_;
    std::vector<Part> parts_;
    std::atomic<bool> cancelled_{false};
  };

  std::unique_ptr<FarMove> move(bool write, FarMove::Done done) override {
    return std::make_unique<Move>(*this, write, std::move(done));
  }
  std::size_t under_way() const {
    const std::lock_guard lock(mutex_);
    return moves_.size();
  }
  Move& first() {
    wait_for([&] { return under_way() > 0; });
    const std::lock_guard lock(mutex_);
    return *moves_.front();
  }

  std::vector<std::byte> bytes = std::vector<std::byte>(kSize);

 private:
  mutable std::mutex mutex_;
  std::vector<Move*> moves_;
};

class FakePath final : public Path {
 public:
  FakePath(std::weak_ptr<Peer> peer, std::vector<std::byte>& remote)
      : peer_(std::move(peer)), remote_(remote) {}

  std::string_view transport() const override { return "fake"; }
  std::string name() const override { return "fake"; }
  // So fast that a buffer is one slice of it.
  std::optional<Reach> reach(const Segment& local, const RemoteSegment&, Op) const override {
    return local.far == nullptr && reaches ? std::optional(Reach{2e10, 1e-6}) : std::nullopt;
  }
  PostResult post(Attempt& attempt) override {
    const std::lock_guard lock(mutex_);
    posted_.push_back(&attempt);
    ++posts;
    return {Posted::kTaken};
  }
  void kick() override {
    if (dies) peer_.lock()->lose(Status::kPeerDied, true);
  }
  bool pump() override { return false; }
  bool try_drive(const net::WakeUp&) override { return false; }
  void stop_driving(const net::WakeUp&) override {}
  void revoke(const void* owner) override {
    end_all(Status::kCancelled, [&](const Attempt& one) {
      return one.owner == owner && one.slice.request->op == Op::kRead;
    });
  }
  void abandon(const void* owner) override {
    for (Attempt* attempt : take([&](const Attempt& one) { return one.owner == owner; })) {
      const bool write = attempt->slice.request->op == Op::kWrite;
      if (write) doubtful.push_back(attempt);
      peer_.lock()->completed(*attempt, Status::kCancelled, !write);
    }
  }
  void close(Status why) override {
    end_all(why, [](const Attempt&) { return true; });
  }

  std::size_t under_way() const {
    const std::lock_guard lock(mutex_);
    return posted_.size();
  }
  void end(Status status) {
    wait_for([&] { return under_way() > 0; });
    Attempt* first = nullptr;
    {
      const std::lock_guard lock(mutex_);
      first = posted_.front();
      posted_.erase(posted_.begin());
    }
    if (status == Status::kOk)
      first->slice.each([&](const Range& range) {
        std::byte* here = first->slice.request->local->base + range.local;
        std::byte* there = remote_.data() + range.remote;
        const bool read = first->slice.request->op == Op::kRead;
        std::memcpy(read ? here : there, read ? there : here, range.length);
      });
    peer_.lock()->completed(*first, status, true);
    peer_.lock()->fill();
  }
  void settle() {
    peer_.lock()->settled(*doubtful.back());
    doubtful.pop_back();
  }

  std::vector<Attempt*> doubtful;
  std::atomic<int> posts{0};
  bool reaches = true;
  std::atomic<bool> dies{false};  // at the next post

 private:
  std::vector<Attempt*> take(const std::function<bool(const Attempt&)>& which) {
    std::vector<Attempt*> taken;
    const std::lock_guard lock(mutex_);
    std::erase_if(posted_, [&](Attempt* attempt) {
      if (!which(*attempt)) return false;
      taken.push_back(attempt);
      return true;
    });
    return taken;
  }
  void end_all(Status why, const std::function<bool(const Attempt&)>& which) {
    for (Attempt* attempt : take(which)) peer_.lock()->completed(*attempt, why, true);
  }

  const std::weak_ptr<Peer> peer_;
  std::vector<std::byte>& remote_;
  mutable std::mutex mutex_;
  std::vector<Attempt*> posted_;
};

struct Case {
  explicit Case(std::shared_ptr<StagingArea> shared = nullptr) : area(std::move(shared)) {
    if (area == nullptr) area = std::make_shared<StagingArea>("buffers");
    segment->far = far.get();
    remote->peer = peer;
    remote->name = "remote";
    remote->descriptor = {1, 1, kSize, true, true, {}, {}};
    for (uint64_t i = 0; i < kSize; i += 511) far->bytes[i] = std::byte(i % 253);
    path = std::make_shared<FakePath>(peer, remote_bytes);
    peer->add(path);
    peer->stage_through(area);
    loop.start();
  }
  ~Case() {
    // As an engine's end: what the far memory has begun is waited for.
    std::thread disk([&] {
      while (!closed.load()) {
        if (far->under_way() > 0) far->first().finish(Status::kOk);
        std::this_thread::yield();
      }
    });
    loop.stop();
    peer->lose(Status::kEngineClosed, true);
    closed.store(true);
    disk.join();
    CHECK(far->under_way() == 0 && path->under_way() == 0);
  }

  std::shared_ptr<Batch> submit(Op op, uint64_t bytes, uint64_t from = 5, uint64_t to = 3) {
    std::vector<Request> requests;
    requests.push_back({op, segment, remote, {{from, to, bytes}}, bytes});
    auto batch = std::make_shared<Batch>(std::move(requests), Clock::time_point::max(), 0, 0);
    batch->start();
    return batch;
  }
  void over(const Batch& batch, State state) {
    wait_for([&] { return batch.over(); });
    CHECK(batch.state() == state);
  }

  net::Loop loop{0, [](Clock::time_point) { return Clock::time_point::max(); }};
  std::shared_ptr<StagingArea> area;
  std::shared_ptr<FakeFar> far = std::make_shared<FakeFar>();
  std::shared_ptr<Segment> segment = std::make_shared<Segment>(
      nullptr, kSize, true, Access::kNone, "far", far, net::Location{net::Place::kDisk, 0});
  std::vector<std::byte> remote_bytes = std::vector<std::byte>(kSize);
  std::shared_ptr<Peer> peer = std::make_shared<Peer>(loop, "127.0.0.1:1", net::EngineId{}, 1U);
  std::shared_ptr<RemoteSegment> remote = std::make_shared<RemoteSegment>();
  std::shared_ptr<FakePath> path;
  std::atomic<bool> closed{false};
};

void test_steps() {
  Case c;
  const auto write = c.submit(Op::kWrite, 9000);
  CHECK(!c.far->first().writes() && c.path->posts == 0);
  c.far->first().finish(Status::kOk);
  c.path->end(Status::kOk);
  c.over(*write, State::kDone);
  CHECK(std::memcmp(c.remote_bytes.data() + 3, c.far->bytes.data() + 5, 9000) == 0);
  const auto read = c.submit(Op::kRead, 8000, 20000, 3);
  c.path->end(Status::kOk);
  CHECK(c.far->first().writes() && !read->over());
  c.far->first().finish(Status::kOk);
  c.over(*read, State::kDone);
  CHECK(std::memcmp(c.remote_bytes.data() + 3, c.far->bytes.data() + 20000, 8000) == 0);
}

void test_failures() {
  Case c;
  const auto unread = c.submit(Op::kWrite, 9000);
  c.far->first().finish(Status::kFile);
  c.over(*unread, State::kFailed);
  CHECK(unread->progress(0).error == Status::kFile && c.path->posts == 0);
  const auto full = c.submit(Op::kRead, 9000);
  c.path->end(Status::kOk);
  c.far->first().finish(Status::kStorageFull);
  c.over(*full, State::kFailed);
  CHECK(full->failure().segment == "far");
  const auto closed = c.submit(Op::kRead, 9000);
  c.path->end(Status::kSegmentClosed);
  c.over(*closed, State::kFailed);
  CHECK(c.remote->closed && c.far->under_way() == 0);
  c.remote->closed = false;
  // The batch between buffer and peer tries eight times, and nobody after it.
  const int before = c.path->posts;
  const auto faulty = c.submit(Op::kRead, 9000);
  while (!faulty->over()) {
    if (c.path->under_way() > 0) c.path->end(Status::kPeerUnreachable);
    c.peer->fill();
  }
  CHECK(faulty->progress(0).error == Status::kPeerUnreachable && c.path->posts - before == 8);
}

void stop(Batch& batch, bool give_up) {
  batch.stop(Status::kCancelled, give_up ? std::chrono::seconds(0) : std::chrono::seconds(60));
  if (give_up) batch.check_time(Clock::now());
}

void test_stops() {
  for (const bool give_up : {false, true}) {
    Case c;
    const auto unread = c.submit(Op::kWrite, 9000);
    FakeFar::Move& fills = c.far->first();
    stop(*unread, give_up);
    CHECK(fills.cancelled() && !unread->over());
    fills.finish(give_up ? Status::kOk : Status::kCancelled);
    c.over(*unread, State::kCancelled);
    CHECK(unread->settled() && c.path->posts == 0);

    const auto read = c.submit(Op::kRead, 9000);
    wait_for([&] { return c.path->under_way() == 1; });
    stop(*read, give_up);
    c.over(*read, State::kCancelled);
    CHECK(c.path->under_way() == 0 && c.far->under_way() == 0);

    const auto stored = c.submit(Op::kRead, 9000);
    c.path->end(Status::kOk);
    FakeFar::Move& stores = c.far->first();
    stop(*stored, give_up);
    CHECK(stores.cancelled() && !stored->over());
    stores.finish(Status::kCancelled);
    c.over(*stored, State::kCancelled);

    const auto sent = c.submit(Op::kWrite, 9000);
    c.far->first().finish(Status::kOk);
    wait_for([&] { return c.path->under_way() == 1; });
    stop(*sent, give_up);
    if (!give_up) {
      CHECK(!sent->over());
      c.path->end(Status::kOk);
      c.over(*sent, State::kDone);
      continue;
    }
    c.over(*sent, State::kCancelled);
    CHECK(!sent->settled() && c.path->doubtful.size() == 1);
    c.path->settle();
    wait_for([&] { return sent->settled(); });
  }
}

void test_reach() {
  Case c;
  c.path->reaches = false;
  const auto unreachable = c.submit(Op::kRead, 9000);
  c.over(*unreachable, State::kFailed);
  CHECK(unreachable->progress(0).error == Status::kTransportUnavailable);
  c.path->reaches = true;
  // Without any way left it waits for the next one, as all do.
  c.peer->lost(*c.path, Status::kPeerUnreachable);
  const auto waits = c.submit(Op::kRead, 9000);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  c.peer->fill();
  CHECK(!waits->over());
  c.peer->add(c.path);
  c.path->end(Status::kOk);
  c.far->first().finish(Status::kOk);
  c.over(*waits, State::kDone);
}

void test_buffers_are_shared() {
  const auto area = std::make_shared<StagingArea>("buffers");
  Case stuck(area);
  const auto held = stuck.submit(Op::kRead, kSize / 2);
  wait_for([&] { return stuck.path->under_way() >= 4; });
  {
    // More work than buffers, for all that others keep.
    std::vector<std::unique_ptr<Case>> cases;
    std::vector<std::shared_ptr<Batch>> batches;
    for (int i = 0; i < 5; ++i) {
      cases.push_back(std::make_unique<Case>(area));
      for (const Op op : {Op::kRead, Op::kWrite})
        batches.push_back(cases.back()->submit(op, kSize / 4));
    }
    wait_for([&] {
      for (const auto& c : cases) {
        if (c->path->under_way() > 0) c->path->end(Status::kOk);
        if (c->far->under_way() > 0) c->far->first().finish(Status::kOk);
      }
      return std::ranges::all_of(batches, [](const auto& batch) { return batch->over(); });
    });
    for (const auto& batch : batches) CHECK(batch->state() == State::kDone);
    CHECK(!held->over());
  }
  stop(*held, true);
  stuck.over(*held, State::kCancelled);
  std::vector<std::shared_ptr<std::byte>> all;
  for (std::size_t i = 0; i < StagingPool::kBuffers; ++i) {
    all.push_back(area->take({}));
    CHECK(all.back() != nullptr);
  }
}

void test_close() {
  for (int round = 0; round < 12; ++round) {
    auto c = std::make_unique<Case>();
    std::vector<std::shared_ptr<Batch>> batches;
    for (int i = 0; i < 4; ++i)
      batches.push_back(c->submit(i % 2 == 0 ? Op::kWrite : Op::kRead, 9 << 20));
    if (round % 3 > 0) c->far->first().finish(Status::kOk);
    if (round % 3 > 1) c->path->end(Status::kOk);
    c = nullptr;
    for (const auto& batch : batches) CHECK(batch->over() && batch->settled());
  }
}

// Its death is met by the very post of a staged slice.
void test_a_peer_that_dies() {
  for (const Op op : {Op::kRead, Op::kWrite}) {
    Case c;
    c.path->dies = true;
    const auto batch = c.submit(op, 9000);
    if (op == Op::kWrite) c.far->first().finish(Status::kOk);
    c.over(*batch, State::kFailed);
    CHECK(batch->progress(0).error == Status::kPeerDied && batch->settled());
  }
}

}  // namespace

int main() {
  const std::pair<const char*, void (*)()> cases[] = {
      {"steps", test_steps},
      {"failures", test_failures},
      {"stops", test_stops},
      {"reach", test_reach},
      {"buffers", test_buffers_are_shared},
      {"close", test_close},
      {"death", test_a_peer_that_dies},
  };
  for (const auto& [name, test] : cases) {
    std::printf("%s\n", name);
    std::fflush(stdout);
    test();
  }
}

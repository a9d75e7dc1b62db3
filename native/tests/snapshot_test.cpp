// What is counted of paths, and paths that are held, over paths that do as the test says.
#include "../transfer/snapshot.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "../transfer/peer.h"
#include "check.h"

using namespace inlay::transfer;
using inlay::Status;
namespace net = inlay::net;

namespace {

constexpr uint64_t kBytes = uint64_t{4} << 20;

class SaidPath final : public Path {
 public:
  SaidPath(std::string name, double bandwidth) : name_(std::move(name)), bandwidth_(bandwidth) {}

  PostResult result{Posted::kDone};
  int posts = 0;
  std::vector<Attempt*> taken;

  std::string_view transport() const override { return "said"; }
  std::string name() const override { return name_; }
  std::optional<Reach> reach(const Segment&, const RemoteSegment&, Op) const override {
    return Reach{bandwidth_, 1e-6};
  }
  PostResult post(Attempt& attempt) override {
    ++posts;
    if (result.how == Posted::kTaken) taken.push_back(&attempt);
    return result;
  }
  bool pump() override { return false; }
  bool try_drive(const net::WakeUp&) override { return true; }
  void stop_driving(const net::WakeUp&) override {}
  void revoke(const void*) override {}
  void abandon(const void*) override {}
  void close(Status) override {}

 private:
  const std::string name_;
  const double bandwidth_;
};

struct Setting {
  net::Loop loop{0, [](Clock::time_point) { return Clock::time_point::max(); }};
  std::shared_ptr<Peer> peer = std::make_shared<Peer>(loop, "10.0.0.2:1", net::EngineId{}, 1);
  std::vector<std::byte> memory = std::vector<std::byte>(kBytes);
  std::shared_ptr<Segment> local =
      std::make_shared<Segment>(memory.data(), kBytes, true, Access::kRead, "local", nullptr);
  std::shared_ptr<RemoteSegment> remote = std::make_shared<RemoteSegment>();
  std::vector<std::shared_ptr<Batch>> batches;

  Setting() {
    remote->peer = peer;
    remote->descriptor.size = kBytes;
  }
  ~Setting() {
    for (const auto& batch : batches) CHECK(batch->over());
    remote->peer = nullptr;
  }

  Batch& move(Op op) {
    std::vector<Request> requests{{op, local, remote, {{0, 0, kBytes}}, kBytes}};
    batches.push_back(
        std::make_shared<Batch>(std::move(requests), Clock::time_point::max(), 1e9, 0));
    batches.back()->start();
    return *batches.back();
  }
  PathSnapshot path(const std::string& name) const {
    for (PathSnapshot& one : peer->dispatch().snapshot(peer->address))
      if (one.name == name) return std::move(one);
    CHECK(false);
    return {};
  }
};

void test_buckets() {
  CHECK(latency_bucket(0) == 0 && latency_bucket(-1) == 0);
  CHECK(latency_bucket(0.9e-6) == 0);
  CHECK(latency_bucket(1.5e-6) == 1);
  CHECK(latency_bucket(2.5e-6) == 2);
  CHECK(latency_bucket(1000e-6) == 10);
  CHECK(latency_bucket(1025e-6) == 11);
  CHECK(latency_bucket(16.7) == kLatencyBuckets - 2);
  CHECK(latency_bucket(16.8) == kLatencyBuckets - 1);
  CHECK(latency_bucket(1e9) == kLatencyBuckets - 1);
  // A count is never in a bucket whose bound is below it.
  for (double seconds = 1e-7; seconds < 16; seconds *= 1.1)
    CHECK(seconds <= std::ldexp(1e-6, static_cast<int>(latency_bucket(seconds))) * (1 + 1e-9));
}

void test_means_follow_and_sums_stay() {
  PathCounts counts;
  for (int i = 0; i < 1000; ++i) counts.completed(Op::kRead, 10, 0.001, 0.003);
  for (int i = 0; i < 300; ++i) counts.completed(Op::kWrite, 7, 0.005, 0.004);
  CHECK(counts.read_bytes == 10'000 && counts.written_bytes == 2'100 && counts.slices == 1'300);
  CHECK(std::abs(counts.recent_predicted_s - 0.005) < 1e-5);
  CHECK(std::abs(counts.recent_measured_s - 0.004) < 1e-5);
  CHECK(std::abs(counts.recent_error_s - 0.001) < 1e-5);
  CHECK(std::abs(counts.latency_s - 4.2) < 1e-9 && std::abs(counts.error_s - 2.3) < 1e-9);
}

void test_words() {
  CHECK(word_of(Status::kOk).empty());
  CHECK(word_of(Status::kPeerUnreachable) == "peer_unreachable");
  CHECK(word_of(static_cast<Status>(999)).empty());
}

// The better path refuses: its slices go another way, are counted as retries, and it rests.
void test_a_path_that_refuses() {
  Setting setting;
  const auto good = std::make_shared<SaidPath>("good", 1e9);
  const auto bad = std::make_shared<SaidPath>("bad", 100e9);
  bad->result = {Posted::kRefused, Status::kPeerUnreachable};
  setting.peer->add(good);
  setting.peer->add(bad);
  CHECK(setting.path("bad").state == PathState::kReady);
  CHECK(setting.move(Op::kWrite).state() == State::kDone);
  CHECK(bad->posts == 1);
  const PathSnapshot refused = setting.path("bad");
  CHECK(refused.state == PathState::kPaused && refused.reason == "peer_unreachable");
  CHECK(refused.counts.retries.size() == 1);
  CHECK(refused.counts.retries.at(Status::kPeerUnreachable) == 1);
  CHECK(refused.counts.slices == 0 && refused.inflight_bytes == 0);
  const PathSnapshot used = setting.path("good");
  CHECK(used.peer == "10.0.0.2:1" && used.transport == "said" && used.reason.empty());
  CHECK(used.counts.written_bytes == kBytes && used.counts.read_bytes == 0);
  CHECK(used.counts.slices == static_cast<uint64_t>(good->posts) && used.counts.retries.empty());
}

// Held paths are spared although nothing else is there; what is posted is no business of it.
void test_a_held_path() {
  Setting setting;
  const auto path = std::make_shared<SaidPath>("one", 1e9);
  path->result = {Posted::kTaken};
  setting.peer->add(path);
  Batch& batch = setting.move(Op::kRead);
  const int posts = path->posts;
  const PathSnapshot busy = setting.path("one");
  CHECK(posts > 0 && busy.inflight_slices == static_cast<uint64_t>(posts));
  uint64_t bytes = 0;
  for (const Attempt* attempt : path->taken) bytes += attempt->slice.bytes;
  CHECK(busy.inflight_bytes == bytes);

  CHECK(!setting.peer->hold("said", "two", true) && !setting.peer->hold("tcp", "one", true));
  CHECK(setting.peer->hold("said", "one", true));
  for (Attempt* attempt : path->taken) setting.peer->completed(*attempt, Status::kOk, true);
  path->taken.clear();
  path->result = {Posted::kDone};
  setting.peer->fill();
  CHECK(path->posts == posts && !batch.over());
  const PathSnapshot held = setting.path("one");
  CHECK(held.state == PathState::kPaused && held.reason == "operator");
  CHECK(held.counts.read_bytes == bytes && held.inflight_bytes == 0);
  Batch& second = setting.move(Op::kWrite);
  CHECK(path->posts == posts && !second.over());

  // A new connection of the same path is held, too, and goes on counting.
  setting.peer->lost(*path, Status::kPeerUnreachable);
  const auto again = std::make_shared<SaidPath>("one", 1e9);
  setting.peer->add(again);
  CHECK(again->posts == 0 && setting.path("one").reason == "operator");
  CHECK(setting.peer->hold("said", "one", false));
  CHECK(batch.state() == State::kDone && second.state() == State::kDone);
  const PathSnapshot after = setting.path("one");
  CHECK(after.state == PathState::kReady && after.counts.read_bytes == kBytes);
  CHECK(after.counts.written_bytes == kBytes);
  setting.peer->lost(*again, Status::kPeerDied);
  const PathSnapshot closed = setting.path("one");
  CHECK(closed.state == PathState::kClosed && closed.reason == "peer_died");
}

}  // namespace

int main() {
  test_buckets();
  test_means_follow_and_sums_stay();
  test_words();
  test_a_path_that_refuses();
  test_a_held_path();
  return 0;
}

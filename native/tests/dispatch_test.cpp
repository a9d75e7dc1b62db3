// The dispatcher over paths that do what the test says: refusals, lost paths, doubt, cancels.
#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "../transfer/peer.h"
#include "check.h"

namespace {

using namespace inlay;
using namespace inlay::transfer;

constexpr uint64_t kSize = 8 << 20;

// What may still land in the peer's memory.
struct Landing {
  uint64_t transfer;
  uint64_t begin;
  uint64_t end;
};

class FakePath final : public Path, public std::enable_shared_from_this<FakePath> {
 public:
  FakePath(std::weak_ptr<Peer> peer, std::vector<Landing>& landings, Status refuses = Status::kOk)
      : peer_(std::move(peer)), landings_(landings), refuses(refuses) {}

  std::string_view transport() const override { return "fake"; }
  std::string name() const override { return "fake"; }
  std::optional<Reach> reach(const Segment&, const RemoteSegment&, Op) const override {
    return Reach{1e9, 1e-5};
  }
  PostResult post(Attempt& attempt) override {
    if (refuses != Status::kOk) return {Posted::kRefused, refuses};
    if (during_copy) {
      during_copy();
      return {Posted::kDone};
    }
    const Landing landing = landing_of(attempt);
    for (const Landing& other : landings_)
      if (other.transfer == landing.transfer)
        CHECK(landing.end <= other.begin || other.end <= landing.begin);
    landings_.push_back(landing);
    posted.push_back(&attempt);
    numbers.push_back(attempt.number);
    return {Posted::kTaken};
  }
  bool pump() override { return false; }
  bool try_drive(const net::WakeUp&) override { return false; }
  void stop_driving(const net::WakeUp&) override {}
  void revoke(const void* owner) override {
    for (std::size_t i = posted.size(); i-- > 0;)
      if (posted[i]->owner == owner && posted[i]->slice.request->op == Op::kRead)
        end(i, Status::kCancelled);
  }
  void abandon(const void* owner) override {
    for (std::size_t i = posted.size(); i-- > 0;)
      if (posted[i]->owner == owner) doubt(i, Status::kCancelled);
  }
  void close(Status why) override {
    while (!posted.empty()) doubt(0, why);
  }
  Clock::time_point settled_by() override { return Clock::time_point{}; }

  void end(std::size_t i, Status status) {
    Attempt& attempt = *posted[i];
    posted.erase(posted.begin() + static_cast<std::ptrdiff_t>(i));
    forget(attempt);
    peer_.lock()->completed(attempt, status, true);
  }
  // A read is settled as soon as it is over.
  void doubt(std::size_t i, Status status) {
    if (posted[i]->slice.request->op == Op::kRead) return end(i, status);
    Attempt& attempt = *posted[i];
    posted.erase(posted.begin() + static_cast<std::ptrdiff_t>(i));
    doubtful.push_back(&attempt);
    peer_.lock()->completed(attempt, status, false);
  }
  void settle(std::size_t i) {
    Attempt& attempt = *doubtful[i];
    doubtful.erase(doubtful.begin() + static_cast<std::ptrdiff_t>(i));
    forget(attempt);
    peer_.lock()->settled(attempt);
  }
  // Ends by itself; what is in doubt lands no more once the peer says so.
  void lose() {
    while (!posted.empty()) doubt(0, Status::kPeerUnreachable);
    for (Attempt* attempt : doubtful) forget(*attempt);
    doubtful.clear();
    peer_.lock()->lost(*this, Status::kPeerUnreachable);
  }

  std::vector<Attempt*> posted;
  std::vector<Attempt*> doubtful;
  std::vector<uint16_t> numbers;  // of all ever posted

 private:
  static Landing landing_of(const Attempt& attempt) {
    uint64_t begin = kSize;
    uint64_t end = 0;
    attempt.slice.each([&](const Range& range) {
      begin = std::min(begin, range.remote);
      end = std::max(end, range.remote + range.length);
    });
    return {attempt.transfer, begin, end};
  }
  void forget(const Attempt& attempt) {
    const Landing landing = landing_of(attempt);
    const auto found = std::ranges::find_if(landings_, [&](const Landing& other) {
      return other.transfer == landing.transfer && other.begin == landing.begin &&
             other.end == landing.end;
    });
    CHECK(found != landings_.end());
    landings_.erase(found);
  }

  const std::weak_ptr<Peer> peer_;
  std::vector<Landing>& landings_;

 public:
  Status refuses;
  std::function<void()> during_copy;  // it copies inside post()
};

struct Case {
  Case() {
    remote->peer = peer;
    remote->name = "remote";
    remote->descriptor = {1, 1, kSize, true, true, {}, {}};
  }
  ~Case() { peer->lose(Status::kEngineClosed, true); }

  std::shared_ptr<FakePath> add_path(Status refuses = Status::kOk) {
    auto path = std::make_shared<FakePath>(peer, landings, refuses);
    peer->add(path);
    return path;
  }
  std::shared_ptr<Batch> submit(Op op, uint64_t bytes, double deadline_s = 1000) {
    std::vector<Request> requests;
    requests.push_back({op, local, remote, {{0, 0, bytes}}, bytes});
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(deadline_s));
    auto batch = std::make_shared<Batch>(std::move(requests), end, deadline_s, 0);
    batch->start();
    return batch;
  }

  net::Loop loop{0, [](Clock::time_point) { return Clock::time_point::max(); }};
  std::vector<std::byte> memory = std::vector<std::byte>(kSize);
  std::shared_ptr<Segment> local =
      std::make_shared<Segment>(memory.data(), kSize, true, Access::kNone, "local", nullptr);
  std::vector<Landing> landings;
  std::shared_ptr<Peer> peer = std::make_shared<Peer>(loop, "127.0.0.1:1", net::EngineId{}, 1U);
  std::shared_ptr<RemoteSegment> remote = std::make_shared<RemoteSegment>();
};

void test_refused_posts() {
  Case c;
  const auto bad = c.add_path(Status::kPeerUnreachable);
  const auto batch = c.submit(Op::kWrite, 4096);
  CHECK(!batch->over() && c.landings.empty());
  const auto good = c.add_path();
  CHECK(good->posted.size() == 1 && good->numbers.front() == 1);
  good->end(0, Status::kOk);
  CHECK(batch->state() == State::kDone);
  // Final errors are nobody's fault but the request's.
  const auto other = c.submit(Op::kWrite, 4096);
  good->end(0, Status::kSegmentClosed);
  CHECK(other->state() == State::kFailed && other->failure().status == Status::kSegmentClosed);
}

void test_eight_tries() {
  Case c;
  const auto path = c.add_path();
  const auto batch = c.submit(Op::kRead, 4096);
  for (int i = 0; i < 8; ++i) {
    CHECK(!batch->over() && path->posted.size() == 1);
    CHECK(path->posted.front()->number == i);
    path->end(0, Status::kPeerUnreachable);
    // Others would be taken at once; this one rests.
    const auto end = Clock::now() + std::chrono::seconds(5);
    while (path->posted.empty() && !batch->over()) {
      CHECK(Clock::now() < end);
      c.peer->fill();
    }
  }
  CHECK(batch->state() == State::kFailed);
}

void test_doubt_holds_the_slice() {
  Case c;
  const auto first = c.add_path();
  const auto batch = c.submit(Op::kWrite, 4096);
  const auto second = c.add_path();
  first->doubt(0, Status::kPeerUnreachable);
  c.peer->fill();
  CHECK(second->posted.empty() && !batch->over());
  first->settle(0);
  c.peer->fill();
  CHECK(second->posted.size() == 1 && second->numbers.front() == 1);
  second->end(0, Status::kOk);
  CHECK(batch->state() == State::kDone && batch->settled());
}

void test_a_lost_path_is_settled_in_time() {
  Case c;
  const auto first = c.add_path();
  const auto batch = c.submit(Op::kWrite, 4096);
  const auto second = c.add_path();
  first->lose();
  CHECK(second->posted.empty());
  c.peer->settle_due(Clock::now());
  c.peer->fill();
  CHECK(second->posted.size() == 1);
  second->end(0, Status::kOk);
  CHECK(batch->state() == State::kDone);
}

void test_given_up() {
  Case c;
  const auto path = c.add_path();
  const auto batch = c.submit(Op::kWrite, 4096);
  batch->stop(Status::kCancelled, std::chrono::seconds(0));
  CHECK(!batch->over());
  batch->check_time(Clock::now());
  CHECK(batch->state() == State::kCancelled && !batch->settled());
  path->settle(0);
  CHECK(batch->settled());
  // Reads are over at once.
  const auto read = c.submit(Op::kRead, 4096);
  read->stop(Status::kCancelled, std::chrono::seconds(1));
  CHECK(read->state() == State::kCancelled && read->settled());
}

// The end of an engine, while a slice is copied and while one is not answered.
void test_lost_meanwhile() {
  {
    Case c;
    c.add_path()->during_copy = [&] { c.peer->lose(Status::kEngineClosed, false); };
    const auto batch = c.submit(Op::kWrite, 4096);
    CHECK(batch->state() == State::kDone);  // all of it landed
    CHECK(batch->progress(0).complete && batch->progress(0).error == Status::kOk);
  }
  Case c;
  const auto path = c.add_path();
  const auto batch = c.submit(Op::kWrite, 4096);
  c.peer->lose(Status::kEngineClosed, false);
  CHECK(batch->state() == State::kFailed && !batch->settled());
  CHECK(batch->failure().status == Status::kEngineClosed);
  c.peer->forget();  // as the engine does
}

void test_earlier_deadlines_first() {
  Case c;
  const auto late = c.submit(Op::kRead, 4096, 900);
  const auto never = c.submit(Op::kRead, 4096, 1e5);
  const auto soon = c.submit(Op::kRead, 4096, 100);
  const auto path = c.add_path();
  CHECK(path->posted.size() == 3);
  CHECK(path->posted[0]->owner == soon.get() && path->posted[1]->owner == late.get() &&
        path->posted[2]->owner == never.get());
}

// Whatever happens: what may still land is never posted again (FakePath looks), batches end, and
// those that are done were answered for every byte.
void test_random(uint64_t seed) {
  Case c;
  std::mt19937_64 random(seed);
  std::vector<std::shared_ptr<FakePath>> paths{c.add_path(), c.add_path()};
  std::vector<std::shared_ptr<Batch>> batches;
  int steps = 0;
  const auto pick = [&](auto& from) -> std::size_t { return random() % from.size(); };
  for (;; ++steps) {
    const bool closing = steps > 1000;
    if (closing && std::ranges::all_of(batches, [](const auto& b) { return b->over(); })) break;
    CHECK(steps < 200000);
    FakePath& path = *paths[pick(paths)];
    switch (random() % (closing ? 6 : 10)) {
      case 0:
      case 1:
      case 2:
        if (!path.posted.empty()) path.end(pick(path.posted), Status::kOk);
        break;
      case 3:
      case 4:
        if (!path.doubtful.empty()) path.settle(pick(path.doubtful));
        break;
      case 5:
        c.peer->settle_due(Clock::now());
        for (const auto& batch : batches) batch->check_time(Clock::now());
        break;
      case 6:
        if (batches.size() < 100)
          batches.push_back(c.submit(random() % 2 == 0 ? Op::kRead : Op::kWrite,
                                     1 + random() % (random() % 3 == 0 ? kSize : 70000)));
        break;
      case 7:
        if (!path.posted.empty() && random() % 4 == 0)
          path.doubt(pick(path.posted), Status::kPeerUnreachable);
        break;
      case 8:
        if (!batches.empty() && random() % 4 == 0)
          batches[pick(batches)]->stop(Status::kCancelled, std::chrono::milliseconds(1));
        break;
      case 9:
        if (random() % 20 == 0) {
          path.lose();
          std::erase_if(paths, [&](const auto& held) { return held.get() == &path; });
          paths.push_back(c.add_path());
        }
        break;
    }
    c.peer->fill();
  }
  for (const auto& path : paths)
    while (!path->doubtful.empty()) path->settle(0);
  c.peer->settle_due(Clock::now());
  CHECK(c.landings.empty());
  int done = 0;
  for (const auto& batch : batches) {
    CHECK(batch->settled());
    done += batch->state() == State::kDone;
    CHECK((batch->state() == State::kDone) == batch->progress(0).complete);
  }
  CHECK(done > 0);
}

}  // namespace

int main() {
  test_refused_posts();
  test_eight_tries();
  test_doubt_holds_the_slice();
  test_a_lost_path_is_settled_in_time();
  test_given_up();
  test_lost_meanwhile();
  test_earlier_deadlines_first();
  for (uint64_t seed = 0; seed < 30; ++seed) test_random(seed);
}

// The initiator's side of tests of transports: a path to a Target, with the test as its owner.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "transport_target.h"

namespace transport_test {

using namespace inlay::transfer;

// One transport, and what can be expected of it.
struct Row {
  const char* name;
  MakeTransport make;
  From from = From::kEngine;
  bool same_process = false;  // else the target is a child
  // What a target that is stopped moves none of.
  bool target_moves_reads = false;
  bool target_moves_writes = false;
  // A path that was lost is made anew by the transport.
  bool comes_back = false;
  // Segments are reached by keys that a device checks, not by slot and epoch. What is wrong with
  // one costs the connection, and the next attempt is told.
  bool by_keys = false;
  // What it refuses it does not tell: an attempt takes a second until it is given up.
  bool silent = false;
  // Segments of it can be mapped.
  bool maps = false;
  // It carries grants. Else it leads to no guarded segment for writing.
  bool grants = true;
};

struct Outcome {
  Status status;
  bool settled;
};

// The peer's side of the interface: counts, and checks that it is told once.
class Owner : public PathOwner {
 public:
  using Ask = std::function<void(Bytes, Then)>;
  Owner(const inlay::net::EngineId& engine, Ask ask) : engine_(engine), ask_(std::move(ask)) {}

  void completed(Attempt& attempt, Status status, bool settled) override {
    const std::lock_guard lock(mutex_);
    CHECK(under_way_.erase(&attempt) == 1);
    outcomes_.push_back({status, settled});
    if (!settled) unsettled_.insert(&attempt);
  }
  void settled(Attempt& attempt) override {
    const std::lock_guard lock(mutex_);
    CHECK(unsettled_.erase(&attempt) == 1 || fenced_);  // or the fence was answered first
  }
  void lost(Path&, Status why) override { lost_.store(why); }
  void add(std::shared_ptr<Path> path) override {
    const std::lock_guard lock(mutex_);
    added_.push_back(std::move(path));
  }
  void fill() override {}
  void ask(std::string_view, Bytes question, Then then) override {
    ask_(std::move(question), std::move(then));
  }
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
    fenced_ = true;
  }
  void forget_loss() { lost_.store(Status::kOk); }
  std::shared_ptr<Path> take_added() {
    const std::lock_guard lock(mutex_);
    if (added_.empty()) return nullptr;
    auto path = std::move(added_.back());
    added_.pop_back();
    return path;
  }
  Status why_lost() const { return lost_.load(); }

 private:
  const inlay::net::EngineId engine_;
  const Ask ask_;
  const std::string address_ = "test";
  std::mutex mutex_;
  std::set<Attempt*> under_way_;
  std::set<Attempt*> unsettled_;
  bool fenced_ = false;
  std::vector<Outcome> outcomes_;
  std::vector<std::shared_ptr<Path>> added_;
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
      : row(row),
        target(row.make, row.from, row.same_process),
        here(row.make),
        owner(std::make_shared<Owner>(target.engine, [this](Bytes question, PathOwner::Then then) {
          here.post([this, question = std::move(question), then = std::move(then)] {
            const Transport::Answer answer = target.answer(here.engine, question);
            then(answer.status, answer.bytes);
          });
        })) {
    local = here.add("local", Access::kNone, row.from);
    for (const char* name : kNames) {
      auto segment = std::make_shared<RemoteSegment>();
      segment->name = name;
      segment->descriptor = target.descriptors[name];
      remote[name] = segment;
    }
    connect();
  }
  ~Bench() {
    path->close(Status::kEngineClosed);
    while (const auto other = owner->take_added()) other->close(Status::kEngineClosed);
    CHECK(owner->under_way() == 0);
  }

  void connect() {
    auto connected = here.transport->connect(owner, target.offer, in_ms(5000));
    if (connected.paths.empty()) std::fprintf(stderr, "%s\n", connected.problem.c_str());
    CHECK(!connected.paths.empty());
    path = connected.paths.front();
  }
  // As a peer does: what the path tells itself, or the fence of one that has ended; then there is a
  // path again.
  void settle(bool closed) {
    CHECK(pump_until(
        [&] { return closed || owner->why_lost() != Status::kOk || owner->unsettled() == 0; }));
    const bool lost = owner->why_lost() != Status::kOk;
    if (!closed && !lost) return;
    if (const Bytes fence = path->fence(); !fence.empty()) {
      CHECK(target.answer(here.engine, fence).status == Status::kOk);
      owner->settle_all();
    }
    CHECK(pump_until([&] { return owner->unsettled() == 0; }));
    owner->forget_loss();
    if (!lost || !row.comes_back) return connect();
    CHECK(pump_until([&] {
      const auto added = owner->take_added();
      if (added != nullptr) path = added;
      return added != nullptr;
    }));
  }

  std::unique_ptr<Submission> submission(Op op, const char* name, std::vector<Range> ranges,
                                         uint64_t slice_bytes = 1 << 20) {
    auto made = std::make_unique<Submission>();
    made->request = {op, local, remote[name], std::move(ranges)};
    made->request.grant = grant;
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
    Status first = Status::kOk;
    for (const Status why : submission.refused)
      if (first == Status::kOk) first = why;
    for (const Outcome& outcome : owner->take_outcomes()) {
      CHECK(outcome.settled || (outcome.status == Status::kPeerUnreachable && row.by_keys));
      if (first == Status::kOk || first == Status::kPeerUnreachable) first = outcome.status;
    }
    return first;
  }
  Status move(Op op, const char* name, const std::vector<Range>& ranges, int tries = 8) {
    Status status = Status::kPeerUnreachable;
    for (uint16_t number = 0; number < tries; ++number) {
      auto made = submission(op, name, ranges);
      for (const auto& attempt : made->attempts) attempt->number = number;
      status = run(*made);
      if (status != Status::kPeerUnreachable || !row.by_keys) break;
      settle(false);
    }
    return status;
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

  uint64_t grant = 0;  // of writes
  const Row& row;
  Target target;
  Node here;
  std::shared_ptr<Owner> owner;
  std::shared_ptr<Segment> local;
  std::map<std::string, std::shared_ptr<RemoteSegment>> remote;
  std::shared_ptr<Path> path;
};

}  // namespace transport_test

// How often a master tries copies that fail: less and less often, until one
// succeeds. And what it does while a copy is under way.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../store/master.h"
#include "store_scripted_node.h"

using namespace inlay;
using namespace inlay::tests;

namespace {

constexpr uint64_t kBytes = 4096;
constexpr Millis kStep = 5;  // between beats

// A master with time of its own, and nodes that do at each step what they are
// told.
class World {
 public:
  struct Host {
    ScriptedNode node;
    PeerId peer = 0;
    std::vector<Done> done;
    std::vector<Millis> copies;  // when they were asked for
    bool slow = false;           // with copies: they stay in `later`
    std::vector<Command> later;
  };

  World() : master_(options(), 0) {}

  Host& add(uint64_t bytes) {
    hosts_.push_back(std::make_unique<Host>());
    Host& host = *hosts_.back();
    host.node.number = hosts_.size();
    host.node.name = std::string(1, static_cast<char>('a' + hosts_.size() - 1));
    host.node.bytes = bytes;
    host.peer = master_.connect("t", uuid_of(100 + hosts_.size()), now_);
    host.node.joined(*ask<Join>(host.peer, host.node.join()));
    return host;
  }

  template <typename Q>
  std::optional<typename Q::Answer> ask(PeerId peer, const Q& question) {
    const auto answer = master_.handle(peer, ++ticket_, Question(question), now_);
    if (!answer) return {};
    return std::get<typename Q::Answer>(*answer);
  }
  // One replica on that node. The generation.
  uint64_t put(const std::string& key, const Host& on, IfExists if_exists, uint16_t wanted) {
    Grant grant;
    grant.bytes = grant.least_bytes = kBytes;
    grant.preferred_node = on.node.name;
    grant.require_preferred = true;
    CHECK(!ask(client_, grant));
    answer_.reset();
    const Millis until = now_ + 1000;
    while (!answer_ && now_ < until) step();
    CHECK(answer_);
    const Extent extent = std::get<Grant::Answer>(*answer_).extents.at(0);
    for (const auto& host : hosts_)
      if (host->node.segment == extent.segment)
        host->node.records[extent.offset] = {key,  extent.first_generation, kBytes, 100, true,
                                             false};
    Commit commit;
    commit.places = {{extent.segment, extent.offset}};
    Commit::Entry& entry = commit.entries.emplace_back();
    entry.key = key;
    entry.payload_bytes = 100;
    entry.record_bytes = kBytes;
    entry.generation = extent.first_generation;
    entry.flags = kMutable;
    entry.if_exists = if_exists;
    entry.wanted_replicas = wanted;
    entry.num_places = 1;
    answer_.reset();
    const auto now = ask(client_, commit);
    if (now) answer_ = *now;
    return extent.first_generation;
  }
  bool answered() const { return answer_.has_value(); }
  uint32_t replicas(const std::string& key) {
    return ask(client_, Stat{{key}})->objects[0].num_places;
  }
  Drain::Answer drain(const Host& host) { return *ask(client_, Drain{host.node.name}); }

  void step() {
    now_ += kStep;
    std::map<SegmentId, ScriptedNode*> all;
    for (const auto& host : hosts_) all[host->node.segment] = &host->node;
    for (const auto& host : hosts_) {
      Beat beat;
      beat.done = std::move(host->done);
      beat.hold_ms = 100;
      host->done.clear();
      (void)ask(host->peer, beat);
    }
    master_.tick(now_);
    for (const Master::Late& late : master_.take_answers()) {
      if (late.peer == client_) answer_ = late.answer;
      for (const auto& host : hosts_) {
        if (host->peer != late.peer) continue;
        for (const Command& command : std::get<Beat::Answer>(late.answer).commands) {
          const bool copies = command.kind == Command::Kind::kCopy;
          if (copies) host->copies.push_back(now_);
          if (copies && host->slow)
            host->later.push_back(command);
          else
            host->done.push_back(host->node.execute(command, all));
        }
      }
    }
  }
  void end_copies(Host& host) {
    std::map<SegmentId, ScriptedNode*> all;
    for (const auto& one : hosts_) all[one->node.segment] = &one->node;
    for (const Command& command : std::exchange(host.later, {}))
      host.done.push_back(host.node.execute(command, all));
  }
  void pass(Millis time) {
    for (const Millis end = now_ + time; now_ < end;) step();
  }

 private:
  static MasterOptions options() {
    MasterOptions options;
    options.terms.epoch = 1;
    return options;
  }

  Millis now_ = 0;
  Master master_;
  const PeerId client_ = master_.connect("t", uuid_of(1), 0);
  std::vector<std::unique_ptr<Host>> hosts_;
  std::optional<Answer> answer_;
  uint64_t ticket_ = 0;
};

// Some at once, then in pauses that double up to a second.
void check_pauses(const std::vector<Millis>& tries, Millis time) {
  CHECK(tries.size() >= 6);
  CHECK(static_cast<Millis>(tries.size()) <= 8 + time / Pause::kLongest);
  for (std::size_t i = 2; i < tries.size(); ++i) {
    const Millis before = tries[i - 1] - tries[i - 2];
    const Millis pause = tries[i] - tries[i - 1];
    CHECK(pause >= std::min(2 * before - 100, Pause::kLongest));
    CHECK(pause <= Pause::kLongest + 100);
  }
}

void a_copy_that_fails_is_tried_in_growing_pauses() {
  World world;
  World::Host& a = world.add(64 * kBytes);
  World::Host& b = world.add(64 * kBytes);
  b.node.fails_copies = true;
  (void)world.put("key", a, IfExists::kReplace, 2);
  world.pass(10'000);
  check_pauses(b.copies, 10'000);
  CHECK(world.replicas("key") == 1);
  b.node.fails_copies = false;
  world.pass(Pause::kLongest + 100);
  CHECK(world.replicas("key") == 2);
  // The next one is not kept waiting for what failed before.
  (void)world.put("other", a, IfExists::kReplace, 2);
  world.pass(100);
  CHECK(world.replicas("other") == 2);
}

void a_drain_whose_copies_fail_is_tried_in_growing_pauses() {
  World world;
  World::Host& a = world.add(64 * kBytes);
  World::Host& b = world.add(64 * kBytes);
  b.node.fails_copies = true;
  (void)world.put("key", a, IfExists::kReplace, 1);
  CHECK(!world.drain(a).done);
  world.pass(10'000);
  check_pauses(b.copies, 10'000);
  CHECK(world.drain(a).objects_left == 1);
  b.node.fails_copies = false;
  world.pass(Pause::kLongest + 100);
  CHECK(world.drain(a).done);
  CHECK(world.replicas("key") == 1);
}

void a_drain_without_room_says_so_and_goes_on_when_there_is_some() {
  World world;
  World::Host& a = world.add(64 * kBytes);
  (void)world.put("key", a, IfExists::kReplace, 1);
  CHECK(!world.drain(a).done);
  world.pass(3'000);
  CHECK(world.drain(a).objects_stuck == 1);
  (void)world.add(64 * kBytes);
  world.pass(Pause::kLongest + 100);
  CHECK(world.drain(a).done);
}

// A copy may land where one was located a moment ago: who replaces the object waits for it.
void a_replacement_waits_for_a_copy_under_way() {
  World world;
  World::Host& a = world.add(64 * kBytes);
  World::Host& b = world.add(64 * kBytes);
  b.slow = true;
  (void)world.put("key", a, IfExists::kReplace, 2);
  world.pass(100);
  CHECK(b.later.size() == 1);
  const uint64_t last = world.put("key", a, IfExists::kReplace, 1);
  world.pass(500);
  CHECK(!world.answered());
  world.end_copies(b);
  world.pass(100);
  CHECK(world.answered());
  for (const auto& [offset, record] : b.node.records)
    CHECK(!record.live || record.generation == last);
}

}  // namespace

int main() {
  a_copy_that_fails_is_tried_in_growing_pauses();
  a_drain_whose_copies_fail_is_tried_in_growing_pauses();
  a_drain_without_room_says_so_and_goes_on_when_there_is_some();
  a_replacement_waits_for_a_copy_under_way();
  return 0;
}

// What a master makes of records that nodes bring back: after its own start, after removals, and
// beside records of the same key.
#include <cstdio>
#include <string>

#include "../store/burials.h"
#include "../store/master.h"
#include "../store/refusals.h"
#include "store_scripted_node.h"

using namespace inlay;
using namespace inlay::tests;

namespace {

constexpr uint64_t kBytes = 4096;

MasterOptions options(uint32_t epoch, std::vector<std::string> expected = {}) {
  MasterOptions options;
  options.terms.epoch = epoch;
  options.expected_nodes = std::move(expected);
  return options;
}

struct World {
  static constexpr Millis kLongGone = 10'000;

  explicit World(MasterOptions made)
      : master(std::move(made), 0), client(master.connect("t", uuid_of(1), 0)) {}

  // One node per call, with these records; their number.
  void bring(std::vector<Advertise::Record> records) {
    ScriptedNode node;
    node.number = ++nodes;
    node.name = std::string(1, static_cast<char>('a' + nodes - 1));
    node.bytes = 64 * kBytes;
    Join join = node.join();
    for (auto& segment : join.segments) segment.advertises = true;
    const PeerId peer = master.connect("t", uuid_of(100 + nodes), now);
    node.joined(ask<Join>(peer, join));
    Advertise question;
    question.segment = node.segment;
    question.last = true;
    for (uint64_t at = 0; Advertise::Record& one : records) one.offset = kBytes * at++;
    question.records = std::move(records);
    CHECK(ask<Advertise>(peer, question).known);
  }
  template <typename Q>
  typename Q::Answer ask(PeerId peer, const Q& question) {
    auto answer = master.handle(peer, ++ticket, Question(question), now);
    CHECK(answer);
    return std::get<typename Q::Answer>(*answer);
  }
  void pass(Millis time) {
    for (const Millis end = now + time; now < end; now += 50) master.tick(now);
  }
  // By a node of its own. The generation.
  uint64_t put(const char* key, IfExists if_exists, Committed outcome = Committed::kStored) {
    const Extent extent = room();
    CHECK(commit(key, extent, if_exists) == outcome);
    return extent.first_generation;
  }
  // At a node that answers nothing afterwards.
  Extent room() {
    ScriptedNode node;
    node.number = ++nodes;
    node.name = std::string(1, static_cast<char>('a' + nodes - 1));
    node.bytes = 64 * kBytes;
    const PeerId peer = master.connect("t", uuid_of(100 + nodes), now);
    node.joined(ask<Join>(peer, node.join()));
    Beat beat;
    beat.hold_ms = 100;
    CHECK(!master.handle(peer, ++ticket, Question(beat), now));
    Grant grant;
    grant.bytes = grant.least_bytes = kBytes;
    grant.preferred_node = node.name;
    CHECK(!master.handle(client, ++ticket, Question(grant), now));
    Beat done;
    for (const Master::Late& late : master.take_answers())
      for (const Command& command : std::get<Beat::Answer>(late.answer).commands)
        done.done.push_back(node.execute(command, {}));
    (void)ask<Beat>(peer, done);
    const auto answers = master.take_answers();
    CHECK(answers.size() == 1);
    return std::get<Grant::Answer>(answers[0].answer).extents.at(0);
  }
  Committed commit(const char* key, const Extent& extent, IfExists if_exists) {
    Commit commit;
    commit.places = {{extent.segment, extent.offset}};
    Commit::Entry& entry = commit.entries.emplace_back();
    entry.key = key;
    entry.payload_bytes = 100;
    entry.record_bytes = kBytes;
    entry.generation = extent.first_generation;
    entry.flags = if_exists == IfExists::kKeep ? 0 : kMutable;
    entry.if_exists = if_exists;
    entry.num_places = 1;
    return ask<Commit>(client, commit).results[0].outcome;
  }
  Locate::Found find(const char* key) {
    return ask<Locate>(client, Locate{.keys = {key}}).found[0];
  }

  Master master;
  PeerId client;
  Millis now = 0;
  uint64_t nodes = 0;
  uint64_t ticket = 0;
};

Advertise::Record record(const char* key, uint64_t generation, uint16_t flags = 0) {
  return {.key = key,
          .record_bytes = kBytes,
          .payload_bytes = 100,
          .generation = generation,
          .flags = flags};
}

uint64_t generation(uint32_t epoch, uint64_t count) { return first_generation_of(epoch) + count; }

void the_first_of_those_that_never_change() {
  World world(options(2));
  world.bring({record("key", generation(1, 20))});
  world.bring({record("key", generation(1, 10))});
  world.bring({record("key", generation(1, 30))});
  CHECK(world.find("key").generation == generation(1, 10));
}

void the_last_of_those_that_do() {
  World world(options(2));
  world.bring({record("key", generation(1, 20), kMutable)});
  world.bring({record("key", generation(1, 10), kMutable)});
  CHECK(world.find("key").generation == generation(1, 20));
  world.bring({record("key", generation(1, 30), kMutable)});
  CHECK(world.find("key").generation == generation(1, 30));
  // Of this epoch every commit is known, and that was none.
  world.bring({record("key", generation(2, 5), kMutable)});
  CHECK(world.find("key").generation == generation(1, 30));
}

void what_may_change_is_told_when_all_nodes_are_back() {
  World world(options(2, {"a", "b"}));
  world.bring({record("fixed", generation(1, 10)), record("key", generation(1, 11), kMutable)});
  CHECK(world.find("fixed").presence == Presence::kPresent);
  CHECK(world.find("key").presence == Presence::kUnknown);
  world.bring({record("key", generation(1, 12), kMutable)});
  CHECK(world.find("key").generation == generation(1, 12));
}

// The last master died before it heard that the first of two records, the one with the lower
// generation, was to replace the other.
void what_was_not_committed_yet_is_held_against_all_nodes() {
  for (const auto if_exists : {IfExists::kReplace, IfExists::kError}) {
    World world(options(2, {"a", "b"}));
    world.bring({record("key", generation(1, 10), kMutable)});
    const Extent written{.segment = 0, .offset = 0, .first_generation = generation(1, 10)};
    const bool replaces = if_exists == IfExists::kReplace;
    const auto commit = [&] { return world.commit("key", written, if_exists); };
    CHECK(commit() == (replaces ? Committed::kStale : Committed::kUnknown));
    world.bring({record("key", generation(1, 20), kMutable)});
    CHECK(commit() == (replaces ? Committed::kStale : Committed::kExists));
    CHECK(world.find("key").generation == generation(1, 20));
  }
  // Of those that never change it is as good as another, and of those that do where all are back.
  World world(options(2, {"a"}));
  world.bring({record("fixed", generation(1, 9)), record("key", generation(1, 10), kMutable)});
  const Extent fixed{.segment = 0, .offset = 0, .first_generation = generation(1, 9)};
  CHECK(world.commit("fixed", fixed, IfExists::kKeep) == Committed::kStored);
  const Extent changes{.segment = 0, .offset = kBytes, .first_generation = generation(1, 10)};
  CHECK(world.commit("key", changes, IfExists::kError) == Committed::kStored);
}

// A node is lost with what may change, and returns when what was put to stay in its place is lost.
void what_is_put_to_stay_keeps_older_records_away() {
  for (const bool stays : {true, false}) {
    World world(options(2));
    const uint64_t first = world.put("key", IfExists::kReplace);
    const uint64_t other = world.put("other", IfExists::kReplace);
    world.pass(World::kLongGone);
    CHECK(world.find("key").presence == Presence::kAbsent);
    if (stays) {
      CHECK(world.put("key", IfExists::kKeep) > first);
      world.pass(World::kLongGone);
      CHECK(world.find("key").presence == Presence::kAbsent);
    }
    world.bring({record("key", first, kMutable), record("other", other, kMutable)});
    CHECK((world.find("key").presence == Presence::kPresent) == !stays);
    CHECK(world.find("other").generation == other);
  }
}

// Its node is cut off before it hears that the record is to die, and returns when the accepted one
// is lost, which is as good as before if it returns, too.
void what_was_refused_does_not_return() {
  World world(options(2));
  const uint64_t accepted = world.put("key", IfExists::kError);
  const uint64_t refused = world.put("key", IfExists::kError, Committed::kExists);
  const Extent closed = world.room();
  world.pass(World::kLongGone);
  CHECK(world.commit("key", closed, IfExists::kError) == Committed::kClosed);
  CHECK(world.find("key").presence == Presence::kAbsent);
  world.bring({record("key", refused, kMutable)});
  world.bring({record("key", closed.first_generation, kMutable)});
  CHECK(world.find("key").presence == Presence::kAbsent);
  world.bring({record("key", accepted, kMutable)});
  CHECK(world.find("key").generation == accepted);
}

void nothing_is_evicted_while_a_node_tells() {
  World world(options(2));
  ScriptedNode node;
  node.number = 1;
  node.name = "a";
  node.bytes = 64 * kBytes;
  Join join = node.join();
  for (auto& segment : join.segments) segment.advertises = true;
  const PeerId peer = world.master.connect("t", uuid_of(100), 0);
  node.joined(world.ask<Join>(peer, join));
  for (const bool last : {false, true}) {
    Advertise question;
    question.segment = node.segment;
    question.last = last;
    question.records = {record(last ? "second" : "first", generation(1, 1 + last))};
    question.records[0].offset = last ? kBytes : 0;
    CHECK(world.ask<Advertise>(peer, question).known);
    for (Millis now = 0; now < 500; now += 50) world.master.tick(now);
  }
  CHECK(world.find("first").presence == Presence::kPresent);
  CHECK(world.find("second").presence == Presence::kPresent);
}

// Whatever order they are told in: here those of odd numbers come before what they follow.
void blocks_that_come_back_follow_each_other() {
  World world(options(2));
  constexpr std::size_t kBlocks = 64;
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < kBlocks; ++i) keys.push_back("block " + std::to_string(i));
  std::vector<Advertise::Record> records;
  for (const std::size_t first : {1U, 0U})
    for (std::size_t i = first; i < kBlocks; i += 2) {
      records.push_back(record(keys[i].c_str(), generation(1, i + 1)));
      if (i > 0) records.back().parent = keys[i - 1];
    }
  world.bring(std::move(records));
  for (Millis now = 0; now < 500; now += 50) world.master.tick(now);
  std::size_t there = 0;
  while (there < kBlocks && world.find(keys[there].c_str()).presence == Presence::kPresent) ++there;
  CHECK(there > 0 && there < kBlocks);
  for (std::size_t i = there; i < kBlocks; ++i)
    CHECK(world.find(keys[i].c_str()).presence == Presence::kAbsent);
}

void what_is_dear_stays_when_it_comes_back() {
  World world(options(2));
  std::vector<std::string> keys;
  for (int i = 0; i < 64; ++i) keys.push_back(std::to_string(i));
  std::vector<Advertise::Record> records;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    records.push_back(record(keys[i].c_str(), generation(1, i + 1)));
    records.back().recompute_us = i < 4 ? 1000 : 1;
  }
  world.bring(std::move(records));
  for (Millis now = 0; now < 500; now += 50) world.master.tick(now);
  for (std::size_t i = 0; i < 6; ++i)
    CHECK((world.find(keys[i].c_str()).presence == Presence::kPresent) == (i < 4));
}

void a_master_that_was_stopped_takes_no_node_for_silent() {
  World world(options(2));
  world.bring({record("key", generation(1, 1))});
  Millis now = 0;
  for (; now < 2000; now += 50) world.master.tick(now);
  now += 10'000;
  world.master.tick(now);
  CHECK(world.find("key").presence == Presence::kPresent);
  for (const Millis end = now + 1000; now < end; now += 50) world.master.tick(now);
  CHECK(world.find("key").presence == Presence::kAbsent);
}

void removals_bury_their_key_alone() {
  World world(options(2));
  std::vector<std::string> keys;
  for (int i = 0; i < 50; ++i) keys.push_back("key " + std::to_string(i));
  // So many that each part of the hashes is among them.
  std::vector<std::string> removed;
  for (int i = 0; i < 200'000; ++i) removed.push_back("removed " + std::to_string(i));
  const Keys all(removed.begin(), removed.end());
  for (const Removed one : world.ask<Remove>(world.client, Remove{all}).outcomes)
    CHECK(one == Removed::kAbsent);
  std::vector<Advertise::Record> records;
  for (std::size_t i = 0; i < keys.size(); ++i)
    records.push_back(record(keys[i].c_str(), generation(1, i + 1)));
  records.push_back(record("removed 7", generation(1, 100)));
  world.bring(std::move(records));
  for (const std::string& key : keys) CHECK(world.find(key.c_str()).presence == Presence::kPresent);
  CHECK(world.find("removed 7").presence == Presence::kAbsent);
}

// While a node tells what it holds there is no room yet: nothing goes for who waits for some.
void a_put_waits_for_what_nodes_tell() {
  World world(options(2));
  ScriptedNode node;
  node.number = ++world.nodes;
  node.name = "a";
  node.bytes = 64 * kBytes;
  Join join = node.join();
  for (auto& segment : join.segments) segment.advertises = true;
  const PeerId peer = world.master.connect("t", uuid_of(101), world.now);
  node.joined(world.ask<Join>(peer, join));
  Advertise part;
  part.segment = node.segment;
  part.records.push_back(record("old", generation(1, 1)));
  CHECK(world.ask<Advertise>(peer, part).known);
  Grant grant;
  grant.bytes = grant.least_bytes = kBytes;
  grant.wait_ms = 10'000;
  CHECK(!world.master.handle(world.client, ++world.ticket, Question(grant), world.now));
  world.pass(500);
  part.records.clear();
  part.last = true;
  CHECK(world.ask<Advertise>(peer, part).known);
  world.pass(500);
  Beat beat;
  beat.hold_ms = 100;
  const auto answer = world.master.handle(peer, ++world.ticket, Question(beat), world.now);
  std::vector<Command> commands;
  if (answer) commands = std::get<Beat::Answer>(*answer).commands;
  for (const Master::Late& late : world.master.take_answers())
    if (late.peer == peer) commands = std::get<Beat::Answer>(late.answer).commands;
  CHECK(commands.size() == 1 && commands[0].kind == Command::Kind::kOpen);
  CHECK(world.find("old").presence == Presence::kPresent);
}

void burials_without_end() {
  Burials burials;
  constexpr uint64_t kMany = 600'000;
  constexpr uint64_t kLost = 1000;  // one in so many may return
  for (uint64_t hash = 1; hash <= kMany; ++hash) burials.add(hash, hash, hash % kLost == 0);
  for (uint64_t hash = 1; hash <= kMany; ++hash) CHECK(burials.of(hash) >= hash);
  CHECK(burials.of(kMany + 65536 * 4) < kMany);  // an old one of its part, and no later one
  for (uint64_t hash = kLost; hash <= kMany; hash += kLost) CHECK(burials.may_return(hash));
  CHECK(!burials.may_return(kLost + 1));
  // Of what is buried up to a later generation nothing returns.
  for (uint64_t hash = kLost; hash <= kMany; hash += kLost) burials.add(hash, kMany + 1, false);
  for (uint64_t hash = kLost; hash <= kMany; hash += kLost) CHECK(!burials.may_return(hash));
}

void refusals_end_with_the_oldest() {
  Refusals refusals;
  for (uint64_t i = 1; i <= Refusals::kMost + 1; ++i) refusals.add(i, 7);
  CHECK(!refusals.contains(1, 7) && refusals.contains(2, 7));
  CHECK(refusals.contains(Refusals::kMost + 1, 7) && !refusals.contains(2, 8));
  const uint64_t bytes = refusals.memory_bytes();
  refusals.add(2, 7);
  CHECK(refusals.memory_bytes() == bytes);
}

}  // namespace

int main() {
  the_first_of_those_that_never_change();
  the_last_of_those_that_do();
  what_may_change_is_told_when_all_nodes_are_back();
  what_was_not_committed_yet_is_held_against_all_nodes();
  what_is_put_to_stay_keeps_older_records_away();
  what_was_refused_does_not_return();
  nothing_is_evicted_while_a_node_tells();
  blocks_that_come_back_follow_each_other();
  what_is_dear_stays_when_it_comes_back();
  a_master_that_was_stopped_takes_no_node_for_silent();
  removals_bury_their_key_alone();
  a_put_waits_for_what_nodes_tell();
  burials_without_end();
  refusals_end_with_the_oldest();
  return 0;
}

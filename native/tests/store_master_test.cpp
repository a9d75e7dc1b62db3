// The master against a simple reference, over random histories: puts of one or two replicas,
// replacements, removals of objects and groups, reads under leases, pins, eviction, disks, repair,
// nodes that are cut off, restart, are lost, or are drained, and time.
//
// Held against the reference after each step, for what no answer is waited for:
// - what is acknowledged and may not be evicted is found, as long as a node that holds it lives;
// - where it is found, a living record of that key and generation lies;
// - what was removed or replaced is found no more, and lives on no node that can be read;
// - what was refused is never found;
// - what was removed or replaced is on no disk of a node that was there all the time;
// - no room is given twice (ScriptedNode checks that at each kOpen).
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <set>

#include "../store/master.h"
#include "store_scripted_node.h"

using namespace inlay;
using namespace inlay::tests;

namespace {

constexpr uint64_t kRecord = 4096;
constexpr Millis kNodeTimeout = 2500;
constexpr std::size_t kGroups = 4;

struct Host {
  ScriptedNode node;
  PeerId peer = 0;     // 0: cut off
  bool known = false;  // has joined, and need only resume
  Millis joined_at = 0;
  bool beating = false;
  Millis cut_since = 0;
  std::vector<Command> commands;  // not done yet
  Millis slow_until = 0;
  std::vector<Done> done;
  std::vector<Place> released;
};

struct Expected {
  uint64_t generation = 0;
  uint16_t flags = 0;
  Millis leased_until = 0;
};

// Room that is filled from its front to its back, one extent for each replica.
struct Lane {
  std::vector<Extent> extents;
  uint64_t generation = 0;  // of its first record
  uint64_t used = 0;        // records

  bool has_room() const {
    return std::ranges::all_of(
        extents, [&](const Extent& one) { return (used + 1) * kRecord <= one.bytes; });
  }
};
struct Written {
  Host* host;
  SegmentId segment;
  uint64_t offset;
};

class World {
 public:
  World(uint64_t seed, bool disks)
      : random_(seed),
        master_(options(seed), now_),
        client_(master_.connect("t", uuid_of(77), now_)) {
    for (int i = 0; i < 3; ++i) {
      Host& host = hosts_.emplace_back();
      host.node.name = std::string(1, static_cast<char>('a' + i));
      host.node.bytes = 64 * kRecord;
      host.node.number = static_cast<uint64_t>(i) + 1;
      host.node.has_disk = disks;
      join(host);
    }
  }

  void run(int steps) {
    for (step_ = 0; step_ < steps; ++step_) {
      act();
      pass(static_cast<Millis>(random_() % 20));
      check();
      if (step_ % 7 == 0) follow_changes();
    }
    // Everybody comes back; what waits is settled.
    for (Host& host : hosts_)
      if (host.peer == 0) come_back(host, true);
    for (int i = 0; i < 200; ++i) pass(50);
    CHECK(waiting_.empty());
    check();
    follow_changes();
    CHECK(told_ == listed());
  }

  uint64_t puts = 0, pairs = 0, losses = 0, restarts = 0, evictions = 0, groups = 0, drains = 0;
  uint64_t copies() const { return copied_; }

 private:
  static MasterOptions options(uint64_t seed) {
    MasterOptions options;
    options.seed = seed;
    options.ramp_up_ms = 10;
    const char* const names[] = {"lru", "s3fifo", "cost"};
    options.eviction = names[seed % 3];
    return options;
  }
  std::size_t roll(std::size_t below) { return random_() % below; }
  std::string some_key() { return "key " + std::to_string(roll(60)); }

  template <typename Q>
  uint64_t ask(const Q& question, std::function<void(const typename Q::Answer&)> then) {
    const uint64_t ticket = ++last_ticket_;
    auto answer = master_.handle(client_, ticket, Question(question), now_);
    if (answer)
      then(std::get<typename Q::Answer>(*answer));
    else
      waiting_[ticket] = [then](const Answer& late) { then(std::get<typename Q::Answer>(late)); };
    return ticket;
  }

  // --- nodes ---

  void join(Host& host) {
    host.peer = master_.connect("t", uuid_of(host.node.number + 10), now_);
    const auto answer = master_.handle(host.peer, 1, Question(host.node.join()), now_);
    host.node.joined(std::get<Join::Answer>(*answer));
    host.known = true;
    host.joined_at = now_;
    host.beating = false;
  }

  std::map<SegmentId, ScriptedNode*> segments() {
    std::map<SegmentId, ScriptedNode*> all;
    for (Host& host : hosts_)
      if (host.peer != 0) all[host.node.segment] = &host.node;
    return all;
  }

  void beat(Host& host) {
    if (host.peer == 0 || host.beating || now_ < host.slow_until) return;
    work(host);
    Beat beat;
    beat.done = std::move(host.done);
    beat.released = std::move(host.released);
    beat.hold_ms = 100;
    host.done.clear();
    host.released.clear();
    host.beating = true;
    const auto answer = master_.handle(host.peer, 2, Question(beat), now_);
    if (answer) take_commands(host, std::get<Beat::Answer>(*answer));
  }
  void take_commands(Host& host, const Beat::Answer& answer) {
    host.beating = false;
    if (!answer.known) return restart(host);
    std::ranges::copy(answer.commands, std::back_inserter(host.commands));
    if (roll(4) == 0) host.slow_until = now_ + static_cast<Millis>(roll(60));
    if (now_ >= host.slow_until) work(host);
  }
  void work(Host& host) {
    const auto all = segments();
    for (const Command& command : std::exchange(host.commands, {})) {
      host.done.push_back(host.node.execute(command, all));
      copied_ +=
          command.kind == Command::Kind::kCopy && host.done.back().outcome == Done::Outcome::kDone;
    }
  }

  // The process ends and comes back with what its segment holds: uncommitted records, too.
  void restart(Host& host) {
    ++restarts;
    if (host.peer != 0) master_.disconnect(host.peer, now_);
    host.commands.clear();
    host.done.clear();
    host.released.clear();
    host.node.extents.clear();
    host.node.grants.clear();
    std::erase_if(host.node.records, [](const auto& one) { return !one.second.live; });
    for (auto& [offset, record] : host.node.records) record.pinned = false;
    host.peer = master_.connect("t", uuid_of(host.node.number + 10), now_);
    Join join = host.node.join();
    join.epoch_seen = 1;
    for (auto& segment : join.segments) segment.advertises = true;
    const auto answer = master_.handle(host.peer, 1, Question(join), now_);
    host.node.joined(std::get<Join::Answer>(*answer));
    host.joined_at = now_;
    host.beating = false;
    Advertise memory;
    memory.segment = host.node.segment;
    memory.last = true;
    for (const auto& [offset, record] : host.node.records)
      memory.records.push_back({record.key, offset, record.bytes, record.payload_bytes,
                                record.generation, group_of_[record.generation],
                                flags_of_[record.generation], wanted_[record.generation]});
    CHECK(std::get<Advertise::Answer>(*master_.handle(host.peer, 3, Question(memory), now_)).known);
    if (!host.node.has_disk) return;
    Advertise disk;
    disk.segment = host.node.disk;
    disk.last = true;
    for (const auto& [key, record] : host.node.disk_records)
      disk.records.push_back({key, 0, record.bytes, record.payload_bytes, record.generation,
                              group_of_[record.generation], flags_of_[record.generation],
                              wanted_[record.generation]});
    CHECK(std::get<Advertise::Answer>(*master_.handle(host.peer, 3, Question(disk), now_)).known);
  }

  void come_back(Host& host, bool as_before) {
    if (!as_before || now_ - host.cut_since > kNodeTimeout) return restart(host);
    host.peer = master_.connect("t", uuid_of(host.node.number + 10), now_);
    Join join = host.node.join();
    join.resumes = true;
    const auto answer = std::get<Join::Answer>(*master_.handle(host.peer, 1, Question(join), now_));
    if (answer.outcome == Join::Outcome::kNotKnown) return restart(host);
    CHECK(answer.outcome == Join::Outcome::kJoined && answer.ids[0] == host.node.segment);
    host.beating = false;
  }

  // --- time ---

  void pass(Millis time) {
    const Millis end = now_ + time;
    do {
      now_ = std::min(end, now_ + 5);
      for (Host& host : hosts_) beat(host);
      master_.tick(now_);
      for (const Master::Late& late : master_.take_answers()) {
        if (late.peer == client_) {
          const auto found = waiting_.find(late.ticket);
          CHECK(found != waiting_.end());
          const auto then = std::move(found->second);
          waiting_.erase(found);
          then(late.answer);
          continue;
        }
        for (Host& host : hosts_)
          if (host.peer == late.peer) take_commands(host, std::get<Beat::Answer>(late.answer));
      }
    } while (now_ < end);
  }

  // --- what clients do ---

  void act() {
    switch (roll(24)) {
      case 0:
      case 1:
        return get_room();
      case 2: {
        Host& host = hosts_[roll(3)];
        if (host.peer == 0) return come_back(host, roll(3) > 0);
        if (roll(6) > 0) return;
        master_.disconnect(host.peer, now_);
        host.peer = 0;
        host.cut_since = now_;
        host.beating = false;
        ++losses;
        return;
      }
      case 3:
        if (roll(4) == 0) pass(static_cast<Millis>(roll(4000)));
        return;
      case 4:
      case 5:
        return remove(some_key());
      case 6:
      case 7:
        return read(some_key());
      case 8:
        return pin();
      case 9:
        if (roll(10) == 0 && hosts_[0].peer != 0) restart(hosts_[roll(3)]);
        return;
      case 10:
        if (roll(10) == 0) remove_group(1 + roll(kGroups));
        return;
      case 11:
        return drain();
      default:
        return put(some_key());
    }
  }

  void get_room() {
    Grant grant;
    grant.bytes = kRecord * (1 + roll(8));
    grant.least_bytes = kRecord;
    grant.copies = static_cast<uint16_t>(1 + roll(2));
    grant.wait_ms = 200;
    ask<Grant>(grant, [this](const Grant::Answer& answer) {
      if (answer.room != Room::kGranted) return;
      // Where free room is in pieces, a copy has several extents.
      std::vector<Lane> lanes;
      std::array<std::size_t, 2> of_copy{};
      for (const Extent& extent : answer.extents) {
        const std::size_t at = of_copy.at(extent.copy)++;
        if (at == lanes.size()) lanes.emplace_back();
        lanes[at].extents.push_back(extent);
        lanes[at].generation = std::max(lanes[at].generation, extent.first_generation);
      }
      std::ranges::move(lanes, std::back_inserter(lanes_));
    });
  }
  void give_back(const Lane& lane) {
    GiveBack back;
    for (const Extent& extent : lane.extents) back.grants.push_back(extent.grant);
    ask<GiveBack>(back, [](const GiveBack::Answer&) {});
  }

  void put(const std::string& key) {
    if (busy_.contains(key)) return;
    while (!lanes_.empty() && !lanes_[0].has_room()) {
      give_back(lanes_[0]);
      lanes_.erase(lanes_.begin());
    }
    if (lanes_.empty()) return get_room();
    Lane& lane = lanes_[0];
    const uint64_t generation = lane.generation + lane.used;
    std::vector<Written> written;
    for (const Extent& extent : lane.extents)
      for (Host& one : hosts_)
        if (one.peer != 0 && one.node.segment == extent.segment &&
            one.node.grants.contains(extent.offset) &&
            one.node.grants[extent.offset] == extent.grant)
          written.push_back({&one, extent.segment, extent.offset + lane.used * kRecord});
    if (written.size() < lane.extents.size()) {
      give_back(lane);
      lanes_.erase(lanes_.begin());
      return;
    }
    ++lane.used;
    for (const Written& one : written)
      one.host->node.records[one.offset] = {key, generation, kRecord, 100, true, false};
    commit(key, written, generation, roll(3));
  }

  void commit(const std::string& key, const std::vector<Written>& written, uint64_t generation,
              std::size_t how) {
    Commit commit;
    Commit::Entry entry;
    entry.key = key;
    entry.payload_bytes = 100;
    entry.record_bytes = kRecord;
    entry.generation = generation;
    entry.if_exists = static_cast<IfExists>(how);
    entry.flags = static_cast<uint16_t>((how == 0 ? 0 : kMutable) | (roll(4) == 0 ? kHardPin : 0));
    if (hard_pinned() > 20) entry.flags &= static_cast<uint16_t>(~kHardPin);
    entry.group = roll(3) == 0 ? 1 + roll(kGroups) : 0;
    entry.wanted_replicas = static_cast<uint16_t>(written.size());
    entry.num_places = static_cast<uint32_t>(written.size());
    commit.entries.push_back(entry);
    for (const Written& one : written) commit.places.push_back({one.segment, one.offset});
    flags_of_[generation] = entry.flags;
    group_of_[generation] = entry.group;
    wanted_[generation] = entry.wanted_replicas;
    busy_.insert(key);
    const uint16_t flags = entry.flags;
    const uint64_t former = model_.contains(key) ? model_[key].generation : 0;
    const Millis asked = now_;
    ask<Commit>(commit, [=, this](const Commit::Answer& answer) {
      busy_.erase(key);
      const Commit::Result& result = answer.results[0];
      switch (result.outcome) {
        case Committed::kStored: {
          CHECK(result.generation == generation);
          const auto before = model_.find(key);
          CHECK(before == model_.end() || before->second.generation < generation);
          if (before != model_.end()) CHECK(how == 1 || gone_.contains(key) || lost(key));
          check_unread(key, generation);
          check_unwritten(key, former, asked);
          model_[key] = {generation, flags, 0};
          gone_.erase(key);
          newest_[key] = std::max(newest_[key], generation);
          ++puts;
          pairs += written.size() > 1;
          return;
        }
        case Committed::kKept:
        case Committed::kExists:
          CHECK((result.outcome == Committed::kKept) == (how == 0) && how != 1);
          CHECK(model_.contains(key) && model_[key].generation == result.generation);
          refused_.insert(generation);
          return;
        case Committed::kStale: {
          // As a client does: the headers get the fresh generation, and it commits again.
          for (const Written& one : written) {
            const auto record = one.host->node.records.find(one.offset);
            if (record == one.host->node.records.end() || record->second.generation != generation)
              return;
            CHECK(result.generation > generation);
            record->second.generation = result.generation;
          }
          return this->commit(key, written, result.generation, how);
        }
        case Committed::kClosed:
          refused_.insert(generation);
          return;
        case Committed::kUnknown:
          return;
        case Committed::kInvalid:
          CHECK(false);
      }
    });
  }

  void remove_group(uint64_t group) {
    if (!busy_.empty()) return;
    std::vector<std::string> members;
    for (const auto& [key, expected] : model_)
      if (group_of_[expected.generation] == group && !gone_.contains(key)) members.push_back(key);
    busy_.insert(members.begin(), members.end());
    // What is lost with its node and not swept yet is removed and counted, too.
    const std::size_t most = members.size() + gone_.size();
    ask<RemoveGroup>(RemoveGroup{{group}}, [=, this](const RemoveGroup::Answer& answer) {
      CHECK(answer.removed <= most);
      for (const std::string& key : members) {
        busy_.erase(key);
        model_.erase(key);
      }
      groups += answer.removed > 0;
    });
  }

  // A node is emptied, leaves, and comes back with nothing.
  void drain() {
    if (draining_ == nullptr) {
      Host& host = hosts_[roll(3)];
      if (roll(20) > 0 || host.peer == 0) return;
      draining_ = &host;
      drained_from_ = step_;
    }
    Host& host = *draining_;
    if (host.peer == 0 || step_ - drained_from_ > 300) {
      draining_ = nullptr;
      if (host.peer != 0) restart(host);
      return;
    }
    ask<Drain>(Drain{host.node.name}, [this, &host](const Drain::Answer& answer) {
      if (!answer.known || !answer.done) return;
      const ScriptedNode emptied = host.node;
      (void)master_.handle(host.peer, ++last_ticket_, Question(Leave{}), now_);
      master_.disconnect(host.peer, now_);
      host.node.records.clear();
      host.node.disk_records.clear();
      // Nothing was there alone, but what was never acknowledged, or may go. Whoever has it now may
      // be cut off since.
      for (const auto& [offset, record] : emptied.records) {
        const auto found = model_.find(record.key);
        if (!record.live || found == model_.end() || gone_.contains(record.key) ||
            busy_.contains(record.key) || found->second.generation != record.generation)
          continue;
        CHECK(held(record.key) || may_be_evicted(record.key));
      }
      ++drains;
      draining_ = nullptr;
      restart(host);
    });
  }

  void remove(const std::string& key) {
    if (busy_.contains(key)) return;
    busy_.insert(key);
    const bool force = roll(2) == 0;
    // The answer may come when its node is back.
    const bool may_be_absent = model_.contains(key) && (lost(key) || may_be_evicted(key));
    const uint64_t before = model_.contains(key) ? model_[key].generation : 0;
    const Millis asked = now_;
    ask<Remove>(Remove{{key}, force}, [=, this](const Remove::Answer& answer) {
      busy_.erase(key);
      if (answer.outcomes[0] != Removed::kLeased) check_unread(key, ~uint64_t{0});
      if (answer.outcomes[0] == Removed::kRemoved) {
        CHECK(model_.contains(key));
        check_unwritten(key, before, asked);
        model_.erase(key);
        gone_.erase(key);
      } else if (answer.outcomes[0] == Removed::kAbsent && model_.contains(key)) {
        CHECK(may_be_absent);
        model_.erase(key);
      } else if (answer.outcomes[0] == Removed::kLeased) {
        CHECK(!force);
      }
    });
  }

  void read(const std::string& key) {
    if (busy_.contains(key)) return;
    const uint32_t lease = static_cast<uint32_t>(roll(2) * 300);
    const bool hot = roll(2) == 0;
    ask<Locate>(Locate{{key}, lease, hot}, [=, this](const Locate::Answer& answer) {
      if (busy_.contains(key) || answer.found[0].presence != Presence::kPresent) return;
      const auto found = model_.find(key);
      CHECK(found != model_.end() && found->second.generation == answer.found[0].generation);
      const Locate::Found& there = answer.found[0];
      for (uint32_t p = 0; p < there.num_places; ++p)
        if (const Host* host = host_of(answer.places[there.first_place + p].segment))
          located_until_[{there.generation, host}] = now_ + master_.terms().location_ttl_ms;
      found->second.leased_until = std::max(found->second.leased_until, now_ + lease);
    });
  }

  void pin() {
    for (Host& host : hosts_)
      for (auto& [offset, record] : host.node.records) {
        if (record.pinned && roll(4) == 0) {
          record.pinned = false;
          if (!record.live) host.released.push_back({host.node.segment, offset});
        } else if (record.live && roll(20) == 0) {
          record.pinned = true;
        }
      }
  }

  // --- what has to hold ---

  std::size_t hard_pinned() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        model_, [](const auto& one) { return (one.second.flags & kHardPin) != 0; }));
  }
  bool may_be_evicted(const std::string& key) {
    const Expected& one = model_.at(key);
    return (one.flags & kHardPin) == 0 && now_ > one.leased_until;
  }
  // The number of one that was cut off for long may be another's by now.
  const Host* host_of(SegmentId segment) const {
    const Host* of = nullptr;
    for (const Host& host : hosts_)
      if (host.node.segment == segment && (of == nullptr || host.peer != 0)) of = &host;
    return of;
  }
  // What a client may have located is dead, or was located too long ago: a node that is cut off
  // from the master may still be read.
  void check_unread(const std::string& key, uint64_t before) {
    for (const Host& host : hosts_)
      for (const auto& [offset, record] : host.node.records)
        if (record.live && record.key == key && record.generation < before) {
          const auto located = located_until_.find({record.generation, &host});
          CHECK(located == located_until_.end() || located->second <= now_);
        }
  }
  // A disk outlives its node and the master: what was acknowledged as gone is not there, but where
  // its node was lost meanwhile.
  void check_unwritten(const std::string& key, uint64_t generation, Millis since) {
    for (const Host& host : hosts_) {
      const auto record = host.node.disk_records.find(key);
      CHECK(host.peer == 0 || host.joined_at >= since || record == host.node.disk_records.end() ||
            record->second.generation != generation);
    }
  }
  // No node that can be read has it.
  bool lost(const std::string& key) {
    return std::ranges::none_of(
        hosts_, [&](const Host& host) { return host.peer != 0 && holds(host, key); });
  }
  bool held(const std::string& key) {
    return std::ranges::any_of(hosts_, [&](const Host& host) { return holds(host, key); });
  }
  bool holds(const Host& host, const std::string& key) {
    const uint64_t generation = model_.at(key).generation;
    for (const auto& [offset, record] : host.node.records)
      if (record.live && record.key == key && record.generation == generation) return true;
    const auto disk = host.node.disk_records.find(key);
    return disk != host.node.disk_records.end() && disk->second.generation == generation;
  }

  void check() {
    std::vector<std::string> names;
    for (int i = 0; i < 60; ++i) {
      names.push_back("key " + std::to_string(i));
      if (busy_.contains(names.back())) names.pop_back();
    }
    const Keys keys(names.begin(), names.end());
    const auto answer =
        std::get<Stat::Answer>(*master_.handle(client_, 0, Question(Stat{keys}), now_));
    const auto all = segments();
    for (std::size_t i = 0; i < names.size(); ++i) {
      const Stat::Object& object = answer.objects[i];
      const auto expected = model_.find(names[i]);
      if (object.presence == Presence::kPresent) {
        CHECK(!refused_.contains(object.generation));
        if (expected == model_.end()) {
          std::printf("step %d: %s is there, generation %llx\n", step_, names[i].c_str(),
                      static_cast<unsigned long long>(object.generation));
          // Only what was never acknowledged, and came with a node that restarted.
          CHECK(object.generation > newest_[names[i]] && restarts > 0);
          model_[names[i]] = {object.generation, object.flags, 0};
          newest_[names[i]] = object.generation;
        } else if (object.generation != expected->second.generation) {
          // A later one, whose put was never answered. Or the first of several that were put to
          // stay, and was lost.
          CHECK(restarts > 0 && (object.generation > expected->second.generation ||
                                 ((expected->second.flags | object.flags) & kMutable) == 0));
          expected->second = {object.generation, object.flags, 0};
          newest_[names[i]] = object.generation;
        }
        gone_.erase(names[i]);
        for (uint32_t p = 0; p < object.num_places; ++p) {
          const Place& place = answer.places[object.first_place + p];
          const auto node = all.find(place.segment);
          if (place.offset == Place::kSomewhere || node == all.end()) continue;
          const auto record = node->second->records.find(place.offset);
          CHECK(record != node->second->records.end() && record->second.live);
          CHECK(record->second.key == names[i] && record->second.generation == object.generation);
        }
      } else if (expected != model_.end() && object.presence == Presence::kAbsent) {
        // Evicted, or lost with its node; it may come back with the node.
        if (!gone_.contains(names[i])) {
          CHECK(lost(names[i]) || may_be_evicted(names[i]));
          if (!lost(names[i])) ++evictions;
          gone_.insert(names[i]);
        }
      }
    }
  }

  template <typename Q>
  typename Q::Answer ask_at_once(const Q& question) {
    return std::get<typename Q::Answer>(*master_.handle(client_, 0, Question(question), now_));
  }
  std::set<std::string> listed() {
    std::set<std::string> keys;
    uint64_t cursor = 0;
    do {
      const auto answer = ask_at_once(List{"", cursor, 1000});
      keys.insert(answer.keys.begin(), answer.keys.end());
      cursor = answer.cursor;
    } while (cursor != 0);
    return keys;
  }
  // All keys once, and then what is told of them, is what there is.
  void follow_changes() {
    bool more = true;
    while (more) {
      const auto answer = ask_at_once(Changes{known_change_, 0});
      CHECK(answer.complete == (known_change_ != 0));
      if (!answer.complete) told_ = listed();
      for (const auto& change : answer.changes)
        CHECK(change.stored ? told_.insert(change.key).second : told_.erase(change.key) == 1);
      known_change_ = answer.last;
      more = !answer.complete || !answer.changes.empty();
    }
    CHECK(told_.size() == ask_at_once(Survey{}).objects);
    CHECK(std::ranges::includes(told_, listed()));
  }

  std::mt19937_64 random_;
  Millis now_ = 1000;
  Master master_;
  PeerId client_;
  uint64_t known_change_ = 0;
  std::set<std::string> told_;
  int step_ = 0;
  uint64_t last_ticket_ = 0;
  std::vector<Host> hosts_;
  std::map<uint64_t, std::function<void(const Answer&)>> waiting_;
  std::vector<Lane> lanes_;
  Host* draining_ = nullptr;
  int drained_from_ = 0;
  uint64_t copied_ = 0;
  std::map<std::string, Expected> model_;
  std::set<std::string> gone_;  // in the model, and not found
  std::set<std::string> busy_;  // with an answer under way
  std::map<std::string, uint64_t> newest_;
  std::set<uint64_t> refused_;                                        // generations
  std::map<std::pair<uint64_t, const Host*>, Millis> located_until_;  // by generation and place
  std::map<uint64_t, uint16_t> flags_of_;  // by generation, as the next two
  std::map<uint64_t, uint64_t> group_of_;
  std::map<uint64_t, uint16_t> wanted_;
};

// Who asked too long ago, or asked another master, is told so.
void check_forgotten_changes() {
  ChangeLog log(100);
  log.note(true, "unasked");
  CHECK(!log.since(100).complete);
  for (std::size_t i = 0; i <= ChangeLog::kMostKept; ++i) log.note(i % 2 == 0, "key");
  CHECK(!log.since(100).complete && !log.since(1).complete && !log.since(1'000'000).complete);
  uint64_t known = 101;
  std::size_t told = 0;
  while (log.news(known)) {
    const Changes::Answer answer = log.since(known);
    CHECK(answer.complete && answer.last == known + answer.changes.size());
    CHECK(!answer.changes.front().stored);
    known = answer.last;
    told += answer.changes.size();
  }
  CHECK(told == ChangeLog::kMostKept && log.since(known).complete);
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t seeds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 12;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  uint64_t puts = 0, losses = 0, evictions = 0, pairs = 0, groups = 0, drains = 0, copies = 0;
  check_forgotten_changes();
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    std::fflush(stdout);
    World world(seed, seed % 2 == 0);
    world.run(3000);
    puts += world.puts;
    losses += world.losses;
    evictions += world.evictions;
    pairs += world.pairs;
    groups += world.groups;
    drains += world.drains;
    copies += world.copies();
  }
  std::printf(
      "%llu puts, %llu of them of two replicas, %llu cut, %llu evicted, %llu groups removed, "
      "%llu nodes drained, %llu records copied\n",
      static_cast<unsigned long long>(puts), static_cast<unsigned long long>(pairs),
      static_cast<unsigned long long>(losses), static_cast<unsigned long long>(evictions),
      static_cast<unsigned long long>(groups), static_cast<unsigned long long>(drains),
      static_cast<unsigned long long>(copies));
  CHECK(puts > 100 * seeds && losses > 0 && evictions > 0);
  if (seeds >= 12) CHECK(pairs > 0 && groups > 0 && drains > 0 && copies > 0);
  return 0;
}

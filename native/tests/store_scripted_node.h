// A node that keeps its records in a map and does what a master tells it, for tests of the master.
#pragma once

#include <map>
#include <string>

#include "../store/messages.h"
#include "check.h"

namespace inlay::tests {

using namespace inlay::store;

inline Uuid uuid_of(uint64_t number) {
  Uuid uuid{};
  for (std::size_t i = 0; i < 8; ++i) uuid[i] = static_cast<std::byte>(number >> (8 * i));
  uuid[15] = std::byte{1};
  return uuid;
}

// Of one segment of memory, and a disk where it has one.
struct ScriptedNode {
  struct Record {
    std::string key;
    uint64_t generation = 0;
    uint64_t bytes = 0;
    uint64_t payload_bytes = 0;
    bool live = true;
    bool pinned = false;
  };
  std::string name;
  uint64_t bytes = 0;
  bool has_disk = false;
  bool fails_copies = false;
  uint64_t number = 0;
  SegmentId segment = 0;
  SegmentId disk = 0;
  std::map<uint64_t, Record> records;    // by offset
  std::map<uint64_t, uint64_t> extents;  // offset -> end
  std::map<uint64_t, uint64_t> grants;   // offset -> grant
  std::map<std::string, Record> disk_records;
  std::map<uint64_t, SegmentId> nodes_of_segments;
  uint64_t opened = 0, closed = 0, killed = 0;

  Join join() const {
    Join join;
    join.node = name;
    join.host = "host-" + name;
    join.address = "127.0.0.1:1";
    join.segments.push_back({uuid_of(number), Tier::kMemory, bytes, name, "/file", false});
    if (has_disk)
      join.segments.push_back({uuid_of(number + 1000), Tier::kDisk, bytes * 100, name, "", false});
    return join;
  }
  void joined(const Join::Answer& answer) {
    CHECK(answer.outcome == Join::Outcome::kJoined);
    segment = answer.ids[0];
    if (has_disk) disk = answer.ids[1];
  }

  // No record may lie where an extent is opened: its room would be given twice.
  void check_free(uint64_t offset, uint64_t end) const {
    for (const auto& [at, record] : records)
      CHECK(at + record.bytes <= offset || at >= end || (!record.live && !record.pinned));
    for (const auto& [at, until] : extents) CHECK(until <= offset || at >= end);
  }
  void forget_dead(uint64_t offset, uint64_t end) {
    std::erase_if(records, [&](const auto& one) {
      return one.first < end && one.first + one.second.bytes > offset;
    });
  }

  // `others`: the nodes by segment, for copies. What a master gives again, since it has not heard
  // that it is done, is not done again.
  Done execute(const Command& command, const std::map<SegmentId, ScriptedNode*>& others) {
    const auto before = executed.find(command.id);
    if (before != executed.end()) return before->second;
    return executed[command.id] = execute_once(command, others);
  }
  std::map<uint64_t, Done> executed;

 private:
  Done execute_once(const Command& command, const std::map<SegmentId, ScriptedNode*>& others) {
    using enum Command::Kind;
    Done done;
    done.command = command.id;
    switch (command.kind) {
      case kOpen:
        CHECK(command.segment == segment && command.offset + command.bytes <= bytes);
        check_free(command.offset, command.offset + command.bytes);
        forget_dead(command.offset - command.before,
                    command.offset + command.bytes + command.behind);
        extents[command.offset] = command.offset + command.bytes;
        grants[command.offset] = command.grant;
        ++opened;
        break;
      case kClose:
        CHECK(extents.contains(command.offset) && grants[command.offset] == command.grant);
        for (const auto& range : command.ranges)
          forget_dead(range.offset, range.offset + range.bytes);
        extents.erase(command.offset);
        ++closed;
        break;
      case kKill:
        for (uint32_t i = 0; i < command.records.size(); ++i) {
          if (command.segment == disk && has_disk) {
            const auto found = disk_records.find(command.keys[i]);
            if (found != disk_records.end() &&
                found->second.generation == command.records[i].generation)
              disk_records.erase(found);
            continue;
          }
          const auto found = records.find(command.records[i].offset);
          if (found == records.end() || found->second.generation != command.records[i].generation)
            continue;
          found->second.live = false;
          ++killed;
          if (found->second.pinned) done.pinned.push_back(i);
        }
        break;
      case kCopy: {
        CHECK(grants.at(command.offset) == command.grant);
        const auto source = others.find(command.source.segment);
        if (source == others.end()) {
          done.outcome = Done::Outcome::kFailed;  // it is not reached
          break;
        }
        ScriptedNode& from = *source->second;
        const auto found = from.records.find(command.source.offset);
        if (fails_copies || found == from.records.end() || !found->second.live ||
            found->second.generation != command.source_generation) {
          done.outcome = Done::Outcome::kFailed;
          break;
        }
        CHECK(found->second.bytes == command.bytes);
        records[command.offset] = found->second;
        records[command.offset].pinned = false;
        break;
      }
      case kDemote:
        for (uint32_t i = 0; i < command.records.size(); ++i) {
          const auto found = records.find(command.records[i].offset);
          if (found == records.end() || !found->second.live ||
              found->second.generation != command.records[i].generation)
            done.missing.push_back(i);
          else
            disk_records[found->second.key] = found->second;
        }
        break;
      case kPromote: {
        const auto found = disk_records.find(command.keys.at(0));
        if (found == disk_records.end() || found->second.generation != command.source_generation) {
          done.outcome = Done::Outcome::kFailed;
          break;
        }
        CHECK(found->second.bytes == command.bytes);
        records[command.offset] = found->second;
        records[command.offset].live = true;
        records[command.offset].pinned = false;
        break;
      }
    }
    return done;
  }
};

}  // namespace inlay::tests

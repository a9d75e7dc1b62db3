// What a node does of what the master wants.
#include <algorithm>
#include <cstring>

#include "../core/crc32c.h"
#include "node.h"

namespace inlay::store {

void StoreNode::execute(const Command& command) {
  Done done;
  done.command = command.id;
  done.outcome = Done::Outcome::kFailed;
  Held* held = find(command.segment);
  if (disk_id_ && execute_on_disk(command, held)) return;
  if (held != nullptr) switch (command.kind) {
      case Command::Kind::kOpen:
        done.outcome = open(*held, command);
        break;
      case Command::Kind::kClose:
        if (!held->segment->close(command.offset, command.ranges)) {
          closing_.push_back({command.id, command.segment, command.offset, command.ranges});
          return;
        }
        done.outcome = Done::Outcome::kDone;
        break;
      case Command::Kind::kKill:
        kill(*held, command, done);
        break;
      case Command::Kind::kCopy:
        copy(*held, command);
        return;
      case Command::Kind::kDemote:
      case Command::Kind::kPromote:
        break;
    }
  done_.push_back(std::move(done));
}

// Tells the master at once what was done by other threads.
NodeDisk::Then StoreNode::tell(std::vector<SegmentPlace> places) {
  return [told = told_, &link = link_, places = std::move(places)](const Done& done) {
    Beat beat;
    beat.done.push_back(done);
    const auto then = [told, done, places](StoreStatus status, const Beat::Answer&) {
      const std::lock_guard lock(told->mutex);
      if (status != StoreStatus::kOk) told->done.push_back(done);
      told->demoted.insert(told->demoted.end(), places.begin(), places.end());
    };
    link.ask<Beat>(std::move(beat), Clock::now() + kAnswer, then);
  };
}

// True: its Done comes later.
bool StoreNode::execute_on_disk(const Command& command, Held* held) {
  using enum Command::Kind;
  if (command.kind == kKill && command.segment == *disk_id_) {
    std::vector<NodeDisk::Removal> removals;
    for (std::size_t i = 0; i < command.keys.size() && i < command.records.size(); ++i)
      removals.push_back({command.keys[i], command.records[i].generation});
    disk_->remove(command.id, std::move(removals), tell());
    return true;
  }
  if (held == nullptr) return false;
  if (command.kind == kKill) return kill_later(*held, command);
  if (command.disk != *disk_id_) return false;
  const std::span<std::byte> memory = held->segment->memory();
  if (command.kind == kDemote) {
    demote(*held, command);
    return true;
  }
  if (command.kind != kPromote || command.keys.empty() || command.offset > memory.size() ||
      command.bytes > memory.size() - command.offset ||
      !held->segment->has_open(command.offset, command.grant))
    return false;
  disk_->promote(command.id, command.keys[0], command.source_generation,
                 memory.subspan(command.offset, command.bytes), tell());
  return true;
}

// The room of a record is given again only when it is killed, which waits for this (kill_later).
void StoreNode::demote(Held& held, const Command& command) {
  const std::span<const std::byte> memory = held.segment->memory();
  std::vector<NodeDisk::Demotion> records;
  std::vector<SegmentPlace> places;
  for (std::size_t i = 0; i < command.keys.size() && i < command.records.size(); ++i) {
    const uint64_t offset = command.records[i].offset;
    const uint64_t generation = command.records[i].generation;
    NodeDisk::Demotion& one = records.emplace_back(command.keys[i], generation);
    if (offset >= memory.size()) continue;
    const auto found = parse_record(memory.subspan(offset), memory.size() - offset);
    if (!found || found->header.generation != generation || found->key != one.key ||
        load_state(memory.data() + offset) != RecordState::kLive)
      continue;
    one.record = memory.subspan(offset, found->header.bytes);
    places.emplace_back(held.id, offset);
  }
  {
    const std::lock_guard lock(told_->mutex);
    told_->demoting.insert(places.begin(), places.end());
  }
  disk_->demote(command.id, std::move(records), tell(std::move(places)));
}

// Of records that are just written to the disk: they are dead at once, but the master hears of it
// when the disk says so, too, or a restart could bring them back.
bool StoreNode::kill_later(Held& held, const Command& command) {
  std::vector<NodeDisk::Removal> removals;
  {
    const std::lock_guard lock(told_->mutex);
    for (const RecordRef& record : command.records) {
      if (!record.gone || !told_->demoting.contains({held.id, record.offset})) continue;
      const auto found = parse_record(held.segment->memory().subspan(record.offset),
                                      held.segment->memory().size() - record.offset);
      if (found) removals.push_back({std::string(found->key), record.generation});
    }
  }
  if (removals.empty()) return false;
  held.segment->kill(command.records);
  const auto removed = std::make_shared<std::atomic<bool>>(false);
  late_kills_.push_back({command, removed});
  disk_->remove(command.id, std::move(removals), [removed](const Done&) { removed->store(true); });
  return true;
}

Done::Outcome StoreNode::open(Held& held, const Command& command) {
  const ExtentEntry extent{command.offset, command.bytes, command.grant, command.first_generation};
  return held.segment->open(extent, command.before, command.behind) ? Done::Outcome::kDone
                                                                    : Done::Outcome::kFailed;
}

void StoreNode::kill(Held& held, const Command& command, Done& done) {
  held.segment->kill(command.records);
  std::vector<uint64_t> offsets;
  for (const RecordRef& record : command.records) offsets.push_back(record.offset);
  std::ranges::sort(offsets);
  const std::vector<uint64_t> pinned = held.segment->pinned(offsets);
  for (std::size_t i = 0; i < command.records.size(); ++i)
    if (std::ranges::binary_search(pinned, command.records[i].offset))
      done.pinned.push_back(static_cast<uint32_t>(i));
  held.pinned.insert(held.pinned.end(), pinned.begin(), pinned.end());
  std::ranges::sort(held.pinned);
  const auto repeated = std::ranges::unique(held.pinned);
  held.pinned.erase(repeated.begin(), repeated.end());
  done.outcome = Done::Outcome::kDone;
}

// By a thread of its own: a source that does not answer holds nothing else up.
void StoreNode::copy(Held& held, const Command& command) {
  uint64_t joins;
  {
    const std::lock_guard lock(told_->mutex);
    joins = told_->joins;
  }
  const std::span<std::byte> memory = held.segment->memory();
  copies_->submit([this, command, memory, joins, then = tell()] {
    Done done;
    done.command = command.id;
    done.outcome = Done::Outcome::kFailed;
    std::vector<std::byte> record(command.bytes);
    if (!over_.load() && fetch(command, record)) {
      const std::lock_guard lock(told_->mutex);
      if (told_->joins != joins) return;  // its room is somebody else's
      place_record(memory.subspan(command.offset, record.size()), record);
      done.outcome = Done::Outcome::kDone;
    }
    then(done);
  });
}

// False: it is gone, or not reached.
bool StoreNode::fetch(const Command& command, std::vector<std::byte>& record) {
  const auto until = Clock::now() + kAnswer;
  try {
    const auto reaches = sources_.of_version(0, until);
    if (command.source.segment >= reaches->size() || (*reaches)[command.source.segment] == nullptr)
      return false;
    Reach& source = *(*reaches)[command.source.segment];
    if (HostSegment* mapped = source.mapped()) {
      const auto pin = mapped->pins().pin(command.source.offset);
      if (!pin || command.bytes > mapped->memory().size() ||
          command.source.offset > mapped->memory().size() - command.bytes)
        return false;
      std::memcpy(record.data(), mapped->memory().data() + command.source.offset, record.size());
    } else {
      const auto remote = source.remote(until);
      auto to = std::make_shared<transfer::Segment>(
          record.data(), record.size(), true, transfer::Access::kNone, std::string(), nullptr);
      const auto batch = engine_->submit({{.op = transfer::Op::kRead,
                                           .local = std::move(to),
                                           .remote = remote,
                                           .ranges = {{0, command.source.offset, record.size()}}}},
                                         std::chrono::duration<double>(kAnswer).count());
      while (!batch->wait(Clock::now() + kAnswer)) {
      }
      if (batch->state() != transfer::State::kDone) return false;
    }
  } catch (const std::exception&) {
    return false;
  }
  return !command.keys.empty() && is_record(record, command.keys[0], command.source_generation) &&
         load_state(record.data()) == RecordState::kLive;
}

}  // namespace inlay::store

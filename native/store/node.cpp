#include "node.h"

#include <algorithm>
#include <cstring>

#include "../core/crc32c.h"
#include "../core/errors.h"
#include "../core/start_thread.h"
#include "adverts.h"

namespace inlay::store {

namespace {

constexpr std::chrono::seconds kReaping(1);  // between looks for readers that died
constexpr uint32_t kPinnedBeatMs =
    2;  // while somebody reads a dead record, or writes to a closing extent
constexpr std::chrono::milliseconds kJoinPause(20);
constexpr std::chrono::seconds kTakenPatience(1);  // until who waits for a name is told

std::shared_ptr<transfer::Segment> register_memory(transfer::Engine& engine,
                                                   StoreSegment& segment) {
  auto registered = std::make_shared<transfer::Segment>(
      segment.memory().data(), segment.memory().size(), true, transfer::Access::kWrite,
      "store/" + hex(segment.uuid()), nullptr);
  segment.guard(registered);
  engine.add(registered);
  return registered;
}

}  // namespace

StoreNode::StoreNode(MasterLink& link, transfer::Engine* engine, Options options,
                     Clock::time_point until, std::unique_ptr<NodeDisk> disk,
                     const std::function<void()>& on_name_taken)
    : link_(link),
      engine_(engine),
      options_(std::move(options)),
      sources_(link, engine, true),
      disk_(std::move(disk)) {
  open_segments();
  try {
    if (engine_ != nullptr)
      for (Held& held : held_) held.registered = register_memory(*engine_, *held.segment);
    join(until, on_name_taken);
    serving_ = start_thread([this] { serve(); });
    populating_ = start_thread([this] { populate(); });
  } catch (...) {
    over_.store(true);
    if (serving_.joinable()) serving_.join();
    close();
    throw;
  }
}

StoreNode::~StoreNode() { close(); }

uint64_t StoreNode::memory_bytes() const {
  uint64_t bytes = 0;
  for (const Held& held : held_) bytes += held.segment->memory().size();
  return bytes;
}

void StoreNode::open_segments() {
  StoreSegment::require_names(options_.name, options_.tenant);
  if (options_.memory_bytes == 0) return;
  for (const std::string& uuid : StoreSegment::find(options_.directory)) {
    auto segment = StoreSegment::adopt(options_.directory, uuid);
    if (segment == nullptr) continue;
    if (segment->memory().size() == options_.memory_bytes && segment->tenant() == options_.tenant &&
        held_.empty())
      held_.emplace_back().segment = std::move(segment);
    else
      segment->unlink_files();
  }
  for (Held& held : held_) held.segment->set_keeps(options_.keeps);
  if (held_.empty())
    held_.emplace_back().segment =
        StoreSegment::make({options_.directory, options_.name, options_.tenant,
                            options_.memory_bytes, 0, options_.keeps});
}

void StoreNode::join(Clock::time_point until, const std::function<void()>& on_name_taken) {
  Join question{
      .node = options_.name,
      .host = this_host(),
      .address = engine_ == nullptr ? std::string() : engine_->address(),
      .failure_domain = options_.failure_domain,
      .segments = {},
  };
  std::vector<std::vector<StoreSegment::Entry>> records;  // of each segment
  for (const Held& held : held_) {
    records.push_back(held.segment->records());
    question.epoch_seen = std::max(question.epoch_seen, held.segment->epoch());
    question.segments.push_back({
        .uuid = held.segment->uuid(),
        .tier = Tier::kMemory,
        .bytes = held.segment->memory().size(),
        .name = "store/" + hex(held.segment->uuid()),
        .file = held.segment->path(),
        .advertises = !records.back().empty(),
    });
  }
  disk_id_.reset();
  const bool has_disk = disk_ != nullptr && !disk_->failed();
  if (has_disk) {
    question.epoch_seen = std::max(question.epoch_seen, disk_->epoch());
    question.segments.push_back({
        .uuid = disk_->uuid(),
        .tier = Tier::kDisk,
        .bytes = disk_->bytes(),
        .name = {},
        .file = {},
        .advertises = true,
    });
  }
  Join::Answer answer;
  const Clock::time_point telling = Clock::now() + kTakenPatience;
  for (bool told = !on_name_taken;;) {
    try {
      answer = link_.ask(Join(question), until);
    } catch (const StoreFailure& failure) {
      // Asked again with too little time left: what was answered before is the reason.
      const bool was_taken = answer.outcome == Join::Outcome::kNameTaken;
      if (failure.status != StoreStatus::kTimeout || !was_taken) throw;
      break;
    }
    // The master may not have noticed yet that the former process of this name ended.
    if (answer.outcome != Join::Outcome::kNameTaken || Clock::now() + kJoinPause >= until) break;
    if (!told && Clock::now() >= telling) {
      told = true;
      on_name_taken();
    }
    std::this_thread::sleep_for(kJoinPause);
  }
  switch (answer.outcome) {
    case Join::Outcome::kJoined:
      break;
    case Join::Outcome::kNameTaken:
      throw ArgumentError("name: node '" + options_.name +
                          "' is connected to the master already; give this one another name");
    case Join::Outcome::kOldEpoch:
      throw StoreFailure(StoreStatus::kUnavailable,
                         "the master at " + link_.address() + " is older than one that node '" +
                             options_.name + "' has followed: connect to the current master");
    case Join::Outcome::kDuplicateSegment:
      throw ArgumentError("name: a segment of node '" + options_.name +
                          "' is offered by another node already: was its directory copied?");
    case Join::Outcome::kTooMany:
      throw StoreFailure(StoreStatus::kUnavailable, "the master takes no more segments");
    case Join::Outcome::kNotKnown:  // only of a join that resumes
    case Join::Outcome::kInvalid:
      throw ArgumentError("memory: the master takes no segment of such a size");
  }
  beat_ms_ = std::max<uint32_t>(answer.beat_ms, 10);
  adopted_records_ = 0;
  for (std::size_t i = 0; i < held_.size(); ++i) {
    Held& held = held_[i];
    held.id = answer.ids.at(i);
    held.segment->follow(answer.epoch);
    if (!records[i].empty()) advertise(held, records[i], until);
  }
  if (!has_disk) return;
  disk_id_ = answer.ids.at(held_.size());
  const bool may_be_old = !disk_->is_whole() || disk_->epoch() < answer.oldest_tombstone_epoch;
  advertise_disk(answer.epoch, may_be_old, until);
}

void StoreNode::advertise(Held& held, std::span<const StoreSegment::Entry> records,
                          Clock::time_point until) {
  held.pinned.clear();
  Adverts adverts(link_, held.id, until, kAnswer);
  for (const StoreSegment::Entry& entry : records) {
    const RecordHeader& header = entry.header;
    if (!entry.is_living) {
      held.pinned.push_back(entry.offset);
      adverts.add({.key = {}, .offset = entry.offset, .record_bytes = header.bytes});
      continue;
    }
    Advertise::Record record = advertised(header, entry.key);
    record.offset = entry.offset;
    record.parent = parent_in(header, held.segment->memory().subspan(entry.offset, header.bytes));
    record.recompute_us = header.recompute_us;
    adverts.add(record);
  }
  adopted_records_ += adverts.finish();
}

void StoreNode::advertise_disk(uint32_t epoch, bool drops_mutable, Clock::time_point until) {
  Adverts adverts(link_, *disk_id_, until, kAnswer);
  disk_->adopt(epoch, drops_mutable, [&](const Advertise::Record& record) { adverts.add(record); });
  adopted_records_ += adverts.finish();
}

StoreNode::Held* StoreNode::find(SegmentId id) {
  const auto found = std::ranges::find(held_, id, &Held::id);
  return found == held_.end() ? nullptr : &*found;
}

void StoreNode::populate() {
  for (Held& held : held_)
    if (!held.segment->populate(over_)) return;
}

void StoreNode::serve() {
  bool joined = true;
  while (!over_.load()) {
    try {
      if (joined && beat()) continue;
      joined = false;
      forget_commands();
      // What clients put there stays; what they put from now on, they put elsewhere. Where one was
      // stopped while it wrote, what it writes to is taken until it goes on, or ends.
      for (Held& held : held_) (void)held.segment->close_all();
      join(Clock::now() + kAnswer);
      joined = true;
    } catch (const std::exception&) {
      // No master, or one that refuses: what is here stays, and is offered again.
      for (int i = 0; i < 10 && !over_.load(); ++i) std::this_thread::sleep_for(kJoinPause);
    }
  }
}

// Of a master that does not know this node any more.
void StoreNode::forget_commands() {
  if (disk_ != nullptr) disk_->finish();
  {
    const std::lock_guard lock(told_->mutex);
    told_->done.clear();
    told_->demoting.clear();
    told_->demoted.clear();
    ++told_->joins;
  }
  done_.clear();
  released_.clear();
  closing_.clear();
  late_kills_.clear();
}

// False: the master does not know this node, or not as it is now.
bool StoreNode::beat() {
  look_after_pins();
  if (disk_id_ && disk_->failed()) return false;
  const bool waits =
      !closing_.empty() || !late_kills_.empty() ||
      std::ranges::any_of(held_, [](const Held& held) { return !held.pinned.empty(); });
  NodeDisk::News news;
  Beat question;
  if (disk_id_) {
    news = disk_->news();
    Beat::Disk& disk = question.disks.emplace_back();
    disk.segment = *disk_id_;
    disk.used_bytes = news.used_bytes;
    for (const NodeDisk::Removal& one : news.dropped)
      disk.dropped.push_back({one.key, one.generation});
  }
  {
    const std::lock_guard lock(told_->mutex);
    done_.insert(done_.end(), told_->done.begin(), told_->done.end());
    told_->done.clear();
    // Here, since kills that the master wanted before it was told are executed now.
    for (const SegmentPlace& place : std::exchange(told_->demoted, {}))
      if (const auto found = told_->demoting.find(place); found != told_->demoting.end())
        told_->demoting.erase(found);
  }
  question.done = done_;
  question.released = released_;
  question.hold_ms = waits ? kPinnedBeatMs : beat_ms_;
  const std::size_t num_done = done_.size();
  const std::size_t num_released = released_.size();
  Beat::Answer answer = link_.ask(std::move(question), Clock::now() + kAnswer);
  done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(num_done));
  released_.erase(released_.begin(), released_.begin() + static_cast<std::ptrdiff_t>(num_released));
  if (!answer.known) return false;
  if (disk_id_) disk_->forget_dropped(news.dropped.size());
  for (const Command& command : answer.commands) execute(command);
  return true;
}

void StoreNode::look_after_pins() {
  if (const auto now = Clock::now(); now >= next_reap_) {
    for (Held& held : held_) held.segment->reap();
    next_reap_ = now + kReaping;
  }
  for (Held& held : held_) {
    if (held.pinned.empty()) continue;
    const std::vector<uint64_t> still = held.segment->pinned(held.pinned);
    for (const uint64_t offset : held.pinned)
      if (!std::ranges::binary_search(still, offset)) released_.push_back({held.id, offset});
    held.pinned = still;
  }
  std::erase_if(late_kills_, [this](const LateKill& late) {
    if (!late.removed->load()) return false;
    Done& done = done_.emplace_back();
    done.command = late.command.id;
    kill(*find(late.command.segment), late.command, done);
    return true;
  });
  std::erase_if(closing_, [this](const Closing& closing) {
    Held* held = find(closing.segment);
    if (held != nullptr && !held->segment->close(closing.offset, closing.fillers)) return false;
    done_.emplace_back().command = closing.command;
    return true;
  });
}

void StoreNode::close() {
  over_.store(true);
  const bool joined = serving_.joinable();
  if (joined) {
    // Releases the beat that the master holds.
    link_.ask<Beat>(Beat(), Clock::now() + kAnswer, [](StoreStatus, Beat::Answer) {});
    serving_.join();
  }
  if (populating_.joinable()) populating_.join();
  copies_.reset();
  if (disk_ != nullptr) disk_->finish();
  if (held_.empty()) return;
  if (joined) {
    try {
      link_.ask(Leave{}, Clock::now() + std::chrono::seconds(1));
    } catch (const StoreFailure&) {
      // It finds out by the node's silence.
    }
  }
  for (Held& held : held_) {
    if (held.registered != nullptr)
      (void)engine_->remove(held.registered, true, Clock::now() + kAnswer);
    if (!options_.keeps) held.segment->unlink_files();
  }
  held_.clear();
  disk_.reset();
}

}  // namespace inlay::store

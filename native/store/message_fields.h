// What travels of each struct of messages.h, for whatever takes fields: f(field, ...).
#pragma once

#include <utility>

#include "messages.h"

namespace inlay::store {

template <typename F>
void fields(F& f, Place& x) {
  f(x.segment, x.offset);
}
template <typename F>
void fields(F& f, Exists& x) {
  f(x.keys);
}
template <typename F>
void fields(F& f, Exists::Answer& x) {
  f(x.presences);
}
template <typename F>
void fields(F& f, Locate& x) {
  f(x.keys, x.lease_ms, x.promote);
}
template <typename F>
void fields(F& f, Locate::Found& x) {
  f(x.presence, x.flags, x.generation, x.payload_bytes, x.record_bytes, x.first_place,
    x.num_places);
}
template <typename F>
void fields(F& f, Locate::Answer& x) {
  f(x.table_version, x.found, x.places);
}
template <typename F>
void fields(F& f, Table& x) {
  f(x.known_version);
}
template <typename F>
void fields(F& f, Table::Segment& x) {
  f(x.id, x.tier, x.uuid, x.bytes, x.node, x.host, x.address, x.name, x.file, x.ready);
}
template <typename F>
void fields(F& f, Table::Answer& x) {
  f(x.version, x.changed, x.segments);
}
template <typename F>
void fields(F& f, Touch& x) {
  f(x.keys);
}
template <typename F>
void fields(F&, Touch::Answer&) {}
template <typename F>
void fields(F& f, Stat& x) {
  f(x.keys);
}
template <typename F>
void fields(F& f, Stat::Object& x) {
  f(x.presence, x.flags, x.wanted_replicas, x.generation, x.payload_bytes, x.record_bytes, x.group,
    x.lease_left_ms, x.hits, x.first_place, x.num_places);
}
template <typename F>
void fields(F& f, Stat::Answer& x) {
  f(x.table_version, x.objects, x.places);
}
template <typename F>
void fields(F& f, Extent& x) {
  f(x.segment, x.copy, x.offset, x.bytes, x.grant, x.first_generation, x.num_generations);
}
template <typename F>
void fields(F& f, Grant& x) {
  f(x.bytes, x.least_bytes, x.copies, x.all_copies, x.preferred_node, x.require_preferred, x.avoid,
    x.wait_ms);
}
template <typename F>
void fields(F& f, Grant::Answer& x) {
  f(x.room, x.table_version, x.extents, x.free_bytes, x.total_bytes);
}
template <typename F>
void fields(F& f, GiveBack& x) {
  f(x.grants);
}
template <typename F>
void fields(F&, GiveBack::Answer&) {}
template <typename F>
void fields(F& f, Commit::Entry& x) {
  f(x.key, x.parent, x.payload_bytes, x.record_bytes, x.generation, x.group, x.recompute_us,
    x.flags, x.wanted_replicas, x.if_exists, x.on_disk, x.first_place, x.num_places);
}
template <typename F>
void fields(F& f, Commit& x) {
  f(x.entries, x.places);
}
template <typename F>
void fields(F& f, Commit::Result& x) {
  f(x.outcome, x.generation, x.on_disk);
}
template <typename F>
void fields(F& f, Commit::Answer& x) {
  f(x.results);
}
template <typename F>
void fields(F& f, Remove& x) {
  f(x.keys, x.force);
}
template <typename F>
void fields(F& f, Remove::Answer& x) {
  f(x.outcomes);
}
template <typename F>
void fields(F& f, RemoveGroup& x) {
  f(x.groups);
}
template <typename F>
void fields(F& f, RemoveGroup::Answer& x) {
  f(x.removed);
}
template <typename F>
void fields(F& f, RemovePrefix& x) {
  f(x.prefix, x.cursor);
}
template <typename F>
void fields(F& f, RemovePrefix::Answer& x) {
  f(x.cursor, x.removed);
}
template <typename F>
void fields(F& f, List& x) {
  f(x.prefix, x.cursor, x.limit);
}
template <typename F>
void fields(F& f, List::Answer& x) {
  f(x.cursor, x.keys);
}
template <typename F>
void fields(F& f, Changes& x) {
  f(x.after, x.hold_ms);
}
template <typename F>
void fields(F& f, Changes::Change& x) {
  f(x.stored, x.key);
}
template <typename F>
void fields(F& f, Changes::Answer& x) {
  f(x.complete, x.last, x.changes);
}
template <typename F>
void fields(F& f, Explain& x) {
  f(x.key);
}
template <typename F>
void fields(F& f, Explain::Answer& x) {
  f(x.text);
}
template <typename F>
void fields(F&, Survey&) {}
template <typename F>
void fields(F& f, Survey::Counter& x) {
  f(x.name, x.value);
}
template <typename F>
void fields(F& f, Survey::Node& x) {
  f(x.name, x.host, x.address, x.failure_domain, x.ready, x.draining, x.silent_ms, x.memory_bytes,
    x.memory_used_bytes, x.disk_bytes, x.disk_used_bytes, x.fragmentation);
}
template <typename F>
void fields(F& f, Survey::Answer& x) {
  f(x.epoch, x.recovering, x.objects, x.counters, x.nodes);
}
template <typename F>
void fields(F& f, Drain& x) {
  f(x.node);
}
template <typename F>
void fields(F& f, Drain::Answer& x) {
  f(x.known, x.done, x.objects_left, x.objects_stuck);
}
template <typename F>
void fields(F& f, Join::Segment& x) {
  f(x.uuid, x.tier, x.bytes, x.name, x.file, x.advertises);
}
template <typename F>
void fields(F& f, Join& x) {
  f(x.node, x.host, x.address, x.failure_domain, x.epoch_seen, x.resumes, x.segments);
}
template <typename F>
void fields(F& f, Join::Answer& x) {
  f(x.outcome, x.epoch, x.oldest_tombstone_epoch, x.ids, x.beat_ms);
}
template <typename F>
void fields(F& f, Advertise::Record& x) {
  f(x.key, x.offset, x.record_bytes, x.payload_bytes, x.generation, x.group, x.flags,
    x.wanted_replicas, x.parent, x.recompute_us);
}
template <typename F>
void fields(F& f, Advertise& x) {
  f(x.segment, x.records, x.last);
}
template <typename F>
void fields(F& f, Advertise::Answer& x) {
  f(x.known);
}
template <typename F>
void fields(F& f, RecordRef& x) {
  f(x.offset, x.generation, x.gone);
}
template <typename F>
void fields(F& f, Command::Range& x) {
  f(x.offset, x.bytes);
}
template <typename F>
void fields(F& f, Command& x) {
  f(x.kind, x.id, x.segment, x.offset, x.bytes, x.before, x.behind, x.grant, x.first_generation,
    x.num_generations, x.disk, x.source, x.source_generation, x.keys, x.ranges, x.records);
}
template <typename F>
void fields(F& f, Done& x) {
  f(x.command, x.outcome, x.pinned, x.missing, x.parent, x.recompute_us);
}
template <typename F>
void fields(F& f, Beat::Disk::Dropped& x) {
  f(x.key, x.generation);
}
template <typename F>
void fields(F& f, Beat::Disk& x) {
  f(x.segment, x.used_bytes, x.dropped);
}
template <typename F>
void fields(F& f, Beat& x) {
  f(x.done, x.released, x.disks, x.hold_ms);
}
template <typename F>
void fields(F& f, Beat::Answer& x) {
  f(x.known, x.commands);
}
template <typename F>
void fields(F&, Leave&) {}
template <typename F>
void fields(F&, Leave::Answer&) {}

// The least and the greatest choice.
constexpr std::pair<int, int> choices(Presence) { return {0, 2}; }
constexpr std::pair<int, int> choices(Tier) { return {0, 1}; }
constexpr std::pair<int, int> choices(Room) { return {0, 4}; }
constexpr std::pair<int, int> choices(IfExists) { return {0, 2}; }
constexpr std::pair<int, int> choices(Committed) { return {0, 6}; }
constexpr std::pair<int, int> choices(Removed) { return {0, 3}; }
constexpr std::pair<int, int> choices(Join::Outcome) { return {0, 4}; }
constexpr std::pair<int, int> choices(Command::Kind) { return {1, 6}; }
constexpr std::pair<int, int> choices(Done::Outcome) { return {0, 1}; }

}  // namespace inlay::store

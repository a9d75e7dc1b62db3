// The master: which objects there are, where their replicas lie, who may write where, and what goes
// when room is needed.
//
// Pure: questions and times in, answers and commands out. One thread at a time. No call does an
// unbounded amount of work: what is long goes on in tick().
//
//   object      absent -> stored (commit) -> replaced (commit) | removed | evicted
//   its record  open extent -> live -> being killed -> free; or kept by a pin until it is let go of
//   its room    free -> open extent (after the node's Done) -> committed ranges + a rest, free
//   after
//               the node has closed the extent
//   segment     advertising -> ready -> lost -> forgotten, when no object names it any more
//
// A record's room is given again only after its node has said that the record is dead and nobody
// reads it, or when the whole segment is lost. An answer that a key is removed or replaced comes
// when the old records are dead, or every cached location of them has expired.
#pragma once

#include <random>
#include <utility>

#include "master_state.h"

namespace inlay::store {

struct MasterOptions {
  Terms terms{.epoch = 1};
  uint64_t seed = 0;                        // of grants and hashes: random in earnest
  uint32_t beat_ms = 500;                   // in which each node is heard
  double high_watermark = 0.95;             // of a tenant's memory used: eviction begins
  double low_watermark = 0.92;              // and ends
  uint32_t ramp_up_ms = 10'000;             // until a new node gets its full share of what is put
  uint32_t recover_ms = 10'000;             // the longest time to wait for the nodes below
  std::vector<std::string> expected_nodes;  // that the last master knew
  std::string eviction = std::string(kDefaultEviction);
};

class Master {
 public:
  // Throws ArgumentError, naming what is wrong with the options.
  Master(MasterOptions options, Millis now);
  Master(const Master&) = delete;
  Master& operator=(const Master&) = delete;

  // A connection of a client or node whose credential is that of the tenant.
  PeerId connect(const std::string& tenant, const Uuid& client, Millis now);
  void disconnect(PeerId peer, Millis now);

  // None: the answer comes later, under `ticket`, or there is none (Touch).
  std::optional<Answer> handle(PeerId peer, uint64_t ticket, const Question& question, Millis now);
  // What has to be done in time, and a slice of what is long. Returns when to be called again.
  Millis tick(Millis now);

  // Answers to questions before, since the last call.
  struct Late {
    PeerId peer;
    uint64_t ticket;
    Answer answer;
  };
  std::vector<Late> take_answers();

  const Terms& terms() const { return options_.terms; }
  Survey::Answer survey(const Pool* pool, Millis now) const;  // null: of all tenants
  uint64_t memory_bytes() const;

 private:
  struct Turn {
    Peer& peer;
    PeerId id;
    uint64_t ticket;
    Pool& pool;
    Millis now;
  };
  using Result = std::optional<Answer>;

  // Finding (master_find.cpp).
  Result answer(const Turn& turn, const Exists& question);
  Result answer(const Turn& turn, const Locate& question);
  Result answer(const Turn& turn, const Table& question);
  Result answer(const Turn& turn, const Touch& question);
  Result answer(const Turn& turn, const Stat& question);
  Result answer(const Turn& turn, const List& question);
  Result answer(const Turn& turn, const Changes& question);
  void tell_changes(Millis now);
  Result answer(const Turn& turn, const Explain& question);
  Result answer(const Turn& turn, const Survey& question);
  Presence missing(const Pool& pool, Millis now) const;
  uint32_t add_places(const Pool& pool, const Object& object, std::vector<Place>& places) const;
  Locate::Found locate(Pool& pool, ObjectId id, uint32_t lease_ms, Millis now,
                       std::vector<Place>& places);
  void touch(Pool& pool, std::vector<ObjectId>& ids, Millis now);
  void end_locate(uint64_t number, Millis now);

  // Putting (master_put.cpp).
  Result answer(const Turn& turn, const Grant& question);
  Result answer(const Turn& turn, const GiveBack& question);
  Result answer(const Turn& turn, const Commit& question);
  // An answer that is being made, and what it waits for.
  struct CommitWork {
    uint64_t waiter = 0;
    Owed owed{};
    Commit::Answer answer{};
    std::vector<Newcomer> newcomers{};  // not ranked yet: blocks of a chain are together
  };
  Commit::Result commit(const Turn& turn, const Commit& question, const Commit::Entry& entry,
                        CommitWork& work);
  void refuse(Pool& pool, const std::optional<Replicas>& replicas, const Commit::Entry& entry);
  bool is_on_disk(Pool& pool, ObjectId id, CommitWork& work);
  std::optional<Replicas> take_places(const Turn& turn, const Commit& question,
                                      const Commit::Entry& entry);
  uint64_t fresh_generation() { return next_generation_++; }

  // Room (master_room.cpp).
  Segment* choose(Pool& pool, const Grant& question, const std::vector<SegmentId>& taken,
                  Millis now);
  std::vector<OpenExtent> allocate(Segment& segment, uint64_t bytes, uint64_t least,
                                   std::vector<Command>& opens);
  bool try_grant(const WaitingGrant& waiting, Millis now);
  void retry_grants(Millis now);
  void make_room(Pool& pool, Millis now, unsigned most);
  void evict(Pool& pool, ObjectId id, Millis now);
  void clear_ranges(Pool& pool, Millis now);
  Held held_now(const Pool& pool, Millis now) const;
  bool clear_around(Pool& pool, ObjectId victim, uint64_t bytes, const Held& held, Millis now);
  void evict_from(Pool& pool, SegmentId segment, Millis now);
  void let_go(Pool& pool, ObjectId id, bool on_disk, Millis now);
  Owed drop_from_memory(Pool& pool, ObjectId id, uint64_t waiter);
  void end_open(const InFlight& flight, bool good, Millis now);
  void end_close(Segment& segment, const InFlight& flight);
  void close_extent(Segment& segment, uint64_t offset);
  void free_range(Segment& segment, RangeId range, uint64_t bytes);
  void free_killed(Segment& segment, RangeId range);

  // Removing (master_remove.cpp).
  Result answer(const Turn& turn, const Remove& question);
  Result answer(const Turn& turn, const RemoveGroup& question);
  Result answer(const Turn& turn, const RemovePrefix& question);
  Owed drop_object(Pool& pool, ObjectId id, uint64_t waiter);
  Owed remove_object(Pool& pool, ObjectId id, uint64_t waiter);
  Owed kill_all(Pool& pool, ObjectId id, uint64_t waiter);
  // Without a key: of an object that is kept elsewhere.
  Owed kill(Pool& pool, const Replica& replica, uint64_t generation, std::string_view key,
            uint64_t waiter);
  Result settle(const Turn& turn, uint64_t waiter, Owed owed, Answer answer);
  void tell(uint64_t waiter, bool disk);
  void end_wait(uint64_t waiter);
  void mourn(Pool& pool, uint64_t hash, uint64_t waiter, Owed owed, Millis now);
  Owed follow(Pool& pool, std::string_view key, uint64_t waiter);
  void raise_floor(Pool& pool, std::string_view key, uint64_t generation);
  void bury(Pool& pool, std::string_view key, uint64_t generation, bool may_return = false);
  void bury_if_mutable(Pool& pool, ObjectId id, bool may_return);
  uint64_t& floor_of(Pool& pool, std::string_view key);

  // Objects.
  Replicas replicas_of(const Pool& pool, const Object& object) const;
  Replicas living(const Pool& pool, const Object& object) const;
  Replicas room_for_one(const Pool& pool, const Object& object) const;
  void set_replicas(Pool& pool, ObjectId id, const Replicas& replicas);
  void join_group(Pool& pool, ObjectId id, uint64_t group);
  void forget(Pool& pool, ObjectId id);
  // What the eviction policy knows (master_rank.cpp).
  // An object as the policy is to know it; none where it does, or need not.
  std::optional<Newcomer> newcomer(const Pool& pool, ObjectId id, std::string_view parent,
                                   uint32_t recompute_us) const;
  void rank(Pool& pool, std::span<const Newcomer> chain, Millis now);
  void rank_advertised(Pool& pool, ObjectId id, const Advertise::Record& record, Millis now);
  void rank_orphans(Pool& pool, Millis now);
  void unrank(Pool& pool, ObjectId id, bool evicted);
  ObjectId make_object(Pool& pool, std::string_view key, const Replicas& replicas);
  static constexpr Millis kLeaseTickMs = 16;
  uint32_t lease_tick(Millis time) const;
  bool leased(const Object& object, Millis now) const;
  uint64_t range_bytes(const Replica& replica) const;
  uint64_t record_bytes(const Pool& pool, ObjectId id) const;

  // Nodes (master_nodes.cpp).
  Result answer(const Turn& turn, const Join& question);
  Result answer(const Turn& turn, const Advertise& question);
  Result answer(const Turn& turn, const Beat& question);
  Result answer(const Turn& turn, const Leave& question);
  Result answer(const Turn& turn, const Drain& question);
  void take_done(Node& node, const Done& done, Millis now);
  void end_kill(const InFlight& flight, const Done& done);
  void forget_kills(const Segment& segment, const std::vector<RecordRef>& records,
                    const std::vector<Segment::Killed>& kills);
  void end_flight(Node& node, const InFlight& flight, const Done& done, Millis now);
  void make_segment(Node& node, const Join::Segment& about, Millis now);
  void make_ready(Segment& segment, Millis now);
  void advertise(Segment& segment, const Advertise::Record& record, Millis now);
  bool supersedes(const Advertise::Record& record, const Object& known) const;
  void drop_replica(Pool& pool, ObjectId id, SegmentId segment);
  void post(Node& node, InFlight flight);
  void flush(Node& node);
  void lose(Node& node, Millis now);
  bool recovering(Millis now) const;
  Node& node_of(const Segment& segment) { return *nodes_[segment.node]; }
  static bool usable(const Segment& segment) { return segment.state != Segment::State::kLost; }

  // Moves (master_move.cpp).
  void demote(Segment& from, Segment& disk, std::vector<Demoted> objects);
  void add_demotion(Segment& from, Segment& disk, const Demoted& object);
  void flush_demotions();
  Segment* disk_of(const Segment& memory);
  void end_demote(const InFlight& flight, const Done& done, Millis now);
  bool is_on_disk_alone(const Pool& pool, ObjectId id) const;
  bool promote(Pool& pool, ObjectId id, Millis now);
  void start_promotions(Pool& pool, Millis now);
  void keep_fresh(Pool& pool, ObjectId id, const Done& done, Millis now);
  void end_fresh(Pool& pool, Millis now);
  bool start_move(Move move, uint64_t bytes, Millis now);
  void end_move(const InFlight& flight, const Done& done, Millis now);
  void end_copy(const Move& move, bool good, Millis now);
  void leave_node(Pool& pool, ObjectId id, uint32_t node, Millis now);
  void end_promotion(Pool& pool, std::string_view key, Millis now);
  bool copy(Pool& pool, ObjectId id, SegmentId leaving, Millis now);
  bool repair(Millis now);
  bool drain(Node& node, Millis now);
  bool sweep(Millis now);

  MasterOptions options_;
  const Millis start_;
  Millis ticked_;
  std::mt19937_64 random_;
  uint64_t next_generation_;
  uint64_t table_version_;
  PeerId last_peer_ = 0;
  uint64_t last_command_;  // never given again, by no later master either
  uint64_t last_waiter_ = 0;
  std::map<std::string, std::unique_ptr<Pool>> pools_;
  std::unordered_map<PeerId, Peer> peers_;
  std::map<std::pair<Pool*, Uuid>, Client> clients_;
  std::vector<std::unique_ptr<Segment>> segments_;    // by id; null: free
  std::deque<std::pair<SegmentId, Millis>> resting_;  // ids, and when they may be used again
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<uint32_t> dirty_;  // nodes with new commands
  std::unordered_map<uint64_t, Waiter> waiters_;
  std::deque<std::pair<Millis, uint64_t>> expiries_;  // of waiters, in their order
  std::deque<WaitingGrant> waiting_grants_;
  std::unordered_map<uint64_t, OpeningGrant> opening_grants_;
  std::unordered_map<uint64_t, WaitingLocate> waiting_locates_;
  std::map<std::pair<Pool*, std::string>, std::vector<uint64_t>> promotions_;  // -> locates
  std::vector<HeldChanges> held_changes_;
  std::vector<Late> late_;
  bool recovered_ = false;
  bool room_changed_ = false;
  std::map<std::pair<SegmentId, SegmentId>, std::vector<Demoted>> demotions_;  // memory, disk

  // A walk over all objects that looks for replicas in lost segments.
  struct Sweep {
    bool wanted = false;
    bool running = false;
    Millis started = 0;
    std::string pool;
    ObjectId next = 0;
  } sweep_;

  struct Counters {
    uint64_t exists = 0, found = 0, located = 0, missed = 0, committed = 0, kept = 0, stale = 0,
             refused = 0, removed = 0, evicted = 0, evicted_bytes = 0, demoted = 0, promoted = 0,
             copied = 0, lost_replicas = 0, lost_objects = 0, granted = 0, full = 0,
             expired_waits = 0, advertised = 0, commands = 0, dropped = 0;
  } counters_;
};

}  // namespace inlay::store

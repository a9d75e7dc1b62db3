// What a master knows, besides its objects: segments, nodes, clients, and what is under way.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "burials.h"
#include "change_log.h"
#include "eviction.h"
#include "groups.h"
#include "index.h"
#include "messages.h"
#include "range_allocator.h"
#include "refusals.h"

namespace inlay::store {

// Of one clock of the caller's that never goes back.
using Millis = int64_t;
using PeerId = uint64_t;  // a connection

// `range` is one of the segment's, or, on a disk, the record's size in grains.
inline constexpr SegmentId kNoSegment = 65535;
// Victims that one question about objects on disks looks for, so that its time is bounded; tick()
// does the rest.
inline constexpr unsigned kVictimsOfPromotion = 8;
// Objects that one slice of a walk over the index looks at.
inline constexpr ObjectId kSlice = 4096;

// The owner of a range whose record is being killed.
inline constexpr uint32_t kLeaving = RangeAllocator::kNoOwner - 1;

struct Replica {
  SegmentId segment = 0;
  RangeId range = 0;
};
struct Replicas {
  std::array<Replica, kMaxReplicas> all{};
  uint8_t count = 0;

  const Replica* begin() const { return all.data(); }
  const Replica* end() const { return all.data() + count; }
  void add(Replica replica) { all[count++] = replica; }
};

// Objects that a node has told of before their parents, which may still come.
struct Orphans {
  struct Orphan {
    ObjectId id;
    uint32_t recompute_us;
    uint64_t generation;
    uint64_t end;  // of its parent's key
  };
  std::vector<Orphan> all;
  std::string parents;
};

// Between tries of what fails: longer each time, until one succeeds.
struct Pause {
  static constexpr Millis kFirst = 20;
  static constexpr Millis kLongest = 1000;

  bool over(Millis now) const { return now >= until; }
  void begin(Millis now) {
    length = std::clamp(2 * length, kFirst, kLongest);
    until = now + length;
  }
  void end() { length = until = 0; }

  Millis length = 0;
  Millis until = 0;
};

// The objects of one tenant.
struct Pool {
  Pool(std::string tenant, const KeyHash& hash, std::unique_ptr<EvictionPolicy> policy,
       uint64_t before_changes)
      : tenant(std::move(tenant)),
        index(hash),
        policy(std::move(policy)),
        changes(before_changes) {}

  std::string tenant;
  Index index;
  std::unique_ptr<EvictionPolicy> policy;  // of the objects with a replica in memory
  ChangeLog changes;
  std::vector<Replicas> lists;  // of objects with several replicas
  std::vector<uint32_t> free_lists;
  Groups groups;
  std::deque<std::pair<ObjectId, uint64_t>> doomed;  // (id, generation): evicted with their group
  std::vector<SegmentId> segments;
  uint64_t total_bytes = 0;    // of memory that is ready
  uint64_t used_bytes = 0;     // of these
  uint64_t leaving_bytes = 0;  // used, and killed, demoted or closed just now
  // Per 64 Ki buckets of hashes: commits of up to this generation are refused, so that generations
  // of a key grow. A client takes a fresh one then; nodes that come back are held against burials.
  std::vector<uint64_t> floors;
  Burials burials;
  Refusals refusals;
  // Demotions under way, by generation. Who replaces or removes the object meanwhile waits until
  // what they write is gone from the disk again.
  struct Demoting {
    uint32_t count = 0;
    uint64_t waiter = 0;
  };
  std::unordered_map<uint64_t, Demoting> demoting;
  // Objects on disks alone that are wanted in memory.
  struct Wanted {
    ObjectId id;
    uint64_t generation;
    std::string key;
  };
  std::deque<Wanted> promoting;
  // What came from disks lately, in its order. It stays for who waits for it, since the policy
  // hears of it later: at `until`, or when too much of the memory is fresh.
  struct Fresh {
    ObjectId id;
    uint64_t generation;
    uint64_t bytes;
    Millis until;
    std::string parent;
    uint32_t recompute_us;
  };
  std::deque<Fresh> fresh;
  uint64_t fresh_bytes = 0;
  bool promoting_wants_room = false;
  SegmentId crowded = kNoSegment;                  // where it does
  std::deque<std::pair<ObjectId, uint64_t>> thin;  // with fewer replicas than wanted
  // Waiters for the deaths of records that were evicted or moved away, by the hash of their keys.
  std::unordered_multimap<uint64_t, uint64_t> dying;
  unsigned advertising = 0;  // segments
  Orphans orphans;           // while some do
  bool evicting = false;
  bool gave_up_copies = false;  // for want of a node that could take them
  Pause repairs;
};

// Room in a segment that somebody fills.
struct OpenExtent {
  struct Piece {
    RangeId range;
    uint64_t offset;
    uint64_t bytes;
  };
  SegmentId segment = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t grant = 0;
  uint64_t first_generation = 0;
  std::array<std::byte, 16> client{};  // all 0: the master's own, for a move
  std::vector<Piece> pieces;           // of which nothing is committed
  // Killed while it is open: its grant reaches there still, so they are free when it is closed.
  std::vector<Piece> dead;
  bool closing = false;
};

struct Segment {
  enum class State : uint8_t { kAdvertising, kReady, kLost };
  SegmentId id = 0;
  State state = State::kReady;
  Join::Segment about;
  uint32_t node = 0;
  Pool* pool = nullptr;
  std::optional<RangeAllocator> ranges;          // of memory
  std::map<uint64_t, OpenExtent> extents;        // by offset
  std::unordered_map<uint64_t, RangeId> pinned;  // dead records by offset
  std::vector<RecordRef> kills;                  // not yet in a command, with:
  struct Killed {
    RangeId range;
    uint64_t bytes;
    uint64_t waiter;
    uint64_t refused = 0;  // the hash of its key, where its put was refused
  };
  std::vector<Killed> killed;
  std::vector<std::string> killed_keys;  // on disks
  uint64_t objects = 0;
  uint64_t disk_used = 0;
  Millis ready_since = 0;
  Millis lost_since = 0;
  bool forgotten = false;  // no object names it; its id rests
};

// A move of payload that a node makes: a copy to another node, to a disk, or from one.
struct Move {
  enum class Kind : uint8_t { kCopy, kPromote };
  Kind kind = Kind::kCopy;
  Pool* pool = nullptr;
  ObjectId id = kNoObject;
  uint64_t generation = 0;
  SegmentId from = 0;
  SegmentId to = 0;
  uint64_t offset = 0;
  uint64_t grant = 0;
  bool leaves = false;  // the source is dropped afterwards: its node is being drained
  uint64_t waiter = 0;  // for the death of what it makes: its object was replaced or removed
};

// An object on its way to a disk.
struct Demoted {
  ObjectId id = kNoObject;
  uint64_t generation = 0;
  uint64_t leaving = 0;  // bytes of memory that it leaves afterwards
  uint64_t waiter = 0;   // else: it stays, and somebody waits
  uint32_t result = 0;   // in the waiter's answer
};

// What an answer waits for.
struct Owed {
  uint32_t kills = 0;  // records that have to be dead, unless their locations expire before
  uint32_t disks = 0;  // records that have to be on a disk, or gone from it

  Owed& operator+=(Owed other) {
    kills += other.kills;
    disks += other.disks;
    return *this;
  }
  bool nothing() const { return kills == 0 && disks == 0; }
};

struct InFlight {
  Command command;
  std::vector<Segment::Killed> killed;   // of kKill
  std::vector<Demoted> demoted;          // of kDemote, by record
  uint64_t grant = 0;                    // of kOpen: the grant that waits
  Move move;                             // of kCopy and kPromote
  std::vector<OpenExtent::Piece> freed;  // of kClose
};

struct HeldBeat {
  PeerId peer;
  uint64_t ticket;
  Millis until;
};

struct Node {
  uint32_t id = 0;
  bool alive = true;
  bool left = false;  // it said so
  bool draining = false;
  Join about;
  Pool* pool = nullptr;
  PeerId peer = 0;  // 0: its connection is lost
  Millis heard = 0;
  std::vector<SegmentId> segments;
  std::vector<uint64_t> queue;  // of in_flight, not told yet
  std::optional<HeldBeat> beat;
  std::map<uint64_t, InFlight> in_flight;  // by command, in their order
  unsigned copies = 0;                     // to it
  unsigned promotions = 0;                 // from its disk
  unsigned demotions = 0;                  // commands, of what is evicted
  ObjectId drain_cursor = 0;
  Pause drains;
  uint64_t stuck = 0;      // of the last pass of a drain
  uint64_t stuck_now = 0;  // of this one
};

// Extents belong to a client, which may have several connections, and lose them for a while.
struct Client {
  Pool* pool = nullptr;
  unsigned connections = 0;
  Millis gone_since = 0;
  std::map<uint64_t, std::pair<SegmentId, uint64_t>> extents;  // grant -> where
};

struct Peer {
  Pool* pool = nullptr;
  Uuid client{};
  std::optional<uint32_t> node;
};

// Somebody who waits for changes.
struct HeldChanges {
  PeerId peer = 0;
  uint64_t ticket = 0;
  Pool* pool = nullptr;
  uint64_t after = 0;
  Millis until = 0;
};

// An answer that waits for nodes.
struct Waiter {
  PeerId peer = 0;
  uint64_t ticket = 0;
  Owed owed;
  Answer answer{};
  // Of a death that no answer waits for, but others may: it is in this pool's `dying`.
  Pool* pool = nullptr;
  uint64_t hash = 0;
  std::vector<uint64_t> followers{};
};

// A grant that waits for room.
struct WaitingGrant {
  PeerId peer = 0;
  uint64_t ticket = 0;
  Grant question;
  Millis until = 0;
  Millis clear_from = 0;  // when objects are evicted so that it gets a long enough range
};
// A grant whose extents nodes are opening.
struct OpeningGrant {
  PeerId peer = 0;
  uint64_t ticket = 0;
  uint32_t left = 0;
  Grant question;
  Millis until = 0;
  Grant::Answer answer;
};

// A Locate that waits until objects are in memory.
struct WaitingLocate {
  PeerId peer = 0;
  uint64_t ticket = 0;
  Pool* pool = nullptr;
  std::vector<std::string> keys;
  uint32_t lease_ms = 0;
  uint32_t left = 0;
  Millis until = 0;
};

}  // namespace inlay::store

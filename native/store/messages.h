// What clients and nodes ask the master, what it answers, and what it wants nodes to do.
//
// A question names what its answer is: `Question::Answer`. Lists in questions and answers go by
// position. Keys are views into memory of the caller, which a question does not outlive.
// The tenant is that of the connection, and nobody sees keys or segments of another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "object.h"

namespace inlay::store {

using Uuid = std::array<std::byte, 16>;
using Keys = std::vector<std::string_view>;

// A segment's number in the master's table. Good for one epoch: who keeps a place for longer keeps
// what the number stood for. A number is given again at the earliest when every cached location
// has expired.
using SegmentId = uint16_t;

// Where a record begins. One on a disk is named by its segment (the node's log) alone.
struct Place {
  static constexpr uint64_t kSomewhere = ~uint64_t{0};
  SegmentId segment = 0;
  uint64_t offset = kSomewhere;  // bytes

  bool operator==(const Place&) const = default;
};

enum class Tier : uint8_t { kMemory = 0, kDisk = 1 };

// --- clients: finding ---

enum class Presence : uint8_t {
  kAbsent = 0,
  kPresent = 1,
  kUnknown = 2,  // the master still learns what nodes hold: ask again
};

struct Exists {
  Keys keys;
  struct Answer {
    std::vector<Presence> presences;
  };
};

// A location may be used for Terms::location_ttl_ms from when it was asked for.
struct Locate {
  Keys keys;
  uint32_t lease_ms = 0;  // so long the objects are not evicted; at most kMaxLeaseMs
  bool promote = true;    // answers come when what is on disks alone is in memory, too, if it can

  static constexpr uint32_t kMaxLeaseMs = 600'000;
  struct Found {
    Presence presence = Presence::kAbsent;
    uint16_t flags = 0;
    uint64_t generation = 0;
    uint64_t payload_bytes = 0;
    uint64_t record_bytes = 0;
    uint32_t first_place = 0;  // in Answer::places
    uint32_t num_places = 0;   // those in memory first
  };
  struct Answer {
    uint64_t table_version = 0;  // with another one, ask for the Table before the places
    std::vector<Found> found;
    std::vector<Place> places;
  };
};

// The tenant's segments and where to reach them.
struct Table {
  uint64_t known_version = 0;  // 0: none
  struct Segment {
    SegmentId id = 0;
    Tier tier = Tier::kMemory;
    Uuid uuid{};
    uint64_t bytes = 0;
    std::string node;
    std::string host;     // id of the machine, for shared memory
    std::string address;  // of the node's transfer engine
    std::string name;     // of the segment in that engine
    std::string file;     // its path in /dev/shm; empty on disks
    bool ready = true;    // false: it is lost, silent, or still advertised
  };
  struct Answer {
    uint64_t version = 0;
    bool changed = true;  // false: as known_version, and no segments follow
    std::vector<Segment> segments;
  };
};

// Says that objects were read by cached locations. No answer.
struct Touch {
  Keys keys;
  struct Answer {};
};

struct Stat {
  Keys keys;
  struct Object {
    Presence presence = Presence::kAbsent;
    uint16_t flags = 0;
    uint16_t wanted_replicas = 0;
    uint64_t generation = 0;
    uint64_t payload_bytes = 0;
    uint64_t record_bytes = 0;
    uint64_t group = 0;
    uint32_t lease_left_ms = 0;
    uint32_t hits = 0;  // counts to 15
    uint32_t first_place = 0;
    uint32_t num_places = 0;
  };
  struct Answer {
    uint64_t table_version = 0;
    std::vector<Object> objects;
    std::vector<Place> places;
  };
};

// --- clients: putting ---

// Room that one client fills from its front to its back.
struct Extent {
  SegmentId segment = 0;
  uint16_t copy = 0;  // 0 to Grant::copies - 1: those of one copy lie on one node
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t grant = 0;  // secret; writes carry it
  // Generations for the records in it, each to be used once. A record's is at least the first: what
  // lies there from before has smaller ones.
  uint64_t first_generation = 0;
  uint32_t num_generations = 0;
};

enum class Room : uint8_t {
  kGranted = 0,
  kFull = 1,         // nothing was evictable within wait_ms
  kNoNode = 2,       // the tenant has no segment, or fewer failure domains than `copies`
  kUnknownNode = 3,  // the preferred one, where it is required
  kTooLarge = 4,     // no segment is as large as `least_bytes`
};

// Extents on `copies` nodes, spread over failure domains. Fewer come where there are fewer nodes
// and not all are required. Where no free room is as long as `bytes`, each copy is several extents.
struct Grant {
  uint64_t bytes = 0;        // wanted of each
  uint64_t least_bytes = 0;  // less is of no use: the largest record to be written
  uint16_t copies = 1;       // at most kMaxReplicas
  bool all_copies = false;
  std::string preferred_node;  // for the first; empty: none
  bool require_preferred = false;
  std::vector<SegmentId> avoid;  // segments that did not take writes lately
  uint32_t wait_ms = 0;          // for room, when all is taken
  struct Answer {
    Room room = Room::kGranted;
    uint64_t table_version = 0;
    std::vector<Extent> extents;
    uint64_t free_bytes = 0;  // of the tenant's segments
    uint64_t total_bytes = 0;
  };
};

// The client writes to these extents no more. What is not committed of them is free again.
struct GiveBack {
  std::vector<uint64_t> grants;
  struct Answer {};
};

enum class IfExists : uint8_t { kKeep = 0, kReplace = 1, kError = 2 };

enum class Committed : uint8_t {
  kStored = 0,
  kKept = 1,     // the key was there; `generation` is what it has. The record is dead
  kExists = 2,   // as above, for kError
  kStale = 3,    // write the record again with `generation` (in place), and commit again
  kClosed = 4,   // one of the places is in no open extent of this client: write it elsewhere
  kInvalid = 5,  // the entry contradicts itself or the limits
  kUnknown = 6,  // the master still learns what nodes hold: commit again later
};

// Makes records that are written visible under their keys. Each entry on its own. The answer comes
// when the records that were replaced are dead, or all cached locations of them have expired.
// Committing the same record twice is as good as once.
struct Commit {
  struct Entry {
    std::string_view key;
    std::string_view parent;  // what this is worth nothing without; empty: none
    uint64_t payload_bytes = 0;
    uint64_t record_bytes = 0;
    uint64_t generation = 0;    // 0: gets kStale, and with it a fresh one
    uint64_t group = 0;         // 0: none
    uint32_t recompute_us = 0;  // to make the payload again where the parent is there; 0: unknown
    uint16_t flags = 0;         // ObjectFlag
    uint16_t wanted_replicas = 1;
    IfExists if_exists = IfExists::kKeep;
    bool on_disk = false;      // the answer waits until a disk of its nodes has it, or none can
    uint32_t first_place = 0;  // in `places`
    uint32_t num_places = 0;
  };
  std::vector<Entry> entries;
  std::vector<Place> places;
  struct Result {
    Committed outcome = Committed::kStored;
    uint64_t generation = 0;
    bool on_disk = false;  // what has the key is on a disk, where Entry::on_disk asks for it
  };
  struct Answer {
    std::vector<Result> results;
  };
};

// --- clients: removing ---

enum class Removed : uint8_t { kRemoved = 0, kAbsent = 1, kLeased = 2, kUnknown = 3 };

// The answer comes when the records are dead, or all cached locations of them have expired.
struct Remove {
  Keys keys;
  bool force = true;  // also what is leased
  struct Answer {
    std::vector<Removed> outcomes;
  };
};

struct RemoveGroup {
  std::vector<uint64_t> groups;
  struct Answer {
    uint64_t removed = 0;
  };
};

// An administrator's scan, in slices: ask again with the cursor until it is 0.
struct RemovePrefix {
  std::string_view prefix;
  uint64_t cursor = 0;
  struct Answer {
    uint64_t cursor = 0;
    uint64_t removed = 0;
  };
};

// --- administration ---

// Some keys with the prefix, in slices of the index, in no order.
struct List {
  std::string_view prefix;
  uint64_t cursor = 0;
  uint32_t limit = 1000;
  struct Answer {
    uint64_t cursor = 0;  // 0: that was all
    std::vector<std::string> keys;
  };
};

// What became of keys, for who keeps a list of them: it begins, and begins again where an answer is
// not complete, with the `last` of that answer, then a List of all keys, then what follows `last`.
// Held until there is something to tell. An object whose nodes are all lost is told of as removed
// when the master has found it.
struct Changes {
  uint64_t after = 0;    // the number of the last change that is known; 0: none
  uint32_t hold_ms = 0;  // at most
  struct Change {
    bool stored = false;  // false: removed, or evicted
    std::string key;
  };
  struct Answer {
    bool complete = false;  // false: not all that follows `after` is known any more
    uint64_t last = 0;      // the number of the last one in `changes`
    std::vector<Change> changes;
  };
};

// Why an object is where it is, or is not there: lines of text.
struct Explain {
  std::string_view key;
  struct Answer {
    std::string text;
  };
};

// State and counters. Names are those of the metrics without their prefix.
struct Survey {
  struct Counter {
    std::string name;
    uint64_t value = 0;
  };
  struct Node {
    std::string name;
    std::string host;
    std::string address;
    std::string failure_domain;
    bool ready = false;
    bool draining = false;
    uint64_t silent_ms = 0;
    uint64_t memory_bytes = 0;
    uint64_t memory_used_bytes = 0;
    uint64_t disk_bytes = 0;
    uint64_t disk_used_bytes = 0;
    double fragmentation = 0;
  };
  struct Answer {
    uint32_t epoch = 0;
    bool recovering = false;
    uint64_t objects = 0;
    std::vector<Counter> counters;
    std::vector<Node> nodes;
  };
};

// Moves a node's objects elsewhere. Ask again to see how far it is; done: it may leave.
struct Drain {
  std::string node;
  struct Answer {
    bool known = false;
    bool done = false;
    uint64_t objects_left = 0;
    uint64_t objects_stuck = 0;  // no other node has room for them
  };
};

// --- nodes ---

// A node's first question to a master, and after each answer that says it is not known (kRejoin).
// A name that is taken by a living node of another connection is refused.
struct Join {
  struct Segment {
    Uuid uuid{};
    Tier tier = Tier::kMemory;
    uint64_t bytes = 0;
    std::string name;         // in the node's engine
    std::string file;         // as Table::Segment
    bool advertises = false;  // it holds records: not used until the last Advertise
  };
  std::string node;
  std::string host;
  std::string address;
  std::string failure_domain;  // empty: the host
  uint32_t epoch_seen = 0;     // the greatest of its segments
  // Of the same master, by the same process with the same segments: the connection was lost, and
  // nothing else. Commands of which no Done was heard are given again, under their ids: a node
  // answers what it has done already with the same Done.
  bool resumes = false;
  std::vector<Segment> segments;
  enum class Outcome : uint8_t {
    kJoined = 0,
    kNameTaken = 1,
    kOldEpoch = 2,  // the node has seen a later master: this one is to end
    kDuplicateSegment = 3,
    kTooMany = 4,   // segments
    kNotKnown = 6,  // resumes is set, and the node counts as lost: it has to join afresh
    kInvalid = 5,   // a segment of memory whose size is no whole number of grains, 1 to 2^32
  };
  struct Answer {
    Outcome outcome = Outcome::kJoined;
    uint32_t epoch = 0;  // to be written to the segments before anything else
    // Disks whose epoch is older have to drop their mutable records: removals of theirs may be
    // forgotten.
    uint32_t oldest_tombstone_epoch = 0;
    std::vector<SegmentId> ids;
    uint32_t beat_ms = 0;  // at least one Beat in each
  };
};

// Living records of a segment, in the order of their offsets (memory), and dead ones that somebody
// reads in place still. What lies between them is free. Those that are dead for the master come
// back in kKill commands.
struct Advertise {
  struct Record {
    std::string_view key;  // empty: it is dead; Beat::released tells that nobody reads it any more
    uint64_t offset = 0;
    uint64_t record_bytes = 0;
    uint64_t payload_bytes = 0;
    uint64_t generation = 0;
    uint64_t group = 0;
    uint16_t flags = 0;
    uint16_t wanted_replicas = 1;
    std::string_view parent{};  // of records in memory
    uint32_t recompute_us = 0;
  };
  SegmentId segment = 0;
  std::vector<Record> records;
  bool last = false;
  struct Answer {
    bool known = true;  // false: join again
  };
};

struct RecordRef {
  uint64_t offset = 0;
  uint64_t generation = 0;  // the record is meant only if it has this one
  bool gone = false;        // of kKill: the object is, so that it must not get to a disk either
};

// To a node. In their order, but for those that move payload (kCopy, kDemote, kPromote), which may
// end later than what follows them.
struct Command {
  enum class Kind : uint8_t {
    // Make [offset - before, offset) one filler, [offset, offset + bytes) another and the next
    // `behind` bytes a third, and enter the extent into the superblock; in that order of care: a
    // walk must be right at each moment.
    kOpen = 1,
    // Take the extent out of the superblock; refuse its grant. Then what `ranges` names, which was
    // not committed, is filler.
    kClose = 2,
    // Mark the records dead (memory), write their tombstones (disk). Done says which are pinned;
    // those are told by Beat::released later.
    kKill = 3,
    // Read the record from `source` and write it to `offset`, an extent that is open under `grant`
    // for this alone. kFailed when it is gone.
    kCopy = 4,
    // Write records of memory `segment` to the log of `disk`. Done names those that are not there.
    kDemote = 5,
    // Read the record of `key` from the log `disk` to `offset`, as kCopy. Done says in `missing`
    // that the disk has it no more.
    kPromote = 6,
  };
  struct Range {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  Kind kind = Kind::kKill;
  uint64_t id = 0;
  SegmentId segment = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t before = 0;
  uint64_t behind = 0;
  uint64_t grant = 0;
  uint64_t first_generation = 0;
  uint32_t num_generations = 0;
  SegmentId disk = 0;
  Place source;                    // of kCopy
  uint64_t source_generation = 0;  // of kCopy and kPromote
  std::vector<std::string>
      keys;                   // of kKill on a disk and kDemote, as `records`; of kCopy, kPromote
  std::vector<Range> ranges;  // of kClose
  std::vector<RecordRef> records;  // of kKill and kDemote
};

struct Done {
  enum class Outcome : uint8_t { kDone = 0, kFailed = 1 };
  uint64_t command = 0;
  Outcome outcome = Outcome::kDone;
  std::vector<uint32_t> pinned{};   // of kKill: positions in `records`; dead, but not free yet
  std::vector<uint32_t> missing{};  // of kDemote: positions in `records`; of kPromote: 0
  std::string parent{};             // of kPromote: what the record says, as Commit::Entry
  uint32_t recompute_us = 0;
};

// A node's question all the time: what is to be done? It waits at the master until there is
// something, at most hold_ms. Another one of the same node releases it with no commands. With
// hold_ms 0 it only tells, and takes no commands.
struct Beat {
  std::vector<Done> done;
  std::vector<Place> released;  // records killed while they were pinned, and free now
  struct Disk {
    SegmentId segment = 0;
    uint64_t used_bytes = 0;
    struct Dropped {
      std::string_view key;
      uint64_t generation = 0;
    };
    std::vector<Dropped> dropped;  // what the log gave up, or found damaged
  };
  std::vector<Disk> disks;
  uint32_t hold_ms = 0;
  struct Answer {
    bool known = true;  // false: join again
    std::vector<Command> commands;
  };
};

// The node ends. Its replicas are forgotten at once.
struct Leave {
  struct Answer {};
};

using Question =
    std::variant<Exists, Locate, Table, Touch, Stat, Grant, GiveBack, Commit, Remove, RemoveGroup,
                 RemovePrefix, List, Changes, Explain, Survey, Drain, Join, Advertise, Beat, Leave>;

template <typename Variant>
struct AnswersOf;
template <typename... Questions>
struct AnswersOf<std::variant<Questions...>> {
  using type = std::variant<typename Questions::Answer...>;
};
// Of the question with the same index.
using Answer = AnswersOf<Question>::type;

// The encoding: what the structs say, in their order; little-endian integers, lists and texts
// behind their length. kProtocolVersion changes with any of them.
inline constexpr uint16_t kProtocolVersion = 4;
using Bytes = std::vector<std::byte>;

void encode(const Question& question, Bytes& to);  // appends
void encode(const Answer& answer, Bytes& to);
// Of a question or answer with that index. False for bytes that are none: too short, too long, an
// unknown choice, lists that refer to what is not there. Takes at most a few times the memory of
// `bytes`, into which the views of a question point.
bool decode(std::size_t index, std::span<const std::byte> bytes, Question& question);
bool decode(std::size_t index, std::span<const std::byte> bytes, Answer& answer);

// What holds for all who are connected to a master.
struct Terms {
  uint32_t epoch = 0;
  uint32_t location_ttl_ms = 2000;
  uint32_t client_timeout_ms = 10'000;  // so long after its connection a client's extents are kept
  uint32_t node_timeout_ms = 2500;
};

}  // namespace inlay::store

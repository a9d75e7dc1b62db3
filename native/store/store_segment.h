// A node's memory for objects of one tenant, as three files in a directory of the node:
//
//   UUID.segment   records and fillers, one behind the other
//   UUID.table     what is known of the segment, and which extents of it are open (segment_table.h)
//   UUID.pins      who reads which records in place (pin_page.h); written by all readers
//
// They outlive the process, not the machine: who starts the node again finds its objects. The owner
// locks the first two, by which others see that it lives. An open extent is a part that a client
// fills, front to back, without asking; all else that is written is written by the owner.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "../net/socket.h"
#include "../transfer/segment.h"
#include "messages.h"
#include "pin_page.h"
#include "record.h"
#include "segment_table.h"

namespace inlay::store {

std::string hex(const Uuid& uuid);

struct ExtentEntry {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t grant = 0;
  uint64_t first_generation = 0;  // of records in it
};

// Of shared memory that processes of this user have in common; made with mode 0700 where it is not
// there. Throws ResourceError.
std::string store_directory();

class StoreSegment {
 public:
  struct Options {
    std::string directory;  // of this node; made where it is not there
    std::string node;
    std::string tenant;
    uint64_t bytes;
    uint32_t epoch;
    bool keeps = true;  // else its files go with its process, however that ends: clear_abandoned()
  };
  // Throws ArgumentError for names that are none of a node or tenant.
  static void require_names(const std::string& node, const std::string& tenant);
  // Deletes what processes left that were not to keep it, in all directories of store_directory(),
  // and directories without anything.
  static void clear_abandoned();
  // Throws ArgumentError, ResourceError where the system has not so much.
  static std::unique_ptr<StoreSegment> make(const Options& options);
  // A segment that another process left: its open extents are closed, each whole record in them is
  // kept. Null where it is damaged, which deletes it, has a living owner, or a client that was
  // stopped while it wrote.
  static std::unique_ptr<StoreSegment> adopt(const std::string& directory,
                                             const std::string& uuid_text);
  // Those in the directory, owned or not, as text.
  static std::vector<std::string> find(const std::string& directory);

  ~StoreSegment();
  StoreSegment(const StoreSegment&) = delete;
  StoreSegment& operator=(const StoreSegment&) = delete;

  const Uuid& uuid() const { return uuid_; }
  const std::string& tenant() const { return tenant_; }
  const std::string& path() const { return path_; }  // without ending
  std::span<std::byte> memory() const { return memory_; }
  const net::Descriptor& file() const { return file_; }
  uint32_t epoch() const;
  // Raises it. The epoch of the master that this segment follows.
  void follow(uint32_t epoch);

  // Faults all of it in; returns early when `stop` is set. False: the system has no more memory.
  bool populate(const std::atomic<bool>& stop);

  // Takes an extent out of a run of fillers and dead records that begins `before` bytes in front of
  // it and ends `behind` bytes behind it. False: no room in the table, or no memory.
  bool open(const ExtentEntry& extent, uint64_t before, uint64_t behind);
  // Writes of peers through `registered`, which is not offered yet, land in open extents alone and
  // under their grants. It is to be removed from its engine before the segment ends.
  void guard(std::shared_ptr<transfer::Segment> registered);
  // Lets nobody begin to write there in place. What `fillers` names becomes that, the rest of the
  // extent are records. False: somebody writes there still; call again.
  bool close(uint64_t offset, std::span<const Command::Range> fillers);
  std::vector<ExtentEntry> open_extents() const;
  bool has_open(uint64_t offset, uint64_t grant) const;
  // Closes all extents and keeps each record in them that is whole, up to the first that is not.
  // False: a client that was stopped while it wrote holds one. Nobody else writes there; records()
  // has what is not whole of it as dead, until pinned() finds that the client let go.
  bool close_all();

  // Marks records dead that have these generations; no reader that begins later takes them.
  void kill(std::span<const RecordRef> victims);
  // Of records marked dead, those that somebody reads in place still. `offsets` are sorted.
  std::vector<uint64_t> pinned(const std::vector<uint64_t>& offsets);
  void reap() { pins_->reap(); }

  // In the order of their offsets, living records and those dead ones that somebody reads in place
  // still; but for those in open extents. A dead one that is written to has no more than its size.
  struct Entry {
    uint64_t offset;
    RecordHeader header;
    std::string_view key;  // in the segment
    bool is_living;
  };
  std::vector<Entry> records() const;

  // As Options::keeps, of a segment that was adopted.
  void set_keeps(bool keeps);
  // The files go with the segment, and their directory if that is empty then.
  void unlink_files();

 private:
  StoreSegment() = default;
  bool lock();
  bool map(uint64_t bytes);
  void put_filler(uint64_t offset, uint64_t bytes);
  SegmentTable::Entry* find_open(uint64_t offset) const;  // with the lock held
  bool shut(uint64_t offset);
  bool is_quiet(uint64_t offset) const;
  bool contains(uint64_t offset, uint64_t bytes) const;
  void close_whole(const ExtentEntry& extent);
  bool mend_chain();

  Uuid uuid_{};
  std::string tenant_;
  std::string path_;
  net::Descriptor file_;
  net::Descriptor table_file_;
  std::span<std::byte> memory_;
  SegmentTable* table_ = nullptr;
  std::unique_ptr<PinPage> pins_;
  std::shared_ptr<transfer::Segment> registered_;
  std::atomic<uint64_t> ready_{0};            // bytes from the start that the system has given
  mutable std::mutex mutex_;                  // of the table
  std::map<uint64_t, Command::Range> stuck_;  // extents that close_all() left: what is not whole
};

}  // namespace inlay::store

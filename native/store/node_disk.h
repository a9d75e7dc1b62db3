// The disk tier of a node: a log of records, and the threads that move them between it and memory.
//
// What is written, removals among it, goes through one thread in the order of the calls; reads have
// threads of their own. No call but the first and last waits for the disk. A log that is full gives
// up what was written first; one that fails is given up itself, and the node goes on without it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../net/file_queue.h"
#include "../transfer/disk_file.h"
#include "call_queue.h"
#include "disk_log.h"
#include "messages.h"
#include "record.h"

namespace inlay::store {

class NodeDisk {
 public:
  static constexpr uint64_t kMinBytes = uint64_t{1} << 20;

  // The log in `directory`, which is made (0700) where it is not there, of at most `bytes`. Throws
  // ArgumentError, ResourceError, StoreFailure(kFull), TransferFailure, naming the path: another
  // process has it, it is another tenant's, or of another size. Cost: reads what is in use of it.
  NodeDisk(const std::string& directory, uint64_t bytes, const std::string& tenant);
  ~NodeDisk();
  NodeDisk(const NodeDisk&) = delete;
  NodeDisk& operator=(const NodeDisk&) = delete;

  const Uuid& uuid() const { return log_->uuid(); }
  uint64_t bytes() const { return file_.size(); }
  const std::string& path() const { return file_.path; }
  // Of the last master that it followed.
  uint32_t epoch() const;
  // Else a part of the log is lost, with what it said of older records.
  bool is_whole() const { return is_whole_; }

  // Follows that master, and visits what is there, to be called when finish() has returned. Mutable
  // records are removed for good, and not visited, where `drops_mutable`.
  // Throws ResourceError where the disk fails; what was visited is not to be had then.
  using Visit = std::function<void(const Advertise::Record&)>;
  void adopt(uint32_t epoch, bool drops_mutable, const Visit& visit);
  // The disk did not take a write: it is used no more, and its file is gone.
  bool failed() const { return failed_.load(); }

  // `done` is called by a thread of the disk, and may not wait.
  using Then = std::function<void(Done)>;

  // Writes the records, which stay as they are until then but for their states, and syncs.
  struct Demotion {
    std::string key;
    uint64_t generation;
    std::span<const std::byte> record;  // empty: it is not there any more
  };
  void demote(uint64_t command, std::vector<Demotion> records, Then done);
  // Writes the removals, and syncs.
  struct Removal {
    std::string key;
    uint64_t generation;
  };
  void remove(uint64_t command, std::vector<Removal> removals, Then done);
  // Copies the record to `into`, which has its size.
  void promote(uint64_t command, std::string key, uint64_t generation, std::span<std::byte> into,
               Then done);

  // Waits until nothing is under way.
  void finish();

  // What the log holds, and what was moved since it was opened.
  struct Moved {
    static constexpr std::size_t kBuckets = 25;  // up to 2^i us; one more for what takes longer
    uint64_t records = 0;
    uint64_t bytes = 0;
    uint64_t missing = 0;  // that were not to be had, or not taken
    std::array<uint64_t, kBuckets + 1> calls{};
    double seconds = 0;  // in them
  };
  struct Figures {
    DiskLog::Figures log{};  // nothing, where it failed
    Moved read;
    Moved written;
  };
  Figures figures();  // cost: iterates over the log's index

  // What the log holds, and the first of what it gave up since the last call of forget_dropped().
  struct News {
    uint64_t used_bytes = 0;
    std::vector<Removal> dropped;
  };
  News news();
  void forget_dropped(std::size_t count);

 private:
  void count(Moved& moved, uint64_t records, uint64_t bytes, uint64_t missing,
             std::chrono::steady_clock::time_point began);
  void submit(CallQueue& queue, std::function<void()> job);
  std::vector<uint32_t> write(const std::vector<Demotion>& records);
  bool write_removals(const std::vector<Removal>& removals);
  bool read(const std::string& key, uint64_t generation, std::span<std::byte> into, Done& told);
  void make_room();
  bool empty_one();
  void give_up_log();

  std::mutex mutex_;
  std::condition_variable idle_;
  std::size_t under_way_ = 0;
  std::vector<Removal> dropped_;
  Moved read_;
  Moved written_;
  std::atomic<bool> failed_{false};

  const DiskLogOptions options_;
  bool is_whole_;
  const std::shared_ptr<net::FileQueue> queue_;
  transfer::DiskFile file_;
  std::unique_ptr<DiskLog> log_;
  CallQueue writer_;
  CallQueue readers_;
};

// What a master is told of a living record, but for its place.
Advertise::Record advertised(const RecordHeader& header, std::string_view key);
// Copies a record to where records are read: whoever finds its header finds all of it.
void place_record(std::span<std::byte> to, std::span<const std::byte> record);
// Whether that is the record, whole.
bool is_record(std::span<const std::byte> bytes, std::string_view key, uint64_t generation);

}  // namespace inlay::store

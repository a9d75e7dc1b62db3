// A process that contributes memory, and a disk where it has one: it joins the master, offers
// segments, and does what the master wants done with them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "../transfer/engine.h"
#include "call_queue.h"
#include "master_link.h"
#include "node_disk.h"
#include "reach.h"
#include "store_segment.h"

namespace inlay::store {

class StoreNode {
 public:
  struct Options {
    std::string name;
    std::string tenant = "default";
    std::string failure_domain;  // empty: the host
    std::string directory;       // of its segments; see store_directory()
    uint64_t memory_bytes = 0;
    bool keeps = false;  // the segments outlive close(), for the next process of that name
  };
  // Takes what an earlier process of that name left, as far as it is of that size and tenant, else
  // makes a segment, and joins: when it returns, objects may be put here. Link and engine (null:
  // processes of other hosts do not reach it) outlive the node. `on_name_taken` is called once
  // where a living node keeps the name for a second and longer. Throws ArgumentError,
  // ResourceError, StoreFailure.
  StoreNode(MasterLink& link, transfer::Engine* engine, Options options, Clock::time_point until,
            std::unique_ptr<NodeDisk> disk = nullptr,
            const std::function<void()>& on_name_taken = {});
  ~StoreNode();
  StoreNode(const StoreNode&) = delete;
  StoreNode& operator=(const StoreNode&) = delete;

  const std::string& name() const { return options_.name; }
  uint64_t memory_bytes() const;
  uint64_t adopted_records() const { return adopted_records_; }

  // Of its disk, as long as it has one and is not closed. Not beside close().
  std::optional<NodeDisk::Figures> disk_figures() {
    if (disk_ == nullptr) return {};
    return disk_->figures();
  }

  // Leaves the master. Afterwards no memory of the node is used by anybody.
  void close();

 private:
  static constexpr std::chrono::seconds kAnswer{5};  // the longest wait for one
  static constexpr std::size_t kCopies = 4;          // at a time

  struct Held {
    std::unique_ptr<StoreSegment> segment;
    std::shared_ptr<transfer::Segment> registered;
    SegmentId id = 0;
    std::vector<uint64_t> pinned;  // dead, sorted, and still read by somebody
  };
  // A kill of records that were on their way to the disk: their removals follow them there.
  struct LateKill {
    Command command;
    std::shared_ptr<std::atomic<bool>> removed;
  };
  using SegmentPlace = std::pair<SegmentId, uint64_t>;
  // What the threads of the disk and of copies tell.
  struct Told {
    std::mutex mutex;
    std::vector<Done> done;  // of which the master was not told
    // Records on their way to the disk, until the master has been told that they are there.
    std::multiset<SegmentPlace> demoting;
    std::vector<SegmentPlace> demoted;  // of these, which it was told
    // Grows when the node joins again: copies that were wanted before are placed no more.
    uint64_t joins = 0;
  };
  struct Closing {
    uint64_t command;
    SegmentId segment;
    uint64_t offset;
    std::vector<Command::Range> fillers;
  };

  void open_segments();
  void join(Clock::time_point until, const std::function<void()>& on_name_taken = {});
  void forget_commands();
  void advertise(Held& held, std::span<const StoreSegment::Entry> records, Clock::time_point until);
  void advertise_disk(uint32_t epoch, bool drops_mutable, Clock::time_point until);
  void serve();
  void populate();
  bool beat();
  void execute(const Command& command);
  Done::Outcome open(Held& held, const Command& command);
  void copy(Held& held, const Command& command);
  bool fetch(const Command& command, std::vector<std::byte>& record);
  void kill(Held& held, const Command& command, Done& done);
  bool kill_later(Held& held, const Command& command);
  bool execute_on_disk(const Command& command, Held* held);
  void demote(Held& held, const Command& command);
  NodeDisk::Then tell(std::vector<SegmentPlace> places = {});
  void look_after_pins();
  Held* find(SegmentId id);

  MasterLink& link_;
  transfer::Engine* const engine_;
  const Options options_;
  Reaches sources_;
  uint64_t adopted_records_ = 0;
  std::vector<Held> held_;
  uint32_t beat_ms_ = 500;
  std::unique_ptr<NodeDisk> disk_;
  std::optional<SegmentId> disk_id_;  // where it is offered
  const std::shared_ptr<Told> told_ = std::make_shared<Told>();
  std::unique_ptr<CallQueue> copies_ = std::make_unique<CallQueue>(kCopies);
  std::vector<LateKill> late_kills_;
  std::vector<Closing> closing_;
  std::vector<Done> done_;
  std::vector<Place> released_;
  Clock::time_point next_reap_{};
  std::atomic<bool> over_{false};
  std::thread serving_;
  std::thread populating_;
};

}  // namespace inlay::store

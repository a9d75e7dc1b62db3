// Binds slices to paths: which part is next, which path it takes, and what becomes of an attempt.
//
// Slices stay in their batch until a path has room for them, so that what is slow, gone or new is
// seen by every slice that is not yet posted.
//
//   attempt   posted --> over                                      kOk, or a final error
//             posted --> over --> slice posted again               a path's fault, nothing may land
//             posted --> in doubt --settled--> slice posted again  a write that may still land
//             posted | in doubt --given up--> unsettled --settled--> forgotten
//
// A slice is never posted while an earlier attempt of it may still land: that attempt would
// overwrite what is written there afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../net/loop.h"
#include "batch.h"
#include "snapshot.h"
#include "spray.h"
#include "transport.h"

namespace inlay::transfer {

class Dispatch {
 public:
  explicit Dispatch(net::Loop& loop);

  // Queues a part; fill() posts it.
  void add(Part& part);
  // No further slices of this part; ends its reads and what is not begun.
  void stop(Part& part);
  // Gives up what is still under way of a stopped part.
  void give_up(Part& part);

  void fill();
  void completed(Attempt& attempt, Status status, bool settled);
  void settled(Attempt& attempt);

  void add_path(std::shared_ptr<Path> path);
  // Takes out a path that has ended so. Returns a name for what is in doubt on it, 0 for nothing.
  uint64_t remove_path(const Path& path, Status why);
  // Nothing posted on that path lands any more.
  void settle(uint64_t removed);
  bool has_paths() const;

  // Ends everything and refuses what comes; `settled`: nothing lands at the peer any more.
  void fail(Status why, bool settled);
  // After fail(): when that will be so by itself; max() for never.
  Clock::time_point settled_by() const;
  // After fail(): it came to light that nothing lands at the peer any more, or it never will.
  void settle_all();
  void forget();

  std::vector<std::shared_ptr<Batch>> batches() const;
  Batch::Progress progress(const Batch& batch, std::size_t index) const;
  // Paths on which something is under way.
  std::vector<std::shared_ptr<Path>> paths() const;  // that are not lost
  void busy_paths(std::vector<std::shared_ptr<Path>>& paths) const;
  // Changes with busy_paths().
  uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  // When a path that failed may be tried again; max() for never.
  Clock::time_point next_try(Clock::time_point now) const;

  // All paths that there are or were; `peer` is its address.
  std::vector<PathSnapshot> snapshot(const std::string& peer) const;
  // No slices any more for paths of that name, or slices again: then fill(). False: there is none.
  bool hold(const std::string& transport, const std::string& name, bool held);

 private:
  struct Entry {
    uint64_t id;
    std::shared_ptr<Path> path;
    PathRecord* record;
    std::optional<PathEstimate> estimate;  // from the first use on
    bool lost = false;
    uint32_t posted = 0;
    uint32_t posting = 0;   // inside Path::post
    uint32_t in_doubt = 0;  // and unsettled
    uint32_t failures = 0;  // lately
    Clock::time_point rests_until{};
  };
  enum class Mark : uint8_t { kFree, kPosted, kInDoubt, kUnsettled };
  struct Sent : Attempt {
    Mark mark = Mark::kFree;
    bool posting = false;  // inside Path::post
    bool over = false;     // reported during it
    uint32_t request = 0;
    uint8_t damaged = 0;  // so often before this try
    Ticket ticket;
    Part* part = nullptr;          // null: unsettled
    std::shared_ptr<Batch> batch;  // of an unsettled one
    Entry* entry = nullptr;
  };
  struct Earlier {
    bool operator()(const Part* a, const Part* b) const;
  };

  static void sum_up(Attempt& attempt);  // one that is complete

  // All locked:
  Sent* draw();
  Sent* draw_from(Part& part);
  struct Way {
    Entry* entry;  // null: none has room
    uint64_t bytes;
  };
  Way choose(const Part& part, const Request& request, uint64_t left, TimeNs now,
             bool& unreachable);
  static Slice cut(Part& part, const Request& request, uint64_t most);
  static Slice cut(Slice& from, uint64_t most);
  void enqueue(Part& part);
  void dequeue(Part& part);
  void finish(Sent& sent, Status status, bool settled);
  void try_again(Sent& sent, Status why);
  void end(Sent& sent);
  void recycle(Sent& sent);
  void leave_unsettled(Sent& sent);
  void end_doubt(Sent& sent);
  static bool is_doubtful(const Sent& sent);
  static void fail_request(Part& part, uint32_t request, Status why);
  void finish_if_over(Part& part);
  void remove_if_unused(Entry& entry);
  // Unlocks meanwhile.
  template <typename Act>
  void each_busy_path(std::unique_lock<std::mutex>& lock, Act&& act);

  net::Loop& loop_;
  mutable std::mutex mutex_;
  Status failed_ = Status::kOk;
  bool nothing_lands_ = false;  // at the peer, any more: also of what paths have yet to settle
  uint64_t last_entry_ = 0;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::map<std::pair<std::string, std::string>, PathRecord> records_;  // by transport and name
  std::set<Part*, Earlier> queue_;
  Clock::time_point ending_until_{};  // a path was lost, perhaps all will be
  uint64_t turn_ = 0;
  std::vector<Part*> parts_;  // all unfinished
  std::deque<Sent> sent_;     // all ever used at once
  std::vector<Sent*> free_;
  std::vector<std::shared_ptr<const void>> ended_;  // let go of without the lock
  std::atomic<uint64_t> version_{0};
};

}  // namespace inlay::transfer

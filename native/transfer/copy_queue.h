// Copies that this process makes itself, into and out of memory that it can touch.
//
// What is small is copied by who starts it. The rest is cut into pieces, which the crew and all who
// wait draw in turn.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "../net/copy_crew.h"
#include "transport.h"

namespace inlay::transfer {

// Somebody else's memory as this process reaches it.
class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;
  // Copies what the slice says, if it may; any number of threads at once. When it returns nothing
  // is touched any more. Where the request asks for a checksum, `sum` is the slice's.
  virtual Status copy(const Slice& slice, bool streaming, uint32_t& sum) const = 0;

 protected:
  // Of one piece, going on from `sum`.
  static void copy_range(const Request& request, std::byte* to, const std::byte* from,
                         uint64_t bytes, bool streaming, uint32_t& sum);
};

class CopyQueue : public net::SharedWork, public std::enable_shared_from_this<CopyQueue> {
 public:
  bool do_piece() final;  // by the crew

 protected:
  explicit CopyQueue(net::CopyCrew& crew) : crew_(crew) {}
  ~CopyQueue() override = default;

  // (locked) The end of what was taken, or queued.
  virtual void copied(Attempt& attempt, Status status) = 0;
  // After each piece of the crew.
  virtual void moved() {}

  // What Path::post() promises. `closed_` refuses.
  PostResult start(Attempt& attempt, std::shared_ptr<const RemoteMemory> memory);
  void call_crew();
  bool copy_piece();  // false: there was none to draw
  // With the lock held:
  void enqueue(Attempt& attempt, std::shared_ptr<const RemoteMemory> memory);
  // Draws no more of an owner's attempts (null: of all), and waits until their copies have ended.
  void end_copies(std::unique_lock<std::mutex>& lock, const void* owner, Status why);

  std::mutex mutex_;  // of everything below
  Status closed_ = Status::kOk;

 private:
  struct Job {
    Attempt* attempt;
    std::shared_ptr<const RemoteMemory> memory;
    Slice rest;  // what nobody has drawn
    int copying = 0;
    Status status = Status::kOk;
    uint32_t sum = 0;  // of the pieces, each past the bytes that follow it in the slice
  };

  bool is_copying(const void* owner) const;
  void finish_if_over(Job& job);

  net::CopyCrew& crew_;
  std::condition_variable copied_;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::deque<Job*> undrawn_;
  std::vector<const void*> inline_;  // owners of what is copied inside start()
};

}  // namespace inlay::transfer

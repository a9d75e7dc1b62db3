// Threads that help to copy. They sleep until there is work, and are made when there is first.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace inlay::net {

// Something that several threads do piece by piece.
class SharedWork {
 public:
  virtual ~SharedWork() = default;
  // Does the next piece; false when there was none to begin. A piece takes 10 to 100 us.
  virtual bool do_piece() = 0;
};

class CopyCrew {
 public:
  // 0: as many as suit this machine.
  explicit CopyCrew(int size = 0);
  ~CopyCrew() { close(); }
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;

  // The crew works on it until do_piece() returns false, in the order of calls. Called again when
  // there is more. Costs well under a microsecond. Throws ResourceError when there is no thread.
  void call(std::shared_ptr<SharedWork> work);
  // Ends the threads after their pieces; later calls do nothing. Not by one of them.
  void close();

 private:
  void run();

  const int size_;
  std::mutex mutex_;
  std::condition_variable called_;
  struct Entry {
    std::shared_ptr<SharedWork> work;
    uint64_t call;  // the last one
  };
  std::deque<Entry> works_;
  std::vector<std::thread> threads_;
  uint64_t last_call_ = 0;
  bool closed_ = false;
};

}  // namespace inlay::net

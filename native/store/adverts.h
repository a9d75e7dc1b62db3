// How a node tells a master what one of its segments holds: some records with each question, and
// the next question on its way while the master takes what was in the one before.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "master_link.h"

namespace inlay::store {

class Adverts {
 public:
  // The link outlives it. A question is answered until `until`, or in `answer` from when it is
  // asked, whichever is later.
  Adverts(MasterLink& link, SegmentId segment, Clock::time_point until, Clock::duration answer);

  // The key and the parent are looked at until finish(). Waits while much is on its way. Throws
  // StoreFailure.
  void add(const Advertise::Record& record);
  // Tells that this was all, when all that was told before has arrived. Returns how many living
  // records the master took over. Throws StoreFailure.
  uint64_t finish();

 private:
  // Shared with answers, which may come when this is gone.
  struct Sent {
    std::mutex mutex;
    std::condition_variable answered;
    std::size_t in_flight = 0;
    uint64_t known = 0;  // records
    StoreStatus failed = StoreStatus::kOk;
  };

  Clock::time_point answer_by() const { return std::max(until_, Clock::now() + answer_); }
  void send();
  void wait_until_at_most(std::size_t in_flight);

  MasterLink& link_;
  const Clock::time_point until_;
  const Clock::duration answer_;
  Advertise some_;
  uint64_t num_living_ = 0;  // in some_
  const std::shared_ptr<Sent> sent_ = std::make_shared<Sent>();
};

}  // namespace inlay::store

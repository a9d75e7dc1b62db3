#include "adverts.h"

#include <algorithm>
#include <utility>

namespace inlay::store {

namespace {

constexpr std::size_t kTogether = 2048;  // records in one question
constexpr std::size_t kAhead = 4;        // questions on their way

Advertise empty(SegmentId segment) {
  Advertise some{.segment = segment, .records = {}, .last = false};
  some.records.reserve(kTogether);
  return some;
}

}  // namespace

Adverts::Adverts(MasterLink& link, SegmentId segment, Clock::time_point until,
                 Clock::duration answer)
    : link_(link), until_(until), answer_(answer), some_(empty(segment)) {}

void Adverts::add(const Advertise::Record& record) {
  if (some_.records.size() == kTogether) send();
  some_.records.push_back(record);
  num_living_ += record.key.empty() ? 0 : 1;
}

uint64_t Adverts::finish() {
  // Else the segment would count as told of although a question before the last one was lost.
  wait_until_at_most(0);
  some_.last = true;
  // Records that are dead for the master come back in kKill commands. That it does not know the
  // node, the next beat says, too.
  const bool known = link_.ask(std::move(some_), answer_by()).known;
  return sent_->known + (known ? num_living_ : 0);
}

void Adverts::send() {
  wait_until_at_most(kAhead - 1);
  {
    const std::lock_guard lock(sent_->mutex);
    ++sent_->in_flight;
  }
  link_.ask<Advertise>(std::exchange(some_, empty(some_.segment)), answer_by(),
                       [sent = sent_, count = std::exchange(num_living_, 0)](
                           StoreStatus status, Advertise::Answer answer) {
                         const std::lock_guard lock(sent->mutex);
                         --sent->in_flight;
                         if (status != StoreStatus::kOk)
                           sent->failed = status;
                         else if (answer.known)
                           sent->known += count;
                         sent->answered.notify_one();
                       });
}

void Adverts::wait_until_at_most(std::size_t in_flight) {
  std::unique_lock lock(sent_->mutex);
  sent_->answered.wait(lock, [&] { return sent_->in_flight <= in_flight; });
  if (sent_->failed != StoreStatus::kOk)
    throw StoreFailure(sent_->failed, "the master at " + link_.address() +
                                          " did not take what a node holds in time; the node "
                                          "offers it again");
}

}  // namespace inlay::store

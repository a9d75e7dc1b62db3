// How this process gets at the bytes of the tenant's segments: mapped where they are of this host,
// through the transfer engine elsewhere.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../transfer/engine.h"
#include "host_segment.h"
#include "master_link.h"

namespace inlay::store {

// Of one segment. Stays good when the master gives its number to another one.
class Reach {
 public:
  Reach(Table::Segment about, transfer::Engine* engine, bool may_map);

  const Table::Segment about;
  HostSegment* mapped() const { return mapped_.get(); }  // null: elsewhere
  // Throws TransferFailure.
  std::shared_ptr<transfer::RemoteSegment> remote(Clock::time_point until);
  // Others are tried first for a while.
  void suspect() { suspect_until_.store((Clock::now() + kSuspicion).time_since_epoch()); }
  bool is_suspect(Clock::time_point now) const {
    return now.time_since_epoch() < suspect_until_.load();
  }

 private:
  static constexpr std::chrono::seconds kSuspicion{2};

  transfer::Engine* const engine_;
  std::atomic<Clock::duration> suspect_until_{};
  std::unique_ptr<HostSegment> mapped_;
  std::string problem_;  // why it is not mapped
  std::mutex mutex_;
  std::shared_ptr<transfer::RemoteSegment> remote_;
};
using ReachPtr = std::shared_ptr<Reach>;

// Id of this machine: what can map each other's files says the same.
std::string this_host();

class Reaches {
 public:
  Reaches(MasterLink& link, transfer::Engine* engine, bool may_map)
      : link_(link), engine_(engine), may_map_(may_map) {}

  // By segment id; null where there is none. Those of the version that an answer names, or later;
  // 0: as they are now.
  using List = std::vector<ReachPtr>;
  std::shared_ptr<const List> of_version(uint64_t version, Clock::time_point until);

 private:
  MasterLink& link_;
  transfer::Engine* const engine_;
  const bool may_map_;
  std::mutex mutex_;
  uint64_t version_ = 0;
  std::shared_ptr<const List> list_ = std::make_shared<List>();
};

}  // namespace inlay::store

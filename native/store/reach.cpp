#include "reach.h"

#include <fstream>

#include "../core/errors.h"

namespace inlay::store {

namespace {

double seconds_until(Clock::time_point until) {
  return std::max(0.001, std::chrono::duration<double>(until - Clock::now()).count());
}

}  // namespace

std::string this_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

Reach::Reach(Table::Segment segment, transfer::Engine* engine, bool may_map)
    : about(std::move(segment)), engine_(engine) {
  if (!may_map || about.tier != Tier::kMemory || about.file.empty() || about.host != this_host())
    return;
  try {
    mapped_ = std::make_unique<HostSegment>(about.file, about.uuid, about.bytes);
  } catch (const ResourceError& error) {
    problem_ = error.what();
  }
}

std::shared_ptr<transfer::RemoteSegment> Reach::remote(Clock::time_point until) {
  const std::lock_guard lock(mutex_);
  if (remote_ != nullptr && remote_->peer->alive() && !remote_->closed.load()) return remote_;
  remote_ = nullptr;
  if (engine_ == nullptr)
    throw TransferFailure(
        Status::kTransportUnavailable,
        "node '" + about.node + "' is not reached without a transfer engine: " + problem_);
  const auto peer = engine_->connect(about.address, seconds_until(until), [] {});
  remote_ = peer->segment(about.name, seconds_until(until), [] {});
  return remote_;
}

std::shared_ptr<const Reaches::List> Reaches::of_version(uint64_t version,
                                                         Clock::time_point until) {
  const std::lock_guard lock(mutex_);
  if (version != 0 && version == version_) return list_;
  Table::Answer table = link_.ask(Table{version_}, until);
  if (!table.changed) return list_;
  auto list = std::make_shared<List>();
  for (Table::Segment& segment : table.segments) {
    if (list->size() <= segment.id) list->resize(segment.id + std::size_t{1});
    ReachPtr& reach = (*list)[segment.id];
    for (const ReachPtr& known : *list_)
      if (known != nullptr && known->about.uuid == segment.uuid &&
          known->about.address == segment.address && known->about.ready == segment.ready)
        reach = known;
    if (reach == nullptr) reach = std::make_shared<Reach>(std::move(segment), engine_, may_map_);
  }
  version_ = table.version;
  list_ = std::move(list);
  return list_;
}

}  // namespace inlay::store

#include "fabric_port.h"

#include <sys/epoll.h>

#include <filesystem>

#include "../core/status.h"

namespace inlay::transfer {

namespace fabric = net::fabric;

namespace {

std::string interface_of(const fabric::Domain& domain) {
  if (domain.in_software()) return domain.device();
  std::error_code error;
  const std::filesystem::directory_iterator cards(
      "/sys/class/infiniband/" + domain.device() + "/device/net", error);
  return cards == std::filesystem::directory_iterator() ? "" : cards->path().filename().string();
}

}  // namespace

FabricPort::FabricPort(net::Loop& loop, uint8_t index, const fabric::Library& library,
                       fabric::Info info, Request on_request, std::function<void()> drop_late)
    : domain(library, std::move(info)),
      index(index),
      interface(interface_of(domain)),
      drop_late(std::move(drop_late)),
      loop_(loop),
      on_request_(std::move(on_request)) {
  if (domain.connected()) {
    manager.emplace(domain);
    return;
  }
  net::fill_random(landmark_);
  landmark_region_ =
      domain.register_memory(landmark_.data(), landmark_.size(), {true, true, false});
}

FabricPortOffer FabricPort::offer() const {
  return {domain.provider(), domain.network(),
          manager ? manager->address() : std::vector<std::byte>(),
          static_cast<uint64_t>(domain.bandwidth())};
}

FabricWelcome FabricPort::welcome(const std::vector<std::byte>& address) const {
  const auto base = reinterpret_cast<uintptr_t>(landmark_.data());
  return {address,
          {index, landmark_region_->key(), domain.addresses_are_virtual() ? base : 0},
          landmark_};
}

void FabricPort::start() {
  if (manager) loop_id_ = loop_.add(manager->events(), EPOLLIN, shared_from_this());
}

void FabricPort::stop() {
  if (manager) loop_.remove(loop_id_, manager->events());
}

void FabricPort::add(const fid* endpoint, const std::shared_ptr<FabricConnection>& connection) {
  const std::lock_guard lock(mutex_);
  connections_[endpoint] = connection;
}

void FabricPort::forget(const fid* endpoint) {
  const std::lock_guard lock(mutex_);
  connections_.erase(endpoint);
}

std::shared_ptr<FabricConnection> FabricPort::find(const fid* endpoint) {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(endpoint);
  return found == connections_.end() ? nullptr : found->second.lock();
}

bool FabricPort::on_events(uint32_t) {
  drop_late();
  manager->read_events(*this);
  return false;
}

void FabricPort::on_request(fabric::Info info, std::span<const std::byte> greeting) {
  on_request_(shared_from_this(), *info, greeting);
}

void FabricPort::on_connected(const fid* endpoint, std::span<const std::byte> greeting) {
  if (const auto connection = find(endpoint)) connection->on_connected(greeting);
}

void FabricPort::on_ended(const fid* endpoint) {
  if (const auto connection = find(endpoint)) connection->on_ended();
}

std::vector<FabricKey> FabricMemory::share(const Segment& segment) {
  const fabric::RegionAccess access{segment.writable, true, segment.unguarded() == Access::kWrite};
  std::vector<FabricKey> keys;
  Regions regions;
  for (const auto& port : ports_) {
    auto& domain = port->domain;
    try {
      fabric::MemoryRegion region = domain.register_memory(segment.base, segment.size, access);
      const auto base = reinterpret_cast<uintptr_t>(segment.base);
      keys.push_back({port->index, region.key(), domain.addresses_are_virtual() ? base : 0});
      regions.emplace(port->index, std::move(region));
    } catch (const TransferFailure&) {
      // Peers reach the segment through other ports and transports.
    }
  }
  const std::lock_guard lock(mutex_);
  if (!keys.empty()) shared_[{segment.slot, segment.epoch}] = std::move(regions);
  return keys;
}

void* FabricMemory::descriptor(const Segment& segment, const FabricPort& port) {
  if ((port.domain.info().domain_attr->mr_mode & FI_MR_LOCAL) == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  Regions& regions = local_[{segment.slot, segment.epoch}];
  auto found = regions.find(port.index);
  if (found == regions.end()) {
    auto& domain = ports_[port.index]->domain;
    const fabric::RegionAccess access{segment.writable, false, false};
    found = regions.emplace(port.index, domain.register_memory(segment.base, segment.size, access))
                .first;
  }
  return found->second.descriptor();
}

bool FabricMemory::remove(std::map<Name, Regions>& from, const Segment& segment) {
  Regions removed;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  const auto found = from.find({segment.slot, segment.epoch});
  if (found == from.end()) return false;
  removed = std::move(found->second);
  from.erase(found);
  return true;
}

bool FabricMemory::unshare(const Segment& segment) { return remove(shared_, segment); }

void FabricMemory::forget(const Segment& segment) { remove(local_, segment); }

void FabricMemory::clear() {
  const std::lock_guard lock(mutex_);
  shared_.clear();
  local_.clear();
}

}  // namespace inlay::transfer

#include "fabric_port.h"

#include <sys/epoll.h>

#include "../core/status.h"

namespace inlay::transfer {

namespace fabric = net::fabric;

FabricPort::FabricPort(net::Loop& loop, uint8_t index, const fabric::Library& library,
                       fabric::Info info, Request on_request)
    : domain(library, std::move(info)),
      index(index),
      loop_(loop),
      on_request_(std::move(on_request)) {}

FabricPortOffer FabricPort::offer() const {
  return {domain.provider(), domain.network(), domain.address(),
          static_cast<uint64_t>(domain.bandwidth())};
}

void FabricPort::start() { loop_id_ = loop_.add(domain.events(), EPOLLIN, shared_from_this()); }

void FabricPort::stop() { loop_.remove(loop_id_, domain.events()); }

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
  domain.read_events(*this);
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

FabricMemory::Regions& FabricMemory::regions_of(const Segment& segment) {
  Regions& regions = by_slot_[segment.slot];
  if (regions.epoch != segment.epoch) regions = {segment.epoch, false, {}};
  return regions;
}

namespace {

fabric::RegionAccess access_of(const Segment& segment) {
  return {segment.writable, segment.access != Access::kNone, segment.access == Access::kWrite};
}

}  // namespace

std::vector<FabricKey> FabricMemory::share(const Segment& segment) {
  std::vector<FabricKey> keys;
  const std::lock_guard lock(mutex_);
  Regions& regions = regions_of(segment);
  for (const auto& port : ports_) {
    auto& domain = port->domain;
    try {
      const auto region =
          regions.by_port
              .emplace(port->index,
                       domain.register_memory(segment.base, segment.size, access_of(segment)))
              .first;
      const auto base = reinterpret_cast<uintptr_t>(segment.base);
      keys.push_back(
          {port->index, region->second.key(), domain.addresses_are_virtual() ? base : 0});
      regions.shared = true;
    } catch (const TransferFailure&) {
      // Peers reach the segment through other ports and transports.
    }
  }
  return keys;
}

void* FabricMemory::descriptor(const Segment& segment, const FabricPort& port) {
  if ((port.domain.info().domain_attr->mr_mode & FI_MR_LOCAL) == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  Regions& regions = regions_of(segment);
  auto found = regions.by_port.find(port.index);
  if (found == regions.by_port.end()) {
    auto& domain = ports_[port.index]->domain;
    found = regions.by_port
                .emplace(port.index,
                         domain.register_memory(segment.base, segment.size, access_of(segment)))
                .first;
  }
  return found->second.descriptor();
}

bool FabricMemory::remove(const Segment& segment) {
  Regions removed;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  const auto found = by_slot_.find(segment.slot);
  if (found == by_slot_.end() || found->second.epoch != segment.epoch) return false;
  removed = std::move(found->second);
  by_slot_.erase(found);
  return removed.shared;
}

void FabricMemory::clear() {
  const std::lock_guard lock(mutex_);
  by_slot_.clear();
}

}  // namespace inlay::transfer

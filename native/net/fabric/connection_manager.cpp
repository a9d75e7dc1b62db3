#include "connection_manager.h"

#include <cstdlib>
#include <cstring>

#include "../../core/status.h"

namespace inlay::net::fabric {

namespace {

constexpr std::size_t kMaxEvent = sizeof(fi_eq_cm_entry) + 1024;

}  // namespace

ConnectionManager::ConnectionManager(Domain& domain) : domain_(domain), event_(kMaxEvent) {
  const Library& library = domain.library();
  // Not changed by libfabric, which takes no pointer to const.
  auto* info = const_cast<fi_info*>(&domain.info());
  fi_eq_attr attributes{};
  attributes.wait_obj = FI_WAIT_FD;
  fid_eq* event_queue = nullptr;
  require(library, "fi_eq_open", fi_eq_open(domain.fabric(), &attributes, &event_queue, nullptr));
  event_queue_.reset(event_queue);
  events_ = wait_descriptor(library, event_queue->fid);
  fid_pep* listener = nullptr;
  require(library, "fi_passive_ep", fi_passive_ep(domain.fabric(), info, &listener, nullptr));
  listener_.reset(listener);
  require(library, "fi_pep_bind", fi_pep_bind(listener, &event_queue->fid, 0));
  require(library, "fi_listen", fi_listen(listener));
  address_.resize(kMaxAddress);
  std::size_t size = address_.size();
  require(library, "fi_getname", fi_getname(&listener->fid, address_.data(), &size));
  address_.resize(size);
}

void ConnectionManager::read_events(ConnectionSink& sink) {
  // The descriptor stays readable until the library was asked whether one may wait for it.
  fid* waited = &event_queue_->fid;
  constexpr int kMaxTurns = 16;  // the descriptor tells of what is left
  for (int i = 0; i < kMaxTurns; ++i) {
    while (read_event(sink)) {
    }
    if (fi_trywait(domain_.fabric(), &waited, 1) == FI_SUCCESS) return;
  }
}

bool ConnectionManager::read_event(ConnectionSink& sink) {
  uint32_t kind = 0;
  const ssize_t size = fi_eq_read(event_queue_.get(), &kind, event_.data(), event_.size(), 0);
  if (size == -FI_EAVAIL) {
    fi_eq_err_entry error{};
    if (fi_eq_readerr(event_queue_.get(), &error, 0) < 0) return false;
    if (error.fid != nullptr) sink.on_ended(error.fid);
    return true;
  }
  if (size < static_cast<ssize_t>(sizeof(fi_eq_cm_entry))) return size > 0;
  const auto* entry = reinterpret_cast<const fi_eq_cm_entry*>(event_.data());
  const std::span greeting =
      std::span(event_).first(static_cast<std::size_t>(size)).subspan(sizeof(fi_eq_cm_entry));
  if (kind == FI_CONNREQ)
    sink.on_request(Info(entry->info, InfoDeleter{&domain_.library()}), greeting);
  else if (kind == FI_CONNECTED)
    sink.on_connected(entry->fid, greeting);
  else if (kind == FI_SHUTDOWN)
    sink.on_ended(entry->fid);
  return true;
}

void ConnectionManager::refuse(const fi_info& request) {
  fi_reject(listener_.get(), request.handle, nullptr, 0);
}

Info ConnectionManager::info_towards(std::span<const std::byte> address) const {
  const Library& library = domain_.library();
  Info hints(library.dupinfo(&domain_.info()), InfoDeleter{&library});
  if (hints == nullptr) fail(library, "fi_dupinfo", -FI_ENOMEM);
  hints->handle = nullptr;
  hints->dest_addr = std::malloc(address.size());  // freed with the hints
  if (hints->dest_addr == nullptr) fail(library, "fi_dupinfo", -FI_ENOMEM);
  std::memcpy(hints->dest_addr, address.data(), address.size());
  hints->dest_addrlen = address.size();
  fi_info* found = nullptr;
  require(library, "fi_getinfo",
          library.getinfo(kApiVersion, nullptr, nullptr, 0, hints.get(), &found));
  return {found, InfoDeleter{&library}};
}

}  // namespace inlay::net::fabric

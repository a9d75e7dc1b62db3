#include "shm_server.h"

#include <sys/epoll.h>

#include <algorithm>

#include "shm_served.h"

namespace inlay::transfer::shm {

namespace {

constexpr std::size_t kMaxLinks = 1024;

}  // namespace

ShmServer::ShmServer(const Site& site, net::SideListener listener, net::CopyCrew& crew)
    : site_(site),
      crew_(crew),
      name_(listener.name),
      acceptor_(site.loop, std::move(listener.socket)) {
  net::fill_random(ticket_);
}

ShmServer::~ShmServer() { stop(); }

void ShmServer::start() { acceptor_.start(shared_from_this()); }

void ShmServer::stop() {
  if (!acceptor_.stop()) return;
  while (!links_.empty()) drop(*links_.begin()->second);
}

void ShmServer::announce_closed(SegmentMessage closed) {
  closed.kind = Kind::kClosed;
  for (const auto& [link, held] : links_) {
    const std::lock_guard lock(link->mutex_);
    if (link->greeted_) link->send(bytes_of(closed));
  }
}

void ShmServer::end_link(const net::EngineId& engine, uint64_t connection) {
  for (const auto& [link, held] : links_)
    if (link->engine_ == engine && link->connection_ == connection) {
      drop(*link);
      return;
    }
}

bool ShmServer::on_events(uint32_t) {
  acceptor_.accept([this](net::Descriptor socket) {
    if (!net::is_near(socket) || links_.size() == kMaxLinks) return;
    page_.reap();
    const auto link =
        std::make_shared<ServedLink>(*this, crew_, std::move(socket), ++last_connection_);
    link->loop_id_ = site_.loop.add(link->socket_, EPOLLIN, link);
    links_.emplace(link.get(), link);
  });
  return false;
}

void ShmServer::drop(ServedLink& link) {
  const auto found = links_.find(&link);
  if (found == links_.end()) return;
  const std::shared_ptr<ServedLink> held = std::move(found->second);
  links_.erase(found);
  site_.loop.remove(held->loop_id_, held->socket_);
  held->end();
}

}  // namespace inlay::transfer::shm

#include "shm_server.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "shm_served.h"

namespace inlay::transfer::shm {

namespace {

constexpr std::size_t kMaxLinks = 1024;
// Per event, so that other descriptors get their turn.
constexpr int kMaxAccepts = 16;

}  // namespace

ShmServer::ShmServer(const Site& site, net::CopyCrew& crew) : site_(site), crew_(crew) {
  net::fill_random(ticket_);
}

ShmServer::~ShmServer() { stop(); }

void ShmServer::start() {
  loop_id_ = site_.loop.add(listener_.descriptor(), EPOLLIN, shared_from_this());
}

void ShmServer::stop() {
  if (loop_id_ == 0) return;
  site_.loop.remove(std::exchange(loop_id_, 0), listener_.descriptor());
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
  for (int i = 0; i < kMaxAccepts && loop_id_ != 0; ++i) {
    bool exhausted = false;
    net::Descriptor socket = listener_.accept(exhausted);
    if (!socket.valid()) return false;
    const auto who = net::credentials_of(socket);
    // A process that we do not see by number is in another PID namespace.
    if (!who || who->user != geteuid() || who->pid <= 0 || links_.size() == kMaxLinks) continue;
    page_.reap();
    const auto link =
        std::make_shared<ServedLink>(*this, crew_, std::move(socket), ++last_connection_);
    links_.emplace(link.get(), link);
    link->loop_id_ = site_.loop.add(link->socket_, EPOLLIN, link);
  }
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

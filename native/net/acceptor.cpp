#include "acceptor.h"

#include <sys/epoll.h>

namespace inlay::net {

namespace {

// When the process has no descriptor left, the socket is looked at again after this.
constexpr std::chrono::milliseconds kRest(100);
// Per event, so that other descriptors get their turn.
constexpr int kMaxAccepts = 16;

}  // namespace

void Acceptor::start(std::shared_ptr<Handler> handler) {
  loop_id_ = loop_.add(socket_, EPOLLIN, std::move(handler));
}

bool Acceptor::stop() {
  if (!socket_.valid()) return false;
  loop_.remove(loop_id_, socket_);
  socket_.close();
  return true;
}

void Acceptor::accept(const std::function<void(Descriptor)>& take) {
  for (int i = 0; i < kMaxAccepts && socket_.valid(); ++i) {
    bool exhausted = false;
    Descriptor accepted = accept_from(socket_, exhausted);
    if (exhausted) {
      resting_ = true;
      loop_.change(loop_id_, socket_, 0);
      loop_.wake_by(Clock::now() + kRest);
    }
    if (!accepted.valid()) return;
    take(std::move(accepted));
  }
}

void Acceptor::resume() {
  if (!resting_ || !socket_.valid()) return;
  resting_ = false;
  loop_.change(loop_id_, socket_, EPOLLIN);
}

}  // namespace inlay::net

#include "acceptor.h"

#include <sys/epoll.h>

#include <exception>

namespace inlay::net {

namespace {

// When the process has no descriptor or memory left, the socket is looked at again after this.
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
    if (exhausted) rest();
    if (!accepted.valid()) return;
    try {
      take(std::move(accepted));
    } catch (const std::exception&) {
      rest();  // the system gives no more memory, or watches no more descriptors
      return;
    }
  }
}

void Acceptor::rest() {
  resting_ = true;
  loop_.change(loop_id_, socket_, 0);
  loop_.wake_by(Clock::now() + kRest);
}

void Acceptor::resume() {
  if (!resting_ || !socket_.valid()) return;
  resting_ = false;
  loop_.change(loop_id_, socket_, EPOLLIN);
}

}  // namespace inlay::net

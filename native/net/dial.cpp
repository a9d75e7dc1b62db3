#include "dial.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "../core/errors.h"

namespace inlay::net {

std::shared_ptr<Dial> Dial::start(Loop& loop, const std::string& local_host,
                                  const std::string& address, const Hello& hello,
                                  const Token& token, Then then) {
  int error = 0;
  Descriptor socket;
  std::string unknown;
  try {
    socket = begin_connect(local_host, address, error);
  } catch (const ArgumentError& failure) {  // there may be a host of that name later
    unknown = failure.what();
  }
  auto dial = std::make_shared<Dial>(loop, std::move(socket), hello, token, std::move(then));
  if (dial->socket_.valid()) {
    dial->loop_id_ = loop.add(dial->socket_, EPOLLOUT, dial);
  } else {  // told later, so that the caller has returned
    loop.post([dial, error, unknown = std::move(unknown)] {
      dial->end({{}, {}, error == ECONNREFUSED, Status::kPeerUnreachable, unknown});
    });
  }
  return dial;
}

Dial::Dial(Loop& loop, Descriptor socket, const Hello& hello, const Token& token, Then then)
    : loop_(loop), socket_(std::move(socket)), handshake_(hello, token), then_(std::move(then)) {}

void Dial::cancel() {
  then_ = nullptr;
  end({});
}

void Dial::end(Result result) {
  if (loop_id_ != 0 && result.socket.valid()) loop_.remove(loop_id_, result.socket);
  if (loop_id_ != 0 && socket_.valid()) loop_.remove(loop_id_, socket_);
  loop_id_ = 0;
  socket_.close();
  const Then then = std::move(then_);
  then_ = nullptr;
  if (then) then(std::move(result));
}

bool Dial::send_output() {
  const auto output = handshake_.output();
  // At most 80 bytes into the empty buffer of a new socket.
  return output.empty() || send(socket_.get(), output.data(), output.size(), MSG_NOSIGNAL) ==
                               static_cast<ssize_t>(output.size());
}

bool Dial::on_events(uint32_t) {
  if (!socket_.valid()) return false;
  const auto self = shared_from_this();
  if (!connected_) {
    const int error = connect_error(socket_);
    if (error != 0 || !send_output()) {
      end({{}, {}, error == ECONNREFUSED, Status::kPeerUnreachable});
      return false;
    }
    connected_ = true;
    loop_.change(loop_id_, socket_, EPOLLIN);
    return true;
  }
  const std::size_t before = received_.size();
  received_.resize(handshake_.wanted());
  const ssize_t n =
      recv(socket_.get(), received_.data() + before, received_.size() - before, MSG_DONTWAIT);
  if (n == 0 || (n < 0 && errno != EAGAIN)) {
    end({});
    return false;
  }
  received_.resize(before + static_cast<std::size_t>(n > 0 ? n : 0));
  if (received_.size() < handshake_.wanted()) return false;
  handshake_.take(received_);
  received_.clear();
  if (handshake_.status() != Status::kOk)
    end({{}, {}, false, handshake_.status()});
  else if (!send_output())
    end({});
  else if (handshake_.wanted() == 0)
    end({std::move(socket_), handshake_.target(), false, Status::kOk});
  return true;
}

}  // namespace inlay::net

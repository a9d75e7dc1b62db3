// Takes the connections that wait at a listening socket, on a loop's thread.
#pragma once

#include <functional>
#include <memory>

#include "loop.h"
#include "socket.h"

namespace inlay::net {

class Acceptor {
 public:
  Acceptor(Loop& loop, Descriptor socket) : loop_(loop), socket_(std::move(socket)) {}

  // Registers the handler with the loop, which calls it when somebody connects. Once.
  void start(std::shared_ptr<Handler> handler);
  // No more of them: closes the socket. On the loop's thread, or after it has stopped. False: it
  // was closed before.
  bool stop();

  // On the loop's thread, by the handler: hands over what waits. Where no descriptor is left, or
  // `take` throws, that connection ends and it rests, and has the loop's tick called for resume().
  void accept(const std::function<void(Descriptor)>& take);
  // On the loop's thread.
  void resume();

 private:
  void rest();

  Loop& loop_;
  Descriptor socket_;
  Loop::Id loop_id_ = 0;
  bool resting_ = false;
};

}  // namespace inlay::net

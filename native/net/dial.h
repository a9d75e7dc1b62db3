// A connection that is being made, up to its handshake, without waiting.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "handshake.h"
#include "loop.h"
#include "socket.h"

namespace inlay::net {

// All on the loop's thread.
class Dial final : public Handler, public std::enable_shared_from_this<Dial> {
 public:
  struct Result {
    Descriptor socket;  // invalid: it failed
    EngineId target{};
    bool refused = false;                   // nobody listens there
    Status why = Status::kPeerUnreachable;  // it failed; as ClientHandshake::status()
    std::string unknown{};                  // why the address names no host
  };
  using Then = std::function<void(Result)>;

  // `then` is called once, unless cancel() comes before.
  static std::shared_ptr<Dial> start(Loop& loop, const std::string& local_host,
                                     const std::string& address, const Hello& hello,
                                     const Token& token, Then then);
  Dial(Loop& loop, Descriptor socket, const Hello& hello, const Token& token, Then then);
  void cancel();
  // The other end's machine has answered.
  bool reached() const { return connected_; }

  bool on_events(uint32_t events) override;

 private:
  void end(Result result);
  bool send_output();

  Loop& loop_;
  Descriptor socket_;
  Loop::Id loop_id_ = 0;
  ClientHandshake handshake_;
  std::vector<std::byte> received_;
  bool connected_ = false;
  Then then_;
};

}  // namespace inlay::net

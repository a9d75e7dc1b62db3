// One connection to a master that listens. All on the loop's thread.
#pragma once

#include <memory>

#include "master_server.h"

namespace inlay::store {

class ServedClient final : public net::Handler, public std::enable_shared_from_this<ServedClient> {
 public:
  ServedClient(MasterServer& server, net::Descriptor socket, const net::Nonce& nonce);

  void start();
  void end();
  bool on_events(uint32_t events) override;
  // An answer that comes later.
  void answer(uint64_t ticket, const Answer& answer);
  // Sends what there is; goes on with what was held back.
  void resume();

  PeerId peer() const { return peer_; }
  Clock::time_point accepted() const { return accepted_; }

 private:
  bool flush();
  bool shake_hands();
  bool receive(bool& worked);
  bool take(const Frame& frame);
  bool greet(const Frame& frame);
  void put(std::size_t kind, uint64_t serial, const Answer& answer);
  void watch();
  bool paused() const {
    return unanswered_.size() >= kMaxUnanswered || out_.size() - sent_ >= kMaxUnsent;
  }

  static constexpr std::size_t kMaxUnanswered = 4096;
  static constexpr std::size_t kMaxUnsent = std::size_t{32} << 20;
  static constexpr std::size_t kReceive = 65536;

  MasterServer& server_;
  net::Descriptor socket_;
  net::Loop::Id loop_id_ = 0;
  uint32_t events_ = 0;
  const Clock::time_point accepted_ = Clock::now();
  net::ServerHandshake handshake_;
  bool proven_ = false;
  std::size_t tenant_ = 0;
  PeerId peer_ = 0;  // 0: before its greeting
  Bytes in_;
  std::size_t begin_ = 0;  // of what is not looked at
  std::size_t end_ = 0;
  Bytes out_;
  std::size_t sent_ = 0;
  struct Unanswered {
    uint64_t serial;
    std::size_t kind;
  };
  uint64_t last_ticket_ = 0;
  std::unordered_map<uint64_t, Unanswered> unanswered_;
  Question question_;  // kept for its memory
};

}  // namespace inlay::store

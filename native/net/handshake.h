// How two engines prove to each other that they hold the same token before any frame is read.
//
//   initiator                                             target
//   HELLO  versions, lane, engine id, connection, nonce ->
//                                                      <- CHALLENGE version, engine id, nonce,
//                                                      proof
//   PROOF  ->
//                                                      <- WELCOME, or REFUSED with a status
//
// A proof is BLAKE2b-256, keyed with the token, over the prover's role, both versions' range, lane,
// connection, both ids and both nonces, so neither the token nor a proof that serves another
// connection crosses the wire, and no one in between lowers the version. Nothing is encrypted.
//
// Pure: bytes in, bytes out, no clock, no socket; randomness is an argument.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "../core/status.h"

namespace inlay::net {

constexpr uint16_t kMinVersion = 1;
constexpr uint16_t kMaxVersion = 1;

using EngineId = std::array<std::byte, 16>;
std::string hex(const EngineId& id);  // 32 digits
using Nonce = std::array<std::byte, 32>;
using Token = std::vector<std::byte>;  // 16 to 64 bytes

enum class LaneKind : uint8_t { kSmall = 0, kBulk = 1 };

// What an initiator says first.
struct Hello {
  uint16_t min_version = kMinVersion;
  uint16_t max_version = kMaxVersion;
  LaneKind lane = LaneKind::kSmall;
  EngineId engine{};
  // Counts the initiator's connections to targets. A target that accepts a lane closes those of
  // the same engine with a smaller number, after which nothing sent on them can land.
  uint64_t connection = 0;
  Nonce nonce{};
};

class ClientHandshake {
 public:
  ClientHandshake(const Hello& hello, const Token& token);

  // What to send now; empty after the target's WELCOME.
  std::span<const std::byte> output() const { return output_; }
  // How many bytes to receive next; 0: it is over.
  std::size_t wanted() const { return wanted_; }
  // Takes exactly wanted() bytes and renews both.
  void take(std::span<const std::byte> bytes);

  // kOk while it goes on and at its good end, else why it failed: kPeerRefused (another token),
  // kProtocolVersion, kProtocol.
  Status status() const { return status_; }
  // The target's, known once it has proved itself: after the first take().
  const EngineId& target() const { return target_; }
  // The range of versions of a target that refused ours.
  uint16_t target_min() const { return target_min_; }
  uint16_t target_max() const { return target_max_; }

 private:
  void take_answer(std::span<const std::byte> bytes);
  void fail(Status status);

  Hello hello_;
  const Token token_;
  std::vector<std::byte> output_;
  std::size_t wanted_;
  Status status_ = Status::kOk;
  bool challenged_ = false;
  EngineId target_{};
  Nonce target_nonce_{};
  uint16_t target_min_ = 0;
  uint16_t target_max_ = 0;
};

class ServerHandshake {
 public:
  enum class State { kRunning, kAccepted, kRefused, kNotInlay };  // kRefused: send output(), close

  ServerHandshake(const EngineId& engine, const Nonce& nonce, const Token& token);
  // Of a target that holds several: the one that goes with what the initiator says of itself; null
  // refuses it.
  using Choose = std::function<const Token*(const Hello&)>;
  ServerHandshake(const EngineId& engine, const Nonce& nonce, Choose choose);

  std::span<const std::byte> output() const { return output_; }
  std::size_t wanted() const { return wanted_; }
  void take(std::span<const std::byte> bytes);

  State state() const { return state_; }
  // Why it was refused: kPeerRefused (another token), kProtocolVersion, kProtocol; else kOk.
  Status status() const { return status_; }
  const Hello& hello() const { return hello_; }

 private:
  void take_hello(std::span<const std::byte> bytes);
  void take_proof(std::span<const std::byte> bytes);
  void refuse(Status status);

  EngineId engine_;
  Nonce nonce_;
  Choose choose_;
  Token token_;
  Hello hello_;
  std::vector<std::byte> output_;
  std::size_t wanted_;
  Status status_ = Status::kOk;
  bool greeted_ = false;
  State state_ = State::kRunning;
};

}  // namespace inlay::net

// Frames between a master and its clients, behind the handshake of net/handshake.h.
//
//   header, 24 bytes, little-endian
//    0 u32 bytes of the body    4 u32 CRC32C of the rest of the header and the body
//    8 u16 kind                10 u16 status (StoreStatus; of answers)     12 u32 0
//   16 u64 serial: the asker's, repeated by the answer
//
// The first frame of a connection is a greeting, and its answer says what holds there. Then kinds
// are indices of Question; answers come in any order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "../net/handshake.h"
#include "failure.h"
#include "messages.h"

namespace inlay::store {

inline constexpr std::size_t kFrameHead = 24;
inline constexpr std::size_t kMaxFrame = std::size_t{16} << 20;
inline constexpr uint16_t kGreeting = 0xff00;
inline constexpr uint16_t kPing = 0xff01;

struct Frame {
  uint16_t kind = 0;
  StoreStatus status = StoreStatus::kOk;
  uint64_t serial = 0;
  std::span<const std::byte> body;
};

// Begins a frame at the end of `to`; finish_frame() fills in its head when the body is there.
std::size_t begin_frame(Bytes& to);
void finish_frame(Bytes& to, std::size_t begin, uint16_t kind, StoreStatus status, uint64_t serial);

// The frame at the front of `bytes`, which takes `taken` of them. None: more has to come, or, with
// a problem, this is no frame.
std::optional<Frame> parse_frame(std::span<const std::byte> bytes, std::size_t& taken,
                                 const char*& problem);

// What an asker says in a greeting, and the answer to it.
struct Greeting {
  uint16_t min_version = kProtocolVersion;
  uint16_t max_version = kProtocolVersion;
  Uuid client{};
  uint32_t epoch_seen = 0;  // of masters before: one with a lower epoch is to end
};
void encode(const Greeting& greeting, Bytes& to);
bool decode(std::span<const std::byte> bytes, Greeting& greeting);
struct Welcome {
  uint16_t min_version = kProtocolVersion;
  uint16_t max_version = kProtocolVersion;
  Terms terms;
};
void encode(const Welcome& welcome, Bytes& to);
bool decode(std::span<const std::byte> bytes, Welcome& welcome);

// What a token is in the store: nothing that was proven here serves a transfer engine that holds
// the same one, nor the other way round. The id tells a master which of its tokens is meant.
struct Credential {
  net::Token proof;
  uint64_t id = 0;
};
// Throws ArgumentError for a token of fewer than 16 or more than 64 bytes.
Credential credential_of(const net::Token& token);

}  // namespace inlay::store

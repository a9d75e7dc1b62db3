// What fabric transports tell each other over lanes: offers, keys of segments, questions.
//
// Pure. Integers are little-endian; whatever comes from a peer is checked here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../net/handshake.h"

namespace inlay::transfer {

// One port of a target, in an offer.
struct FabricPortOffer {
  std::string provider;
  std::string network;
  std::vector<std::byte> address;  // empty: its endpoints have no connections; see kOpen
  uint64_t bandwidth = 0;          // bytes per second; 0: not known
  bool operator==(const FabricPortOffer&) const = default;
};

struct FabricOffer {
  net::Nonce nonce{};  // for the proofs of connections
  std::vector<FabricPortOffer> ports;
};

std::vector<std::byte> encode(const FabricOffer& offer);
std::optional<FabricOffer> decode_fabric_offer(std::span<const std::byte> bytes);

// A segment as one port of its owner knows it.
struct FabricKey {
  uint8_t port = 0;  // of the offer
  uint64_t key = 0;
  uint64_t base = 0;  // address of the segment's first byte, 0 where offsets count
};

std::vector<std::byte> encode(std::span<const FabricKey> keys);
// The key at that port. At most 20 ns for a few ports.
std::optional<FabricKey> find_fabric_key(std::span<const std::byte> keys, uint8_t port);

enum class FabricAsk : uint8_t {
  kFence = 1,  // of a connection: close it, so that nothing on it lands any more
  kLease = 2,  // writes will be posted on a connection, or still are; answered by the target's time
  kReturn = 3,   // all writes under that lease are complete
  kSegment = 4,  // is that segment still there, to be read or written?
  // Where endpoints have no connections:
  kOpen = 5,  // open an end for this connection, joined with mine; answered by a FabricWelcome
  kKeep = 6,  // is its end still open?
};

struct FabricQuestion {
  FabricAsk ask = FabricAsk::kFence;
  uint64_t connection = 0;
  uint64_t lease = 0;      // numbers the leases of a connection
  uint64_t last_time = 0;  // what the last answer for this lease told; 0: it is a new one
  uint32_t slot = 0;
  uint32_t epoch = 0;
  bool write = false;
  uint8_t port = 0;                     // of the target's offer
  std::vector<std::byte> address = {};  // of the initiator's end
};

std::vector<std::byte> encode(const FabricQuestion& question);
std::optional<FabricQuestion> decode_fabric_question(std::span<const std::byte> bytes);

// 16 random bytes that peers read, by which they know that they have reached a port.
using FabricLandmark = std::array<std::byte, 16>;

struct FabricWelcome {
  std::vector<std::byte> address;  // of the target's end
  FabricKey landmark_at;
  FabricLandmark landmark{};
};

std::vector<std::byte> encode(const FabricWelcome& welcome);
std::optional<FabricWelcome> decode_fabric_welcome(std::span<const std::byte> bytes);

}  // namespace inlay::transfer

// What the two ends of a fabric connection say to each other before it exists: that they hold the
// engines' token, in the few bytes that connection managers carry.
//
// The target's nonce reached the initiator over a lane that both have proved themselves on. A proof
// is BLAKE2b-128, keyed with the token, over role, nonce, both engine ids and the number of the
// connection. Numbers of one initiator only grow and the target takes none twice, so what an
// eavesdropper saw opens no further connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "../handshake.h"

namespace inlay::net::fabric {

struct Greeting {
  EngineId initiator{};
  uint64_t connection = 0;
};

// What the proofs are about.
struct Meeting {
  Greeting greeting;
  EngineId target{};
  Nonce nonce{};  // the target's
};

constexpr std::size_t kGreetingBytes = 40;
constexpr std::size_t kReplyBytes = 16;

std::vector<std::byte> greet(const Meeting& meeting, const Token& token);
// The initiator's claim, of kGreetingBytes or more (some connection managers pad); to be checked.
std::optional<Greeting> read_greeting(std::span<const std::byte> bytes);
bool proves(std::span<const std::byte> greeting, const Meeting& meeting, const Token& token);

std::vector<std::byte> reply(const Meeting& meeting, const Token& token);
bool reply_proves(std::span<const std::byte> reply, const Meeting& meeting, const Token& token);

}  // namespace inlay::net::fabric

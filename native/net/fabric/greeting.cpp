#include "greeting.h"

#include <algorithm>

#include "../../core/blake2b.h"
#include "../bytes.h"

namespace inlay::net::fabric {

namespace {

constexpr std::size_t kProofAt = 24;
using Proof = std::array<std::byte, 16>;

Proof prove(char role, const Meeting& meeting, const Token& token) {
  // Told apart from proofs of lanes, which the same token keys, by its first byte.
  std::array<std::byte, 2 + 8 + 16 + 16 + 32> message{std::byte{'F'}, static_cast<std::byte>(role)};
  store(&message[2], meeting.greeting.connection);
  std::ranges::copy(meeting.greeting.initiator, &message[10]);
  std::ranges::copy(meeting.target, &message[26]);
  std::ranges::copy(meeting.nonce, &message[42]);
  Proof proof;
  blake2b({reinterpret_cast<const uint8_t*>(message.data()), message.size()},
          {reinterpret_cast<const uint8_t*>(token.data()), token.size()},
          {reinterpret_cast<uint8_t*>(proof.data()), proof.size()});
  return proof;
}

// In the same time wherever they differ.
bool same(std::span<const std::byte> bytes, const Proof& proof) {
  if (bytes.size() < proof.size()) return false;
  std::byte difference{0};
  for (std::size_t i = 0; i < proof.size(); ++i) difference |= bytes[i] ^ proof[i];
  return difference == std::byte{0};
}

}  // namespace

std::vector<std::byte> greet(const Meeting& meeting, const Token& token) {
  std::vector<std::byte> bytes(kGreetingBytes);
  std::ranges::copy(meeting.greeting.initiator, bytes.begin());
  store(&bytes[16], meeting.greeting.connection);
  std::ranges::copy(prove('I', meeting, token), bytes.begin() + kProofAt);
  return bytes;
}

std::optional<Greeting> read_greeting(std::span<const std::byte> bytes) {
  if (bytes.size() < kGreetingBytes) return std::nullopt;
  Greeting greeting;
  std::ranges::copy(bytes.first(16), greeting.initiator.begin());
  greeting.connection = load<uint64_t>(&bytes[16]);
  return greeting;
}

bool proves(std::span<const std::byte> greeting, const Meeting& meeting, const Token& token) {
  return greeting.size() >= kGreetingBytes &&
         same(greeting.subspan(kProofAt), prove('I', meeting, token));
}

std::vector<std::byte> reply(const Meeting& meeting, const Token& token) {
  const Proof proof = prove('T', meeting, token);
  return {proof.begin(), proof.end()};
}

bool reply_proves(std::span<const std::byte> reply, const Meeting& meeting, const Token& token) {
  return same(reply, prove('T', meeting, token));
}

}  // namespace inlay::net::fabric

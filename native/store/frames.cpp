#include "frames.h"

#include <string>
#include <string_view>

#include "../core/blake2b.h"
#include "../core/crc32c.h"
#include "../core/errors.h"
#include "../net/bytes.h"

namespace inlay::store {

namespace {

constexpr std::size_t kSummed = 8;  // what the CRC covers begins there
constexpr std::size_t kGreetingBytes = 4 + 16 + 4;
constexpr std::size_t kWelcomeBytes = 4 + 4 * 4;

}  // namespace

std::size_t begin_frame(Bytes& to) {
  const std::size_t begin = to.size();
  to.resize(begin + kFrameHead);
  return begin;
}

void finish_frame(Bytes& to, std::size_t begin, uint16_t kind, StoreStatus status,
                  uint64_t serial) {
  std::byte* const head = to.data() + begin;
  net::store(head, static_cast<uint32_t>(to.size() - begin - kFrameHead));
  net::store(head + 8, kind);
  net::store(head + 10, static_cast<uint16_t>(status));
  net::store(head + 12, uint32_t{0});
  net::store(head + 16, serial);
  net::store(head + 4, crc32c(std::span(to).subspan(begin + kSummed)));
}

std::optional<Frame> parse_frame(std::span<const std::byte> bytes, std::size_t& taken,
                                 const char*& problem) {
  if (bytes.size() < kFrameHead) return std::nullopt;
  const uint32_t body = net::load<uint32_t>(bytes.data());
  if (body > kMaxFrame) {
    problem = "a frame of more than 16 MiB";
    return std::nullopt;
  }
  if (bytes.size() < kFrameHead + body) return std::nullopt;
  bytes = bytes.first(kFrameHead + body);
  if (net::load<uint32_t>(bytes.data() + 4) != crc32c(bytes.subspan(kSummed))) {
    problem = "a frame that is damaged";
    return std::nullopt;
  }
  taken = bytes.size();
  return Frame{net::load<uint16_t>(bytes.data() + 8),
               static_cast<StoreStatus>(net::load<uint16_t>(bytes.data() + 10)),
               net::load<uint64_t>(bytes.data() + 16), bytes.subspan(kFrameHead)};
}

void encode(const Greeting& greeting, Bytes& to) {
  const std::size_t at = to.size();
  to.resize(at + kGreetingBytes);
  net::store(&to[at], greeting.min_version);
  net::store(&to[at + 2], greeting.max_version);
  std::copy(greeting.client.begin(), greeting.client.end(), to.begin() + static_cast<long>(at) + 4);
  net::store(&to[at + 20], greeting.epoch_seen);
}

// Later versions may say more.
bool decode(std::span<const std::byte> bytes, Greeting& greeting) {
  if (bytes.size() < kGreetingBytes) return false;
  greeting.min_version = net::load<uint16_t>(bytes.data());
  greeting.max_version = net::load<uint16_t>(bytes.data() + 2);
  std::copy_n(bytes.begin() + 4, greeting.client.size(), greeting.client.begin());
  greeting.epoch_seen = net::load<uint32_t>(bytes.data() + 20);
  return true;
}

void encode(const Welcome& welcome, Bytes& to) {
  const std::size_t at = to.size();
  to.resize(at + kWelcomeBytes);
  net::store(&to[at], welcome.min_version);
  net::store(&to[at + 2], welcome.max_version);
  net::store(&to[at + 4], welcome.terms.epoch);
  net::store(&to[at + 8], welcome.terms.location_ttl_ms);
  net::store(&to[at + 12], welcome.terms.client_timeout_ms);
  net::store(&to[at + 16], welcome.terms.node_timeout_ms);
}

bool decode(std::span<const std::byte> bytes, Welcome& welcome) {
  if (bytes.size() < kWelcomeBytes) return false;
  welcome.min_version = net::load<uint16_t>(bytes.data());
  welcome.max_version = net::load<uint16_t>(bytes.data() + 2);
  welcome.terms.epoch = net::load<uint32_t>(bytes.data() + 4);
  welcome.terms.location_ttl_ms = net::load<uint32_t>(bytes.data() + 8);
  welcome.terms.client_timeout_ms = net::load<uint32_t>(bytes.data() + 12);
  welcome.terms.node_timeout_ms = net::load<uint32_t>(bytes.data() + 16);
  return true;
}

Credential credential_of(const net::Token& token) {
  if (token.size() < 16 || token.size() > 64)
    throw ArgumentError("a token of the store has 16 to 64 bytes, and this one " +
                        std::to_string(token.size()));
  const auto derive = [&](std::string_view purpose, std::span<std::byte> to) {
    blake2b({reinterpret_cast<const uint8_t*>(purpose.data()), purpose.size()},
            {reinterpret_cast<const uint8_t*>(token.data()), token.size()},
            {reinterpret_cast<uint8_t*>(to.data()), to.size()});
  };
  Credential credential;
  credential.proof.resize(32);
  derive("inlay store: proof", credential.proof);
  std::array<std::byte, 8> id;
  derive("inlay store: id", id);
  credential.id = net::load<uint64_t>(id.data());
  return credential;
}

}  // namespace inlay::store

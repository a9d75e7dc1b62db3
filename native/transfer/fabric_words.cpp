#include "fabric_words.h"

#include <algorithm>

#include "../net/bytes.h"

namespace inlay::transfer {

namespace {

using net::load;
using net::store;

constexpr uint8_t kOfferVersion = 1;
constexpr std::size_t kMaxPorts = 64;
constexpr std::size_t kKeyBytes = 1 + 8 + 8;

using Bytes = std::vector<std::byte>;

template <typename T>
void append(Bytes& to, T value) {
  to.resize(to.size() + sizeof(T));
  store(&to[to.size() - sizeof(T)], value);
}

void append_short(Bytes& to, std::span<const std::byte> bytes) {
  append(to, static_cast<uint8_t>(bytes.size()));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

// Takes from the front; `sound` turns false at the end of the bytes and stays so.
struct WordReader {
  std::span<const std::byte> bytes;
  bool sound = true;

  std::span<const std::byte> take(std::size_t count) {
    if (count > bytes.size()) {
      sound = false;
      return {};
    }
    const auto front = bytes.first(count);
    bytes = bytes.subspan(count);
    return front;
  }
  template <typename T>
  T number() {
    const auto front = take(sizeof(T));
    return front.empty() ? T{0} : load<T>(front.data());
  }
  std::span<const std::byte> short_bytes() { return take(number<uint8_t>()); }
  std::string text() {
    const auto front = short_bytes();
    return {reinterpret_cast<const char*>(front.data()), front.size()};
  }
};

}  // namespace

std::vector<std::byte> encode(const FabricOffer& offer) {
  Bytes bytes;
  append(bytes, kOfferVersion);
  bytes.insert(bytes.end(), offer.nonce.begin(), offer.nonce.end());
  const std::size_t ports = std::min(offer.ports.size(), kMaxPorts);
  append(bytes, static_cast<uint8_t>(ports));
  for (std::size_t i = 0; i < ports; ++i) {
    const FabricPortOffer& port = offer.ports[i];
    append_short(bytes, std::as_bytes(std::span(port.provider)));
    append_short(bytes, std::as_bytes(std::span(port.network)));
    append_short(bytes, port.address);
    append(bytes, port.bandwidth);
  }
  return bytes;
}

std::optional<FabricOffer> decode_fabric_offer(std::span<const std::byte> bytes) {
  WordReader reader{bytes};
  FabricOffer offer;
  if (reader.number<uint8_t>() != kOfferVersion) return std::nullopt;
  const auto nonce = reader.take(offer.nonce.size());
  std::ranges::copy(nonce, offer.nonce.begin());
  offer.ports.resize(std::min<std::size_t>(reader.number<uint8_t>(), kMaxPorts));
  for (FabricPortOffer& port : offer.ports) {
    port.provider = reader.text();
    port.network = reader.text();
    const auto address = reader.short_bytes();
    port.address.assign(address.begin(), address.end());
    port.bandwidth = reader.number<uint64_t>();
    // A provider takes the address for a structure of the size that its family has.
    if (!port.address.empty() && port.address.size() < 16) return std::nullopt;
  }
  if (!reader.sound) return std::nullopt;
  return offer;
}

std::vector<std::byte> encode(std::span<const FabricKey> keys) {
  Bytes bytes;
  for (const FabricKey& key : keys) {
    append(bytes, key.port);
    append(bytes, key.key);
    append(bytes, key.base);
  }
  return bytes;
}

std::optional<FabricKey> find_fabric_key(std::span<const std::byte> keys, uint8_t port) {
  for (; keys.size() >= kKeyBytes; keys = keys.subspan(kKeyBytes))
    if (load<uint8_t>(keys.data()) == port)
      return FabricKey{port, load<uint64_t>(&keys[1]), load<uint64_t>(&keys[9])};
  return std::nullopt;
}

std::vector<std::byte> encode(const FabricQuestion& question) {
  Bytes bytes;
  append(bytes, static_cast<uint8_t>(question.ask));
  append(bytes, question.connection);
  append(bytes, question.lease);
  append(bytes, question.last_time);
  append(bytes, question.slot);
  append(bytes, question.epoch);
  append(bytes, static_cast<uint8_t>(question.write));
  append(bytes, question.port);
  append_short(bytes, question.address);
  return bytes;
}

std::optional<FabricQuestion> decode_fabric_question(std::span<const std::byte> bytes) {
  WordReader reader{bytes};
  FabricQuestion question;
  const auto ask = reader.number<uint8_t>();
  if (ask < static_cast<uint8_t>(FabricAsk::kFence) || ask > static_cast<uint8_t>(FabricAsk::kKeep))
    return std::nullopt;
  question.ask = static_cast<FabricAsk>(ask);
  question.connection = reader.number<uint64_t>();
  question.lease = reader.number<uint64_t>();
  question.last_time = reader.number<uint64_t>();
  question.slot = reader.number<uint32_t>();
  question.epoch = reader.number<uint32_t>();
  question.write = reader.number<uint8_t>() != 0;
  question.port = reader.number<uint8_t>();
  const auto address = reader.short_bytes();
  question.address.assign(address.begin(), address.end());
  if (!reader.sound || !reader.bytes.empty()) return std::nullopt;
  return question;
}

std::vector<std::byte> encode(const FabricWelcome& welcome) {
  Bytes bytes = encode(std::span(&welcome.landmark_at, 1));
  bytes.insert(bytes.end(), welcome.landmark.begin(), welcome.landmark.end());
  append_short(bytes, welcome.address);
  return bytes;
}

std::optional<FabricWelcome> decode_fabric_welcome(std::span<const std::byte> bytes) {
  WordReader reader{bytes};
  FabricWelcome welcome;
  welcome.landmark_at.port = reader.number<uint8_t>();
  welcome.landmark_at.key = reader.number<uint64_t>();
  welcome.landmark_at.base = reader.number<uint64_t>();
  std::ranges::copy(reader.take(welcome.landmark.size()), welcome.landmark.begin());
  const auto address = reader.short_bytes();
  welcome.address.assign(address.begin(), address.end());
  if (!reader.sound || !reader.bytes.empty()) return std::nullopt;
  return welcome;
}

}  // namespace inlay::transfer

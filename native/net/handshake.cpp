#include "handshake.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "../core/blake2b.h"
#include "bytes.h"

namespace inlay::net {

namespace {

constexpr std::string_view kGreetingMagic = "INLYXFR1";
constexpr std::size_t kHelloBytes = 8 + 2 + 2 + 1 + 3 + 16 + 8 + 32;
// Every answer begins like this: magic, u16 what, u16 status, u16 least and u16 greatest version.
constexpr std::size_t kAnswerBytes = 16;
constexpr std::size_t kProofBytes = 32;
constexpr std::size_t kChallengeBytes = 16 + 32 + kProofBytes;  // follows the answer
enum class Answer : uint16_t { kChallenge = 1, kWelcome = 2, kRefused = 3 };

using Proof = std::array<std::byte, kProofBytes>;
using Bytes = std::vector<std::byte>;

void append(Bytes& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

std::span<const std::byte> magic() { return std::as_bytes(std::span(kGreetingMagic)); }

Bytes encode(const Hello& hello) {
  Bytes bytes(kHelloBytes);
  std::ranges::copy(magic(), bytes.begin());
  store(&bytes[8], hello.min_version);
  store(&bytes[10], hello.max_version);
  bytes[12] = static_cast<std::byte>(hello.lane);
  std::ranges::copy(hello.engine, bytes.begin() + 16);
  store(&bytes[32], hello.connection);
  std::ranges::copy(hello.nonce, bytes.begin() + 40);
  return bytes;
}

Bytes encode(Answer answer, Status status) {
  Bytes bytes(kAnswerBytes);
  std::ranges::copy(magic(), bytes.begin());
  store(&bytes[8], static_cast<uint16_t>(answer));
  store(&bytes[10], static_cast<uint16_t>(status));
  store(&bytes[12], kMinVersion);
  store(&bytes[14], kMaxVersion);
  return bytes;
}

Proof prove(char role, const Token& token, const Hello& hello, const EngineId& target,
            const Nonce& target_nonce) {
  Bytes message = encode(hello);
  message.push_back(static_cast<std::byte>(role));
  append(message, encode(Answer::kChallenge, Status::kOk));  // the target's versions
  append(message, target);
  append(message, target_nonce);
  Proof proof;
  const auto unsigned_bytes = [](auto& bytes) {
    return std::span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  };
  blake2b(unsigned_bytes(message), unsigned_bytes(token),
          {reinterpret_cast<uint8_t*>(proof.data()), proof.size()});
  return proof;
}

// In the same time wherever they differ.
bool same(std::span<const std::byte> a, const Proof& b) {
  std::byte difference{0};
  for (std::size_t i = 0; i < b.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{0};
}

}  // namespace

std::string hex(const EngineId& id) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : id) {
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return text;
}

ClientHandshake::ClientHandshake(const Hello& hello, const Token& token)
    : hello_(hello), token_(token), output_(encode(hello)), wanted_(kAnswerBytes) {}

void ClientHandshake::fail(Status status) {
  status_ = status;
  wanted_ = 0;
}

void ClientHandshake::take(std::span<const std::byte> bytes) {
  output_.clear();
  if (!challenged_ && wanted_ == kChallengeBytes) {
    challenged_ = true;
    std::copy_n(bytes.begin(), target_.size(), target_.begin());
    std::copy_n(bytes.begin() + 16, target_nonce_.size(), target_nonce_.begin());
    if (!same(bytes.subspan(48), prove('S', token_, hello_, target_, target_nonce_)))
      return fail(Status::kPeerRefused);
    append(output_, prove('C', token_, hello_, target_, target_nonce_));
    wanted_ = kAnswerBytes;
    return;
  }
  take_answer(bytes);
}

void ClientHandshake::take_answer(std::span<const std::byte> bytes) {
  if (!std::ranges::equal(bytes.first(kGreetingMagic.size()), magic()))
    return fail(Status::kProtocol);
  const auto answer = static_cast<Answer>(load<uint16_t>(&bytes[8]));
  const auto status = static_cast<Status>(load<uint16_t>(&bytes[10]));
  target_min_ = load<uint16_t>(&bytes[12]);
  target_max_ = load<uint16_t>(&bytes[14]);
  if (answer == Answer::kRefused)
    return fail(status == Status::kProtocolVersion || status == Status::kPeerRefused
                    ? status
                    : Status::kProtocol);
  if (answer == Answer::kChallenge && !challenged_) {
    wanted_ = kChallengeBytes;
    return;
  }
  if (answer != Answer::kWelcome || !challenged_) return fail(Status::kProtocol);
  wanted_ = 0;
}

ServerHandshake::ServerHandshake(const EngineId& engine, const Nonce& nonce, const Token& token)
    : engine_(engine), nonce_(nonce), token_(token), wanted_(kHelloBytes) {}

ServerHandshake::ServerHandshake(const EngineId& engine, const Nonce& nonce, Choose choose)
    : engine_(engine), nonce_(nonce), choose_(std::move(choose)), wanted_(kHelloBytes) {}

void ServerHandshake::take(std::span<const std::byte> bytes) {
  output_.clear();
  if (greeted_)
    take_proof(bytes);
  else
    take_hello(bytes);
}

void ServerHandshake::refuse(Status status) {
  output_ = encode(Answer::kRefused, status);
  status_ = status;
  state_ = State::kRefused;
  wanted_ = 0;
}

void ServerHandshake::take_hello(std::span<const std::byte> bytes) {
  greeted_ = true;
  if (!std::ranges::equal(bytes.first(kGreetingMagic.size()), magic())) {
    state_ = State::kNotInlay;
    wanted_ = 0;
    return;
  }
  hello_.min_version = load<uint16_t>(&bytes[8]);
  hello_.max_version = load<uint16_t>(&bytes[10]);
  if (hello_.min_version > kMaxVersion || hello_.max_version < kMinVersion)
    return refuse(Status::kProtocolVersion);
  const auto lane = static_cast<uint8_t>(bytes[12]);
  if (lane > static_cast<uint8_t>(LaneKind::kBulk)) return refuse(Status::kProtocol);
  hello_.lane = static_cast<LaneKind>(lane);
  std::copy_n(bytes.begin() + 16, hello_.engine.size(), hello_.engine.begin());
  hello_.connection = load<uint64_t>(&bytes[32]);
  std::copy_n(bytes.begin() + 40, hello_.nonce.size(), hello_.nonce.begin());
  if (choose_) {
    const Token* const token = choose_(hello_);
    if (token == nullptr) return refuse(Status::kPeerRefused);
    token_ = *token;
  }
  output_ = encode(Answer::kChallenge, Status::kOk);
  append(output_, engine_);
  append(output_, nonce_);
  append(output_, prove('S', token_, hello_, engine_, nonce_));
  wanted_ = kProofBytes;
}

void ServerHandshake::take_proof(std::span<const std::byte> bytes) {
  if (!same(bytes, prove('C', token_, hello_, engine_, nonce_)))
    return refuse(Status::kPeerRefused);
  output_ = encode(Answer::kWelcome, Status::kOk);
  state_ = State::kAccepted;
  wanted_ = 0;
}

}  // namespace inlay::net

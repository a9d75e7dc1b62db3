#include "lane_question.h"

#include "../net/bytes.h"

namespace inlay::transfer {

namespace {

// {u32 what, u32 0, u64 connection, u64 time}
constexpr std::size_t kBytes = 24;

}  // namespace

Bytes encode(const LaneQuestion& question) {
  Bytes bytes(kBytes);
  net::store(bytes.data(), static_cast<uint32_t>(question.ask));
  net::store(bytes.data() + 8, question.connection);
  net::store(bytes.data() + 16, question.time);
  return bytes;
}

std::optional<LaneQuestion> decode_lane_question(std::span<const std::byte> bytes) {
  if (bytes.size() != kBytes) return std::nullopt;
  const auto ask = static_cast<LaneAsk>(net::load<uint32_t>(bytes.data()));
  if (ask != LaneAsk::kShut && ask != LaneAsk::kLease) return std::nullopt;
  return LaneQuestion{ask, net::load<uint64_t>(bytes.data() + 8),
                      net::load<uint64_t>(bytes.data() + 16)};
}

}  // namespace inlay::transfer

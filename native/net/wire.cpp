#include "wire.h"

#include <algorithm>

#include "../core/crc32c.h"
#include "bytes.h"

namespace inlay::net {

namespace {

constexpr std::size_t kDescriptorBytes = 24;  // without keys
constexpr std::size_t kMaxDescriptorBytes =
    kDescriptorBytes + kMaxTransports * (4 + kMaxTransportName + kMaxKeyBytes);
constexpr std::size_t kCrcAt = 4;
constexpr uint8_t kVerified = 1;
constexpr uint8_t kGranted = 2;
// Names of a peer's segments, in the answer to a LOOKUP that found none.
constexpr uint64_t kMaxAnswerText = 4096;

bool takes_ranges(Kind kind) { return kind == Kind::kRead || kind == Kind::kWrite; }
bool may_be_verified(Kind kind) {
  return takes_ranges(kind) || kind == Kind::kData || kind == Kind::kDone;
}
uint8_t flags_of(Kind kind) {  // that it may have
  return static_cast<uint8_t>((may_be_verified(kind) ? kVerified : 0) |
                              (kind == Kind::kWrite ? kGranted : 0));
}
bool is_granted(const std::byte* head) {
  return static_cast<Kind>(load<uint8_t>(head)) == Kind::kWrite &&
         (load<uint8_t>(head + 1) & kGranted) != 0;
}
Kind kind_of(const std::byte* head) { return static_cast<Kind>(load<uint8_t>(head)); }

uint32_t head_crc(std::span<const std::byte> head) {
  static constexpr std::byte kZero[4]{};
  uint32_t crc = crc32c(head.first(kCrcAt));
  crc = crc32c(kZero, crc);
  return crc32c(head.subspan(kCrcAt + 4), crc);
}

const char* sizes_problem(const Frame& frame) {
  const bool failed = frame.status != Status::kOk;
  switch (frame.kind) {
    case Kind::kRead:
    case Kind::kWrite:
      if (failed) return "a request with a status";
      if (frame.bytes == 0 || frame.bytes > kMaxPayload) return "a slice of a forbidden size";
      return nullptr;
    case Kind::kData:
      if (failed ? frame.bytes != 0 : frame.bytes == 0 || frame.bytes > kMaxPayload)
        return "an answer of a forbidden size";
      return nullptr;
    case Kind::kDone:
      return frame.bytes == 0 ? nullptr : "an answer of a forbidden size";
    case Kind::kLookup:
      if (failed) return "a request with a status";
      return frame.bytes > 0 && frame.bytes <= kMaxNameBytes ? nullptr : "a name too long or empty";
    case Kind::kAsk:
      if (failed) return "a request with a status";
      return frame.bytes > 0 && frame.bytes <= kMaxQuestionBytes ? nullptr
                                                                 : "a question too long or empty";
    case Kind::kAnswer:
      return frame.bytes <= kMaxQuestionBytes ? nullptr : "an answer of a forbidden size";
    case Kind::kSegment:
      if (failed ? frame.bytes > kMaxAnswerText
                 : frame.bytes < kDescriptorBytes || frame.bytes > kMaxDescriptorBytes)
        return "an answer of a forbidden size";
      return nullptr;
  }
  return "an unknown kind of frame";
}

}  // namespace

uint64_t payload_bytes(const Frame& frame) { return frame.kind == Kind::kRead ? 0 : frame.bytes; }

bool has_trailer(const Frame& frame) { return frame.verified && payload_bytes(frame) > 0; }

std::array<std::byte, kTrailerBytes> trailer(uint32_t crc) {
  std::array<std::byte, kTrailerBytes> bytes{};
  store(bytes.data(), crc);
  return bytes;
}

std::vector<std::byte> encode(const Frame& frame, std::span<const WireRange> ranges) {
  const bool granted = frame.kind == Kind::kWrite && frame.grant;
  const std::size_t fixed = kHeaderBytes + (granted ? kGrantBytes : 0);
  std::vector<std::byte> head(fixed + kRangeBytes * ranges.size());
  std::byte* at = head.data();
  store(at, static_cast<uint8_t>(frame.kind));
  store(at + 1, static_cast<uint8_t>((frame.verified ? kVerified : 0) | (granted ? kGranted : 0)));
  store(at + 2, static_cast<uint16_t>(ranges.size()));
  store(at + 8, frame.transfer);
  store(at + 16, frame.slice);
  store(at + 20, frame.attempt);
  store(at + 22, static_cast<uint16_t>(frame.status));
  store(at + 24, frame.bytes);
  store(at + 32, frame.slot);
  store(at + 36, frame.epoch);
  at += fixed;
  if (granted) store(at - kGrantBytes, *frame.grant);
  for (const WireRange& range : ranges) {
    store(at, range.offset);
    store(at + 8, range.length);
    at += kRangeBytes;
  }
  store(head.data() + kCrcAt, head_crc(head));
  return head;
}

std::size_t head_bytes(std::span<const std::byte, kHeaderBytes> header) {
  const Kind kind = kind_of(header.data());
  const auto num_ranges = load<uint16_t>(header.data() + 2);
  if (takes_ranges(kind) ? num_ranges == 0 || num_ranges > kMaxRanges : num_ranges != 0) return 0;
  return kHeaderBytes + (is_granted(header.data()) ? kGrantBytes : 0) + kRangeBytes * num_ranges;
}

const char* decode(std::span<const std::byte> head, Frame& frame, std::vector<WireRange>& ranges) {
  const std::byte* at = head.data();
  if (head_crc(head) != load<uint32_t>(at + kCrcAt)) return "a damaged header";
  frame.kind = kind_of(at);
  const auto flags = load<uint8_t>(at + 1);
  if ((flags & ~flags_of(frame.kind)) != 0) return "an unknown flag";
  frame.verified = (flags & kVerified) != 0;
  frame.grant.reset();
  frame.transfer = load<uint64_t>(at + 8);
  frame.slice = load<uint32_t>(at + 16);
  frame.attempt = load<uint16_t>(at + 20);
  frame.status = static_cast<Status>(load<uint16_t>(at + 22));
  if (python_class(frame.status) == nullptr) return "an unknown status";
  frame.bytes = load<uint64_t>(at + 24);
  frame.slot = load<uint32_t>(at + 32);
  frame.epoch = load<uint32_t>(at + 36);
  if (const char* problem = sizes_problem(frame)) return problem;
  ranges.clear();
  uint64_t left = frame.bytes;
  at += kHeaderBytes;
  if ((flags & kGranted) != 0) {
    frame.grant = load<uint64_t>(at);
    at += kGrantBytes;
  }
  for (; at < head.data() + head.size(); at += kRangeBytes) {
    const WireRange range{load<uint64_t>(at), load<uint64_t>(at + 8)};
    if (range.length == 0 || range.length > left) return "ranges that do not add up";
    left -= range.length;
    ranges.push_back(range);
  }
  if (takes_ranges(frame.kind) && left != 0) return "ranges that do not add up";
  return nullptr;
}

const std::vector<std::byte>* SegmentDescriptor::key(std::string_view transport) const {
  const auto found = std::ranges::find(keys, transport, &TransportKey::transport);
  return found == keys.end() ? nullptr : &found->key;
}

std::vector<std::byte> encode(const SegmentDescriptor& descriptor) {
  std::vector<std::byte> bytes(kDescriptorBytes);
  store(bytes.data(), descriptor.slot);
  store(bytes.data() + 4, descriptor.epoch);
  store(bytes.data() + 8, descriptor.size);
  const int access =
      (descriptor.readable ? 1 : 0) | (descriptor.writable ? 2 : 0) | (descriptor.guarded ? 4 : 0);
  store(bytes.data() + 16, static_cast<uint8_t>(access));
  store(bytes.data() + 17, static_cast<uint8_t>(descriptor.location.place));
  store(bytes.data() + 18, descriptor.location.index);
  store(bytes.data() + 20, static_cast<uint32_t>(descriptor.keys.size()));
  for (const TransportKey& key : descriptor.keys) {
    std::byte sizes[4]{};
    store(sizes, static_cast<uint8_t>(key.transport.size()));
    store(sizes + 2, static_cast<uint16_t>(key.key.size()));
    const auto name = std::as_bytes(std::span(key.transport));
    bytes.insert(bytes.end(), sizes, sizes + 4);
    bytes.insert(bytes.end(), name.begin(), name.end());
    bytes.insert(bytes.end(), key.key.begin(), key.key.end());
  }
  return bytes;
}

bool decode(std::span<const std::byte> bytes, SegmentDescriptor& descriptor) {
  if (bytes.size() < kDescriptorBytes) return false;
  const auto access = load<uint8_t>(bytes.data() + 16);
  const auto place = load<uint8_t>(bytes.data() + 17);
  const auto num_keys = load<uint32_t>(bytes.data() + 20);
  if (access > 7 || place > static_cast<uint8_t>(Place::kDisk) || num_keys > kMaxTransports)
    return false;
  descriptor = {load<uint32_t>(bytes.data()),
                load<uint32_t>(bytes.data() + 4),
                load<uint64_t>(bytes.data() + 8),
                (access & 1) != 0,
                (access & 2) != 0,
                {static_cast<Place>(place), load<uint16_t>(bytes.data() + 18)},
                {},
                (access & 4) != 0};
  bytes = bytes.subspan(kDescriptorBytes);
  for (uint32_t i = 0; i < num_keys; ++i) {
    if (bytes.size() < 4) return false;
    const std::size_t name = load<uint8_t>(bytes.data());
    const std::size_t key = load<uint16_t>(bytes.data() + 2);
    bytes = bytes.subspan(4);
    if (name > kMaxTransportName || key > kMaxKeyBytes || bytes.size() < name + key) return false;
    const auto* text = reinterpret_cast<const char*>(bytes.data());
    const auto rest = bytes.subspan(name);
    descriptor.keys.push_back(
        {{text, name}, {rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(key)}});
    bytes = rest.subspan(key);
  }
  return bytes.empty();
}

std::vector<std::byte> encode_question(std::string_view transport,
                                       std::span<const std::byte> body) {
  std::vector<std::byte> bytes(1 + transport.size() + body.size());
  bytes[0] = static_cast<std::byte>(transport.size());
  std::ranges::copy(std::as_bytes(std::span(transport)), bytes.begin() + 1);
  std::ranges::copy(body, bytes.begin() + 1 + static_cast<std::ptrdiff_t>(transport.size()));
  return bytes;
}

bool decode(std::span<const std::byte> bytes, Question& question) {
  if (bytes.empty()) return false;
  const auto name = load<uint8_t>(bytes.data());
  bytes = bytes.subspan(1);
  if (name > kMaxTransportName || name > bytes.size()) return false;
  question = {{reinterpret_cast<const char*>(bytes.data()), name}, bytes.subspan(name)};
  return true;
}

}  // namespace inlay::net

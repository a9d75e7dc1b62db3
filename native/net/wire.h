// Frames of the data lanes, version 1: encoding, and decoding that trusts nothing.
//
//   header, 40 bytes, little-endian          what follows it
//    0 u8 kind                                u64 grant, of a WRITE with flag 2
//    1 u8 flags (1: verified, 2: granted)     num_ranges x {u64 offset, u64 length}
//    2 u16 num_ranges                         payload: `bytes`, of all but READ
//    4 u32 CRC32C of header (this field 0) and ranges
//    8 u64 transfer   16 u32 slice            the answer repeats those of its request,
//   20 u16 attempt    22 u16 status           and the attempt
//   24 u64 bytes
//   32 u32 slot       36 u32 epoch            the segment meant
//                                            after the payload of a verified WRITE or DATA:
//                                             {u32 its CRC32C, u32 0}
//
//   request                                   answer, in the order of requests
//   READ ranges of a segment                  DATA: their bytes; on failure a status and no bytes
//   WRITE ranges of a segment, payload        DONE: status
//   LOOKUP payload: a segment's name          SEGMENT: descriptor, or a status and the names there
//   ASK a transport something                 ANSWER: status, and what it says
// The answer to a verified request is verified, and DONE tells of a payload that came damaged.
// Grants are sent to guarded segments alone, and only their owners' descriptions tell of these: an
// engine from before grants refuses such a description, and is never sent a grant.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../core/status.h"

namespace inlay::net {

enum class Kind : uint16_t {
  kRead = 1,
  kWrite = 2,
  kData = 3,
  kDone = 4,
  kLookup = 5,
  kSegment = 6,
  kAsk = 7,
  kAnswer = 8,
};

constexpr std::size_t kHeaderBytes = 40;
constexpr std::size_t kRangeBytes = 16;
constexpr std::size_t kTrailerBytes = 8;
constexpr std::size_t kMaxRanges = 256;
constexpr std::size_t kGrantBytes = 8;
constexpr std::size_t kMaxFrameHead = kHeaderBytes + kGrantBytes + kRangeBytes * kMaxRanges;
constexpr uint64_t kMaxPayload = uint64_t{64} << 20;
constexpr std::size_t kMaxNameBytes = 255;
constexpr std::size_t kMaxQuestionBytes = std::size_t{512} << 10;

struct WireRange {
  uint64_t offset;
  uint64_t length;
};

struct Frame {
  Kind kind = Kind::kRead;
  uint64_t transfer = 0;
  uint32_t slice = 0;
  uint16_t attempt = 0;
  Status status = Status::kOk;
  uint64_t bytes = 0;
  uint32_t slot = 0;
  uint32_t epoch = 0;
  bool verified = false;               // of READ, WRITE and their answers
  std::optional<uint64_t> grant = {};  // of WRITE
};

// Where a segment's bytes are.
enum class Place : uint8_t { kHost = 0, kDevice = 1, kDisk = 2 };
struct Location {
  Place place = Place::kHost;
  uint16_t index = 0;  // of the NUMA node or device
  bool operator==(const Location&) const = default;
};

// What one transport needs to reach a segment.
struct TransportKey {
  std::string transport;
  std::vector<std::byte> key;
};
constexpr std::size_t kMaxTransports = 16;
constexpr std::size_t kMaxTransportName = 32;
constexpr std::size_t kMaxKeyBytes = 4096;

// What a SEGMENT answer tells: 24 bytes
//    0 u32 slot   4 u32 epoch   8 u64 size
//   16 u8 access (1 readable, 2 writable, 4 guarded)   17 u8 place   18 u16 index   20 u32 number
//   of keys
// then for each key {u8 name's bytes, u8 0, u16 key's bytes, name, key}.
struct SegmentDescriptor {
  uint32_t slot = 0;
  uint32_t epoch = 0;
  uint64_t size = 0;
  bool readable = false;
  bool writable = false;
  Location location;
  std::vector<TransportKey> keys;
  bool guarded = false;  // written only by frames with a grant

  // Null: that transport does not reach it.
  const std::vector<std::byte>* key(std::string_view transport) const;
};

// Bytes that follow header and ranges, without a trailer.
uint64_t payload_bytes(const Frame& frame);
// Whether a trailer follows the payload.
bool has_trailer(const Frame& frame);
std::array<std::byte, kTrailerBytes> trailer(uint32_t crc);

// Header and ranges, at most kMaxRanges of them.
std::vector<std::byte> encode(const Frame& frame, std::span<const WireRange> ranges = {});

// Size of header and ranges of the frame that begins with this header; 0 when no frame of this
// protocol does.
std::size_t head_bytes(std::span<const std::byte, kHeaderBytes> header);

// Takes a whole head of head_bytes(). Returns what is wrong with it, null when it is sound: known
// kind and status, allowed sizes, nonempty ranges that add up to `bytes`.
const char* decode(std::span<const std::byte> head, Frame& frame, std::vector<WireRange>& ranges);

std::vector<std::byte> encode(const SegmentDescriptor& descriptor);
bool decode(std::span<const std::byte> bytes, SegmentDescriptor& descriptor);

// What an ASK carries: {u8 name's bytes, name, body}.
std::vector<std::byte> encode_question(std::string_view transport, std::span<const std::byte> body);
struct Question {
  std::string_view transport;
  std::span<const std::byte> body;
};
bool decode(std::span<const std::byte> bytes, Question& question);

}  // namespace inlay::net

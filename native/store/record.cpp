#include "record.h"

#include <cstddef>
#include <cstring>

#include "../core/crc32c.h"

namespace inlay::store {

namespace {

uint32_t crc_of(const RecordHeader& header, std::string_view key) {
  RecordHeader covered = header;
  covered.state = 0;
  const auto bytes = std::as_bytes(std::span(&covered, 1));
  return crc32c(std::as_bytes(std::span(key)), crc32c(bytes.first(offsetof(RecordHeader, crc))));
}

bool is_consistent(const RecordHeader& header) {
  if (header.key_bytes == 0) return header.payload_bytes == 0 && header.payload_offset == 0;
  const RecordShape shape = shape_of(header.key_bytes, header.payload_bytes);
  return header.bytes == shape.bytes && header.payload_offset == shape.payload_offset;
}

}  // namespace

RecordShape shape_of(std::size_t key_bytes, uint64_t payload_bytes) {
  const bool large = payload_bytes >= kLargePayload;
  const uint64_t alignment = large ? kLargeAlignment : kGrain;
  const uint64_t payload_offset = aligned(sizeof(RecordHeader) + key_bytes, alignment);
  return {payload_offset + aligned(payload_bytes, kGrain), payload_offset, alignment};
}

RecordHeader make_record(std::string_view key, const RecordFields& fields) {
  const RecordShape shape = shape_of(key.size(), fields.payload_bytes);
  RecordHeader header{
      .magic = RecordHeader::kMagic,
      .state = static_cast<uint32_t>(RecordState::kLive),
      .bytes = shape.bytes,
      .generation = fields.generation,
      .payload_bytes = fields.payload_bytes,
      .payload_crc = fields.payload_crc,
      .key_bytes = static_cast<uint16_t>(key.size()),
      .flags = fields.flags,
      .payload_offset = static_cast<uint32_t>(shape.payload_offset),
      .replicas = fields.replicas,
      .group = fields.group,
      .reserved = 0,
      .crc = 0,
  };
  header.crc = crc_of(header, key);
  return header;
}

RecordHeader make_filler(uint64_t bytes) {
  RecordHeader header{};
  header.magic = RecordHeader::kMagic;
  header.state = static_cast<uint32_t>(RecordState::kFiller);
  header.bytes = bytes;
  header.crc = crc_of(header, {});
  return header;
}

std::optional<ParsedRecord> parse_record(std::span<const std::byte> bytes, uint64_t room) {
  if (bytes.size() < sizeof(RecordHeader)) return {};
  ParsedRecord record;
  std::memcpy(&record.header, bytes.data(), sizeof(RecordHeader));
  const RecordHeader& header = record.header;
  if (header.magic != RecordHeader::kMagic || header.bytes < kGrain || header.bytes > room ||
      header.bytes % kGrain != 0 || header.key_bytes > kMaxKeyBytes ||
      header.payload_bytes > header.bytes || !is_consistent(header) ||
      bytes.size() - sizeof(RecordHeader) < header.key_bytes)
    return {};
  record.key = {reinterpret_cast<const char*>(bytes.data()) + sizeof(RecordHeader),
                header.key_bytes};
  if (crc_of(header, record.key) != header.crc) return {};
  return record;
}

}  // namespace inlay::store

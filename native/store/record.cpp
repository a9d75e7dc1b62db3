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
  const RecordShape shape = shape_of(header.key_bytes, header.payload_bytes, header.parent_bytes);
  return header.bytes == shape.bytes && header.payload_offset == shape.payload_offset;
}

}  // namespace

RecordShape shape_of(std::size_t key_bytes, uint64_t payload_bytes, std::size_t parent_bytes) {
  const bool large = payload_bytes >= kLargePayload;
  const uint64_t alignment = large ? kLargeAlignment : kGrain;
  const uint64_t payload_offset = aligned(sizeof(RecordHeader) + key_bytes, alignment);
  const uint64_t bytes = payload_offset + payload_bytes + tail_bytes(parent_bytes);
  return {aligned(bytes, kGrain), payload_offset, alignment};
}

RecordHeader make_record(std::string_view key, const RecordFields& fields) {
  const RecordShape shape = shape_of(key.size(), fields.payload_bytes, fields.parent_bytes);
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
      .parent_bytes = fields.parent_bytes,
      .group = fields.group,
      .recompute_us = fields.recompute_us,
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

void write_tail(std::byte* to, std::string_view parent) {
  if (parent.empty()) return;
  const uint32_t crc = crc32c(std::as_bytes(std::span(parent)));
  std::memcpy(to, &crc, sizeof(crc));
  std::memcpy(to + sizeof(crc), parent.data(), parent.size());
}

std::string_view parent_in(const RecordHeader& header, std::span<const std::byte> record) {
  if (header.parent_bytes == 0) return {};
  const auto tail =
      record.subspan(header.payload_offset + header.payload_bytes, tail_bytes(header.parent_bytes));
  uint32_t crc = 0;
  std::memcpy(&crc, tail.data(), sizeof(crc));
  const auto key = tail.subspan(sizeof(crc));
  if (crc32c(key) != crc) return {};
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

std::optional<ParsedRecord> parse_record(std::span<const std::byte> bytes, uint64_t room) {
  if (bytes.size() < sizeof(RecordHeader)) return {};
  ParsedRecord record;
  std::memcpy(&record.header, bytes.data(), sizeof(RecordHeader));
  const RecordHeader& header = record.header;
  if (header.magic != RecordHeader::kMagic || header.bytes < kGrain || header.bytes > room ||
      header.bytes % kGrain != 0 || header.key_bytes > kMaxKeyBytes ||
      header.parent_bytes > kMaxKeyBytes || header.payload_bytes > header.bytes ||
      !is_consistent(header) || bytes.size() - sizeof(RecordHeader) < header.key_bytes)
    return {};
  record.key = {reinterpret_cast<const char*>(bytes.data()) + sizeof(RecordHeader),
                header.key_bytes};
  if (crc_of(header, record.key) != header.crc) return {};
  return record;
}

}  // namespace inlay::store

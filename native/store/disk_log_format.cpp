#include "disk_log_format.h"

#include <cstring>

#include "../core/crc32c.h"
#include "object.h"

namespace inlay::store {

namespace {

constexpr std::size_t kSecondHead = kLogBlock / 2;
constexpr uint64_t kCommitted = 0x5444'4554'494d'4d43;

template <typename Header>
uint32_t crc_of(const Header& header, std::string_view key = {}) {
  const auto bytes = std::as_bytes(std::span(&header, 1)).first(offsetof(Header, crc));
  return crc32c(std::as_bytes(std::span(key)), crc32c(bytes));
}

uint64_t commit_of(const LogEntry& entry) {
  return kCommitted ^ (uint64_t{entry.crc} << 32 | entry.record_crc);
}

}  // namespace

void write_head(std::span<std::byte, kLogBlock> block, LogHead head) {
  head.crc = crc_of(head);
  std::memset(block.data(), 0, block.size());
  std::memcpy(block.data(), &head, sizeof head);
  std::memcpy(block.data() + kSecondHead, &head, sizeof head);
}

std::optional<LogHead> read_head(std::span<const std::byte, kLogBlock> block) {
  std::optional<LogHead> newest;
  for (const std::size_t at : {std::size_t{0}, kSecondHead}) {
    LogHead head;
    std::memcpy(&head, block.data() + at, sizeof head);
    if (head.magic != LogHead::kMagic || head.crc != crc_of(head)) continue;
    if (!newest || head.sequence > newest->sequence) newest = head;
  }
  return newest;
}

void write_entry(std::byte* at, LogEntry entry, std::string_view key) {
  entry.key_bytes = static_cast<uint16_t>(key.size());
  entry.crc = crc_of(entry, key);
  entry.commit = commit_of(entry);
  std::memcpy(at, &entry, sizeof entry);
  std::memcpy(at + sizeof entry, key.data(), key.size());
  std::memset(at + sizeof entry + key.size(), 0, grain_ceil(key.size()) - key.size());
}

std::optional<FoundEntry> read_entry(std::span<const std::byte> extent, uint32_t place,
                                     const LogHead& head) {
  const std::size_t at = place * kGrain;
  const std::byte* const start = extent.data() + at;
  uint32_t magic = 0;
  std::memcpy(&magic, start, sizeof magic);
  if (magic != LogEntry::kMagic) return {};
  LogEntry entry;
  std::memcpy(&entry, start, sizeof entry);
  if (entry.uuid != head.uuid || entry.sequence != head.sequence || entry.place != place) return {};
  if (entry.key_bytes == 0 || entry.key_bytes > kMaxKeyBytes ||
      entry_bytes(entry.key_bytes) > extent.size() - at)
    return {};
  const std::string_view key(reinterpret_cast<const char*>(start + sizeof entry), entry.key_bytes);
  if (entry.crc != crc_of(entry, key) || entry.commit != commit_of(entry)) return {};
  if (entry.record_place * kGrain + entry.record_bytes > extent.size()) return {};
  return FoundEntry{entry, key};
}

}  // namespace inlay::store

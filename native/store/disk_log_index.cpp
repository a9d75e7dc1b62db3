#include "disk_log_index.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

namespace inlay::store {

namespace {

constexpr std::size_t kFirstSlots = 64;

std::size_t hash_of(std::string_view key) { return std::hash<std::string_view>{}(key); }

}  // namespace

LogIndex::LogIndex() : slots_(kFirstSlots, kNone) {}

LogIndex::~LogIndex() {
  for_each([](LogRecord& record) { delete[] record.key_start; });
}

std::size_t LogIndex::slot_of(std::string_view key) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash_of(key) & mask;
  while (slots_[slot] != kNone && at(slots_[slot]).key() != key) slot = (slot + 1) & mask;
  return slot;
}

LogRecord* LogIndex::find(std::string_view key) {
  const uint32_t id = slots_[slot_of(key)];
  return id == kNone ? nullptr : &at(id);
}

LogRecord& LogIndex::insert(std::string_view key) {
  if ((size_ + 1) * 4 > slots_.size() * 3) grow();
  auto copy = std::make_unique_for_overwrite<char[]>(key.size());
  std::memcpy(copy.get(), key.data(), key.size());
  uint32_t id = unused_;
  if (id != kNone) {
    unused_ = at(id).extent;
  } else {
    id = made_;
    if (id / kChunk == chunks_.size()) chunks_.push_back(std::make_unique<LogRecord[]>(kChunk));
    ++made_;
  }
  slots_[slot_of(key)] = id;
  LogRecord& record = at(id);
  record = {};
  record.key_start = copy.release();
  record.key_bytes = static_cast<uint16_t>(key.size());
  ++size_;
  key_bytes_ += key.size();
  return record;
}

void LogIndex::erase(LogRecord& record) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t hole = slot_of(record.key());
  const uint32_t id = slots_[hole];
  // Those behind it move up, unless they stand before the place where their search begins.
  for (std::size_t next = (hole + 1) & mask; slots_[next] != kNone; next = (next + 1) & mask) {
    const std::size_t home = hash_of(at(slots_[next]).key()) & mask;
    if (((next - home) & mask) < ((next - hole) & mask)) continue;
    slots_[hole] = slots_[next];
    hole = next;
  }
  slots_[hole] = kNone;
  --size_;
  key_bytes_ -= record.key_bytes;
  delete[] std::exchange(record.key_start, nullptr);
  record.extent = std::exchange(unused_, id);
}

void LogIndex::grow() {
  slots_.assign(slots_.size() * 2, kNone);
  for (uint32_t id = 0; id < made_; ++id)
    if (at(id).key_start != nullptr) slots_[slot_of(at(id).key())] = id;
}

std::size_t LogIndex::memory_bytes() const {
  return chunks_.size() * kChunk * sizeof(LogRecord) + slots_.capacity() * sizeof(slots_[0]) +
         key_bytes_;
}

}  // namespace inlay::store

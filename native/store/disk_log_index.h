// What a disk log holds of each key: its newest record, or that it was removed. In memory, with 40
// bytes, the key, and 5 to 11 bytes of a hash table for each key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace inlay::store {

struct LogRecord {
  const char* key_start = nullptr;
  uint64_t generation = 0;
  uint32_t extent = 0;
  uint32_t place = 0;  // grains from the start of the extent; of a removal: where its entry is
  uint32_t bytes = 0;
  uint32_t crc = 0;
  // Records of the key that are on the disk besides this one. A removal is needed while there are
  // any: a restarted log would find them.
  uint32_t older = 0;
  uint16_t key_bytes = 0;
  bool removed = false;

  std::string_view key() const { return {key_start, key_bytes}; }
};
static_assert(sizeof(LogRecord) == 40);

class LogIndex {
 public:
  LogIndex();
  LogIndex(const LogIndex&) = delete;
  LogIndex& operator=(const LogIndex&) = delete;
  ~LogIndex();

  // Null: nothing of that key. Pointers stay good until the record is erased.
  LogRecord* find(std::string_view key);
  // Of a key that is not there.
  LogRecord& insert(std::string_view key);
  void erase(LogRecord& record);

  std::size_t size() const { return size_; }
  std::size_t memory_bytes() const;

  template <typename Visit>
  void for_each(Visit&& visit) {
    for (uint32_t id = 0; id < made_; ++id)
      if (at(id).key_start != nullptr) visit(at(id));
  }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  static constexpr std::size_t kChunk = 4096;

  LogRecord& at(uint32_t id) { return chunks_[id / kChunk][id % kChunk]; }
  std::size_t slot_of(std::string_view key);  // where it is, or an empty slot where it would be
  void grow();

  std::vector<uint32_t> slots_;  // a power of two; ids, or kNone
  std::vector<std::unique_ptr<LogRecord[]>> chunks_;
  uint32_t made_ = 0;
  uint32_t unused_ = kNone;  // ids to be used again, linked by `extent`
  std::size_t size_ = 0;
  std::size_t key_bytes_ = 0;
};

}  // namespace inlay::store

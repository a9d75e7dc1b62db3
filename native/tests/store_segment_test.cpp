// Records and the segment that holds them: chains, extents, pins, kills, and what is found after an
// end at any moment.
#include "../store/store_segment.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../core/crc32c.h"
#include "../core/errors.h"
#include "check.h"
#include "child.h"

using namespace inlay;
using namespace inlay::store;

namespace {

class Directory {
 public:
  Directory() : path_("/dev/shm/inlay-segment-test-" + std::to_string(getpid())) {
    std::filesystem::remove_all(path_);
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

StoreSegment::Options options_of(const Directory& directory, uint64_t bytes) {
  return {directory.path(), "node-a", "default", bytes, 3};
}

std::string payload_of(std::size_t bytes, unsigned seed) {
  std::string payload(bytes, '\0');
  std::mt19937 random(seed);
  for (char& c : payload) c = static_cast<char>(random());
  return payload;
}

// What a client does in an open extent.
uint64_t write_record(std::span<std::byte> memory, uint64_t at, const std::string& key,
                      const std::string& payload, uint64_t generation) {
  const RecordHeader header =
      make_record(key, {.generation = generation,
                        .payload_bytes = payload.size(),
                        .payload_crc = crc32c(std::as_bytes(std::span(payload)))});
  std::byte* to = memory.data() + at;
  std::memcpy(to, &header, sizeof(header));
  std::memcpy(to + sizeof(header), key.data(), key.size());
  if (!payload.empty()) std::memcpy(to + header.payload_offset, payload.data(), payload.size());
  return header.bytes;
}

using Contents = std::map<std::string, std::string>;

Contents contents(const StoreSegment& segment) {
  Contents found;
  for (const StoreSegment::Entry& entry : segment.records()) {
    if (!entry.is_living) continue;
    const auto payload = segment.memory().subspan(entry.offset + entry.header.payload_offset,
                                                  entry.header.payload_bytes);
    CHECK(found
              .emplace(entry.key,
                       std::string(reinterpret_cast<const char*>(payload.data()), payload.size()))
              .second);
  }
  return found;
}

bool is_one_chain(const StoreSegment& segment) {
  return walk_records(segment.memory(), 0, segment.memory().size(),
                      [](uint64_t, const ParsedRecord&) { return true; }) ==
         segment.memory().size();
}

void test_records() {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{5000},
        std::size_t{kLargePayload - 1}, std::size_t{kLargePayload}}) {
    const RecordShape shape = shape_of(9, bytes);
    CHECK(shape.bytes % kGrain == 0 && shape.payload_offset + bytes <= shape.bytes);
    CHECK(shape.payload_offset % shape.alignment == 0);
    CHECK(shape.alignment == (bytes >= kLargePayload ? kLargeAlignment : kGrain));
  }
  std::vector<std::byte> memory(4096);
  const uint64_t bytes = write_record(memory, 0, "a key", "the payload", 7);
  const auto record = parse_record(memory, memory.size());
  CHECK(record && record->key == "a key" && record->header.generation == 7);
  CHECK(!parse_record(memory, bytes - kGrain));
  CHECK(!parse_record(std::span(memory).first(66), memory.size()));
  // The state may change, nothing else of header and key.
  for (std::size_t i = 0; i < sizeof(RecordHeader) + 5; ++i) {
    memory[i] ^= std::byte{1};
    CHECK(parse_record(memory, memory.size()).has_value() == (i >= 4 && i < 8));
    memory[i] ^= std::byte{1};
  }
}

// A parent's key lies behind the payload; where it is damaged the record is good nevertheless.
void test_parents() {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{63}, std::size_t{kLargePayload}}) {
    const std::string parent(kMaxKeyBytes, 'p');
    const RecordShape shape = shape_of(5, bytes, parent.size());
    std::vector<std::byte> memory(shape.bytes);
    const RecordFields fields{.payload_bytes = bytes,
                              .parent_bytes = static_cast<uint16_t>(parent.size()),
                              .recompute_us = 77};
    const RecordHeader header = make_record("a key", fields);
    CHECK(header.bytes == shape.bytes && shape.bytes % kGrain == 0);
    std::memcpy(memory.data(), &header, sizeof(header));
    std::memcpy(memory.data() + sizeof(header), "a key", 5);
    write_tail(memory.data() + shape.payload_offset + bytes, parent);
    const auto record = parse_record(memory, memory.size());
    CHECK(record && record->key == "a key" && record->header.recompute_us == 77);
    CHECK(parent_in(record->header, memory) == parent);
    memory[shape.payload_offset + bytes + 100] ^= std::byte{1};
    CHECK(parse_record(memory, memory.size()) && parent_in(record->header, memory).empty());
  }
}

void test_extents_and_kills() {
  const Directory directory;
  const auto segment = StoreSegment::make(options_of(directory, 1 << 20));
  CHECK(is_one_chain(*segment) && contents(*segment).empty());
  CHECK(segment->open({4096, 65536, 99, 10}, 4096, (1 << 20) - 4096 - 65536));
  CHECK(is_one_chain(*segment) && segment->open_extents().size() == 1);
  // Inside of it nothing is known before it is closed.
  uint64_t at = 4096;
  const uint64_t first = at;
  at += write_record(segment->memory(), at, "one", "1", 10);
  const uint64_t second = at;
  at += write_record(segment->memory(), at, "two", payload_of(9000, 2), 11);
  const uint64_t third = at;
  at += write_record(segment->memory(), at, "three", "", 12);
  CHECK(contents(*segment).empty());
  const std::vector<Command::Range> fillers{{second, third - second}, {at, 4096 + 65536 - at}};
  segment->close(4096, fillers);
  CHECK(segment->open_extents().empty() && is_one_chain(*segment));
  CHECK((contents(*segment) == Contents{{"one", "1"}, {"three", ""}}));
  // A record is killed by its generation alone.
  const std::vector<RecordRef> others{{first, 9}, {third + 1, 12}, {uint64_t{1} << 40, 12}};
  segment->kill(others);
  CHECK(contents(*segment).size() == 2);
  const std::vector<RecordRef> victims{{first, 10}};
  segment->kill(victims);
  CHECK((contents(*segment) == Contents{{"three", ""}}) && is_one_chain(*segment));
  // Its place is granted again, together with the filler behind it.
  CHECK(segment->open({first, 64, 98, 30}, 0, third - first - 64));
  CHECK(is_one_chain(*segment));
  segment->close(first, {});
  // What cannot be.
  CHECK(!segment->open({1 << 20, 64, 1, 1}, 0, 0));
  CHECK(!segment->open({64, 100, 1, 1}, 0, 0));
  CHECK(!segment->open({64, 64, 1, 1}, 128, 0));
  segment->unlink_files();
}

void test_pins() {
  const Directory directory;
  const auto segment = StoreSegment::make(options_of(directory, 1 << 20));
  const std::string file = segment->path() + ".pins";
  PinBoard board(file);
  const std::vector<uint64_t> offsets{0, 128, 256};
  CHECK(segment->pinned(offsets).empty());
  {
    const auto a = board.pin(128);
    const auto b = board.pin(0);
    const auto c = board.pin(128);
    const auto d = board.pin(64);
    CHECK(a && b && c && d);
    CHECK((segment->pinned(offsets) == std::vector<uint64_t>{0, 128}));
  }
  CHECK(segment->pinned(offsets).empty());
  // More than a block of them.
  std::vector<PinBoard::Pin> many;
  for (int i = 0; i < 1000; ++i) many.push_back(board.pin(256));
  CHECK((segment->pinned(offsets) == std::vector<uint64_t>{256}));
  many.clear();
  CHECK(segment->pinned(offsets).empty());
  {
    // Another process's pin holds; a forked copy of ours does not end ours; death ends all.
    auto own = board.pin(0);
    Child child([&](Child& end) {
      own.release();
      CHECK(!board.pin(64));
      PinBoard boards(file);
      const auto pin = boards.pin(128);
      end.tell();
      pause();
    });
    child.hear();
    CHECK((segment->pinned(offsets) == std::vector<uint64_t>{0, 128}));
    child.kill(SIGKILL);
    CHECK((segment->pinned(offsets) == std::vector<uint64_t>{0}));
  }
  bool refused = false;
  try {
    PinBoard none(directory.path() + "/none.pins");
  } catch (const ResourceError&) {
    refused = true;
  }
  CHECK(refused);
  segment->unlink_files();
}

// Readers in place, a killer that gives the place to another record: nobody reads a mixture.
void test_pins_hold_bytes() {
  const Directory directory;
  const auto segment = StoreSegment::make(options_of(directory, 1 << 16));
  CHECK(segment->open({0, 1 << 16, 1, 1}, 0, 0));
  constexpr std::size_t kBytes = 4000;
  const auto write = [&](uint64_t generation) {
    write_record(segment->memory(), 0, "k", std::string(kBytes, static_cast<char>(generation)),
                 generation);
  };
  write(1);
  std::vector<std::unique_ptr<Child>> readers;
  for (int i = 0; i < 2; ++i)
    readers.push_back(std::make_unique<Child>([&](Child& end) {
      PinBoard board(segment->path() + ".pins");
      const std::byte* record = segment->memory().data();
      uint64_t last = 0;
      // However the processors are shared, reads meet a hundred writes.
      for (int reads = 0; reads < 2000 || last <= 100;) {
        const auto pin = board.pin(0);
        if (load_state(record) != RecordState::kLive) continue;
        const auto parsed = parse_record(segment->memory(), 1 << 16);
        CHECK(parsed && parsed->header.generation >= last);
        last = parsed->header.generation;
        std::string copy(kBytes, '\0');
        std::memcpy(copy.data(), record + parsed->header.payload_offset, kBytes);
        CHECK(copy == std::string(kBytes, static_cast<char>(last)));
        ++reads;
      }
      end.tell();
    }));
  std::atomic<bool> over{false};
  std::thread ends([&] {
    for (const auto& reader : readers) reader->hear();
    over.store(true);
  });
  const std::vector<uint64_t> place{0};
  uint64_t generation = 1;
  while (!over.load()) {
    const std::vector<RecordRef> victims{{0, generation}};
    segment->kill(victims);
    while (!segment->pinned(place).empty()) std::this_thread::yield();
    std::memset(segment->memory().data() + 128, 0xee, kBytes);  // the state stays kDead meanwhile
    // The state is written last here, as no header moves while readers look for it.
    const RecordHeader header =
        make_record("k", {.generation = ++generation, .payload_bytes = kBytes, .payload_crc = 0});
    std::memset(segment->memory().data() + header.payload_offset, static_cast<char>(generation),
                kBytes);
    std::memcpy(segment->memory().data() + 8, reinterpret_cast<const std::byte*>(&header) + 8,
                sizeof(header) - 8);
    state_at(segment->memory().data()).store(header.state);
  }
  ends.join();
  for (const auto& reader : readers) CHECK(reader->succeeded());
  segment->unlink_files();
}

void test_adoption() {
  const Directory directory;
  Child owner([&](Child& end) {
    const auto segment = StoreSegment::make(options_of(directory, 1 << 20));
    CHECK(segment->open({0, 4096, 1, 10}, 0, (1 << 20) - 4096));
    const uint64_t used = write_record(segment->memory(), 0, "closed", "c", 10);
    const Command::Range rest{used, 4096 - used};
    segment->close(0, {&rest, 1});
    // Left open: two whole records, one with a payload that is not complete, one of another grant.
    CHECK(segment->open({4096, 65536, 2, 30}, 0, (1 << 20) - 4096 - 65536));
    uint64_t at = 4096;
    at += write_record(segment->memory(), at, "whole", payload_of(5000, 1), 30);
    at += write_record(segment->memory(), at, "whole too", "", 31);
    const uint64_t torn = at;
    at += write_record(segment->memory(), at, "torn", payload_of(5000, 2), 32);
    segment->memory()[torn + 200] ^= std::byte{1};
    write_record(segment->memory(), at, "behind it", "x", 33);
    CHECK(segment->open({4096 + 65536, 4096, 3, 50}, 0, (1 << 20) - 4096 - 65536 - 4096));
    write_record(segment->memory(), 4096 + 65536, "older", "x", 49);
    end.tell();
    pause();
  });
  owner.hear();
  const auto found = StoreSegment::find(directory.path());
  CHECK(found.size() == 1);
  CHECK(StoreSegment::adopt(directory.path(), found[0]) == nullptr);  // it has an owner
  CHECK(StoreSegment::find(directory.path()).size() == 1);
  owner.kill(SIGKILL);
  const Contents expected{{"closed", "c"}, {"whole", payload_of(5000, 1)}, {"whole too", ""}};
  for (int i = 0; i < 2; ++i) {
    const auto segment = StoreSegment::adopt(directory.path(), found[0]);
    CHECK(segment != nullptr && hex(segment->uuid()) == found[0]);
    CHECK(segment->tenant() == "default" && segment->epoch() == 3);
    CHECK(contents(*segment) == expected && is_one_chain(*segment));
    CHECK(segment->open_extents().empty());
  }
  // Damage in a chain costs what lies behind it, no more, and nothing wrong is taken for right.
  {
    const auto segment = StoreSegment::adopt(directory.path(), found[0]);
    segment->memory()[8] ^= std::byte{64};
  }
  {
    const auto segment = StoreSegment::adopt(directory.path(), found[0]);
    CHECK(segment != nullptr && is_one_chain(*segment) && contents(*segment).empty());
  }
  // A table that is damaged, or cut short: the files go, and the directory that is empty then.
  std::filesystem::resize_file(directory.path() + "/" + found[0] + ".table", 100);
  CHECK(StoreSegment::adopt(directory.path(), found[0]) == nullptr);
  CHECK(!std::filesystem::exists(directory.path()));
}

// A client and its node are killed together at any moment of puts and opens.
// A writer that was stopped: what is whole is offered again, what it writes to is taken until it
// lets go, and becomes free then, whatever was written meanwhile.
void test_a_stopped_writer() {
  const Directory directory;
  const auto segment = StoreSegment::make(options_of(directory, 1 << 20));
  CHECK(segment->open({4096, 65536, 99, 10}, 4096, (1 << 20) - 4096 - 65536));
  PinBoard board(segment->path() + ".pins");
  auto writing = board.pin(4096 + kWriting);
  const uint64_t rest = 4096 + write_record(segment->memory(), 4096, "whole", "1", 10);
  CHECK(!segment->close_all() && !segment->has_open(4096, 99));
  CHECK((contents(*segment) == Contents{{"whole", "1"}}));
  const std::vector<StoreSegment::Entry> found = segment->records();
  CHECK(found.size() == 2 && found[1].offset == rest && found[1].key.empty());
  CHECK(found[1].header.bytes == 4096 + 65536 - rest);
  CHECK(segment->pinned({rest}) == std::vector<uint64_t>{rest});
  write_record(segment->memory(), rest, "late", "2", 11);
  writing.release();
  CHECK(segment->pinned({rest}).empty() && segment->open_extents().empty());
  CHECK((contents(*segment) == Contents{{"whole", "1"}}) && is_one_chain(*segment));
  segment->unlink_files();
}

void test_torn_at_random() {
  std::mt19937 random(5);
  for (int round = 0; round < 30; ++round) {
    const Directory directory;
    Child owner([&](Child& end) {
      const auto segment = StoreSegment::make(options_of(directory, 4 << 20));
      end.tell();
      uint64_t generation = 1;
      for (uint64_t offset = 0;; offset += 64 << 10) {
        if (offset == 4 << 20) offset = 0;
        CHECK(segment->open({offset, 64 << 10, 1, generation}, 0,
                            offset == 0 ? 0 : (4 << 20) - offset - (64 << 10)));
        uint64_t at = offset;
        for (int i = 0; i < 6; ++i) {
          const auto seed = static_cast<unsigned>(generation);
          at += write_record(segment->memory(), at, std::to_string(offset + i),
                             std::to_string(seed) + ":" + payload_of(9000, seed), generation);
          ++generation;
        }
        const Command::Range rest{at, offset + (64 << 10) - at};
        segment->close(offset, {&rest, 1});
        if (offset + (64 << 10) == 4 << 20) break;
      }
      pause();
    });
    owner.hear();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 6000));
    owner.kill(SIGKILL);
    const auto found = StoreSegment::find(directory.path());
    CHECK(found.size() == 1);
    const auto segment = StoreSegment::adopt(directory.path(), found[0]);
    CHECK(segment != nullptr && is_one_chain(*segment));
    for (const auto& [key, value] : contents(*segment)) {
      const auto seed = static_cast<unsigned>(std::stoul(value));
      CHECK(value == std::to_string(seed) + ":" + payload_of(9000, seed));
    }
  }
}

void test_refusals() {
  const Directory directory;
  const auto refused = [&](auto&& change) {
    StoreSegment::Options options = options_of(directory, 1 << 20);
    change(options);
    try {
      StoreSegment::make(options);
    } catch (const ArgumentError&) {
      return true;
    }
    return false;
  };
  CHECK(refused([](auto& o) { o.node = ""; }));
  CHECK(refused([](auto& o) { o.node = "../a"; }));
  CHECK(refused([](auto& o) { o.tenant = std::string(200, 'x'); }));
  CHECK(refused([](auto& o) { o.bytes = 5000; }));
  CHECK(!refused([](auto&) {}));
  bool too_much = false;
  try {
    StoreSegment::make(options_of(directory, uint64_t{1} << 50));
  } catch (const ResourceError&) {
    too_much = true;
  }
  CHECK(too_much);
  chmod(directory.path().c_str(), 0755);
  bool open_to_others = false;
  try {
    StoreSegment::make(options_of(directory, 1 << 20));
  } catch (const ResourceError&) {
    open_to_others = true;
  }
  CHECK(open_to_others);
}

}  // namespace

int main() {
  test_records();
  test_parents();
  test_extents_and_kills();
  test_pins();
  test_pins_hold_bytes();
  test_adoption();
  test_a_stopped_writer();
  test_torn_at_random();
  test_refusals();
  return 0;
}

// The log of a node's disk: what it keeps, finds again, refuses and empties.
#include <atomic>
#include <fstream>
#include <thread>

#include "../core/errors.h"
#include "../store/disk_log.h"
#include "../transfer/engine.h"
#include "disk_log_bench.h"

using namespace inlay;
using namespace inlay::store;

namespace {

constexpr uint64_t kExtent = 1 << 20;

DiskLogOptions options_in(const Folder& folder, uint64_t extents = 16) {
  return {folder.file(), extents * kExtent, kExtent};
}

template <typename Error, typename Call>
bool throws(Call&& call) {
  try {
    call();
  } catch (const Error&) {
    return true;
  }
  return false;
}

void finds_records_of_all_sizes_again() {
  const Folder folder;
  const std::vector<std::size_t> sizes{1,    63,     64,     65,     4095,   4096,
                                       4097, 262143, 262144, 262145, 300000, 700'000};
  std::map<std::string, std::vector<std::byte>> records;
  std::vector<LogItem> items;
  for (const std::size_t bytes : sizes) {
    const std::string key(1 + bytes % 1024, static_cast<char>('a' + items.size()));
    const auto& record = records[key] = record_of(key, 5, bytes);
    items.push_back({records.find(key)->first, 5, record});
  }
  {
    OpenLog open(options_in(folder));
    struct stat found{};
    CHECK(stat(folder.file().c_str(), &found) == 0 && (found.st_mode & 0777) == 0600);
    CHECK(throws<TransferFailure>([&] { OpenLog second(options_in(folder)); }));
    const auto appended = open.log.append(items);
    CHECK(appended.status == LogStatus::kOk && appended.count == items.size());
    CHECK(open.log.sync() == LogStatus::kOk);
    for (const auto& [key, record] : records) CHECK(open.get(key) == 5);
  }
  OpenLog open(options_in(folder), false);
  for (const auto& [key, record] : records) {
    CHECK(open.log.find(key)->bytes == record.size());
    CHECK(open.get(key) == 5);
  }
  // Parts, many at a time.
  std::vector<DiskLog::Read> reads;
  std::vector<std::vector<std::byte>> parts;
  for (const auto& [key, record] : records) {
    parts.emplace_back(record.size() / 2);
    reads.push_back({key, 5, record.size() / 3, parts.back()});
  }
  reads.push_back({"not there", 5, 0, parts.front()});
  reads.push_back({items[0].key, 4, 0, parts.front()});
  open.log.read(reads);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& record = records[std::string(reads[i].key)];
    CHECK(reads[i].status == LogStatus::kOk);
    CHECK(std::equal(parts[i].begin(), parts[i].end(), record.begin() + record.size() / 3));
  }
  CHECK(reads[parts.size()].status == LogStatus::kNotFound);
  CHECK(reads[parts.size() + 1].status == LogStatus::kNotFound);
  CHECK(open.log.figures().records == items.size() && open.log.figures().damaged == 0);

  std::size_t visited = 0;
  CHECK(open.log.for_each(100, [&](const DiskLog::Living& living) {
    const auto& record = records[std::string(living.key)];
    CHECK(living.bytes == record.size() && living.generation == 5);
    CHECK(living.head.size() == std::min<std::size_t>(100, record.size()));
    CHECK(std::equal(living.head.begin(), living.head.end(), record.begin()));
    ++visited;
  }) == LogStatus::kOk);
  CHECK(visited == items.size());
}

void the_newest_generation_counts() {
  const Folder folder;
  {
    OpenLog open(options_in(folder));
    CHECK(open.put("a", 7, 1000) == LogStatus::kOk);
    CHECK(open.put("a", 6, 1000) == LogStatus::kOk);
    CHECK(open.get("a") == 7);
    CHECK(open.remove("a", 6) == LogStatus::kOk);
    CHECK(open.get("a") == 7);
    CHECK(open.put("a", 9, 300'000) == LogStatus::kOk);
    CHECK(open.get("a") == 9);
    CHECK(open.put("b", 1, 10) == LogStatus::kOk);
    CHECK(open.remove("b", 1) == LogStatus::kOk);
    CHECK(open.remove("never", 1) == LogStatus::kOk);
    CHECK(!open.log.find("b"));
    CHECK(open.log.figures().removals == 1);
    CHECK(open.put("b", 1, 10) == LogStatus::kOk);
    CHECK(!open.log.find("b"));
    CHECK(open.put("c", 1, 10) == LogStatus::kOk);
    CHECK(open.remove("c", 5) == LogStatus::kOk);
    CHECK(open.put("c", 6, 20) == LogStatus::kOk);
  }
  for (int i = 0; i < 3; ++i) {
    OpenLog open(options_in(folder));
    CHECK(open.get("a") == 9 && !open.log.find("b") && open.get("c") == 6);
    const auto figures = open.log.figures();
    CHECK(figures.records == 2 && figures.removals == 1);
    CHECK(figures.extents - figures.free_extents == 1);  // the same extent is written on
    CHECK(open.put("a", 9, 300'000) == LogStatus::kOk);
  }
}

void bad_arguments_are_refused() {
  const Folder folder;
  DiskLogOptions options = options_in(folder);
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4096}, kExtent + 1, uint64_t{2} << 30}) {
    options.extent_bytes = bytes;
    CHECK(throws<ArgumentError>([&] { (void)file_of(options); }));
  }
  options = options_in(folder, 3);
  CHECK(throws<ArgumentError>([&] { (void)file_of(options); }));
  {
    OpenLog open(options_in(folder));
    CHECK(throws<ArgumentError>([&] { (void)open.put("", 1, 10); }));
    CHECK(throws<ArgumentError>([&] { (void)open.put(std::string(1025, 'x'), 1, 10); }));
    CHECK(throws<ArgumentError>([&] { (void)open.put("a", 1, 0); }));
    CHECK(throws<ArgumentError>([&] { (void)open.put("a", 1, open.log.max_record_bytes() + 1); }));
    CHECK(open.put(std::string(1024, 'x'), 1, open.log.max_record_bytes()) == LogStatus::kOk);
    CHECK(open.get(std::string(1024, 'x')) == 1);
    CHECK(open.put("a", 1, 100) == LogStatus::kOk);
    std::byte byte;
    DiskLog::Read read{"a", 1, 100, {&byte, 1}};
    CHECK(throws<ArgumentError>([&] { open.log.read({&read, 1}); }));
  }
  CHECK(throws<ArgumentError>([&] { OpenLog smaller(options_in(folder, 8)); }));
  options = options_in(folder);
  options.extent_bytes = 2 * kExtent;
  CHECK(throws<ArgumentError>([&] { OpenLog other(options); }));
  std::ofstream(folder.file("text")) << std::string(5000, 'x');
  options = {folder.file("text"), 8 * kExtent, kExtent};
  CHECK(throws<ArgumentError>([&] { OpenLog text(options); }));
  OpenLog larger(options_in(folder, 20));
  CHECK(larger.get("a") == 1);
}

void a_full_log_loses_nothing() {
  const Folder folder;
  OpenLog open(options_in(folder, 8));
  std::vector<std::string> keys;
  LogStatus status = LogStatus::kOk;
  for (int i = 0; status == LogStatus::kOk; ++i) {
    keys.push_back("key-" + std::to_string(i));
    status = open.put(keys.back(), 1, 340'000);
  }
  CHECK(status == LogStatus::kFull);
  keys.pop_back();
  CHECK(keys.size() == 3 * 6);  // two extents are spare
  for (const std::string& key : keys) CHECK(open.get(key) == 1);
  CHECK(open.log.compact().freed_bytes == 0);
  // Every other one goes, and what stays is packed.
  for (std::size_t i = 0; i < keys.size(); i += 2) CHECK(open.remove(keys[i], 1) == LogStatus::kOk);
  for (uint64_t freed = 1; freed > 0;) {
    const auto compacted = open.log.compact();
    CHECK(compacted.status == LogStatus::kOk);
    freed = compacted.freed_bytes;
  }
  CHECK(open.log.figures().free_extents >= 4);
  for (std::size_t i = 0; i < keys.size(); ++i)
    CHECK(i % 2 == 0 ? !open.log.find(keys[i]) : open.get(keys[i]) == 1);
  CHECK(open.put("more", 1, 340'000) == LogStatus::kOk);
  for (std::size_t i = 1; i < keys.size(); i += 2) CHECK(open.remove(keys[i], 1) == LogStatus::kOk);
  CHECK(open.remove("more", 1) == LogStatus::kOk);
  while (open.log.compact().freed_bytes > 0) continue;
  // Removals go with the last record that they hide: what is left is in the open extent.
  CHECK(open.log.figures().free_extents == 7 && open.log.figures().records == 0);
  CHECK(open.log.figures().removals <= 10);
}

// Appends, removes, syncs, reads and compaction at a time.
void calls_of_several_threads() {
  const Folder folder;
  constexpr int kKeys = 40;
  {
    OpenLog open(options_in(folder, 12));
    std::atomic<bool> over{false};
    std::vector<std::atomic<uint64_t>> written(2 * kKeys);
    const auto write = [&](int who) {
      std::mt19937 random(who);
      for (uint64_t generation = 1; generation <= 300; ++generation) {
        const int which = who * kKeys + static_cast<int>(random() % kKeys);
        const std::string key = "key-" + std::to_string(which);
        LogStatus status = LogStatus::kFull;
        while (status == LogStatus::kFull) {
          status = open.put(key, generation, 20'000 + random() % 60'000);
          if (status == LogStatus::kFull) std::this_thread::yield();
        }
        CHECK(status == LogStatus::kOk);
        written[which] = generation;
        if (generation % 8 == 0) CHECK(open.log.sync() == LogStatus::kOk);
      }
    };
    const auto look = [&] {
      std::mt19937 random(9);
      while (!over) {
        const int which = static_cast<int>(random() % (2 * kKeys));
        const std::string key = "key-" + std::to_string(which);
        const uint64_t before = written[which];
        const auto found = open.log.find(key);
        CHECK(before == 0 || (found && found->generation >= before));
        if (!found) continue;
        std::vector<std::byte> into(found->bytes);
        DiskLog::Read read{key, found->generation, 0, into};
        open.log.read({&read, 1});
        if (read.status == LogStatus::kNotFound) continue;  // another generation by now
        CHECK(read.status == LogStatus::kOk);
        CHECK(into == record_of(key, found->generation, into.size()));
      }
    };
    std::thread first(write, 0);
    std::thread second(write, 1);
    std::thread reader(look);
    std::thread cleaner([&] {
      while (!over) {
        CHECK(open.log.compact().status == LogStatus::kOk);
        std::this_thread::yield();
      }
    });
    first.join();
    second.join();
    over = true;
    reader.join();
    cleaner.join();
    CHECK(open.log.figures().damaged == 0);
  }
  OpenLog open(options_in(folder, 12));
  for (int which = 0; which < 2 * kKeys; ++which)
    CHECK(open.get("key-" + std::to_string(which)).has_value());
}

// As a node has it: a file of its transfer engine, which peers do not see.
void files_of_an_engine() {
  const Folder folder;
  const DiskLogOptions options = options_in(folder);
  const std::vector<std::byte> record = record_of("a", 1, 500'000);
  for (int round = 0; round < 2; ++round) {
    transfer::Engine engine({"127.0.0.1:0", net::Token(32, std::byte{7})});
    const auto segment =
        engine.add_file(file_of(options), engine.free_name(), transfer::Access::kNone, [] {});
    {
      DiskLog log(*segment->far, options);
      const LogItem item{"a", 1, record};
      if (round == 0) CHECK(log.append({&item, 1}).status == LogStatus::kOk);
      std::vector<std::byte> into(record.size());
      DiskLog::Read read{"a", 1, 0, into};
      log.read({&read, 1});
      CHECK(read.status == LogStatus::kOk && into == record);
    }
    CHECK(engine.remove(segment, true, transfer::Clock::now() + std::chrono::seconds(20)));
  }
}

void memory_of_an_index() {
  LogIndex index;
  constexpr std::size_t kKeys = 200'000;
  constexpr std::size_t kKeyBytes = 32;
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < kKeys; ++i) {
    keys.push_back(std::to_string(i) + std::string(kKeyBytes, 'k'));
    keys.back().resize(kKeyBytes);
    index.insert(keys.back()).generation = i;
  }
  CHECK(index.memory_bytes() <= kKeys * (kKeyBytes + 51));
  std::mt19937 random(3);
  std::vector<bool> there(kKeys, true);
  for (std::size_t i = 0; i < kKeys; ++i) {
    const std::size_t which = random() % kKeys;
    if (there[which]) index.erase(*index.find(keys[which]));
    there[which] = false;
  }
  for (std::size_t i = 0; i < kKeys; ++i) {
    LogRecord* const found = index.find(keys[i]);
    CHECK((found != nullptr) == there[i]);
    CHECK(found == nullptr || (found->generation == i && found->key() == keys[i]));
  }
}

}  // namespace

int main() {
  finds_records_of_all_sizes_again();
  the_newest_generation_counts();
  bad_arguments_are_refused();
  a_full_log_loses_nothing();
  calls_of_several_threads();
  files_of_an_engine();
  memory_of_an_index();
  return 0;
}

// What is left of a disk log whose process was killed, or whose file was damaged: never a wrong
// byte, and all that is whole.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>
#include <thread>

#include "../core/errors.h"
#include "disk_log_bench.h"

using namespace inlay;
using namespace inlay::store;

namespace {

constexpr uint64_t kExtent = 1 << 20;

DiskLogOptions options_of(const std::string& path, uint64_t extents = 12) {
  return {path, extents * kExtent, kExtent};
}

std::size_t size_of(std::mt19937_64& random) {
  switch (random() % 8) {
    case 0:
      return 1 + random() % 100;
    case 1:
      return 256 * 1024 + random() % 100'000;
    default:
      return 1 + random() % 20'000;
  }
}

// A log under random calls beside what it should hold.
class History {
 public:
  History(const std::string& path, unsigned seed) : options_(options_of(path)), random_(seed) {
    reopen();
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      const auto choice = random_() % 100;
      if (choice < 55) {
        append();
      } else if (choice < 80) {
        remove();
      } else if (choice < 92) {
        CHECK(open_->log.compact().status == LogStatus::kOk);
      } else if (choice < 96) {
        reopen();
      } else {
        check();
      }
    }
    check();
  }

  void check() {
    std::size_t living = 0;
    for (const auto& [key, generation] : newest_) {
      CHECK(open_->get(key) == generation);
      if (generation) ++living;
    }
    const auto figures = open_->log.figures();
    CHECK(figures.records == living && figures.damaged == 0);
  }
  void close() { open_.reset(); }
  const std::map<std::string, std::optional<uint64_t>>& newest() const { return newest_; }
  uint64_t steps_full() const { return full_; }

 private:
  void reopen() {
    open_.reset();
    open_.emplace(options_, random_() % 2 == 0);
  }
  std::string any_key() { return "key-" + std::to_string(random_() % 60); }

  void append() {
    std::vector<std::string> keys;
    std::vector<std::vector<std::byte>> records;
    const std::size_t count = 1 + random_() % 12;
    for (std::size_t i = 0; i < count; ++i) keys.push_back(any_key());
    std::vector<LogItem> items;
    const uint64_t first = generation_ + 1;
    for (std::size_t i = 0; i < count; ++i) {
      records.push_back(record_of(keys[i], ++generation_, size_of(random_)));
      items.push_back({keys[i], generation_, records.back()});
    }
    if (random_() % 4 == 0) std::ranges::reverse(items);
    const auto appended = open_->log.append(items);
    CHECK(appended.status == LogStatus::kOk || appended.status == LogStatus::kFull);
    CHECK((appended.status == LogStatus::kOk) == (appended.count == count));
    if (appended.status == LogStatus::kFull) ++full_;
    for (std::size_t i = 0; i < appended.count; ++i) {
      auto& newest = newest_[std::string(items[i].key)];
      newest = std::max(newest.value_or(0), items[i].generation);
    }
    CHECK(generation_ >= first);
    if (random_() % 3 != 0) return;
    // One that is late: an older generation than the living one.
    const std::string key = any_key();
    const auto there = newest_.find(key);
    if (there == newest_.end() || !there->second) return;
    const LogStatus late = open_->put(key, *there->second - random_() % 2, 50);
    CHECK(late == LogStatus::kOk || late == LogStatus::kFull);
    // The same generation has the same bytes, but for the length, which may be either.
  }

  void remove() {
    std::vector<std::string> keys;
    std::vector<DiskLog::Removal> removals;
    for (std::size_t i = 0; i < 1 + random_() % 5; ++i) keys.push_back(any_key());
    for (const std::string& key : keys) removals.push_back({key, generation_});
    const LogStatus status = open_->log.remove(removals);
    if (status == LogStatus::kFull) return;  // some of them, perhaps
    CHECK(status == LogStatus::kOk);
    for (const std::string& key : keys) newest_[key].reset();
  }

  const DiskLogOptions options_;
  std::mt19937_64 random_;
  std::optional<OpenLog> open_;
  std::map<std::string, std::optional<uint64_t>> newest_;
  uint64_t generation_ = 0;
  uint64_t full_ = 0;
};

void random_histories() {
  uint64_t full = 0;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    const Folder folder;
    History history(folder.file(), seed);
    history.run(250);
    full += history.steps_full();
  }
  std::printf("histories met a full log %zu times\n", static_cast<std::size_t>(full));
  CHECK(full > 0);
}

// Bytes of the file on which each whole entry and its record depend.
struct Whole {
  std::string key;
  uint64_t generation;
  bool removal;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;  // [from, to)

  bool touched(uint64_t from, uint64_t to) const {
    return std::ranges::any_of(
        ranges, [&](const auto& range) { return from < range.second && range.first < to; });
  }
  bool entry_touched(uint64_t from, uint64_t to) const {
    return from < ranges[0].second && ranges[0].first < to;
  }
};

std::vector<std::byte> bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<Whole> entries_in(std::span<const std::byte> file) {
  std::vector<Whole> all;
  for (uint64_t at = 0; at < file.size(); at += kExtent) {
    const auto extent = file.subspan(at, kExtent);
    const auto head = read_head(extent.first<kLogBlock>());
    if (!head || head->in_use == 0) continue;
    scan_extent(extent, *head, [&](const FoundEntry& found) {
      const uint64_t entry = at + found.entry.place * kGrain;
      const uint64_t record = at + found.entry.record_place * kGrain;
      const bool removal = found.entry.kind == LogEntry::kRemoval;
      Whole& whole =
          all.emplace_back(Whole{std::string(found.key), found.entry.generation, removal, {}});
      whole.ranges.push_back({entry, entry + sizeof(LogEntry) + found.key.size()});
      if (!removal) whole.ranges.push_back({record, record + found.entry.record_bytes});
    });
  }
  return all;
}

// Damages a copy of the file in [from, to), and looks at what a log makes of it.
void check_damaged(const std::string& path, const std::vector<Whole>& entries, uint64_t from,
                   uint64_t to, bool heads) {
  OpenLog open(options_of(path));
  std::map<std::string, uint64_t> newest;  // whole or not
  for (const Whole& whole : entries) {
    auto& generation = newest[whole.key];
    generation = std::max(generation, whole.generation);
  }
  std::map<std::string, std::optional<uint64_t>> there;
  for (const auto& [key, generation] : newest) there[key] = open.get(key);  // checks the bytes
  for (const Whole& whole : entries) {
    const auto found = there[whole.key];
    if (found) CHECK(*found <= newest[whole.key]);
    // A damaged record still hides what is older.
    if (!heads && whole.generation == newest[whole.key] && !whole.entry_touched(from, to))
      CHECK(!found || *found == whole.generation);
    if (heads || whole.touched(from, to) || whole.generation != newest[whole.key]) continue;
    // Of one generation there may be a removal and a record, or copies.
    const bool removed = std::ranges::any_of(entries, [&](const Whole& other) {
      return other.key == whole.key && other.generation == whole.generation && other.removal &&
             !other.touched(from, to);
    });
    if (removed) {
      CHECK(!found);
    } else if (!whole.removal) {
      CHECK(found == whole.generation);
    }
  }
  // It goes on working.
  CHECK(open.put("key-1", 1'000'000, 5000) == LogStatus::kOk || open.log.compact().freed_bytes > 0);
}

void damaged_files() {
  std::mt19937_64 random(11);
  for (unsigned seed = 20; seed < 22; ++seed) {
    const Folder folder;
    {
      History history(folder.file(), seed);
      history.run(120);
    }
    const std::vector<std::byte> whole = bytes_of(folder.file());
    const std::vector<Whole> entries = entries_in(whole);
    CHECK(entries.size() > 100);
    for (int round = 0; round < 20; ++round) {
      const std::string copy = folder.file("copy");
      std::vector<std::byte> bytes = whole;
      uint64_t from = random() % bytes.size();
      uint64_t to = from + 1;
      bool heads = false;
      if (round % 5 == 4) {  // it ends early
        to = bytes.size();
        bytes.resize(from);
        heads = true;
      } else if (round % 5 == 3) {  // a run of garbage
        to = std::min<uint64_t>(bytes.size(), from + 1 + random() % 20'000);
        for (uint64_t at = from; at < to; ++at) bytes[at] = static_cast<std::byte>(random());
        heads = from % kExtent < kLogBlock || from / kExtent != (to - 1) / kExtent;
      } else {
        if (round % 5 == 2)  // in something that counts
          from = entries[random() % entries.size()].ranges.back().first + random() % 64;
        to = from + 1;
        bytes[from] ^= static_cast<std::byte>(1 << random() % 8);
      }
      std::ofstream(copy, std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
      check_damaged(copy, entries, from, to, heads);
      std::filesystem::remove(copy);
    }
  }
}

// A damaged record is told from a whole one while the log is open, too, and can be removed.
void damage_under_an_open_log() {
  const Folder folder;
  OpenLog open(options_of(folder.file()));
  for (const std::size_t bytes : {5000, 400'000}) {
    const std::string key = std::to_string(bytes);
    CHECK(open.put(key, 1, 3000) == LogStatus::kOk);
    CHECK(open.put(key, 2, bytes) == LogStatus::kOk);
    const std::vector<std::byte> file = bytes_of(folder.file());
    for (const Whole& whole : entries_in(file)) {
      if (whole.key != key || whole.generation != 2 || whole.removal) continue;
      const int fd = ::open(folder.file().c_str(), O_RDWR);
      const auto at = static_cast<off_t>(whole.ranges[1].first + 4500);
      const std::byte other = ~file[static_cast<std::size_t>(at)];
      CHECK(pwrite(fd, &other, 1, at) == 1 && fsync(fd) == 0);
      ::close(fd);
    }
    const auto found = open.log.find(key);
    std::vector<std::byte> into(found->bytes);
    DiskLog::Read read{key, 2, 0, into};
    open.log.read({&read, 1});
    CHECK(read.status == LogStatus::kDamaged);
    CHECK(open.remove(key, 2) == LogStatus::kOk && !open.log.find(key));
  }
}

void tell(int pipe, const std::string& lines) {
  if (write(pipe, lines.data(), lines.size()) != static_cast<ssize_t>(lines.size())) _exit(4);
}

// Appends until it is killed; tells each key and generation that is in the log, 0 for one that is
// not any more, and ? before that may be so.
[[noreturn]] void write_until_killed(const std::string& path, int pipe, unsigned seed,
                                     uint64_t generation) {
  OpenLog open(options_of(path, 24));
  std::mt19937_64 random(seed);
  for (;;) {
    std::vector<std::string> keys;
    std::vector<std::vector<std::byte>> records;
    std::vector<LogItem> items;
    for (std::size_t i = 0; i < 1 + random() % 6; ++i)
      keys.push_back("key-" + std::to_string(random() % 30));
    std::ranges::sort(keys);
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    for (const std::string& key : keys)
      records.push_back(record_of(key, ++generation, size_of(random)));
    generation -= keys.size();
    for (std::size_t i = 0; i < keys.size(); ++i)
      items.push_back({keys[i], ++generation, records[i]});
    auto appended = open.log.append(items);
    while (appended.status == LogStatus::kFull) {
      const auto compacted = open.log.compact();
      if (compacted.status != LogStatus::kOk || compacted.freed_bytes == 0) _exit(1);
      appended = open.log.append(items);
    }
    if (appended.status != LogStatus::kOk) _exit(2);
    std::string told;
    for (const LogItem& item : items)
      told += std::string(item.key) + " " + std::to_string(item.generation) + "\n";
    if (random() % 3 != 0) {
      tell(pipe, told);
      continue;
    }
    tell(pipe, told + keys[0] + " ?\n");
    const DiskLog::Removal removal{keys[0], generation};
    if (open.log.remove({&removal, 1}) != LogStatus::kOk) _exit(3);
    tell(pipe, keys[0] + " 0\n");
  }
}

void killed_writers(int rounds) {
  const Folder folder;
  std::map<std::string, uint64_t> told;  // 0: removed
  std::mt19937_64 random(5);
  uint64_t last = 0;
  std::size_t all = 0;
  for (int round = 0; round < rounds; ++round) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      ::close(ends[0]);
      write_until_killed(folder.file(), ends[1], static_cast<unsigned>(random()), last + 1000);
    }
    ::close(ends[1]);
    std::string lines;
    char buffer[4096];
    // Killed at any moment after its first line.
    ssize_t count = read(ends[0], buffer, sizeof buffer);
    CHECK(count > 0);
    lines.append(buffer, static_cast<std::size_t>(count));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    kill(child, SIGKILL);
    while ((count = read(ends[0], buffer, sizeof buffer)) > 0)
      lines.append(buffer, static_cast<std::size_t>(count));
    ::close(ends[0]);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    std::size_t at = 0;
    std::string in_doubt;
    for (std::size_t end; (end = lines.find('\n', at)) != std::string::npos; at = end + 1) {
      const std::size_t space = lines.find(' ', at);
      const std::string key = lines.substr(at, space - at);
      const std::string value = lines.substr(space + 1, end - space - 1);
      if (value == "?") {
        in_doubt = key;
        continue;
      }
      in_doubt.clear();
      const uint64_t generation = std::stoull(value);
      told[key] = generation;
      last = std::max(last, generation);
      ++all;
    }
    OpenLog open(options_of(folder.file(), 24));
    for (auto& [key, generation] : told) {
      const auto found = open.get(key);
      // What was written last may be there without having been told.
      const bool right = generation == 0 ? !found || *found > last
                         : found         ? *found == generation || *found > last
                                         : key == in_doubt;
      if (!right) {
        std::fprintf(stderr, "round %d: %s was told at %llu, found at %lld; told last: %llu, %s\n",
                     round, key.c_str(), static_cast<unsigned long long>(generation),
                     found ? static_cast<long long>(*found) : -1,
                     static_cast<unsigned long long>(last), in_doubt.c_str());
        std::exit(1);
      }
      generation = found.value_or(0);
    }
    for (const auto& [key, generation] : told) last = std::max(last, generation);
  }
  std::printf("%d writers were killed, %zu records told\n", rounds, all);
}

// A disk that has less room than the log may take.
void full_disk() {
  const Folder folder;
  if (mount("none", folder.path().c_str(), "tmpfs", 0, "size=6m") != 0) {
    std::printf("no small disk: mounting needs root\n");
    return;
  }
  {
    OpenLog open(options_of(folder.file()));
    int there = 0;
    LogStatus status = LogStatus::kOk;
    while (status == LogStatus::kOk && there < 1000) {
      status = open.put("key-" + std::to_string(there), 1, 100'000);
      if (status == LogStatus::kOk) ++there;
    }
    CHECK(status == LogStatus::kFull && there > 20);
    for (int i = 0; i < there; ++i) CHECK(open.get("key-" + std::to_string(i)) == 1);
    for (int i = 0; i < there; i += 2)
      CHECK(open.remove("key-" + std::to_string(i), 1) == LogStatus::kOk);
    uint64_t freed = 0;
    for (auto compacted = open.log.compact(); compacted.freed_bytes > 0;
         compacted = open.log.compact()) {
      CHECK(compacted.status == LogStatus::kOk);
      freed += compacted.freed_bytes;
    }
    CHECK(freed > 0);
    CHECK(open.put("another", 1, 100'000) == LogStatus::kOk);
    for (int i = 1; i < there; i += 2) CHECK(open.get("key-" + std::to_string(i)) == 1);
  }
  CHECK(umount(folder.path().c_str()) == 0);
}

}  // namespace

int main() {
  killed_writers(12);
  random_histories();
  damaged_files();
  damage_under_an_open_log();
  full_disk();
  return 0;
}

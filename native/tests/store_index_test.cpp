// The index against std::map, its walks, and what an object costs.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <random>
#include <string>

#include "../store/index.h"
#include "check.h"

using namespace inlay::store;

namespace {

std::string key_of(std::mt19937_64& random, uint64_t number) {
  // Lengths on both sides of the steps in which keys are stored, and the longest.
  static constexpr std::size_t kLengths[] = {1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 1023, 1024};
  const std::size_t length = kLengths[random() % std::size(kLengths)];
  std::string key(length, 'k');
  const std::string digits = std::to_string(number);
  key.replace(0, std::min(digits.size(), length), digits.substr(0, length));
  return key;
}

void check_against_map(uint64_t seed) {
  std::mt19937_64 random(seed);
  Index index(KeyHash(seed, 7));
  std::map<std::string, ObjectId> model;
  for (int step = 0; step < 60000; ++step) {
    const std::string key = key_of(random, random() % 4000);
    const auto found = model.find(key);
    const ObjectId id = index.find(key);
    CHECK(id == (found == model.end() ? kNoObject : found->second));
    const bool grows = step % 20000 < 14000;
    if (found == model.end() && (grows || random() % 8 == 0)) {
      const ObjectId fresh = index.insert(key);
      index[fresh].generation = step;
      model.emplace(key, fresh);
    } else if (found != model.end() && (!grows || random() % 8 == 0)) {
      index.erase(id);
      model.erase(found);
    }
    CHECK(index.size() == model.size());
  }
  std::size_t used = 0;
  for (ObjectId id = 0; id < index.end(); ++id) used += index.used(id) ? 1 : 0;
  CHECK(used == model.size());
  std::vector<std::string> owned;
  std::vector<ObjectId> wanted;
  for (const auto& [name, id] : model) {
    CHECK(index.key(id) == name);
    owned.push_back(name);
    wanted.push_back(id);
    owned.push_back(name.substr(0, 3) + "?");
    wanted.push_back(kNoObject);
  }
  owned.emplace_back();
  wanted.push_back(kNoObject);
  owned.emplace_back(kMaxKeyBytes + 1, 'x');
  wanted.push_back(kNoObject);
  const std::vector<std::string_view> keys(owned.begin(), owned.end());
  std::vector<ObjectId> got(keys.size());
  index.find(keys, got);
  CHECK(got == wanted);
}

uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0;
  uint64_t resident = 0;
  statm >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// The store promises 120 bytes with everything; this is the index's part.
void check_cost() {
  Index index(KeyHash(1, 2));
  std::array<char, 33> key;
  const auto grow = [&](uint64_t to) {
    for (uint64_t i = index.size(); i < to; ++i) {
      std::snprintf(key.data(), key.size(), "%032llx", static_cast<unsigned long long>(i * 77));
      index.insert({key.data(), 32});
    }
    return resident_bytes();
  };
  const uint64_t before = grow(200'000);
  const uint64_t after = grow(1'000'000);
  const double each = static_cast<double>(after - before) / 800'000;
  std::printf("index: %.1f bytes for each object\n", each);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(each < 90);
#endif
  CHECK(index.memory_bytes() < 1'000'000 * 95);
}

}  // namespace

int main() {
  for (uint64_t seed = 1; seed <= 3; ++seed) check_against_map(seed);
  check_cost();
  return 0;
}

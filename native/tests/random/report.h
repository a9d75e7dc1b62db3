// What a random run counts, and how it ends when something is wrong.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <random>
#include <string>

namespace random_test {

inline uint64_t seed_of_run = 0;  // told in every failure

// At once, also in the middle of threads: what they hold is not the matter then.
[[noreturn]] inline void fail(const char* file, int line, const char* condition,
                              const std::string& what) {
  std::fprintf(stderr, "%s:%d: EXPECT(%s)\n  %s\n  in process %d, with --seed %llu\n", file, line,
               condition, what.c_str(), static_cast<int>(getpid()),
               static_cast<unsigned long long>(seed_of_run));
  std::fflush(stderr);
  _exit(1);
}

#define EXPECT(condition, what)                                                    \
  do {                                                                             \
    if (!(condition)) ::random_test::fail(__FILE__, __LINE__, #condition, (what)); \
  } while (false)

// By name, "operation outcome". Of any thread.
class Counts {
 public:
  void add(const std::string& name, uint64_t count = 1) {
    const std::lock_guard lock(mutex_);
    counts_[name] += count;
  }
  std::string json() const {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const auto& [name, count] : counts_)
      text += (text.empty() ? "{\"" : ", \"") + name + "\": " + std::to_string(count);
    return text + (text.empty() ? "{}" : "}");
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, uint64_t> counts_;
};

// The same numbers for the same seed, of one thread.
class Dice {
 public:
  explicit Dice(uint64_t seed) : generator_(seed) {}
  uint64_t below(uint64_t limit) { return generator_() % limit; }
  bool one_in(uint64_t n) { return below(n) == 0; }
  // From 1 to `most`, each magnitude as likely as any other.
  uint64_t magnitude(uint64_t most) {
    const auto bits = static_cast<uint64_t>(64 - __builtin_clzll(most));
    const uint64_t top = uint64_t{1} << below(bits);
    return std::min(most, top + below(top));
  }
  double seconds(double least, double most) {
    const double exponent = static_cast<double>(below(1000)) / 999;
    return least * std::pow(most / least, exponent);
  }

 private:
  std::mt19937_64 generator_;
};

}  // namespace random_test

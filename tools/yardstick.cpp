// What tools/check compiles to learn how fast a machine compiles: the time that the core may take is
// said in terms of this. Never linked. Who changes it measures `max_build_yardsticks` anew.
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <ranges>
#include <regex>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

namespace {

template <int kDepth>
struct Table {
  std::map<int, std::vector<std::string>> names;
  std::unordered_map<std::string, std::variant<int, std::string, std::vector<double>>> values;
  std::function<int(const Table<kDepth - 1>&)> next;

  int look_up(const std::string& text, const Table<kDepth - 1>& below) {
    const std::regex pattern("([a-z]+)_([0-9]+)" + std::to_string(kDepth));
    std::smatch found;
    if (std::regex_match(text, found, pattern)) {
      auto& list = names[kDepth];
      list.push_back(found[1]);
      std::ranges::sort(list, std::greater<>());
      values[found[2]] = list.back();
    }
    next = [this](const Table<kDepth - 1>& other) {
      return static_cast<int>(names.size() + other.names.size());
    };
    return next(below);
  }
};
template <>
struct Table<-1> {
  std::map<int, std::string> names;
};

template <int kDepth>
int all(const std::string& text) {
  static Table<kDepth> table;
  Table<kDepth - 1> below;
  int found = table.look_up(text, below);
  if constexpr (kDepth > 0) found += all<kDepth - 1>(text);
  return found;
}

}  // namespace

int yardstick(const std::string& text) {
  std::thread thread([&] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  thread.join();
  return all<16>(text);
}

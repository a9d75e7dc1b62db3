#include "messages.h"

#include <bit>
#include <concepts>
#include <cstring>
#include <type_traits>
#include <utility>

#include "../net/bytes.h"
#include "message_fields.h"

namespace inlay::store {

namespace {

// Takes any fields, for the question whether a type has some.
struct NoFields {
  template <typename... T>
  void operator()(T&...) {}
};

template <typename T>
concept Number = std::integral<T> && !std::same_as<T, bool>;
template <typename T>
concept Struct = requires(T& value, NoFields& none) { fields(none, value); };

class Writer {
 public:
  explicit Writer(Bytes& to) : to_(to) {}

  template <typename... T>
  void operator()(T&... values) {
    (put(values), ...);
  }

 private:
  void append(const void* data, std::size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    to_.insert(to_.end(), from, from + bytes);
  }
  // Room for so many bytes at the end.
  std::byte* room(std::size_t bytes) {
    const std::size_t at = to_.size();
    to_.resize(at + bytes);
    return to_.data() + at;
  }
  template <Number T>
  void put(T value) {
    net::store(room(sizeof(T)), static_cast<std::make_unsigned_t<T>>(value));
  }
  void put(bool value) { put(static_cast<uint8_t>(value)); }
  void put(double value) { put(std::bit_cast<uint64_t>(value)); }
  template <typename T>
    requires std::is_enum_v<T>
  void put(T value) {
    put(static_cast<uint8_t>(value));
  }
  void put(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    append(text.data(), text.size());
  }
  void put(const Uuid& uuid) { append(uuid.data(), uuid.size()); }
  template <typename T>
  void put(std::vector<T>& list) {
    put(static_cast<uint32_t>(list.size()));
    for (T& value : list) put(value);
  }
  // Of most questions these are nearly all: their room is made at once.
  void put(Keys& keys) {
    std::size_t bytes = sizeof(uint32_t);
    for (const std::string_view key : keys) bytes += sizeof(uint32_t) + key.size();
    std::byte* at = room(bytes);
    const auto number = [&at](std::size_t value) {
      net::store(at, static_cast<uint32_t>(value));
      at += sizeof(uint32_t);
    };
    number(keys.size());
    for (const std::string_view key : keys) {
      number(key.size());
      std::memcpy(at, key.data(), key.size());
      at += key.size();
    }
  }
  template <Struct T>
  void put(T& value) {
    fields(*this, value);
  }

  Bytes& to_;
};

// What a value takes at least: lists and texts are empty.
template <typename T>
std::size_t least_bytes() {
  static const std::size_t least = [] {
    Bytes bytes;
    T value{};
    Writer writer(bytes);
    writer(value);
    return bytes.size();
  }();
  return least;
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <typename... T>
  void operator()(T&... values) {
    (take(values), ...);
  }
  bool good() const { return good_ && left_.empty(); }

 private:
  std::span<const std::byte> cut(std::size_t bytes) {
    if (bytes > left_.size()) {
      good_ = false;
      left_ = {};
      return {};
    }
    const auto front = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return front;
  }
  template <Number T>
  void take(T& value) {
    const auto bytes = cut(sizeof(T));
    value = bytes.empty() ? T{} : static_cast<T>(net::load<std::make_unsigned_t<T>>(bytes.data()));
  }
  void take(bool& value) {
    uint8_t byte = 0;
    take(byte);
    good_ = good_ && byte <= 1;
    value = byte == 1;
  }
  void take(double& value) {
    uint64_t bits = 0;
    take(bits);
    value = std::bit_cast<double>(bits);
  }
  template <typename T>
    requires std::is_enum_v<T>
  void take(T& value) {
    uint8_t byte = 0;
    take(byte);
    const auto [least, most] = choices(T{});
    good_ = good_ && byte >= least && byte <= most;
    value = static_cast<T>(byte);
  }
  void take(std::string_view& text) {
    uint32_t size = 0;
    take(size);
    const auto bytes = cut(size);
    text = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void take(std::string& text) {
    std::string_view view;
    take(view);
    text = view;
  }
  void take(Uuid& uuid) {
    const auto bytes = cut(uuid.size());
    if (!bytes.empty()) std::memcpy(uuid.data(), bytes.data(), uuid.size());
  }
  template <typename T>
  void take(std::vector<T>& list) {
    uint32_t size = 0;
    take(size);
    if (size > left_.size() / least_bytes<T>()) {
      good_ = false;
      return;
    }
    list.resize(size);
    for (T& value : list) take(value);
  }
  template <Struct T>
  void take(T& value) {
    fields(*this, value);
  }

  std::span<const std::byte> left_;
  bool good_ = true;
};

template <typename List, typename Places>
bool places_are_there(const List& list, const Places& places) {
  for (const auto& one : list)
    if (one.first_place > places.size() || one.num_places > places.size() - one.first_place)
      return false;
  return true;
}
template <typename T>
bool consistent(const T&) {
  return true;
}
bool consistent(const Commit& x) { return places_are_there(x.entries, x.places); }
bool consistent(const Locate::Answer& x) { return places_are_there(x.found, x.places); }
bool consistent(const Stat::Answer& x) { return places_are_there(x.objects, x.places); }

template <typename Variant, std::size_t... kIndex>
bool decode_any(std::size_t index, std::span<const std::byte> bytes, Variant& to,
                std::index_sequence<kIndex...>) {
  const auto one = [&]<std::size_t kOne>(std::integral_constant<std::size_t, kOne>) {
    // What it was before keeps its memory; each field is decoded anew.
    auto& value = to.index() == kOne ? std::get<kOne>(to) : to.template emplace<kOne>();
    Reader reader(bytes);
    fields(reader, value);
    return reader.good() && consistent(value);
  };
  bool good = false;
  (void)((index == kIndex && (good = one(std::integral_constant<std::size_t, kIndex>()), true)) ||
         ...);
  return good;
}

template <typename Variant>
void encode_any(const Variant& from, Bytes& to) {
  Writer writer(to);
  // Fields are listed once, for both ways; a Writer changes nothing.
  std::visit([&](auto& value) { fields(writer, value); }, const_cast<Variant&>(from));
}

}  // namespace

void encode(const Question& question, Bytes& to) { encode_any(question, to); }
void encode(const Answer& answer, Bytes& to) { encode_any(answer, to); }

bool decode(std::size_t index, std::span<const std::byte> bytes, Question& question) {
  return decode_any(index, bytes, question,
                    std::make_index_sequence<std::variant_size_v<Question>>());
}
bool decode(std::size_t index, std::span<const std::byte> bytes, Answer& answer) {
  return decode_any(index, bytes, answer, std::make_index_sequence<std::variant_size_v<Answer>>());
}

}  // namespace inlay::store

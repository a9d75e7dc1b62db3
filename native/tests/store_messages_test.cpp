// Questions and answers survive their encoding; bytes that are none are refused, whatever they are.
#include <cstdio>
#include <cstring>
#include <random>

#include "../store/messages.h"
#include "check.h"

using namespace inlay::store;

namespace {

Commit some_commit() {
  Commit commit;
  for (int i = 0; i < 3; ++i) {
    Commit::Entry entry;
    entry.key = std::string_view("a key").substr(0, static_cast<std::size_t>(i + 1));
    entry.payload_bytes = 1000;
    entry.record_bytes = 1152;
    entry.generation = first_generation_of(7) + static_cast<uint64_t>(i);
    entry.group = 5;
    entry.parent = i > 0 ? "a parent" : "";
    entry.recompute_us = 1234;
    entry.flags = kMutable | kSoftPin;
    entry.wanted_replicas = 2;
    entry.if_exists = IfExists::kReplace;
    entry.on_disk = i == 1;
    entry.first_place = static_cast<uint32_t>(i);
    entry.num_places = 1;
    commit.entries.push_back(entry);
    commit.places.push_back({static_cast<SegmentId>(i), 4096U * static_cast<uint64_t>(i)});
  }
  return commit;
}

template <typename Variant>
Bytes bytes_of(const Variant& value) {
  Bytes bytes;
  encode(value, bytes);
  return bytes;
}

// A decoded question is encoded to the same bytes, so nothing of it is lost.
template <typename Variant>
void check_round_trip(const Variant& value) {
  const Bytes bytes = bytes_of(value);
  Variant again;
  CHECK(decode(value.index(), bytes, again));
  CHECK(bytes_of(again) == bytes);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    Variant none;
    CHECK(!decode(value.index(), std::span(bytes).first(cut), none));
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  CHECK(!decode(value.index(), longer, again));
}

void check_fields() {
  const Bytes bytes = bytes_of(Question(some_commit()));
  Question question;
  CHECK(decode(Question(Commit{}).index(), bytes, question));
  const auto& commit = std::get<Commit>(question);
  CHECK(commit.entries.size() == 3 && commit.entries[2].key == "a k");
  CHECK(commit.entries[1].on_disk && commit.entries[1].if_exists == IfExists::kReplace);
  CHECK(commit.entries[2].generation == first_generation_of(7) + 2);
  CHECK(epoch_of(commit.entries[2].generation) == 7);
  CHECK(commit.entries[0].parent.empty() && commit.entries[1].parent == "a parent");
  CHECK(commit.entries[1].recompute_us == 1234);
  CHECK(commit.places[2] == (Place{2, 8192}));
}

void check_refused() {
  Commit commit = some_commit();
  Question question;
  const std::size_t index = Question(Commit{}).index();
  commit.entries[2].num_places = 2;
  CHECK(!decode(index, bytes_of(Question(commit)), question));
  commit.entries[2].num_places = ~0U;
  CHECK(!decode(index, bytes_of(Question(commit)), question));
  commit = some_commit();
  commit.entries[0].if_exists = static_cast<IfExists>(3);
  CHECK(!decode(index, bytes_of(Question(commit)), question));
  // A list that claims more than can be there is refused before memory is taken for it.
  Bytes huge(4, std::byte{0xff});
  huge.resize(64);
  CHECK(!decode(0, huge, question));
  CHECK(!decode(std::variant_size_v<Question>, {}, question));
  Answer answer;
  CHECK(!decode(~std::size_t{0}, {}, answer));
}

// What was decoded refers to what is there, and reading all of it touches no other memory (which
// the address sanitizer sees).
void check_noise() {
  std::mt19937_64 random(20261122);
  Question question;
  Answer answer;
  uint64_t good = 0;
  for (int i = 0; i < 200'000; ++i) {
    Bytes bytes(random() % 200);
    for (std::byte& byte : bytes)
      byte = static_cast<std::byte>(random() % 4 == 0 ? random() % 256 : random() % 3);
    const std::size_t index = random() % (std::variant_size_v<Question> + 1);
    if (decode(index, bytes, question)) good += bytes_of(question) == bytes ? 1 : 1000000;
    if (decode(index, bytes, answer)) good += bytes_of(answer) == bytes ? 1 : 1000000;
  }
  CHECK(good > 0 && good < 1000000);
  // A few bytes of something right are changed.
  const Bytes right = bytes_of(Question(some_commit()));
  for (int i = 0; i < 100'000; ++i) {
    Bytes bytes = right;
    for (uint64_t n = random() % 4; n > 0; --n)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (!decode(Question(Commit{}).index(), bytes, question)) continue;
    for (const auto& entry : std::get<Commit>(question).entries)
      for (uint32_t p = 0; p < entry.num_places; ++p)
        CHECK(entry.first_place + p < std::get<Commit>(question).places.size());
  }
}

template <typename Variant, std::size_t... kIndex>
void check_all(std::index_sequence<kIndex...>) {
  (check_round_trip(Variant(std::in_place_index<kIndex>)), ...);
}

}  // namespace

int main() {
  check_all<Question>(std::make_index_sequence<std::variant_size_v<Question>>());
  check_all<Answer>(std::make_index_sequence<std::variant_size_v<Answer>>());
  check_round_trip(Question(some_commit()));
  Beat::Answer beat;
  beat.commands.resize(2);
  beat.commands[1].keys = {"one", "two"};
  beat.commands[1].records = {{64, 1}, {128, 2}};
  check_round_trip(Answer(std::in_place_index<18>, beat));
  Survey::Answer survey;
  survey.nodes.emplace_back().name = "a";
  survey.nodes[0].fragmentation = 0.25;
  check_round_trip(Answer(std::in_place_index<14>, survey));
  check_fields();
  check_refused();
  check_noise();
  return 0;
}

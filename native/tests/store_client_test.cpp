// Objects from put to get in one process: a master, nodes and clients without a port.
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../core/errors.h"
#include "../store/client.h"
#include "../store/local_link.h"
#include "../store/node.h"
#include "check.h"
#include "engines.h"
#include "store_running_node.h"

using namespace inlay;
using namespace inlay::store;

namespace {

Clock::time_point soon() { return Clock::now() + std::chrono::seconds(10); }

enum class Client { kMaps, kOverTcp };

class Pool {
 public:
  explicit Pool(uint64_t bytes, int nodes = 1, Client client = Client::kMaps)
      : directory_("/dev/shm/inlay-client-test-" + std::to_string(getpid())) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
    std::filesystem::permissions(directory_, std::filesystem::perms::owner_all);
    master_ = std::make_shared<LocalMaster>(MasterOptions{});
    if (client == Client::kOverTcp)
      for (auto* engine : {&node_engine_, &client_engine_})
        *engine = std::make_unique<transfer::Engine>(transfer::EngineOptions{
            .listen = "127.0.0.1:0", .token = engine_test::kToken, .transports = {"tcp"}});
    for (int i = 0; i < nodes; ++i) {
      const std::string name = "node-" + std::to_string(i);
      links_.push_back(std::make_unique<LocalLink>(master_, "default"));
      nodes_.push_back(
          std::make_unique<StoreNode>(*links_.back(), node_engine_.get(),
                                      StoreNode::Options{.name = name,
                                                         .failure_domain = name,
                                                         .directory = directory_ + "/" + name,
                                                         .memory_bytes = bytes},
                                      soon()));
    }
    links_.push_back(std::make_unique<LocalLink>(master_, "default"));
    client_ =
        std::make_unique<StoreClient>(*links_.back(), client_engine_.get(),
                                      StoreClient::Options{.may_map = client == Client::kMaps});
  }
  ~Pool() {
    client_.reset();
    nodes_.clear();
    links_.clear();
    std::filesystem::remove_all(directory_);
  }
  StoreClient& client() { return *client_; }
  MasterLink& link() { return *links_.back(); }
  std::unique_ptr<LocalLink> another_link() const {
    return std::make_unique<LocalLink>(master_, "default");
  }
  transfer::Engine& engine() { return *client_engine_; }
  // Of the record there. Segments are numbered as their nodes are.
  RecordState state_at(Place place) const {
    const std::string node = directory_ + "/node-" + std::to_string(place.segment);
    for (const auto& file : std::filesystem::directory_iterator(node)) {
      if (file.path().extension() != ".segment") continue;
      RecordHeader header{};
      std::ifstream bytes(file.path(), std::ios::binary);
      bytes.seekg(static_cast<std::streamoff>(place.offset));
      bytes.read(reinterpret_cast<char*>(&header), sizeof(header));
      CHECK(bytes && header.magic == RecordHeader::kMagic);
      return static_cast<RecordState>(header.state);
    }
    CHECK(false);
    return RecordState::kFiller;
  }

 private:
  std::string directory_;
  std::shared_ptr<LocalMaster> master_;
  std::unique_ptr<transfer::Engine> node_engine_;
  std::unique_ptr<transfer::Engine> client_engine_;
  std::vector<std::unique_ptr<LocalLink>> links_;
  std::vector<std::unique_ptr<StoreNode>> nodes_;
  std::unique_ptr<StoreClient> client_;
};

std::string text(std::size_t bytes, unsigned seed) {
  std::string made(bytes, '\0');
  std::mt19937 random(seed);
  for (char& c : made) c = static_cast<char>(random());
  return made;
}

Commit::Result put(StoreClient& client, std::string_view key, std::string_view value,
                   PutOptions options = {}) {
  const Part part{reinterpret_cast<const std::byte*>(value.data()), value.size()};
  const Value one{key, {&part, 1}};
  return client.put({&one, 1}, options, soon()).front();
}

std::optional<std::string> get(StoreClient& client, std::string_view key) {
  for (;;) {
    const auto location = client.find({&key, 1}, soon()).front();
    if (location == nullptr) return {};
    std::string value(location->payload_bytes, '\0');
    const Target target{0, reinterpret_cast<std::byte*>(value.data()), value.size()};
    const Read read{key, location, {&target, 1}};
    if (client.read({&read, 1}, soon()).front()) return value;
  }
}

void test_objects() {
  Pool pool(64 << 20);
  StoreClient& client = pool.client();
  CHECK(!get(client, "none"));
  for (const std::size_t bytes : {0ul, 1ul, 100ul, 4096ul, 100'000ul, 300'000ul, 5'000'000ul}) {
    const std::string key = "key " + std::to_string(bytes);
    const std::string value = text(bytes, static_cast<unsigned>(bytes));
    CHECK(put(client, key, value).outcome == Committed::kStored);
    CHECK(get(client, key) == value);
    const auto view = client.view(key, true, soon());
    CHECK(view && view->bytes.size() == bytes && view->copy == nullptr);
    CHECK(std::memcmp(view->bytes.data(), value.data(), bytes) == 0);
  }
  CHECK(put(client, "key 1", "other").outcome == Committed::kKept);
  CHECK(get(client, "key 1") == text(1, 1));
  CHECK(put(client, "key 1", "other", {.placement = {}, .if_exists = IfExists::kError}).outcome ==
        Committed::kExists);
  const auto first = put(client, "m", "one", {.placement = {}, .if_exists = IfExists::kReplace});
  const auto second = put(client, "m", "two", {.placement = {}, .if_exists = IfExists::kReplace});
  CHECK(second.generation > first.generation && get(client, "m") == "two");
  const std::string_view keys[] = {"m", "none", "key 0"};
  CHECK((client.exists(keys, soon()) == std::vector<bool>{true, false, true}));
  CHECK(client.remove({keys, 1}, true, soon()).front() == Removed::kRemoved);
  CHECK(!get(client, "m"));
}

// More is put than there is room for: the old goes, what a view has stays.
void test_churn() {
  Pool pool(16 << 20);
  StoreClient& client = pool.client();
  const std::string pinned = text(70'000, 1);
  CHECK(put(client, "pinned", pinned).outcome == Committed::kStored);
  const auto view = client.view("pinned", true, soon());
  for (int i = 0; i < 2000; ++i)
    CHECK(put(client, std::to_string(i), text(70'000, static_cast<unsigned>(i))).outcome ==
          Committed::kStored);
  CHECK(std::memcmp(view->bytes.data(), pinned.data(), pinned.size()) == 0);
  int found = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto value = get(client, std::to_string(i));
    if (!value) continue;
    CHECK(*value == text(70'000, static_cast<unsigned>(i)));
    ++found;
  }
  CHECK(found > 100 && found < 240);
}

// What is left at the ends of extents keeps no further ones out.
void test_extents_are_used_up() {
  Pool pool(64 << 20);
  const std::string value = text(4096, 1);
  constexpr uint64_t kPuts = 1000;  // over 16 extents of 256 KiB
  for (uint64_t i = 0; i < kPuts; ++i)
    CHECK(put(pool.client(), std::to_string(i), value).outcome == Committed::kStored);
  const Survey::Answer survey = pool.link().ask(Survey{}, soon());
  const auto granted =
      std::ranges::find(survey.counters, std::string("granted"), &Survey::Counter::name);
  CHECK(granted->value >= 16 && granted->value < 20);
}

// Readers and one writer of the same key: nobody reads an older generation than was acknowledged.
void test_generations() {
  Pool pool(32 << 20);
  StoreClient& client = pool.client();
  std::atomic<uint64_t> acknowledged{0};
  std::atomic<bool> over{false};
  put(client, "k", std::string(5000, 'a'), {.placement = {}, .if_exists = IfExists::kReplace});
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t)
    readers.emplace_back([&] {
      StoreClient own(pool.link(), nullptr, {});
      while (!over.load()) {
        const uint64_t floor = acknowledged.load();
        const std::string_view key = "k";
        const auto location = own.find({&key, 1}, soon()).front();
        CHECK(location != nullptr);
        std::string value(location->payload_bytes, '\0');
        const Target target{0, reinterpret_cast<std::byte*>(value.data()), value.size()};
        const Read read{key, location, {&target, 1}};
        if (!own.read({&read, 1}, soon()).front()) continue;
        CHECK(location->generation >= floor);
        CHECK(value == std::string(5000, value[0]));
      }
    });
  for (int i = 0; i < 500; ++i) {
    const auto result = put(client, "k", std::string(5000, static_cast<char>('a' + i % 26)),
                            {.placement = {}, .if_exists = IfExists::kReplace});
    CHECK(result.outcome == Committed::kStored);
    acknowledged.store(result.generation);
  }
  over.store(true);
  for (std::thread& reader : readers) reader.join();
}

void test_replicas() {
  Pool pool(32 << 20, 3);
  StoreClient& client = pool.client();
  for (int i = 0; i < 50; ++i) {
    const std::string key = std::to_string(i);
    CHECK(put(client, key, text(10'000, static_cast<unsigned>(i)),
              {.placement = {.replicas = 2, .all_replicas = true}})
              .outcome == Committed::kStored);
    const std::string_view view = key;
    CHECK(client.find({&view, 1}, soon()).front()->spots.size() == 2);
    CHECK(get(client, key) == text(10'000, static_cast<unsigned>(i)));
  }
  bool refused = false;
  try {
    put(client, "x", "y", {.placement = {.replicas = 4, .all_replicas = true}});
  } catch (const StoreFailure& failure) {
    refused = failure.status == StoreStatus::kUnavailable;
  }
  CHECK(refused);
}

// Another host's client: all bytes go through the engine.
[[maybe_unused]] void test_remote() {
  Pool pool(64 << 20, 2, Client::kOverTcp);
  StoreClient& client = pool.client();
  for (const std::size_t bytes : {0ul, 1ul, 4096ul, 65'536ul, 65'537ul, 300'000ul, 5'000'000ul}) {
    const std::string key = "key " + std::to_string(bytes);
    const std::string value = text(bytes, static_cast<unsigned>(bytes));
    CHECK(put(client, key, value, {.placement = {.replicas = 2}}).outcome == Committed::kStored);
    CHECK(get(client, key) == value);
    const auto view = client.view(key, true, soon());
    CHECK(view && view->copy != nullptr && view->bytes.size() == bytes);
    // Into several buffers, one of them empty, and a part alone.
    std::string whole(bytes, '\0');
    auto* to = reinterpret_cast<std::byte*>(whole.data());
    const uint64_t third = bytes / 3;
    const Target thirds[] = {
        {0, to, third}, {third, nullptr, 0}, {third, to + third, bytes - third}};
    const std::string_view name = key;
    const auto location = client.find({&name, 1}, soon()).front();
    const Read read{name, location, thirds};
    CHECK(client.read({&read, 1}, soon()).front() && whole == value);
    std::string part(third, '\0');
    const Target second{third, reinterpret_cast<std::byte*>(part.data()), third};
    const Read some{name, location, {&second, 1}};
    CHECK(client.read({&some, 1}, soon()).front() && part == value.substr(third, third));
  }
  for (int i = 0; i < 20; ++i)
    CHECK(put(client, "m", text(70'000, static_cast<unsigned>(i)),
              {.placement = {}, .if_exists = IfExists::kReplace})
              .outcome == Committed::kStored);
  CHECK(get(client, "m") == text(70'000, 19));
  CHECK(put(client, "key 1", "other").outcome == Committed::kKept);
}

// A node that the master hears of, and that nobody can write to.
void test_a_node_that_takes_nothing_is_avoided() {
  Pool pool(16 << 20, 1, Client::kOverTcp);
  const auto link = pool.another_link();
  tests::RunningNode deaf(*link, "deaf", 16 << 20);
  for (int i = 0; i < 20; ++i) {
    const std::string key = std::to_string(i);
    const std::string value = text(300'000, 1);
    const Part part{reinterpret_cast<const std::byte*>(value.data()), value.size()};
    const std::string_view name = key;
    const Value one{name, {&part, 1}};
    const auto until = Clock::now() + std::chrono::seconds(2);
    const PutOptions options{.placement = {.preferred_node = "deaf"}};
    CHECK(pool.client().put({&one, 1}, options, until).front().outcome == Committed::kStored);
    const auto location = pool.client().find({&name, 1}, soon()).front();
    CHECK(location->spots.front().reach->about.node == "node-0");
  }
  CHECK(deaf.opened() > 0 && deaf.opened() < 5);
}

// Before it tells the master of a put, the first of its replicas has closed the extent.
class ClosingLink final : public MasterLink {
 public:
  ClosingLink(MasterLink& link, Pool& pool) : link_(link), pool_(pool) {}
  void tell(const Touch& touch) override { link_.tell(touch); }
  Terms terms() const override { return link_.terms(); }
  bool connected() const override { return link_.connected(); }
  std::string address() const override { return link_.address(); }
  void close() override { link_.close(); }

  std::vector<Place> places;  // of the last put

 private:
  Answer wait(const Question& question, Clock::time_point until, bool) override {
    return std::visit(
        [&](const auto& one) -> Answer {
          using Q = std::decay_t<decltype(one)>;
          if constexpr (std::is_same_v<Q, Commit>) close_first(one);
          auto answer = link_.ask(Q(one), until);
          if constexpr (std::is_same_v<Q, Grant>) extents_ = answer.extents;
          return answer;
        },
        question);
  }
  // Questions that nobody waits for.
  void start(const Question& question, Clock::time_point until, Then then) override {
    std::visit(
        [&](const auto& one) {
          using Q = std::decay_t<decltype(one)>;
          link_.ask<Q>(Q(one), until, [then](StoreStatus status, auto answer) {
            then(status, Answer(std::move(answer)));
          });
        },
        question);
  }
  void close_first(const Commit& commit) {
    places.assign(commit.places.begin(), commit.places.end());
    for (const Extent& extent : extents_)
      if (extent.segment == places[0].segment) link_.ask(GiveBack{{extent.grant}}, soon());
    const auto end = soon();
    while (pool_.state_at(places[0]) == RecordState::kLive) {
      CHECK(Clock::now() < end);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  MasterLink& link_;
  Pool& pool_;
  std::vector<Extent> extents_;
};

// A replica that cannot be reached any more keeps no other from losing what was refused.
void test_what_was_refused_is_taken_back() {
  Pool pool(16 << 20, 2);
  CHECK(put(pool.client(), "k", "first").outcome == Committed::kStored);
  const auto link = pool.another_link();
  ClosingLink closing(*link, pool);
  StoreClient client(closing, nullptr, {});
  CHECK(put(client, "k", "second",
            {.placement = {.replicas = 2, .all_replicas = true}, .if_exists = IfExists::kError})
            .outcome == Committed::kExists);
  CHECK(closing.places.size() == 2);
  CHECK(pool.state_at(closing.places[1]) == RecordState::kFiller);
  CHECK(get(pool.client(), "k") == "first");
}

// Who was not granted an extent, or no more, writes nowhere.
void test_grants() {
  Pool pool(16 << 20, 1, Client::kOverTcp);
  const std::string value = text(300'000, 1);
  CHECK(put(pool.client(), "k", value).outcome == Committed::kStored);
  const std::string_view key = "k";
  const auto location = pool.client().find({&key, 1}, soon()).front();
  const auto remote = location->spots.front().reach->remote(soon());
  std::vector<std::byte> bytes(4096);
  const auto local = std::make_shared<transfer::Segment>(
      bytes.data(), bytes.size(), true, transfer::Access::kNone, std::string(), nullptr);
  const auto write = [&](uint64_t offset, uint64_t grant) {
    const auto batch = pool.engine().submit({{.op = transfer::Op::kWrite,
                                              .local = local,
                                              .remote = remote,
                                              .ranges = {{0, offset, bytes.size()}},
                                              .grant = grant}},
                                            10);
    while (!batch->wait(soon())) {
    }
    return batch->progress(0).error;
  };
  CHECK(write(location->spots.front().offset, 0) == Status::kGrant);
  const Grant::Answer granted = pool.link().ask(
      Grant{.bytes = 1 << 20, .least_bytes = 1 << 20, .preferred_node = {}, .avoid = {}}, soon());
  const Extent& extent = granted.extents.at(0);
  CHECK(write(extent.offset, extent.grant) == Status::kOk);
  CHECK(write(extent.offset + extent.bytes - bytes.size(), extent.grant) == Status::kOk);
  CHECK(write(extent.offset + extent.bytes - bytes.size() + 64, extent.grant) == Status::kGrant);
  CHECK(write(extent.offset, extent.grant + 1) == Status::kGrant);
  pool.link().ask(GiveBack{{extent.grant}}, soon());
  // The node closes it when the master has told it.
  const auto end = soon();
  while (write(extent.offset, extent.grant) == Status::kOk) CHECK(Clock::now() < end);
  CHECK(write(extent.offset, extent.grant) == Status::kGrant);
  CHECK(get(pool.client(), "k") == value);
}

// A master that says that the name is taken, and answers no more.
class SilentLink : public MasterLink {
 public:
  void tell(const Touch&) override {}
  Terms terms() const override { return {}; }
  bool connected() const override { return true; }
  std::string address() const override { return "test"; }
  void close() override {}

 protected:
  Answer wait(const Question&, Clock::time_point until, bool) override {
    if (asked_++ == 0) return Join::Answer{.outcome = Join::Outcome::kNameTaken, .ids = {}};
    std::this_thread::sleep_until(until);
    throw StoreFailure(StoreStatus::kTimeout, "no answer");
  }
  void start(const Question&, Clock::time_point, Then) override {}

 private:
  int asked_ = 0;
};

void test_who_waits_for_a_name_is_told_of_it() {
  const std::string directory = "/dev/shm/inlay-name-test-" + std::to_string(getpid());
  SilentLink link;
  const StoreNode::Options options{.name = "taken",
                                   .failure_domain = "",
                                   .directory = directory,
                                   .memory_bytes = uint64_t{2} << 20};
  std::string told;
  try {
    const StoreNode node(link, nullptr, options, Clock::now() + std::chrono::milliseconds(200));
  } catch (const ArgumentError& error) {
    told = error.what();
  }
  std::filesystem::remove_all(directory);
  CHECK(told.find("another name") != std::string::npos);
}

}  // namespace

int main() {
  test_objects();
  test_who_waits_for_a_name_is_told_of_it();
#if !defined(__SANITIZE_THREAD__)
  // Messages over sockets order what nodes and clients do here, which it does not see.
  test_remote();
#endif
  test_grants();
  test_a_node_that_takes_nothing_is_avoided();
  test_replicas();
  test_what_was_refused_is_taken_back();
  test_generations();
  test_churn();
  test_extents_are_used_up();
  return 0;
}

// The C interface as a C program sees it: what works, and every argument that cannot be.
#include <inlay/transfer.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace {

const char kToken[] = "sixteen bytes are the least";

template <typename T>
T sized() {
  T value{};
  value.size = sizeof(T);
  return value;
}

inlay_engine* open_engine() {
  auto options = sized<inlay_engine_options>();
  options.token = kToken;
  options.token_bytes = sizeof(kToken);
  inlay_engine* engine = nullptr;
  auto error = sized<inlay_error>();
  if (inlay_engine_open(&options, &engine, &error) != INLAY_OK) std::puts(error.text);
  CHECK(engine != nullptr);
  return engine;
}

// An engine that is its own peer, with a segment that it offers and one to copy to.
struct Fixture {
  explicit Fixture(int32_t access = INLAY_ACCESS_WRITE) : engine(open_engine()) {
    CHECK(inlay_segment_allocate(engine, kBytes, "far", access, &far, nullptr) == INLAY_OK);
    CHECK(inlay_segment_allocate(engine, kBytes, nullptr, INLAY_ACCESS_NONE, &near, nullptr) ==
          INLAY_OK);
    CHECK(inlay_peer_connect(engine, inlay_engine_address(engine), 5, &peer, nullptr) == INLAY_OK);
    CHECK(inlay_peer_segment(peer, "far", 5, &remote, nullptr) == INLAY_OK);
  }
  ~Fixture() {
    CHECK(inlay_engine_close(engine, 5, nullptr) == INLAY_OK);
    inlay_remote_release(remote);
    inlay_peer_release(peer);
    inlay_segment_release(near);
    inlay_segment_release(far);
  }

  inlay_request request(int32_t op, const inlay_range* ranges, size_t num_ranges) const {
    auto request = sized<inlay_request>();
    request.op = op;
    request.local = near;
    request.remote = remote;
    request.ranges = ranges;
    request.num_ranges = num_ranges;
    return request;
  }
  // Submits one request and waits.
  inlay_status move(int32_t op, std::vector<inlay_range> ranges, inlay_error* error = nullptr) {
    const inlay_request one = request(op, ranges.data(), ranges.size());
    inlay_batch* batch = nullptr;
    inlay_status status = inlay_submit(engine, &one, 1, nullptr, &batch, error);
    if (status == INLAY_OK) status = inlay_batch_wait(batch, -1, error);
    inlay_batch_release(batch);
    return status;
  }

  static constexpr uint64_t kBytes = 1 << 20;
  inlay_engine* engine;
  inlay_segment* near = nullptr;
  inlay_segment* far = nullptr;
  inlay_peer* peer = nullptr;
  inlay_remote* remote = nullptr;
};

void test_bytes_move() {
  Fixture f;
  auto* near = static_cast<unsigned char*>(inlay_segment_data(f.near));
  auto* far = static_cast<unsigned char*>(inlay_segment_data(f.far));
  CHECK(inlay_transfer_abi() == 1);
  CHECK(inlay_segment_bytes(f.far) == f.kBytes && inlay_remote_bytes(f.remote) == f.kBytes);
  CHECK(inlay_remote_writable(f.remote) == 1 && inlay_peer_alive(f.peer) == 1);
  for (uint64_t i = 0; i < f.kBytes; ++i) far[i] = static_cast<unsigned char>(i * 7 + (i >> 9));
  CHECK(f.move(INLAY_READ, {{0, 0, f.kBytes}}) == INLAY_OK);
  CHECK(std::memcmp(near, far, f.kBytes) == 0);
  std::memset(near, 1, f.kBytes);
  CHECK(f.move(INLAY_WRITE, {{0, 10, 5}, {100, 20, 3}}) == INLAY_OK);
  CHECK(far[10] == 1 && far[14] == 1 && far[15] == 105 && far[20] == 1 && far[23] == 161);
  // A request without ranges, and no request at all, are done.
  CHECK(f.move(INLAY_READ, {}) == INLAY_OK);
  inlay_batch* batch = nullptr;
  CHECK(inlay_submit(f.engine, nullptr, 0, nullptr, &batch, nullptr) == INLAY_OK);
  CHECK(inlay_batch_wait(batch, 0, nullptr) == INLAY_OK);
  inlay_batch_release(batch);
}

void test_batches() {
  Fixture f;
  const std::vector<inlay_range> ranges{{0, 0, 10}, {10, 100, 20}};
  const inlay_request two[] = {f.request(INLAY_READ, ranges.data(), 2),
                               f.request(INLAY_READ, ranges.data(), 1)};
  auto options = sized<inlay_submit_options>();
  options.deadline_s = INFINITY;
  options.verify = 1;
  inlay_batch* batch = nullptr;
  CHECK(inlay_submit(f.engine, two, 2, &options, &batch, nullptr) == INLAY_OK);
  CHECK(inlay_batch_wait(batch, 20, nullptr) == INLAY_OK);
  CHECK(inlay_batch_done(batch) == 1 && inlay_batch_settled(batch) == 1);
  auto status = sized<inlay_transfer_status>();
  CHECK(inlay_batch_status(batch, 0, &status, nullptr) == INLAY_OK);
  CHECK(status.done == 1 && status.code == INLAY_OK && status.bytes_done == 30);
  CHECK(inlay_batch_status(batch, 1, &status, nullptr) == INLAY_OK && status.bytes_done == 10);
  CHECK(inlay_batch_status(batch, 2, &status, nullptr) == INLAY_ARGUMENT);
  int32_t fd = -1;
  CHECK(inlay_batch_fd(batch, &fd, nullptr) == INLAY_OK);
  pollfd polled{fd, POLLIN, 0};
  CHECK(poll(&polled, 1, 0) == 1);
  int32_t settled = 0;
  CHECK(inlay_batch_cancel(batch, 1, &settled, nullptr) == INLAY_OK && settled == 1);
  CHECK(inlay_batch_wait(batch, -1, nullptr) == INLAY_OK);  // it was over before
  inlay_batch_release(batch);
  // Late at once.
  options.deadline_s = 1e-9;
  std::vector<inlay_range> all;
  for (uint64_t i = 0; i < 1000; ++i) all.push_back({0, 0, f.kBytes});
  const inlay_request large = f.request(INLAY_WRITE, all.data(), all.size());
  CHECK(inlay_submit(f.engine, &large, 1, &options, &batch, nullptr) == INLAY_OK);
  auto error = sized<inlay_error>();
  CHECK(inlay_batch_wait(batch, 20, &error) == INLAY_TIMEOUT && error.code == INLAY_TIMEOUT);
  CHECK(error.remote_settled == inlay_batch_settled(batch));
  CHECK(std::string(error.peer) == inlay_engine_address(f.engine));
  CHECK(inlay_batch_status(batch, 0, &status, nullptr) == INLAY_OK);
  CHECK(status.done == 0 && status.code == INLAY_TIMEOUT);
  inlay_batch_release(batch);
  // Cancelled while it runs, or done before that.
  CHECK(inlay_submit(f.engine, &large, 1, nullptr, &batch, nullptr) == INLAY_OK);
  CHECK(inlay_batch_wait(batch, 0, &error) == INLAY_WAIT_TIMEOUT);
  CHECK(inlay_batch_fd(batch, &fd, nullptr) == INLAY_OK);
  polled.fd = fd;
  CHECK(poll(&polled, 1, 0) == 0);
  CHECK(inlay_batch_cancel(batch, 5, &settled, nullptr) == INLAY_OK && settled == 1);
  CHECK(inlay_batch_wait(batch, -1, &error) == INLAY_CANCELLED && error.remote_settled == 1);
  CHECK(poll(&polled, 1, 0) == 1);
  inlay_batch_release(batch);
  // A handle that is released before its batch is over.
  CHECK(inlay_submit(f.engine, &large, 1, nullptr, &batch, nullptr) == INLAY_OK);
  inlay_batch_release(batch);
}

void test_ranges_and_access() {
  auto error = sized<inlay_error>();
  {
    Fixture f;
    CHECK(f.move(INLAY_READ, {{f.kBytes, 0, 1}}, &error) == INLAY_SEGMENT_RANGE);
    CHECK(std::strstr(error.text, "beyond segment 'segment-1'") != nullptr);
    for (const inlay_range range : {inlay_range{0, f.kBytes - 1, 2},
                                    {0, 0, UINT64_MAX},
                                    {UINT64_MAX, 0, 1},
                                    {0, UINT64_MAX - 4, 5}})
      CHECK(f.move(INLAY_WRITE, {{0, 0, 1}, range}, &error) == INLAY_SEGMENT_RANGE);
    CHECK(std::string(error.segment) == "far" && error.code == INLAY_SEGMENT_RANGE);
    CHECK(f.move(INLAY_WRITE, {{0, 0, 1}}, &error) == INLAY_OK);
  }
  Fixture f(INLAY_ACCESS_READ);
  CHECK(inlay_remote_writable(f.remote) == 0);
  CHECK(f.move(INLAY_WRITE, {{0, 0, 1}}, &error) == INLAY_SEGMENT_ACCESS);
  // Without an error struct, and with one of an older, smaller version.
  CHECK(f.move(INLAY_WRITE, {{0, 0, 1}}) == INLAY_SEGMENT_ACCESS);
  inlay_error small{};
  std::memset(&small, 0x55, sizeof(small));
  small.size = offsetof(inlay_error, text) + 8;
  CHECK(f.move(INLAY_WRITE, {{0, 0, 1}}, &small) == INLAY_SEGMENT_ACCESS);
  CHECK(small.code == INLAY_SEGMENT_ACCESS && std::memcmp(small.text, "segment ", 8) == 0 &&
        small.text[8] == 0x55);
}

void test_registration() {
  Fixture f;
  auto error = sized<inlay_error>();
  std::vector<char> data(1000, 7);
  inlay_segment* segment = nullptr;
  const auto add = [&](void* at, uint64_t bytes, const char* name, int32_t access) {
    return inlay_segment_register(f.engine, at, bytes, name, access, &segment, &error);
  };
  CHECK(add(nullptr, 10, "x", INLAY_ACCESS_READ) == INLAY_ARGUMENT);
  CHECK(add(data.data(), 0, "x", INLAY_ACCESS_READ) == INLAY_ARGUMENT);
  CHECK(add(data.data(), UINT64_MAX, "x", INLAY_ACCESS_READ) == INLAY_ARGUMENT);
  CHECK(add(data.data(), 10, "", INLAY_ACCESS_READ) == INLAY_ARGUMENT);
  CHECK(add(data.data(), 10, std::string(256, 'x').c_str(), INLAY_ACCESS_READ) == INLAY_ARGUMENT);
  CHECK(add(data.data(), 10, "far", INLAY_ACCESS_READ) == INLAY_ARGUMENT);
  CHECK(std::strstr(error.text, "'far'") != nullptr);
  CHECK(add(data.data(), 10, "x", 3) == INLAY_ARGUMENT);
  CHECK(add(data.data(), 10, "x", -1) == INLAY_ARGUMENT);
  CHECK(add(inlay_segment_data(f.far), 10, "x", INLAY_ACCESS_READ) == INLAY_SEGMENT_OVERLAP);
  CHECK(std::string(error.segment) == "x");
  void* pages = mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(add(pages, 8192, "pages", INLAY_ACCESS_WRITE) == INLAY_SEGMENT_ACCESS);
  CHECK(mprotect(pages, 4096, PROT_NONE) == 0);
  CHECK(add(pages, 8192, "pages", INLAY_ACCESS_READ) == INLAY_ARGUMENT);
  CHECK(munmap(pages, 8192) == 0 && segment == nullptr);

  CHECK(add(data.data(), data.size(), "data", INLAY_ACCESS_READ) == INLAY_OK);
  CHECK(inlay_segment_data(segment) == data.data());
  inlay_remote* remote = nullptr;
  CHECK(inlay_peer_segment(f.peer, "data", 5, &remote, &error) == INLAY_OK);
  CHECK(inlay_segment_deregister(segment, 0, 5, &error) == INLAY_OK);
  CHECK(inlay_segment_deregister(segment, 1, 5, &error) == INLAY_OK);
  std::swap(f.remote, remote);
  CHECK(f.move(INLAY_READ, {{0, 0, 1}}, &error) == INLAY_SEGMENT_CLOSED);
  std::swap(f.remote, remote);
  inlay_remote_release(remote);
  remote = nullptr;
  CHECK(inlay_peer_segment(f.peer, "data", 5, &remote, &error) == INLAY_SEGMENT_NOT_FOUND);
  CHECK(std::strstr(error.text, "it has 'far'") != nullptr && remote == nullptr);
  inlay_segment_release(segment);

  CHECK(inlay_segment_allocate(f.engine, 0, "y", 1, &segment, &error) == INLAY_ARGUMENT);
  CHECK(inlay_segment_allocate(f.engine, uint64_t{1} << 62, "y", 1, &segment, &error) ==
        INLAY_RESOURCE);
}

inlay_message_parts take_message(inlay_engine* engine, inlay_message** message) {
  CHECK(inlay_engine_receive(engine, 5, message, nullptr) == INLAY_OK);
  auto parts = sized<inlay_message_parts>();
  CHECK(inlay_message_look(*message, &parts, nullptr) == INLAY_OK);
  CHECK(std::strlen(parts.engine_id) == 32);
  return parts;
}

void test_messages() {
  Fixture f;
  auto error = sized<inlay_error>();
  inlay_message* message = nullptr;
  CHECK(inlay_engine_receive(f.engine, 0, &message, &error) == INLAY_WAIT_TIMEOUT);
  CHECK(inlay_peer_send(f.peer, "greeting", "hello", 5, 5, &error) == INLAY_OK);
  CHECK(inlay_peer_send(f.peer, "", nullptr, 0, 5, &error) == INLAY_OK);
  const inlay_message_parts first = take_message(f.engine, &message);
  CHECK(std::string(first.topic) == "greeting" && first.notification == 0);
  CHECK(first.bytes == 5 && std::memcmp(first.body, "hello", 5) == 0);
  inlay_message_release(message);
  CHECK(take_message(f.engine, &message).bytes == 0);
  inlay_message_release(message);

  const inlay_range range{0, 0, 100};
  const inlay_request write = f.request(INLAY_WRITE, &range, 1);
  auto options = sized<inlay_submit_options>();
  options.notification = "all there";
  options.notification_bytes = 9;
  inlay_batch* batch = nullptr;
  CHECK(inlay_submit(f.engine, &write, 1, &options, &batch, &error) == INLAY_OK);
  inlay_batch_release(batch);
  const inlay_message_parts told = take_message(f.engine, &message);
  CHECK(told.notification == 1 && std::string(told.topic).empty());
  CHECK(told.bytes == 9 && std::memcmp(told.body, "all there", 9) == 0);
  inlay_message_release(message);
  inlay_message_release(nullptr);

  batch = nullptr;
  options.notification = nullptr;
  CHECK(inlay_submit(f.engine, &write, 1, &options, &batch, &error) == INLAY_ARGUMENT);
  CHECK(inlay_peer_send(nullptr, "a", "b", 1, 5, &error) == INLAY_ARGUMENT);
  CHECK(inlay_peer_send(f.peer, nullptr, "b", 1, 5, &error) == INLAY_ARGUMENT);
  CHECK(inlay_peer_send(f.peer, "a", nullptr, 1, 5, &error) == INLAY_ARGUMENT);
  CHECK(inlay_peer_send(f.peer, std::string(256, 'a').c_str(), "b", 1, 5, &error) ==
        INLAY_ARGUMENT);
  CHECK(inlay_peer_send(f.peer, "a", "b", 1, 0, &error) == INLAY_ARGUMENT);
  const std::vector<char> large((256 << 10) + 1);
  CHECK(inlay_peer_send(f.peer, "a", large.data(), large.size(), 5, &error) == INLAY_ARGUMENT);
  CHECK(inlay_engine_receive(nullptr, 1, &message, &error) == INLAY_ARGUMENT);
  CHECK(inlay_engine_receive(f.engine, -1, &message, &error) == INLAY_ARGUMENT);
  CHECK(inlay_engine_receive(f.engine, 1, nullptr, &error) == INLAY_ARGUMENT);
  CHECK(inlay_message_look(nullptr, nullptr, &error) == INLAY_ARGUMENT && batch == nullptr);
}

void test_arguments() {
  auto error = sized<inlay_error>();
  auto options = sized<inlay_engine_options>();
  inlay_engine* engine = nullptr;
  const auto open = [&] { return inlay_engine_open(&options, &engine, &error); };
  CHECK(open() == INLAY_ARGUMENT);  // no token
  options.token_bytes = sizeof(kToken);
  CHECK(open() == INLAY_ARGUMENT);
  options.token = kToken;
  for (const size_t bytes : {size_t{15}, size_t{65}, SIZE_MAX}) {
    options.token_bytes = bytes;
    CHECK(open() == INLAY_ARGUMENT && std::strstr(error.text, "token") != nullptr);
  }
  options.token_bytes = 16;
  options.spin_us = 1000001;
  CHECK(open() == INLAY_ARGUMENT);
  options.spin_us = -1;
  for (const char* listen : {"nowhere", "127.0.0.1:", "127.0.0.1:99999", ""}) {
    options.listen = listen;
    CHECK(open() == INLAY_ARGUMENT);
  }
  options.listen = nullptr;
  for (const size_t size : {size_t{0}, size_t{4}, size_t{13}, SIZE_MAX}) {
    options.size = size;
    CHECK(open() == INLAY_ARGUMENT && std::strstr(error.text, "options.size") != nullptr);
  }
  CHECK(inlay_engine_open(nullptr, &engine, &error) == INLAY_ARGUMENT);
  // Of a later version: fine as long as its new fields are zero.
  struct {
    inlay_engine_options known;
    uint64_t later;
  } newer{options, 1};
  newer.known.size = sizeof(newer);
  CHECK(inlay_engine_open(&newer.known, &engine, &error) == INLAY_ARGUMENT);
  CHECK(inlay_engine_open(&newer.known, nullptr, &error) == INLAY_ARGUMENT);
  newer.later = 0;
  CHECK(inlay_engine_open(&newer.known, &engine, &error) == INLAY_OK);
  options.size = sizeof(options);
  options.listen = inlay_engine_address(engine);
  inlay_engine* second = nullptr;
  CHECK(inlay_engine_open(&options, &second, &error) == INLAY_ADDRESS_IN_USE && second == nullptr);
  options.listen = nullptr;
  options.num_plugins = 1;
  CHECK(inlay_engine_open(&options, &second, &error) == INLAY_ARGUMENT);
  for (const char* plugin : {"plugin.so", "/nonexistent/plugin.so", "/dev/null", ""}) {
    options.plugins = &plugin;
    CHECK(inlay_engine_open(&options, &second, &error) == INLAY_TRANSPORT_UNAVAILABLE);
    CHECK(std::strstr(error.text, plugin) != nullptr && second == nullptr);
  }
  const char* twice[] = {INLAY_TEST_PLUGIN, INLAY_TEST_PLUGIN};
  options.plugins = twice;
  CHECK(inlay_engine_open(&options, &second, &error) == INLAY_OK);
  CHECK(inlay_engine_close(second, 5, &error) == INLAY_OK);
  options.num_plugins = 2;
  CHECK(inlay_engine_open(&options, &second, &error) == INLAY_TRANSPORT_UNAVAILABLE);
  CHECK(std::strstr(error.text, "another transport has its name") != nullptr);
  CHECK(inlay_engine_close(engine, 0, &error) == INLAY_ARGUMENT);
  CHECK(inlay_engine_close(engine, 5, &error) == INLAY_OK);

  Fixture f;
  inlay_peer* peer = nullptr;
  CHECK(inlay_peer_connect(nullptr, "127.0.0.1:1", 5, &peer, &error) == INLAY_ARGUMENT);
  CHECK(inlay_peer_connect(f.engine, nullptr, 5, &peer, &error) == INLAY_ARGUMENT);
  CHECK(inlay_peer_connect(f.engine, "127.0.0.1:1", 5, nullptr, &error) == INLAY_ARGUMENT);
  CHECK(inlay_peer_connect(f.engine, "127.0.0.1:1", NAN, &peer, &error) == INLAY_ARGUMENT);
  CHECK(inlay_peer_connect(f.engine, "127.0.0.1:1", 1, &peer, &error) == INLAY_PEER_UNREACHABLE);
  CHECK(std::string(error.peer) == "127.0.0.1:1");
  inlay_remote* remote = nullptr;
  CHECK(inlay_peer_segment(nullptr, "far", 5, &remote, &error) == INLAY_ARGUMENT);
  CHECK(inlay_peer_segment(f.peer, nullptr, 5, &remote, &error) == INLAY_ARGUMENT);
  CHECK(inlay_peer_segment(f.peer, "far", -1, &remote, &error) == INLAY_ARGUMENT);
  CHECK(inlay_peer_segment(f.peer, "far", 5, nullptr, &error) == INLAY_ARGUMENT);

  const inlay_range range{0, 0, 1};
  const inlay_request good = f.request(INLAY_READ, &range, 1);
  inlay_batch* batch = nullptr;
  const auto refused = [&](auto&& change) {
    inlay_request two[] = {good, good};
    change(two[1]);
    const bool is = inlay_submit(f.engine, two, 2, nullptr, &batch, &error) == INLAY_ARGUMENT;
    return is && std::strstr(error.text, "requests[1]") != nullptr;
  };
  CHECK(refused([](inlay_request& r) { r.op = 2; }));
  CHECK(refused([](inlay_request& r) { r.local = nullptr; }));
  CHECK(refused([](inlay_request& r) { r.remote = nullptr; }));
  CHECK(refused([](inlay_request& r) { r.ranges = nullptr; }));
  CHECK(refused([](inlay_request& r) { r.size = 8; }));
  CHECK(inlay_submit(nullptr, &good, 1, nullptr, &batch, &error) == INLAY_ARGUMENT);
  CHECK(inlay_submit(f.engine, nullptr, 1, nullptr, &batch, &error) == INLAY_ARGUMENT);
  CHECK(inlay_submit(f.engine, &good, 1, nullptr, nullptr, &error) == INLAY_ARGUMENT);
  auto submit_options = sized<inlay_submit_options>();
  for (const double deadline_s : {-1.0, double{NAN}, 1e7, double{-INFINITY}}) {
    submit_options.deadline_s = deadline_s;
    CHECK(inlay_submit(f.engine, &good, 1, &submit_options, &batch, &error) == INLAY_ARGUMENT);
  }
  submit_options = sized<inlay_submit_options>();
  submit_options.verify = 2;
  CHECK(inlay_submit(f.engine, &good, 1, &submit_options, &batch, &error) == INLAY_ARGUMENT);
  CHECK(batch == nullptr);
  CHECK(inlay_batch_wait(nullptr, 1, &error) == INLAY_ARGUMENT);
  CHECK(inlay_batch_cancel(nullptr, 1, nullptr, &error) == INLAY_ARGUMENT);
  CHECK(inlay_batch_status(nullptr, 0, nullptr, &error) == INLAY_ARGUMENT);
  CHECK(inlay_batch_fd(nullptr, nullptr, &error) == INLAY_ARGUMENT);
  CHECK(inlay_submit(f.engine, &good, 1, nullptr, &batch, &error) == INLAY_OK);
  CHECK(inlay_batch_status(batch, 0, nullptr, &error) == INLAY_ARGUMENT);
  CHECK(inlay_batch_wait(batch, NAN, &error) == INLAY_ARGUMENT);
  CHECK(inlay_batch_cancel(batch, 0, nullptr, &error) == INLAY_ARGUMENT);
  CHECK(inlay_batch_wait(batch, -1, &error) == INLAY_OK);
  inlay_batch_release(batch);

  inlay_batch_release(nullptr);
  inlay_remote_release(nullptr);
  inlay_peer_release(nullptr);
  inlay_segment_release(nullptr);
  CHECK(inlay_engine_close(nullptr, 1, nullptr) == INLAY_OK);
  CHECK(inlay_segment_data(nullptr) == nullptr && inlay_segment_bytes(nullptr) == 0);
  CHECK(inlay_remote_bytes(nullptr) == 0 && inlay_remote_writable(nullptr) == 0);
  CHECK(inlay_peer_alive(nullptr) == 0 && inlay_batch_done(nullptr) == 0);
  CHECK(inlay_batch_settled(nullptr) == 0 && *inlay_engine_address(nullptr) == 0);
}

// Handles outlive their engine: their calls fail, their release works.
void test_closing() {
  inlay_engine* target = open_engine();
  inlay_engine* engine = open_engine();
  inlay_segment* near = nullptr;
  inlay_segment* far = nullptr;
  inlay_peer* peer = nullptr;
  inlay_remote* remote = nullptr;
  constexpr uint64_t kBytes = 64 << 20;
  CHECK(inlay_segment_allocate(engine, kBytes, nullptr, 0, &near, nullptr) == INLAY_OK);
  CHECK(inlay_segment_allocate(target, kBytes, "far", 1, &far, nullptr) == INLAY_OK);
  CHECK(inlay_peer_connect(engine, inlay_engine_address(target), 5, &peer, nullptr) == INLAY_OK);
  CHECK(inlay_peer_segment(peer, "far", 5, &remote, nullptr) == INLAY_OK);
  const inlay_range range{0, 0, kBytes};
  auto request = sized<inlay_request>();
  request.local = near;
  request.remote = remote;
  request.ranges = &range;
  request.num_ranges = 1;
  std::vector<inlay_batch*> batches(8);
  for (inlay_batch*& batch : batches)
    CHECK(inlay_submit(engine, &request, 1, nullptr, &batch, nullptr) == INLAY_OK);
  std::thread waiter([&] {
    for (inlay_batch* batch : batches) {
      const inlay_status status = inlay_batch_wait(batch, 20, nullptr);
      CHECK(status == INLAY_OK || status == INLAY_ENGINE_CLOSED);
    }
  });
  CHECK(inlay_engine_close(engine, 5, nullptr) == INLAY_OK);
  waiter.join();
  CHECK(inlay_peer_alive(peer) == 0);
  inlay_remote* again = nullptr;
  CHECK(inlay_peer_segment(peer, "far", 5, &again, nullptr) == INLAY_ENGINE_CLOSED);
  CHECK(inlay_batch_wait(batches.back(), 1, nullptr) == INLAY_ENGINE_CLOSED);
  static_cast<char*>(inlay_segment_data(near))[kBytes - 1] = 1;  // still there
  for (inlay_batch* batch : batches) inlay_batch_release(batch);
  inlay_segment_release(near);
  inlay_remote_release(remote);
  inlay_peer_release(peer);
  CHECK(inlay_segment_deregister(far, 1, 5, nullptr) == INLAY_OK);
  CHECK(inlay_engine_close(target, 5, nullptr) == INLAY_OK);
  inlay_segment_release(far);
}

#if !defined(__SANITIZE_THREAD__)
void test_fork() {
  Fixture f;
  const pid_t child = fork();
  if (child == 0) {
    auto error = sized<inlay_error>();
    const bool refused = f.move(INLAY_READ, {{0, 0, 1}}, &error) == INLAY_ENGINE_CLOSED &&
                         std::strstr(error.text, "fork") != nullptr &&
                         inlay_peer_alive(f.peer) == 0 &&
                         inlay_engine_close(f.engine, 5, nullptr) == INLAY_OK;
    inlay_remote_release(f.remote);
    inlay_peer_release(f.peer);
    inlay_segment_release(f.near);
    const bool own = inlay_engine_close(open_engine(), 5, nullptr) == INLAY_OK;
    _exit(refused && own ? 0 : 1);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(f.move(INLAY_READ, {{0, 0, 1}}) == INLAY_OK);
}
#endif

}  // namespace

int main() {
  test_bytes_move();
  test_batches();
  test_ranges_and_access();
  test_registration();
  test_messages();
  test_arguments();
  test_closing();
#if !defined(__SANITIZE_THREAD__)
  test_fork();
#endif
}

// Messages that peers sent to this engine, until someone takes them.
//
//   u64 number   u64 floor   u8 notification   u8 topic's bytes   topic, body
//
// A message is sent again until it is acknowledged, so it may come twice. Its number tells: one
// sender's messages have rising numbers, and it is done with those below `floor`.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "completions.h"
#include "transport.h"

namespace inlay::transfer {

struct Message {
  net::EngineId from;
  bool notification;  // of a batch: its bytes are complete
  std::string topic;
  Bytes body;
};

class Arrivals {
 public:
  // What messages are sent to; see net::encode_question().
  static constexpr std::string_view kName = "messages";
  static constexpr std::size_t kMaxTopicBytes = 255;
  static constexpr std::size_t kMaxBodyBytes = std::size_t{256} << 10;
  // Of those that nobody took. Beyond that senders are told to try again.
  static constexpr std::size_t kMaxMessages = 1024;
  static constexpr std::size_t kMaxBytes = std::size_t{16} << 20;

  // Answers a question: kOk and one byte, 0 for taken, 1 for full.
  Transport::Answer take(const net::EngineId& from, std::span<const std::byte> question);

  // The oldest; waits for one at most until then. False: none came, or close() was called.
  bool receive(Message& message, Clock::time_point until);
  // Tells when there is a message; false: there is one now, or there will be none.
  bool tell(std::shared_ptr<Listener> listener, uint64_t key);
  void close();

 private:
  // Numbers that one sender may still repeat.
  struct Sender {
    uint64_t floor = 0;
    std::set<uint64_t> taken;
  };
  // Engines that are remembered; the one that was heard of first goes.
  static constexpr std::size_t kMaxSenders = 16384;

  void tell_all();  // locked

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::size_t bytes_ = 0;
  std::deque<Message> messages_;
  std::map<net::EngineId, Sender> senders_;
  std::deque<net::EngineId> known_;  // in the order of their first message
  std::vector<std::pair<std::shared_ptr<Listener>, uint64_t>> told_;
};

}  // namespace inlay::transfer

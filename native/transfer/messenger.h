// Messages to peers: numbered, and kept and sent again until the peer has acknowledged them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "arrivals.h"
#include "batch.h"
#include "completions.h"
#include "peer.h"

namespace inlay::transfer {

class Messenger final : public Listener, public std::enable_shared_from_this<Messenger> {
 public:
  explicit Messenger(net::Loop& loop) : loop_(loop) {}

  // Returns when the peer has the message. Throws ArgumentError, or TransferFailure: kTimeout, what
  // the peer was lost with, kEngineClosed; then it may have arrived nevertheless. `interrupted` is
  // asked each 100 ms.
  void send(const std::shared_ptr<Peer>& peer, const std::string& topic, Bytes body,
            double timeout_s, const std::function<void()>& interrupted);
  // Throws ArgumentError for what is too long.
  static void check(const std::string& topic, const Bytes& body);

  // Sends the notification to those peers when the batch is done: not if it fails. Then it is
  // tried until the deadline.
  void notify_after(Batch& batch, std::vector<std::shared_ptr<Peer>> peers, const Bytes& body,
                    Clock::time_point deadline);
  void over(uint64_t key) override;

  // Tries again what is due. Returns when to be called next.
  Clock::time_point tick(Clock::time_point now);
  void close();

 private:
  using Then = std::function<void(Status)>;
  struct Outgoing {
    std::shared_ptr<Peer> peer;
    Bytes text;  // all but number and floor
    Clock::time_point deadline;
    Clock::time_point next_try{};
    Clock::duration pause = std::chrono::milliseconds(1);
    bool asked = false;
    Then then;
  };
  struct Notification {
    std::weak_ptr<Batch> batch;
    std::vector<std::shared_ptr<Peer>> peers;
    Bytes text;
    Clock::time_point deadline;
  };

  void post(std::shared_ptr<Peer> peer, Bytes text, Clock::time_point deadline, Then then);
  void ask(uint64_t number);
  void answered(uint64_t number, Status status, const Bytes& answer);
  void finish(uint64_t number, Status status);
  void send_notification(uint64_t key);

  net::Loop& loop_;
  std::mutex mutex_;
  bool closed_ = false;
  uint64_t last_number_ = 0;
  std::map<uint64_t, Outgoing> outgoing_;  // by number
  uint64_t last_key_ = 0;
  std::map<uint64_t, Notification> notifications_;
};

}  // namespace inlay::transfer

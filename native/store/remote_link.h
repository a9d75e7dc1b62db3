// A master over TCP.
//
// One connection, which is made again when it is lost, and a thread that minds it. Who waits for an
// answer receives it itself: it takes the socket from the thread, and looks for the answer a while
// before it sleeps, since a thread that sleeps takes longer to wake than most answers take to come.
// The thread gets the socket back when it is next due: else it would be woken by each answer that
// comes before its asker looks for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../net/dial.h"
#include "../net/loop.h"
#include "frames.h"
#include "master_link.h"

namespace inlay::store {

struct RemoteLinkOptions {
  std::vector<std::string> addresses;  // of the masters of one store, as "127.0.0.1:50051"
  net::Token token;
  Uuid client{};     // all 0: drawn
  int spin_us = 50;  // so long who waits looks for an answer before it sleeps
  // Without a sign of life for so long, the connection is given up.
  std::chrono::milliseconds silence{2000};
};

class RemoteLink final : public MasterLink {
 public:
  // Connects in the background. Throws ArgumentError for options that cannot be.
  explicit RemoteLink(RemoteLinkOptions options);
  ~RemoteLink() override;
  RemoteLink(const RemoteLink&) = delete;
  RemoteLink& operator=(const RemoteLink&) = delete;

  void tell(const Touch& touch) override;
  Terms terms() const override;
  bool connected() const override;
  std::string address() const override;
  void close() override;

  // The masters to try from now on; the connection stays if it is to one of them.
  void set_addresses(std::vector<std::string> addresses);

 private:
  struct Connection {
    net::Descriptor socket;
    std::string address;
    net::Loop::Id loop_id = 0;
    uint32_t events = 0;
    bool minded = false;  // by the thread, also while no answer is waited for but to pings
    bool lost = false;
    Bytes in;
    std::size_t end = 0;
    Bytes out;
    std::size_t sent = 0;
    Clock::time_point heard = Clock::now();
    Clock::time_point pinged{};
  };
  struct Pending {
    std::size_t kind;
    Bytes frame;
    Clock::time_point until;
    Then then;  // null: somebody waits
    bool done = false;
    StoreStatus status = StoreStatus::kOk;
    Answer answer;
  };
  struct Told {
    Then then;
    StoreStatus status;
    Answer answer;
  };
  class Events;

  Answer wait(const Question& question, Clock::time_point until, bool while_connected) override;
  void start(const Question& question, Clock::time_point until, Then then) override;

  // All of these with the lock held.
  std::shared_ptr<Pending> post(const Question& question, Clock::time_point until, Then then);
  void send(const Bytes& frame);
  void flush();
  bool pump();
  void take(const Frame& frame);
  void take_welcome(const Frame& frame);
  void finish(uint64_t serial, StoreStatus status, Answer answer);
  void fail_all(StoreStatus status);
  void lose(const std::string& why);
  void watch();
  void expire(Clock::time_point now);

  // On the loop's thread.
  void dial();
  void dialled(net::Dial::Result result);
  Clock::time_point tick(Clock::time_point now);
  void tell_all();
  [[noreturn]] void fail(StoreStatus status) const;

  const RemoteLinkOptions options_;
  const Credential credential_;
  Uuid client_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // an answer to who waits, or nobody drives any more
  std::vector<std::string> addresses_;
  std::size_t next_address_ = 0;
  std::shared_ptr<Connection> connection_;
  bool welcome_ = false;  // the master has greeted: questions may be sent
  bool driven_ = false;   // somebody who waits receives
  bool closed_ = false;
  Terms terms_{};
  StoreStatus refused_ = StoreStatus::kOk;  // why the last master was of no use
  std::string problem_ = "no connection was made yet";
  uint64_t last_serial_ = 0;
  std::map<uint64_t, std::shared_ptr<Pending>> pending_;
  std::size_t told_later_ = 0;  // of these, answers that the thread has to receive
  std::vector<Told> told_;
  std::shared_ptr<net::Dial> dial_;
  Clock::time_point dialled_{};
  Clock::time_point dial_again_{};
  std::chrono::milliseconds pause_{0};
  net::Loop loop_;
};

}  // namespace inlay::store

// A path of a transport from a shared library. It keeps the book of attempts: what the library
// tells twice, too late or of nothing reaches nobody.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../include/inlay/transport.h"
#include "transport.h"

struct inlay_host_path {};

namespace inlay::transfer {

// As libraries are told of it.
inlay_local told_of(const Segment& segment);

class PluginPath final : public Path,
                         public inlay_host_path,
                         public std::enable_shared_from_this<PluginPath> {
 public:
  using Ops = std::shared_ptr<const inlay_transport_ops>;

  // `lost` is called on the loop's thread when the path has ended by itself.
  PluginPath(const std::shared_ptr<PathOwner>& owner, net::Loop& loop, Ops ops,
             std::function<void()> lost)
      : ops_(std::move(ops)),
        transport_(ops_->name),
        owner_(owner),
        loop_(loop),
        tell_lost_(std::move(lost)) {}
  ~PluginPath() override { (void)end(Status::kEngineClosed); }

  // What the library's connect() made; nothing is called before. Throws ResourceError: the library
  // has to let go of it.
  void open(const inlay_new_path& made);

  std::string_view transport() const override { return transport_; }
  std::string name() const override { return name_; }
  std::optional<Reach> reach(const Segment& local, const RemoteSegment& remote,
                             Op op) const override;
  PostResult post(Attempt& attempt) override;
  void kick() override;
  bool pump() override;
  bool try_drive(const net::WakeUp& driver) override;
  void stop_driving(const net::WakeUp& driver) override;
  pollfd sleep_on() override;
  void revoke(const void* owner) override { stop(owner, false); }
  void abandon(const void* owner) override { stop(owner, true); }
  void close(Status why) override { (void)end(why); }
  Bytes fence() const override { return wrote_.load() ? fence_ : Bytes(); }

  // What the library tells, on any thread.
  void ended(uint64_t id, inlay_status code, bool settled);
  void settled(uint64_t id);
  void lost(inlay_status code);

 private:
  class Call;
  class Watch;
  using Book = std::unordered_map<uint64_t, Attempt*>;

  bool end(Status why);  // false: it was over before
  void end_later(Status why);
  void stop(const void* owner, bool at_once);
  void fill(std::shared_ptr<PathOwner> owner);
  // With mutex_ held:
  void take_out(Book::iterator attempt, Status status, bool settled);
  void end_doubt(uint64_t id, PathOwner* owner);

  const Ops ops_;
  const std::string transport_;
  const std::weak_ptr<PathOwner> owner_;
  net::Loop& loop_;
  const std::function<void()> tell_lost_;
  void* self_ = nullptr;
  std::string name_;
  Bytes fence_;
  std::shared_ptr<Watch> watch_;  // null: the library's own threads move all

  std::mutex calls_;  // one call into the library at a time
  std::atomic<int> calling_{0};
  std::vector<inlay_piece> pieces_;   // guarded by it
  mutable std::shared_mutex living_;  // of reach(), which comes beside calls
  bool over_ = true;                  // read with either, changed with both

  std::mutex mutex_;  // of the books, also inside calls
  Status closed_ = Status::kEngineClosed;
  Status lost_ = Status::kOk;
  uint64_t last_id_ = 0;
  Book taken_;
  Book doubtful_;  // reported, but not settled
  std::atomic<bool> wrote_{false};

  std::mutex driving_;
  int drivers_ = 0;
};

}  // namespace inlay::transfer

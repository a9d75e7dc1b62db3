#include "cuda_buffers.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "../core/status.h"

namespace inlay::transfer {

namespace {

// A device that does not answer may take so long to give up what it has begun.
constexpr std::chrono::seconds kGivingUp(1);

}  // namespace

// Moves that somebody waits for. It lives until the last is over, and what they touch with it.
class CudaBuffers::Moves : public std::enable_shared_from_this<Moves> {
 public:
  explicit Moves(bool write) : write_(write) {}

  void add(const Stand& stand, uint64_t offset, uint64_t bytes) {
    if (bytes == 0) return;
    if (stands_.empty() || stands_.back().device != stand.device) {
      moves_.push_back(stand.device->move(
          write_, [self = shared_from_this(), memory = stand.device.get()](Status status) {
            self->ended(status, *memory);
          }));
      stands_.push_back(stand);
    }
    moves_.back()->add(offset, stand.host.get() + offset, bytes);
  }

  void run(net::Clock::time_point until) {
    left_ = moves_.size();
    for (const auto& move : moves_) move->start();
    std::unique_lock lock(mutex_);
    const auto over = [this] { return left_ == 0; };
    const bool in_time = over_.wait_until(lock, until, over);
    if (!in_time) {
      lock.unlock();
      for (const auto& move : moves_) move->cancel();
      lock.lock();
      abandoned_ = !over_.wait_for(lock, kGivingUp, over);
    }
    const std::string problem = problem_;
    const Status failure = failure_;
    lock.unlock();
    if (!abandoned_) {
      moves_.clear();  // they hold this object
      stands_.clear();
    }
    if (!in_time)
      throw TransferFailure(Status::kTimeout, "a device did not copy its bytes in the call's time");
    if (failure != Status::kOk) throw TransferFailure(failure, problem);
  }

 private:
  void ended(Status status, const CudaMemory& memory) {
    std::vector<Stand> memory_of_them;
    std::vector<std::unique_ptr<FarMove>> unneeded;
    const std::lock_guard lock(mutex_);
    if (status != Status::kOk && failure_ == Status::kOk) {
      failure_ = status;
      problem_ = memory.problem().text;
    }
    if (--left_ > 0) return;
    if (abandoned_) {
      unneeded = std::move(moves_);
      memory_of_them = std::move(stands_);
    }
    over_.notify_all();
  }

  const bool write_;
  std::vector<Stand> stands_;
  std::vector<std::unique_ptr<FarMove>> moves_;
  std::mutex mutex_;
  std::condition_variable over_;
  std::size_t left_ = 0;
  bool abandoned_ = false;
  Status failure_ = Status::kOk;
  std::string problem_;
};

std::span<std::byte> CudaBuffers::add(net::cuda::Address address, uint64_t size,
                                      std::shared_ptr<const void> keeper) {
  Stand stand{devices_->open(address, size, std::move(keeper)),
              std::make_unique_for_overwrite<std::byte[]>(size)};
  std::byte* const host = stand.host.get();
  stands_.emplace(host, std::move(stand));
  return {host, size};
}

void CudaBuffers::fetch(net::Clock::time_point until) {
  if (stands_.empty()) return;
  const auto moves = std::make_shared<Moves>(false);
  for (const auto& [host, stand] : stands_) moves->add(stand, 0, stand.device->size);
  moves->run(until);
}

void CudaBuffers::send(std::span<const Piece> pieces, net::Clock::time_point until) {
  if (stands_.empty()) return;
  std::vector<Piece> sorted(pieces.begin(), pieces.end());
  std::ranges::sort(sorted, {}, &Piece::host);
  const auto moves = std::make_shared<Moves>(true);
  for (const auto& [host, bytes] : sorted) {
    const auto after = stands_.upper_bound(host);
    if (after == stands_.begin()) continue;
    const auto& [begin, stand] = *std::prev(after);
    const auto offset = static_cast<uint64_t>(host - begin);
    if (offset < stand.device->size) moves->add(stand, offset, bytes);
  }
  moves->run(until);
}

}  // namespace inlay::transfer

#include "cuda_memory.h"

#include <sstream>
#include <utility>

namespace inlay::transfer {

using net::cuda::Address;
using net::cuda::Copies;
using net::cuda::Device;

class CudaMove final : public FarMove {
 public:
  CudaMove(CudaMemory& memory, Device::Way way, bool write, Done done)
      : memory_(memory),
        way_(way),
        write_(write),
        copies_(
            std::make_shared<Copies>([&memory, done = std::move(done)](net::cuda::Result result) {
              done(memory.status_of(result));
            })) {}

  void add(uint64_t offset, std::byte* host, uint64_t bytes) override {
    const Address far = memory_.address + offset;
    const auto near = reinterpret_cast<Address>(host);
    copies_->add(write_ ? far : near, write_ ? near : far, bytes);
  }
  void start() override { memory_.device().copy(way_, copies_); }
  void cancel() override { copies_->cancel(); }

 private:
  CudaMemory& memory_;
  const Device::Way way_;
  const bool write_;
  const std::shared_ptr<Copies> copies_;
};

std::unique_ptr<FarMove> CudaMemory::move(bool write, FarMove::Done done) {
  const Device::Way way = write ? Device::Way::kIn : Device::Way::kOut;
  return std::make_unique<CudaMove>(*this, way, write, std::move(done));
}

std::unique_ptr<FarMove> CudaMemory::move_between(bool write, FarMove::Done done) {
  return std::make_unique<CudaMove>(*this, Device::Way::kBetween, write, std::move(done));
}

FarMemory::Problem CudaMemory::problem() const {
  const std::lock_guard lock(mutex_);
  return {0, problem_};
}

Status CudaMemory::status_of(net::cuda::Result result) {
  if (result == net::cuda::kSuccess) return Status::kOk;
  if (result == Copies::kCancelled) return Status::kCancelled;
  std::ostringstream text;
  text << device_->name() << ", " << size << " bytes at 0x" << std::hex << address << ": "
       << net::cuda::error_text(device_->driver(), "cuMemcpyAsync", result);
  const std::lock_guard lock(mutex_);
  problem_ = text.str();
  return Status::kDevice;
}

}  // namespace inlay::transfer

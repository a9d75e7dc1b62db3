// The initiator's paths to device memory.
//
//                          local host memory          local device memory
//   an engine of this process: CudaOwnPath
//     its device memory    copied in or out           copied between devices, or within one
//     its host memory      (transport local)          copied in or out
//   another process of this host: CudaPeerPath
//     its device memory    mapped, copied in or out   mapped, copied between devices
//     its host memory      (transport shm)            (staged, over shm)
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "../net/side_channel.h"
#include "cuda_devices.h"
#include "cuda_memory.h"
#include "cuda_messages.h"
#include "door.h"
#include "far_path.h"

namespace inlay::transfer {

class CudaOwnPath final : public FarPath {
 public:
  // `is_own`: the door is this engine's own, which needs no remote access.
  CudaOwnPath(std::weak_ptr<PathOwner> owner, std::shared_ptr<Door> door, bool is_own)
      : FarPath(std::move(owner)), door_(std::move(door)), is_own_(is_own) {}

  std::string_view transport() const override { return "cuda"; }
  std::string name() const override { return "cuda, this process"; }
  std::optional<Reach> reach(const Segment& local, const RemoteSegment& remote,
                             Op op) const override;

 private:
  Prepared prepare(const Slice& slice) override;

  const std::shared_ptr<Door> door_;
  const bool is_own_;
};

class CudaPeerPath final : public FarPath, public net::Handler {
 public:
  CudaPeerPath(std::weak_ptr<PathOwner> owner, net::Loop& loop,
               std::shared_ptr<const CudaDevices> devices, net::Descriptor socket, int32_t pid);

  // Registers with the loop. Once.
  void listen();

  std::string_view transport() const override { return "cuda"; }
  std::string name() const override { return "cuda process " + std::to_string(pid_); }
  std::optional<Reach> reach(const Segment& local, const RemoteSegment& remote,
                             Op op) const override;
  void close(Status why) override;
  // Nobody but this process moves bytes, so what is reported is settled.

  bool on_events(uint32_t events) override;

 private:
  using SegmentName = std::pair<uint32_t, uint32_t>;  // slot, epoch
  // A segment of the peer that is mapped here. Its end tells the owner.
  struct Opened {
    ~Opened();
    std::weak_ptr<CudaPeerPath> path;
    SegmentName name;
    uint64_t size;
    bool writable;
    std::shared_ptr<CudaMemory> memory;  // which keeps the mapping
  };
  struct Known {
    std::shared_ptr<Opened> opened;  // null: asked for
    Status problem = Status::kOk;    // why it is not to be had
  };

  Prepared prepare(const Slice& slice) override;
  void send(ipc::Kind kind, const SegmentName& segment);
  bool receive();
  void take(std::span<const std::byte> bytes);
  void take_opened(const ipc::OpenedMessage& answer);
  void take_closed(const SegmentName& segment);
  std::shared_ptr<Opened> map(const ipc::OpenedMessage& answer);
  void let_go_of_all();
  void end();

  net::Loop& loop_;
  const std::shared_ptr<const CudaDevices> devices_;
  const net::Descriptor socket_;
  const int32_t pid_;
  std::atomic<bool> over_{false};
  net::SideMessage message_;  // of the loop's thread

  mutable std::mutex unreachable_mutex_;
  std::set<SegmentName> unreachable_;  // which the driver did not map
  std::atomic<bool> any_unreachable_{false};

  std::mutex opening_;  // while a segment is mapped; taken before mutex_
  std::mutex sending_;  // the last to be taken
  net::Loop::Id loop_id_ = 0;
  net::SideOutbox outbox_;

  std::map<SegmentName, Known> known_;  // guarded by mutex_
};

}  // namespace inlay::transfer

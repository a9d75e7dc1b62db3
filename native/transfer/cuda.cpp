#include "cuda.h"

#include <poll.h>
#include <unistd.h>

#include <array>

#include "../core/errors.h"
#include "cuda_path.h"
#include "cuda_server.h"

namespace inlay::transfer {

namespace cuda = net::cuda;

CudaTransport::CudaTransport(const Site& site)
    : site_(site), devices_(std::make_shared<CudaDevices>(site.spin_us)) {
  if (site.by_name)
    (void)cuda::start_driver(problem_);
  else
    (void)cuda::load_driver(problem_);
  if (!problem_.empty()) return;
  door_ = open_door(site_.engine, site_.segments);
  try {
    server_ = std::make_shared<CudaServer>(site_, net::listen_side());
    server_->start();
  } catch (const ResourceError&) {
    server_ = nullptr;  // peers reach our devices by staging
  }
}

CudaTransport::~CudaTransport() { close(); }

std::string CudaTransport::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

const cuda::Driver& CudaTransport::start() {
  try {
    return CudaDevices::start();
  } catch (const TransferFailure&) {
    const std::lock_guard lock(mutex_);
    (void)cuda::start_driver(problem_);
    throw;
  }
}

CudaTransport::Found CudaTransport::open(cuda::Address address, uint64_t size,
                                         std::shared_ptr<const void> keeper) {
  (void)start();
  auto memory = devices_->open(address, size, std::move(keeper));
  const auto number = static_cast<uint16_t>(memory->device().number);
  return {std::move(memory), {net::Place::kDevice, number}};
}

void CudaTransport::note(const Segment& segment, const CudaMemory& memory) {
  const std::lock_guard lock(mutex_);
  const auto after = attached_.lower_bound(memory.address);
  const auto compare = [&](const Segment& other) {
    const auto& there = *dynamic_cast<const CudaMemory*>(other.far);
    if (there.address >= memory.address + memory.size ||
        memory.address >= there.address + there.size)
      return;
    throw TransferFailure(Status::kSegmentOverlap,
                          "segment '" + segment.name + "' would overlap the open segment '" +
                              other.name + "': deregister that one, or use a part of it",
                          segment.name);
  };
  if (after != attached_.end()) compare(*after->second);
  if (after != attached_.begin()) compare(*std::prev(after)->second);
  attached_[memory.address] = &segment;
}

Bytes CudaTransport::attach(Segment& segment) {
  const auto* memory = dynamic_cast<const CudaMemory*>(segment.far);
  if (memory == nullptr) return {};
  note(segment, *memory);
  if (segment.access == Access::kNone || server_ == nullptr) return {};
  const cuda::Device::Shared shared = memory->device().share(memory->address, memory->size);
  if (!shared.problem.empty()) return {};
  server_->offer(segment, memory->device(), shared);
  const ipc::Key key{memory->device().uuid()};
  const auto bytes = ipc::bytes_of(key);
  return {bytes.begin(), bytes.end()};
}

bool CudaTransport::detach(Segment& segment, Clock::time_point until) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(attached_, [&](const auto& each) { return each.second == &segment; });
  }
  // Own copies are users of the segment, which its owner waits for.
  return server_ == nullptr || server_->withdraw(segment, until);
}

Bytes CudaTransport::offer() {
  const net::ProcessId self = net::this_process();
  ipc::Offer offer;
  offer.pid = self.pid;
  offer.start_time = self.start_time;
  offer.host = shm::this_host();
  offer.mark = net::this_process_mark();
  if (server_ != nullptr) {
    offer.name = server_->name();
    offer.ticket = server_->ticket();
  }
  const auto bytes = ipc::bytes_of(offer);
  return {bytes.begin(), bytes.end()};
}

Transport::Connected CudaTransport::connect(const std::shared_ptr<PathOwner>& peer,
                                            std::span<const std::byte> bytes,
                                            Clock::time_point end) {
  const auto offer = ipc::read_as<ipc::Offer>(bytes);
  if (!offer) return {{}, "it offers no device memory"};
  const char* elsewhere = nullptr;
  if (auto door = find_door(peer->engine_id(), offer->mark.value, elsewhere))
    return {{std::make_shared<CudaOwnPath>(peer, door, door == door_)}, {}};
  std::string problem = shm::difference(*offer);
  if (!problem.empty()) return {{}, problem};
  net::Descriptor socket = net::connect_side(offer->name, end, problem);
  if (!socket.valid()) return {{}, problem};
  const auto who = net::credentials_of(socket);
  if (!who || who->pid != offer->pid || who->user != geteuid())
    return {{}, "its Unix socket is held by another process"};
  ipc::Hello hello;
  hello.ticket = offer->ticket;
  hello.start_time = net::this_process().start_time;
  net::SideMessage answer;
  if (net::send_side(socket, ipc::bytes_of(hello)) != net::SideIo::kDone ||
      !net::wait_for(socket, POLLIN, end, [] {}) ||
      net::receive_side(socket, answer) != net::SideIo::kDone)
    return {{}, "its Unix socket does not answer"};
  const auto welcome = ipc::read_as<ipc::SegmentMessage>(answer.bytes());
  if (!welcome || welcome->kind != ipc::Kind::kWelcome)
    return {{}, "its Unix socket answers no Inlay engine"};
  const auto path =
      std::make_shared<CudaPeerPath>(peer, site_.loop, devices_, std::move(socket), offer->pid);
  path->listen();
  return {{path}, {}};
}

Clock::time_point CudaTransport::tick(Clock::time_point now) {
  if (server_ != nullptr) server_->resume();
  return Transport::tick(now);
}

void CudaTransport::close() {
  if (door_ != nullptr) close_door(site_.engine);
  if (server_ != nullptr) server_->stop();
  devices_->stop();
}

CudaFound find_cuda() {
  CudaFound found;
  const cuda::Driver* driver = cuda::start_driver(found.problem);
  if (driver == nullptr) return found;
  const int count = cuda::count_devices(*driver);
  for (int i = 0; i < count; ++i) {
    cuda::DeviceNumber device = 0;
    std::array<char, 128> name{};
    if (driver->device_get(&device, i) != cuda::kSuccess ||
        driver->device_name(name.data(), name.size() - 1, device) != cuda::kSuccess)
      continue;
    found.devices.push_back("cuda:" + std::to_string(i) + " " + name.data());
  }
  return found;
}

}  // namespace inlay::transfer

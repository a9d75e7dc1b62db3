#include "shm.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>

#include "../core/errors.h"
#include "shm_path.h"

namespace inlay::transfer {

namespace shm {

Host this_host() {
  Host host;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  file.getline(host.boot.data(), host.boot.size());
  struct stat name_space{};
  if (stat("/proc/self/ns/pid", &name_space) == 0) host.pid_namespace = name_space.st_ino;
  host.user = geteuid();
  return host;
}

std::string difference(const Offer& offer) {
  const Host here = this_host();
  if (offer.version != kVersion)
    return "it shares memory by version " + std::to_string(offer.version) +
           " of the rules, this engine by " + std::to_string(kVersion);
  if (here.boot[0] == 0) return "/proc/sys/kernel/random/boot_id cannot be read here";
  if (offer.host.boot != here.boot) return "it is on another host";
  if (offer.host.user != here.user)
    return "it runs as user " + std::to_string(offer.host.user) + ", this process as " +
           std::to_string(here.user);
  if (offer.host.pid_namespace != here.pid_namespace) return "it is in another PID namespace";
  const net::ProcessId self = net::this_process();
  if (offer.pid == self.pid && offer.start_time == self.start_time) return "it is this process";
  if (!net::is_alive({offer.pid, offer.start_time}))
    return "process " + std::to_string(offer.pid) + " is not visible here";
  return {};
}

namespace {

bool greet(const net::Descriptor& socket, const Offer& offer, const net::EngineId& engine,
           Clock::time_point end, Welcome& welcome, net::Descriptor& page) {
  Hello hello;
  hello.ticket = offer.ticket;
  hello.engine = engine;
  hello.mark = net::this_process_mark();
  if (net::send_side(socket, bytes_of(hello)) != net::SideIo::kDone) return false;
  if (!net::wait_for(socket, POLLIN, end, [] {})) return false;
  net::SideMessage message;
  if (net::receive_side(socket, message) != net::SideIo::kDone) return false;
  const auto answer = read_as<Welcome>(message.bytes());
  if (!answer || answer->kind != Kind::kWelcome || answer->status != Status::kOk) return false;
  welcome = *answer;
  page = std::move(message.descriptor);
  return page.valid();
}

}  // namespace

}  // namespace shm

namespace {

// A link that broke is made again. A peer that answers does so within a millisecond; close() waits
// for one that does not.
constexpr std::chrono::milliseconds kFirstShmRest(50);
constexpr std::chrono::milliseconds kLongestShmRest(400);
constexpr std::chrono::milliseconds kAnswer(200);

}  // namespace

ShmTransport::ShmTransport(Site site)
    : site_(std::move(site)), returns_(kFirstShmRest, kLongestShmRest) {
  const int self = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  if (self < 0) {
    problem_ = "pidfd_open fails (" + std::generic_category().message(errno) +
               "): needs Linux 5.3, and a seccomp filter that allows it";
    return;
  }
  ::close(self);
  try {
    (void)net::this_process_mark();
    server_ = std::make_shared<shm::ShmServer>(site_, net::listen_side(), crew_);
    server_->start();
  } catch (const ResourceError& error) {
    problem_ = error.what();
    server_ = nullptr;
  }
}

ShmTransport::~ShmTransport() { close(); }

std::string_view ShmTransport::name() const { return shm::kName; }

Bytes ShmTransport::attach(Segment& segment) {
  if (server_ == nullptr || segment.access == Access::kNone ||
      segment.location.place != net::Place::kHost)
    return {};
  server_->page().open(segment.slot, segment.epoch);
  const shm::Key key{reinterpret_cast<uint64_t>(segment.base), segment.memory != nullptr};
  const auto bytes = shm::bytes_of(key);
  return {bytes.begin(), bytes.end()};
}

bool ShmTransport::detach(Segment& segment, Clock::time_point until) {
  if (server_ == nullptr) return true;
  server_->page().close(segment.slot, segment.epoch);
  shm::SegmentMessage closed;
  closed.slot = segment.slot;
  closed.epoch = segment.epoch;
  site_.loop.post([server = server_, closed] { server->announce_closed(closed); });
  return server_->page().wait_unvisited(segment.slot, segment.epoch, until);
}

Bytes ShmTransport::offer() {
  if (server_ == nullptr) return {};
  const net::ProcessId self = net::this_process();
  shm::Offer offer;
  offer.pid = self.pid;
  offer.start_time = self.start_time;
  offer.host = shm::this_host();
  offer.name = server_->name();
  offer.ticket = server_->ticket();
  offer.mark = net::this_process_mark();
  const auto bytes = shm::bytes_of(offer);
  return {bytes.begin(), bytes.end()};
}

ShmTransport::Linked ShmTransport::link(const std::shared_ptr<PathOwner>& peer,
                                        std::span<const std::byte> bytes, Clock::time_point end) {
  const auto offer = shm::read_as<shm::Offer>(bytes);
  if (!offer) return {nullptr, "it offers no shared memory", true};
  std::string problem = shm::difference(*offer);
  if (!problem.empty()) return {nullptr, problem, true};
  net::Descriptor socket = net::connect_side(offer->name, end, problem);
  if (!socket.valid()) return {nullptr, problem, true};
  const auto who = net::credentials_of(socket);
  if (!who || who->pid != offer->pid || who->user != geteuid())
    return {nullptr, "its Unix socket is held by another process", true};
  shm::Welcome welcome;
  net::Descriptor page;
  if (!shm::greet(socket, *offer, site_.engine, end, welcome, page))
    return {nullptr, "its Unix socket does not answer, or answers no Inlay engine"};
  auto visited = net::VisitedPage::map(page, problem);
  if (visited == nullptr) return {nullptr, problem};
  const net::ProcessMemory memory(offer->pid, offer->mark);
  const std::string unreadable = memory.problem();
  auto path = std::make_shared<shm::ShmPath>(
      peer, crew_, site_.loop,
      shm::ShmPath::Link{std::move(socket), std::move(visited), memory, unreadable.empty(),
                         welcome.can_pull != 0, welcome.connection, offer->pid},
      [this, weak = std::weak_ptr(peer), kept = Bytes(bytes.begin(), bytes.end())] {
        returns_.add(weak, [this, kept](const auto& owner) { return link_again(owner, kept); });
      });
  path->listen();
  // Allocated segments work without it; the rest goes another way, and this says why.
  return {std::move(path), unreadable};
}

bool ShmTransport::link_again(const std::shared_ptr<PathOwner>& peer,
                              std::span<const std::byte> offer) {
  const Linked linked = link(peer, offer, Clock::now() + kAnswer);
  if (linked.path == nullptr) return linked.gone;
  peer->add(linked.path);
  if (linked.path->is_over()) peer->lost(*linked.path, Status::kPeerDied);  // before it was added
  return true;
}

Transport::Connected ShmTransport::connect(const std::shared_ptr<PathOwner>& peer,
                                           std::span<const std::byte> offer,
                                           Clock::time_point end) {
  Linked linked = link(peer, offer, end);
  Connected connected{{}, std::move(linked.problem)};
  if (linked.path != nullptr) connected.paths.push_back(std::move(linked.path));
  return connected;
}

Transport::Answer ShmTransport::answer(const net::EngineId& from,
                                       std::span<const std::byte> question) {
  const auto connection = shm::read_as<uint64_t>(question);
  if (!connection || server_ == nullptr) return {Status::kProtocol, {}};
  server_->end_link(from, *connection);
  return {};
}

Clock::time_point ShmTransport::tick(Clock::time_point now) {
  if (server_ != nullptr) server_->resume();
  return Transport::tick(now);
}

void ShmTransport::close() {
  // Visits last microseconds; one of a process that is stopped goes on in memory that stays mapped.
  constexpr std::chrono::seconds kVisits(1);
  returns_.close();
  if (server_ != nullptr) {
    server_->stop();
    (void)server_->page().close_all(Clock::now() + kVisits);
  }
  crew_.close();
}

}  // namespace inlay::transfer

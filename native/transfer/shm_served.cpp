#include "shm_served.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>

#include "shared_file.h"

namespace inlay::transfer::shm {

ServedLink::ServedLink(ShmServer& server, net::CopyCrew& crew, net::Descriptor socket,
                       uint64_t connection)
    : CopyQueue(crew), server_(server), connection_(connection), socket_(std::move(socket)) {}

bool ServedLink::on_events(uint32_t events) {
  constexpr int kMaxMessages = 64;  // then other descriptors get their turn
  if (!socket_.valid()) return false;
  if ((events & EPOLLOUT) != 0) {
    const std::lock_guard lock(mutex_);
    if (outbox_.flush(socket_) == net::SideIo::kDone && std::exchange(sending_, false))
      server_.site_.loop.change(loop_id_, socket_, EPOLLIN);
  }
  bool worked = false;
  for (int i = 0; i < kMaxMessages; ++i) {
    const net::SideIo io = net::receive_side(socket_, message_);
    if (io == net::SideIo::kLater) return worked;
    if (io == net::SideIo::kOver || !take(message_)) {
      server_.drop(*this);
      return worked;
    }
    worked = true;
  }
  return worked;
}

bool ServedLink::take(net::SideMessage& message) {
  const auto kind = read_as<Kind>(message.bytes());
  if (!kind) return false;
  if (!greeted_) {
    const auto hello = read_as<Hello>(message.bytes());
    return *kind == Kind::kHello && hello && take_hello(*hello);
  }
  switch (*kind) {
    case Kind::kMap:
      if (const auto asked = read_as<SegmentMessage>(message.bytes())) {
        take_map(*asked);
        return true;
      }
      return false;
    case Kind::kPull:
      if (const auto asked = read_as<PullMessage>(message.bytes()))
        return take_pull(*asked, 0, message.bytes().subspan(sizeof(PullMessage)));
      return false;
    case Kind::kPullGranted: {
      const auto asked = read_as<PullMessage>(message.bytes());
      if (!asked) return false;
      const auto rest = message.bytes().subspan(sizeof(PullMessage));
      const auto grant = read_as<uint64_t>(rest);
      return grant && take_pull(*asked, *grant, rest.subspan(sizeof(uint64_t)));
    }
    case Kind::kStop:
      if (const auto asked = read_as<PullMessage>(message.bytes())) {
        std::unique_lock lock(mutex_);
        if (const auto found = pulls_.find(asked->id); found != pulls_.end())
          end_copies(lock, found->second->attempt.owner, Status::kCancelled);
        return true;
      }
      return false;
    default:
      return false;
  }
}

bool ServedLink::take_hello(const Hello& hello) {
  if (hello.ticket != server_.ticket_) return false;
  greeted_ = true;
  engine_ = hello.engine;
  const net::ProcessMemory memory(net::credentials_of(socket_)->pid, hello.mark);
  if (memory.problem().empty()) initiator_ = memory;
  Welcome welcome;
  welcome.can_pull = initiator_.has_value();
  welcome.connection = connection_;
  return net::send_side(socket_, bytes_of(welcome), &server_.page_.descriptor()) ==
         net::SideIo::kDone;
}

void ServedLink::take_map(const SegmentMessage& asked) {
  SegmentMessage answer = asked;
  answer.kind = Kind::kMapped;
  std::shared_ptr<const net::Descriptor> memory;
  if (const auto use = server_.site_.segments.use(asked.slot, asked.epoch)) {
    memory = use->segment().memory;
    if (use->segment().access == Access::kNone || memory == nullptr) {
      answer.status = Status::kSegmentAccess;
      memory = nullptr;
    } else if (use->segment().guard != nullptr) {
      memory = std::make_shared<const net::Descriptor>(reopened(*memory, false));
      if (!memory->valid()) answer.status = Status::kTransportUnavailable;
    }
  } else {
    answer.status = Status::kSegmentClosed;
  }
  const std::lock_guard lock(mutex_);
  send(bytes_of(answer), std::move(memory));
}

Status ServedLink::check(Pull& pull, const PullMessage& asked) const {
  if (!initiator_) return Status::kTransportUnavailable;
  pull.use = server_.site_.segments.use(asked.slot, asked.epoch);
  if (pull.use == nullptr) return Status::kSegmentClosed;
  const Segment& segment = pull.use->segment();
  if (segment.access != Access::kWrite) return Status::kSegmentAccess;
  for (const Range& range : pull.request.ranges) {
    if (!segment.contains(range.local, range.length)) return Status::kSegmentRange;
    if (!segment.allows(range.local, range.length, pull.request.grant)) return Status::kGrant;
  }
  return Status::kOk;
}

bool ServedLink::take_pull(const PullMessage& asked, uint64_t grant,
                           std::span<const std::byte> bytes) {
  if (asked.num_ranges == 0 || asked.num_ranges > net::kMaxRanges ||
      bytes.size() != asked.num_ranges * sizeof(PullRange))
    return false;
  auto pull = std::make_unique<Pull>();
  pull->request.op = Op::kRead;
  pull->request.grant = grant;
  for (std::size_t i = 0; i < asked.num_ranges; ++i) {
    const auto range = *read_as<PullRange>(bytes.subspan(i * sizeof(PullRange)));
    if (range.length == 0 || range.length > net::kMaxPayload) return false;
    pull->request.ranges.push_back({range.offset, range.source, range.length});
    pull->request.bytes += range.length;
  }
  if (const Status status = check(*pull, asked); status != Status::kOk) {
    const std::lock_guard lock(mutex_);
    answer_pull(asked.id, status);
    return true;
  }
  pull->request.local = pull->use->shared();
  pull->attempt.slice = {&pull->request, 0, asked.num_ranges, 0, pull->request.bytes};
  pull->attempt.owner = pull.get();
  pull->attempt.transfer = asked.id;
  pull->attempt.submission_bytes = pull->request.bytes;
  Attempt& attempt = pull->attempt;
  {
    const std::lock_guard lock(mutex_);
    if (!pulls_.emplace(asked.id, std::move(pull)).second) return false;
  }
  const PostResult result = start(attempt, pull_memory(*initiator_, asked.stamp));
  if (result.how == Posted::kTaken) {
    call_crew();
  } else {
    const std::lock_guard lock(mutex_);
    copied(attempt, result.why);
  }
  return true;
}

void ServedLink::copied(Attempt& attempt, Status status) {
  const uint64_t id = attempt.transfer;
  pulls_.erase(id);  // and leaves the segment
  answer_pull(id, status);
}

void ServedLink::answer_pull(uint64_t id, Status status) {
  PullMessage answer;
  answer.kind = Kind::kPulled;
  answer.status = status;
  answer.id = id;
  send(bytes_of(answer));
}

void ServedLink::send(std::span<const std::byte> message,
                      std::shared_ptr<const net::Descriptor> descriptor) {
  if (!socket_.valid()) return;
  const net::SideIo io =
      outbox_.send(socket_, {message.begin(), message.end()}, std::move(descriptor));
  // The loop finds it over, and drops the link.
  if (io == net::SideIo::kOver) shutdown(socket_.get(), SHUT_RDWR);
  if (io == net::SideIo::kLater && !std::exchange(sending_, true))
    server_.site_.loop.change(loop_id_, socket_, EPOLLIN | EPOLLOUT);
}

void ServedLink::end() {
  std::unique_lock lock(mutex_);
  if (closed_ == Status::kOk) closed_ = Status::kPeerDied;
  end_copies(lock, nullptr, Status::kPeerDied);
  // Only now: who sees us hang up knows that nothing lands any more.
  socket_.close();
}

}  // namespace inlay::transfer::shm

#include "fabric_path.h"

#include <sys/epoll.h>

#include <algorithm>

#include "../net/bytes.h"

namespace inlay::transfer {

namespace fabric = net::fabric;
using namespace std::chrono_literals;
using Post = fabric::Endpoint::Post;

namespace {

// What is expected where a provider does not tell the speed of its link: that of the tcp provider.
constexpr double kSoftwareBandwidth = 4e9;
constexpr double kSoftwareBase = 20e-6;
constexpr double kHardwareBandwidth = 12.5e9;
constexpr double kHardwareBase = 4e-6;

constexpr auto kReturnAfter = 1s;
// The target wakes for it as long as it is held.
constexpr auto kReturnUnconnectedAfter = 200ms;
constexpr int kMaxPumpTurns = 16;  // of one pump

fabric::Meeting with_connection(fabric::Meeting meeting, uint64_t connection) {
  meeting.greeting.connection = connection;
  return meeting;
}

}  // namespace

FabricPath::FabricPath(const Site& site, FabricMemory& memory,
                       std::shared_ptr<const FabricRail> rail, uint64_t connection, Changed changed)
    : site_(site),
      memory_(memory),
      rail_(std::move(rail)),
      meeting_(with_connection(rail_->meeting, connection)),
      changed_(std::move(changed)),
      link_(make_fabric_link(rail_, meeting_, site_.token)),
      lease_(connected() ? kReturnAfter : kReturnUnconnectedAfter) {}

void FabricPath::start() {
  try {
    const std::lock_guard lock(mutex_);
    if (const auto question = link_->begin(shared_from_this())) ask(*question, 0);
    loop_id_ = site_.loop.add(link_->endpoint().descriptor(), EPOLLIN, shared_from_this());
  } catch (const std::exception&) {  // the provider or the system has no more to give
    end(Status::kTransportUnavailable);
  }
  send_questions();
}

bool FabricPath::hand_over() {
  const std::lock_guard lock(mutex_);
  owned_ = state_ == State::kReady;
  return owned_;
}

std::string FabricPath::name() const { return "fabric " + rail_->port->domain.name(); }

std::optional<Reach> FabricPath::reach(const Segment& local, const RemoteSegment& remote,
                                       Op op) const {
  if (op == Op::kWrite && remote.descriptor.guarded) return std::nullopt;  // nobody would ask
  const Bytes* keys = remote.descriptor.key(transport());
  if (keys == nullptr || !find_fabric_key(*keys, rail_->remote_port) ||
      local.location.place != net::Place::kHost)
    return std::nullopt;
  const bool software = rail_->port->domain.in_software();
  double bandwidth = rail_->port->domain.bandwidth();
  const auto theirs = static_cast<double>(rail_->remote.bandwidth);
  if (bandwidth == 0 || (theirs != 0 && theirs < bandwidth)) bandwidth = theirs;
  if (bandwidth == 0) bandwidth = software ? kSoftwareBandwidth : kHardwareBandwidth;
  return Reach{bandwidth, software ? kSoftwareBase : kHardwareBase};
}

void FabricPath::on_connected(std::span<const std::byte> greeting) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kConnecting) return;
    link_->hear(greeting);
  }
  settle_state();
}

void FabricPath::on_ended() { end(Status::kPeerUnreachable); }

PostResult FabricPath::post(Attempt& attempt) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kReady) return refuse();
  }
  const Request& request = *attempt.slice.request;
  const Bytes* keys = request.remote->descriptor.key(transport());
  const auto key = keys == nullptr ? std::nullopt : find_fabric_key(*keys, rail_->remote_port);
  if (!key) return {Posted::kRefused, Status::kTransportUnavailable};
  Work work{};
  work.attempt = &attempt;
  work.is_read = request.op == Op::kRead;
  try {
    work.descriptor = memory_.descriptor(*request.local, *rail_->port);
  } catch (const TransferFailure& failure) {
    return {Posted::kRefused, failure.status};
  }
  work.pieces = fabric_pieces(attempt.slice, *key);
  const std::lock_guard lock(mutex_);
  if (state_ != State::kReady) return refuse();
  work.id = ++last_work_;
  works_.push_back(std::move(work));
  Work& taken = works_.back();
  // Providers report a segment that is gone as a broken connection. What failed once is posted
  // after the target has said that the segment is still there.
  if (attempt.number > 0) {
    taken.asked = true;
    const net::SegmentDescriptor& segment = request.remote->descriptor;
    FabricQuestion question{.ask = FabricAsk::kSegment};
    question.slot = segment.slot;
    question.epoch = segment.epoch;
    question.write = !taken.is_read;
    ask(question, taken.id);
  } else {
    enqueue(taken);
  }
  return {Posted::kTaken};
}

// It may have been over before its owner heard of it.
PostResult FabricPath::refuse() {
  tell_again_ = state_ == State::kOver;
  return {Posted::kRefused, over_why_};
}

void FabricPath::enqueue(Work& work) {
  if (!needs_lease(work) || lease_.held())
    queue_.push_back(&work);
  else if (const auto question = lease_.want(Clock::now()))
    ask(*question, question->lease);  // the answer enqueues it
}

void FabricPath::ask(FabricQuestion question, uint64_t about) {
  question.connection = meeting_.greeting.connection;
  last_question_ = Clock::now();
  questions_.push_back({question, about});
}

void FabricPath::kick() {
  rail_->port->drop_late();
  bool tell = false;
  bool more = false;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kReady) {
      issue();
      more = !link_->endpoint().may_sleep();
    }
    std::swap(tell, tell_again_);
  }
  send_questions();
  settle_state();
  if (more) site_.loop.post([self = shared_from_this()] { self->on_events(EPOLLIN); });
  const auto owner = tell ? rail_->peer.lock() : nullptr;
  if (owner != nullptr) owner->lost(*this, over_why_);
}

void FabricPath::issue() {
  while (!queue_.empty() && !broken_) {
    Work& work = *queue_.front();
    const Post post = issue_next(work);
    if (post == Post::kFull && posted_bytes_ == 0 && turned_away_ == Clock::time_point())
      turned_away_ = Clock::now();
    if (post == Post::kFull) return;
    turned_away_ = {};
    broken_ |= post == Post::kFailed;
    if (work.next == work.pieces.size() && !work.unconfirmed) queue_.pop_front();
  }
  if (queue_.empty()) turned_away_ = {};
}

Post FabricPath::issue_next(Work& work) {
  fabric::Endpoint& endpoint = link_->endpoint();
  Post post;
  if (work.next == work.pieces.size()) {
    post = endpoint.confirm(work.pieces.back().remote, &work);
    if (post == Post::kTaken) work.unconfirmed = false;
  } else {
    const FabricPiece& piece = work.pieces[work.next];
    const uint64_t bytes = std::min<uint64_t>(piece.bytes - work.skip, endpoint.max_message());
    const fabric::RemoteRange remote{piece.remote.address + work.skip, piece.remote.key};
    std::byte* local = piece.local + work.skip;
    if (posted_bytes_ == 0) last_completion_ = Clock::now();
    post = work.is_read ? endpoint.read(local, bytes, work.descriptor, remote, &work)
                        : endpoint.write(local, bytes, work.descriptor, remote, &work);
    if (post == Post::kTaken) {
      work.begun = true;
      posted_bytes_ += bytes;
      work.unconfirmed = !work.is_read && !rail_->port->domain.confirms_writes();
      work.skip += bytes;
      if (work.skip == piece.bytes) {
        work.skip = 0;
        ++work.next;
      }
    }
  }
  if (post == Post::kTaken) ++work.outstanding;
  return post;
}

void FabricPath::on_completion(void* owner, int error) {
  if (owner == link_.get()) return link_->on_completion(error);
  Work& work = *static_cast<Work*>(owner);
  --work.outstanding;
  last_completion_ = Clock::now();
  if (error != 0) {
    broken_ = true;
    return;
  }
  if (broken_ || work.outstanding > 0 || work.next < work.pieces.size() || work.unconfirmed) return;
  const auto found = std::ranges::find(works_, work.id, &Work::id);
  posted_bytes_ -= work.attempt->slice.bytes;
  if (needs_lease(work)) lease_.used(last_completion_);
  finish(found, Status::kOk, true);
}

void FabricPath::finish(std::list<Work>::iterator work, Status status, bool settled) {
  Attempt& attempt = *work->attempt;
  works_.erase(work);
  if (owner_ != nullptr) owner_->completed(attempt, status, settled);
}

bool FabricPath::take_completions() {
  fabric::Endpoint& endpoint = link_->endpoint();
  bool moved = false;
  for (int i = 0; i < kMaxPumpTurns && state_ < State::kOver && !broken_; ++i) {
    rail_->port->drop_late();
    const int taken = endpoint.progress(*this);
    moved |= taken > 0;
    issue();
    if (taken == 0 && endpoint.may_sleep()) return moved;
  }
  return true;
}

bool FabricPath::pump() {
  const auto owner = rail_->peer.lock();
  bool more;
  {
    const std::lock_guard lock(mutex_);
    owner_ = owner.get();
    more = take_completions();
    owner_ = nullptr;
  }
  settle_state();
  return more;
}

bool FabricPath::on_events(uint32_t) {
  const bool more = pump();
  const auto owner = rail_->peer.lock();
  if (owner != nullptr) owner->fill();
  // Where the descriptor does not tell of what is left.
  bool again;
  {
    const std::lock_guard lock(mutex_);
    again = state_ < State::kOver && !link_->endpoint().may_sleep();
  }
  if (again) site_.loop.post([self = shared_from_this()] { self->on_events(EPOLLIN); });
  return more;
}

bool FabricPath::try_drive(const net::WakeUp&) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kReady) return false;
  if (drivers_++ == 0) site_.loop.change(loop_id_, link_->endpoint().descriptor(), 0);
  return true;
}

void FabricPath::stop_driving(const net::WakeUp&) {
  rail_->port->drop_late();
  {
    const std::lock_guard lock(mutex_);
    --drivers_;
    if (state_ != State::kReady || drivers_ > 0) return;
    site_.loop.change(loop_id_, link_->endpoint().descriptor(), EPOLLIN);
    if (link_->endpoint().may_sleep()) return;
  }
  site_.loop.post([self = shared_from_this()] { self->on_events(EPOLLIN); });
}

// Reports what it can at once. For what the provider has, the endpoint is closed.
void FabricPath::take_back(const void* owner, bool reads) {
  const auto peer = rail_->peer.lock();
  bool must_close = false;
  {
    const std::lock_guard lock(mutex_);
    owner_ = peer.get();
    for (auto work = works_.begin(); work != works_.end();) {
      const auto next = std::next(work);
      if (work->attempt->owner == owner && !work->begun) {
        std::erase(queue_, &*work);
        finish(work, Status::kCancelled, true);
      } else if (work->attempt->owner == owner && work->is_read == reads) {
        work->taken_back = true;
        must_close = true;
      }
      work = next;
    }
    owner_ = nullptr;
  }
  if (must_close) end(Status::kPeerUnreachable);
}

// What has become of it meanwhile.
void FabricPath::settle_state() {
  using Stage = FabricLink::Stage;
  Stage stage = Stage::kJoining;
  bool broken;
  {
    const std::lock_guard lock(mutex_);
    broken = broken_;
    if (state_ == State::kConnecting) stage = link_->look();
    if (stage == Stage::kJoined) state_ = State::kReady;
  }
  if (broken || stage == Stage::kRefused)
    end(broken ? Status::kPeerUnreachable : Status::kPeerRefused);
  else if (stage == Stage::kJoined)
    changed_(*this, State::kReady);
}

void FabricPath::end(Status why, State how) {
  const auto owner = rail_->peer.lock();
  bool tell;
  {
    const std::lock_guard lock(mutex_);
    if (state_ >= State::kOver) return;
    if (loop_id_ != 0) site_.loop.remove(loop_id_, link_->endpoint().descriptor());
    state_ = how;
    over_why_ = why;
    link_->close();
    tell = owned_ && how == State::kOver;
    queue_.clear();
    questions_.clear();
    owner_ = owner.get();
    while (!works_.empty()) {
      const Work& work = works_.front();
      finish(works_.begin(), work.taken_back ? Status::kCancelled : why,
             work.is_read || !work.begun);
    }
    owner_ = nullptr;
  }
  if (tell && owner != nullptr) owner->lost(*this, why);
  changed_(*this, how);
}

Bytes FabricPath::fence() const {
  FabricQuestion question{.ask = FabricAsk::kFence};
  question.connection = meeting_.greeting.connection;
  return encode(question);
}

}  // namespace inlay::transfer

#include "stream.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "../core/crc32c.h"

namespace inlay::net {

namespace {

constexpr std::size_t kMaxIovecs = 512;
// One call moves no more than about this, so that locks and turns are short.
constexpr uint64_t kQuantumBytes = uint64_t{1} << 20;
constexpr std::size_t kSkipBytes = 65536;
// More than this is enough packets for acknowledgements that come by themselves.
constexpr uint64_t kFewBytes = 65536;
// Bytes with a CRC move in pieces that are still in the caches when it is computed.
constexpr uint64_t kVerifiedBytes = uint64_t{256} << 10;

Io outcome(ssize_t moved) {
  if (moved > 0) return Io::kMoved;
  if (moved == 0) return Io::kClosed;
  switch (errno) {
    case EAGAIN:
    case EINTR:
      return Io::kBlocked;
    case ECONNRESET:
    case EPIPE:
      return Io::kClosed;
    default:
      return Io::kBroken;
  }
}

// Leaves the first `room` bytes; returns how many parts those are.
std::size_t cut(iovec* parts, std::size_t count, uint64_t room) {
  for (std::size_t i = 0; i < count; ++i) {
    if (room == 0) return i;
    parts[i].iov_len = std::min<uint64_t>(parts[i].iov_len, room);
    room -= parts[i].iov_len;
  }
  return count;
}

}  // namespace

void Pieces::add(std::byte* data, std::size_t bytes) {
  if (bytes == 0) return;
  parts_.push_back({data, bytes});
  bytes_ += bytes;
}

void Pieces::clear() {
  parts_.clear();
  first_ = 0;
  bytes_ = 0;
}

std::size_t Pieces::fill(iovec* out, std::size_t max) const {
  const std::size_t count = std::min(max, parts_.size() - first_);
  std::copy_n(parts_.begin() + static_cast<std::ptrdiff_t>(first_), count, out);
  return count;
}

void Pieces::advance(uint64_t bytes) {
  bytes_ -= bytes;
  while (bytes > 0) {
    iovec& part = parts_[first_];
    const std::size_t step = std::min<uint64_t>(bytes, part.iov_len);
    part.iov_base = static_cast<std::byte*>(part.iov_base) + step;
    part.iov_len -= step;
    bytes -= step;
    if (part.iov_len == 0) ++first_;
  }
  if (bytes_ == 0) clear();
}

void Pieces::copy_in(const std::byte* from, std::size_t bytes) const {
  for (std::size_t i = first_; bytes > 0; ++i) {
    const std::size_t step = std::min(bytes, parts_[i].iov_len);
    std::memcpy(parts_[i].iov_base, from, step);
    from += step;
    bytes -= step;
  }
}

uint32_t Pieces::crc(uint64_t bytes, uint32_t before) const {
  for (std::size_t i = first_; bytes > 0; ++i) {
    const std::size_t step = std::min<uint64_t>(bytes, parts_[i].iov_len);
    before = crc32c({static_cast<const std::byte*>(parts_[i].iov_base), step}, before);
    bytes -= step;
  }
  return before;
}

void Outbox::push(OutFrame frame) {
  if (frame.verified) {
    frame.sum = std::make_unique<OutFrame::Sum>(frame.payload.bytes());
    frame.payload.add(frame.sum->trailer.data(), kTrailerBytes);
  }
  bytes_ += frame.head.size() + frame.payload.bytes();
  frames_.push_back(std::move(frame));
}

// Puts what is about to be sent into the CRC. Cuts the parts to what the caches hold, so the
// trailer is never among them before the CRC is whole; returns how many are left.
std::size_t Outbox::sum_up(OutFrame& frame, iovec* parts, std::size_t count) {
  OutFrame::Sum& sum = *frame.sum;
  count = cut(parts, count, kVerifiedBytes);
  if (sum.left == 0) return count;
  uint64_t known = frame.payload.bytes() - kTrailerBytes - sum.left;  // an earlier call's
  for (std::size_t i = 0; i < count; ++i) {
    const iovec& part = parts[i];
    const std::size_t old = std::min<uint64_t>(known, part.iov_len);
    known -= old;
    const std::size_t fresh = std::min<uint64_t>(part.iov_len - old, sum.left);
    if (fresh == 0) continue;
    sum.crc = crc32c({static_cast<const std::byte*>(part.iov_base) + old, fresh}, sum.crc);
    sum.left -= fresh;
    if (sum.left == 0) sum.trailer = trailer(sum.crc);
  }
  return count;
}

// Grants come in parts of what a large frame needs.
bool Outbox::Grant::covers(uint64_t wanted) {
  if (gate != nullptr && bytes < wanted) bytes += gate->grant(wanted - bytes);
  return gate == nullptr || bytes >= wanted;
}

Load Outbox::take_load(int socket) {
  int in_socket = 0;
  if (ioctl(socket, SIOCOUTQ, &in_socket) != 0) in_socket = 0;
  const uint64_t waiting = std::min(sent_, static_cast<uint64_t>(std::max(in_socket, 0)));
  const uint64_t before = std::exchange(arrived_, std::max(arrived_, sent_ - waiting));
  return {bytes_ + waiting, arrived_ - before};
}

Io Outbox::flush(int socket) {
  std::array<iovec, kMaxIovecs> parts;
  std::size_t count = 0;
  uint64_t bytes = 0;
  uint64_t of_payloads = 0;
  std::size_t skip = head_sent_;
  held_ = false;
  for (OutFrame& frame : frames_) {
    if (count + 2 > kMaxIovecs || bytes >= kQuantumBytes) break;
    if (fetch_.gate != nullptr && frame.fetches > 0) {
      held_ = !fetch_.covers(frame.fetches);
      if (held_) break;
      fetch_.bytes -= std::exchange(frame.fetches, 0);
    }
    if (skip < frame.head.size()) {
      parts[count++] = {frame.head.data() + skip, frame.head.size() - skip};
      bytes += frame.head.size() - skip;
    }
    skip = 0;
    std::size_t more = frame.payload.fill(&parts[count], kMaxIovecs - count);
    if (frame.sum != nullptr) more = sum_up(frame, &parts[count], more);
    uint64_t of_payload = 0;
    for (std::size_t i = 0; i < more; ++i) of_payload += parts[count + i].iov_len;
    bytes += of_payload;
    of_payloads += of_payload;
    count += more;
    if (of_payload < frame.payload.bytes()) break;
  }
  if (send_.gate != nullptr && of_payloads > 0) {
    if (send_.bytes == 0) send_.bytes = send_.gate->grant(bytes);
    held_ |= send_.bytes == 0;
    count = cut(parts.data(), count, send_.bytes);
  }
  if (count == 0) return Io::kBlocked;
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent <= 0) return outcome(sent);
  auto left = static_cast<uint64_t>(sent);
  bytes_ -= left;
  sent_ += left;
  send_.bytes -= std::min(left, send_.bytes);
  begun_ = true;
  while (left > 0) {
    OutFrame& frame = frames_.front();
    const std::size_t of_head = std::min<uint64_t>(left, frame.head.size() - head_sent_);
    head_sent_ += of_head;
    left -= of_head;
    const uint64_t of_payload = std::min(left, frame.payload.bytes());
    frame.payload.advance(of_payload);
    left -= of_payload;
    if (head_sent_ < frame.head.size() || frame.payload.bytes() > 0) break;
    frames_.pop_front();
    head_sent_ = 0;
    begun_ = left > 0;
  }
  return Io::kMoved;
}

Io Inbox::receive(int socket, Sink& sink) {
  if (!parse(sink)) return Io::kClosed;
  if (payload_left_ == 0 && sink.paused()) return Io::kBlocked;
  std::array<iovec, kMaxRanges + 2> parts;
  std::array<std::byte, kSkipBytes> skipped;
  std::size_t count = 0;
  if (payload_left_ > 0 && landing_.bytes() == 0) {
    parts[count++] = {skipped.data(), std::min<uint64_t>(payload_left_, kSkipBytes)};
  } else {
    count = landing_.fill(parts.data(), kMaxRanges + 1);
    if ((verified_ || summed_) && landing_.bytes() > kVerifiedBytes)
      count = cut(parts.data(), count, kVerifiedBytes);
    else
      parts[count++] = {buffer_.data() + end_, buffer_.size() - end_};
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const ssize_t received = recvmsg(socket, &message, MSG_DONTWAIT);
  if (received <= 0) return outcome(received);
  const auto bytes = static_cast<std::size_t>(received);
  const std::size_t of_payload = std::min<uint64_t>(bytes, payload_left_);
  const bool took_all = bytes - of_payload < buffer_.size() - end_;
  end_ += bytes - of_payload;
  if (of_payload > 0) {
    if (landing_.bytes() > 0) land(of_payload);
    take_payload(of_payload, sink);
  }
  if (problem_ != nullptr || !parse(sink)) return Io::kClosed;
  if (acknowledges_early_ && took_all && payload_left_ > 0 && payload_left_ <= kFewBytes) {
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on));
  }
  return Io::kMoved;
}

// The front of `landing_` has been filled.
void Inbox::land(uint64_t bytes) {
  const uint64_t behind = verified_ ? kTrailerBytes : 0;
  if ((verified_ || summed_) && landing_.bytes() > behind)
    crc_ = landing_.crc(std::min(bytes, landing_.bytes() - behind), crc_);
  landing_.advance(bytes);
}

void Inbox::take_payload(std::size_t bytes, Sink& sink) {
  payload_left_ -= bytes;
  received_ += bytes;
  if (payload_left_ > 0) return;
  intact_ = !verified_ || trailer_ == trailer(crc_);
  problem_ = sink.on_payload_end();
}

// Works through the buffer; false when the other end broke the protocol.
bool Inbox::parse(Sink& sink) {
  while (problem_ == nullptr) {
    const std::size_t there = end_ - begin_;
    if (payload_left_ > 0) {
      const std::size_t bytes = std::min<uint64_t>(there, payload_left_);
      if (bytes == 0) break;
      if (landing_.bytes() > 0) {
        landing_.copy_in(&buffer_[begin_], bytes);
        land(bytes);
      }
      begin_ += bytes;
      take_payload(bytes, sink);
      continue;
    }
    if (there < kHeaderBytes || sink.paused()) break;
    const std::span<const std::byte> bytes(&buffer_[begin_], there);
    const std::size_t head = head_bytes(bytes.first<kHeaderBytes>());
    if (head == 0) {
      problem_ = "no frame of this protocol";
      break;
    }
    if (there < head) break;
    Frame frame;
    problem_ = decode(bytes.first(head), frame, ranges_);
    if (problem_ != nullptr) break;
    begin_ += head;
    payload_left_ = payload_bytes(frame);
    landing_.clear();
    verified_ = false;
    summed_ = false;
    crc_ = 0;
    intact_ = true;
    problem_ = sink.on_frame(frame, ranges_, landing_);
    if (has_trailer(frame)) {
      payload_left_ += kTrailerBytes;
      verified_ = landing_.bytes() > 0;
      if (verified_) landing_.add(trailer_.data(), kTrailerBytes);
    }
    if (problem_ == nullptr && payload_left_ == 0) problem_ = sink.on_payload_end();
  }
  if (begin_ > 0) {
    std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_),
              buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
    end_ -= begin_;
    begin_ = 0;
  }
  return problem_ == nullptr;
}

}  // namespace inlay::net

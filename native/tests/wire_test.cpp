// Frames: what is encoded is decoded, and nothing else is accepted.
#include "../net/wire.h"

#include <random>

#include "../core/crc32c.h"
#include "../net/bytes.h"
#include "check.h"

namespace {

using namespace inlay;
using namespace inlay::net;
using Bytes = std::vector<std::byte>;

const char* decode_whole(const Bytes& head, Frame& frame, std::vector<WireRange>& ranges) {
  if (head.size() < kHeaderBytes) return "short";
  const std::span<const std::byte> bytes(head);
  const std::size_t size = head_bytes(bytes.first<kHeaderBytes>());
  if (size == 0 || size > head.size()) return "no frame";
  return decode(bytes.first(size), frame, ranges);
}

bool accepted(const Bytes& head) {
  Frame frame;
  std::vector<WireRange> ranges;
  return decode_whole(head, frame, ranges) == nullptr;
}

// With a checksum that is right again.
Bytes sealed(Bytes head) {
  store(&head[4], uint32_t{0});
  store(&head[4], crc32c(head));
  return head;
}

void test_round_trip() {
  const std::vector<WireRange> sent{{5, 10}, {uint64_t{1} << 60, 1}, {0, 89}};
  const Bytes head = encode({Kind::kWrite, 7, 8, 0, Status::kOk, 100, 9, 10}, sent);
  Frame frame;
  std::vector<WireRange> ranges{{1, 1}};
  CHECK(decode_whole(head, frame, ranges) == nullptr);
  CHECK(frame.kind == Kind::kWrite && frame.transfer == 7 && frame.slice == 8);
  CHECK(frame.bytes == 100 && frame.slot == 9 && frame.epoch == 10);
  CHECK(ranges.size() == 3 && ranges[1].offset == uint64_t{1} << 60 && ranges[2].length == 89);
  CHECK(payload_bytes(frame) == 100 && !frame.verified && !has_trailer(frame));
  CHECK(decode_whole(encode({Kind::kWrite, 7, 8, 0, Status::kOk, 100, 9, 10, true}, sent), frame,
                     ranges) == nullptr);
  CHECK(frame.verified && has_trailer(frame));
  frame.kind = Kind::kRead;
  CHECK(!has_trailer(frame));
  Frame granted{Kind::kWrite, 7, 8, 0, Status::kOk, 100, 9, 10};
  granted.grant = uint64_t{1} << 63;
  const Bytes with_grant = encode(granted, sent);
  CHECK(with_grant.size() == head.size() + kGrantBytes);
  CHECK(decode_whole(with_grant, frame, ranges) == nullptr);
  CHECK(frame.grant == uint64_t{1} << 63 && ranges.size() == 3 && ranges[0].offset == 5);
  CHECK(decode_whole(head, frame, ranges) == nullptr && !frame.grant);
  granted.kind = Kind::kDone;  // as the answer repeats its request
  granted.bytes = 0;
  CHECK(decode_whole(encode(granted), frame, ranges) == nullptr && !frame.grant);
  CHECK(trailer(0x04030201) ==
        (std::array<std::byte, 8>{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}}));
  CHECK(accepted(encode({Kind::kData, 1, 2, 0, Status::kSegmentRange, 0, 0, 0})));
  CHECK(accepted(encode({Kind::kDone, 1, 2, 0, Status::kSegmentClosed, 0, 0, 0})));
  CHECK(accepted(encode({Kind::kLookup, 1, 2, 0, Status::kOk, 255, 0, 0})));
}

void test_forbidden_fields() {
  for (const Kind kind : {Kind::kLookup, Kind::kSegment, Kind::kAsk, Kind::kAnswer})
    CHECK(!accepted(encode({kind, 1, 2, 0, Status::kOk, 100, 0, 0, true})));
  Bytes flagged = encode({Kind::kDone, 1, 2, 0, Status::kOk, 0, 0, 0, true});
  CHECK(accepted(flagged));
  flagged[1] = std::byte{2};
  CHECK(!accepted(sealed(flagged)));
  Bytes read = encode({Kind::kRead, 1, 2, 0, Status::kOk, 5, 0, 0}, {{{0, 5}}});
  read[1] = std::byte{2};
  CHECK(!accepted(sealed(read)));
  Bytes write = encode({Kind::kWrite, 1, 2, 0, Status::kOk, 5, 0, 0}, {{{0, 5}}});
  CHECK(accepted(write));
  write[1] = std::byte{4};
  CHECK(!accepted(sealed(write)));
  const auto one = [](uint64_t bytes, std::vector<WireRange> ranges, Kind kind = Kind::kRead) {
    return accepted(encode({kind, 1, 2, 0, Status::kOk, bytes, 0, 0}, ranges));
  };
  CHECK(one(5, {{0, 5}}));
  CHECK(!one(0, {{0, 0}}));
  CHECK(!one(5, {}));
  CHECK(!one(5, {{0, 4}}));
  CHECK(!one(5, {{0, 5}, {0, 0}}));
  CHECK(!one(5, {{0, 6}}));
  CHECK(!one(5, {{0, UINT64_MAX - 2}, {0, 8}}));  // adds up to 5 when it overflows
  CHECK(!one(kMaxPayload + 1, {{0, kMaxPayload + 1}}));
  CHECK(one(kMaxRanges, std::vector<WireRange>(kMaxRanges, {0, 1})));
  CHECK(!one(kMaxRanges + 1, std::vector<WireRange>(kMaxRanges + 1, {0, 1})));
  CHECK(!one(5, {{0, 5}}, Kind::kData));
  CHECK(!accepted(encode({Kind::kData, 1, 2, 0, Status::kSegmentRange, 5, 0, 0})));
  CHECK(!accepted(encode({Kind::kData, 1, 2, 0, Status::kOk, 0, 0, 0})));
  CHECK(!accepted(encode({Kind::kDone, 1, 2, 0, Status::kOk, 1, 0, 0})));
  CHECK(!accepted(encode({Kind::kLookup, 1, 2, 0, Status::kOk, 0, 0, 0})));
  CHECK(!accepted(encode({Kind::kLookup, 1, 2, 0, Status::kOk, 256, 0, 0})));
  CHECK(!accepted(encode({Kind::kSegment, 1, 2, 0, Status::kOk, 23, 0, 0})));
  CHECK(!accepted(encode({static_cast<Kind>(0), 1, 2, 0, Status::kOk, 0, 0, 0})));
  CHECK(!accepted(encode({static_cast<Kind>(9), 1, 2, 0, Status::kOk, 0, 0, 0})));
  CHECK(!accepted(encode({Kind::kDone, 1, 2, 0, static_cast<Status>(999), 0, 0, 0})));
  CHECK(!accepted(encode({Kind::kAsk, 1, 2, 0, Status::kOk, 0, 0, 0})));
  CHECK(!accepted(encode({Kind::kAsk, 1, 2, 0, Status::kOk, kMaxQuestionBytes + 1, 0, 0})));
  CHECK(!accepted(encode({Kind::kAnswer, 1, 2, 0, Status::kOk, kMaxQuestionBytes + 1, 0, 0})));
}

void test_every_flipped_bit_is_seen() {
  const std::vector<WireRange> ranges{{5, 60}, {100, 40}};
  const Bytes head = encode({Kind::kRead, 7, 8, 0, Status::kOk, 100, 9, 10}, ranges);
  for (std::size_t bit = 0; bit < 8 * head.size(); ++bit) {
    Bytes damaged = head;
    damaged[bit / 8] ^= std::byte(1U << (bit % 8));
    CHECK(!accepted(damaged));
  }
}

// Random fields under a right checksum: whatever is accepted keeps the promises of decode().
void test_random_frames() {
  std::mt19937_64 random(1);
  int good = 0;
  for (int i = 0; i < 200000; ++i) {
    Bytes head(kHeaderBytes + kRangeBytes * (random() % 4));
    for (std::byte& byte : head) byte = std::byte(random() % 4 == 0 ? random() : 0);
    store(&head[0], static_cast<uint16_t>(random() % 11));
    store(&head[2], static_cast<uint16_t>((head.size() - kHeaderBytes) / kRangeBytes));
    store(&head[24], random() % 64);
    for (std::size_t at = kHeaderBytes; at < head.size(); at += kRangeBytes)
      store(&head[at + 8], random() % 32);
    Frame frame;
    std::vector<WireRange> ranges;
    if (decode_whole(sealed(head), frame, ranges) != nullptr) continue;
    ++good;
    uint64_t sum = 0;
    for (const WireRange& range : ranges) sum += range.length;
    const bool request = frame.kind == Kind::kRead || frame.kind == Kind::kWrite;
    CHECK(request ? sum == frame.bytes && sum > 0 : ranges.empty());
    CHECK(payload_bytes(frame) <= kMaxPayload);
  }
  CHECK(good > 100);
}

void test_descriptors() {
  const SegmentDescriptor sent{
      1, 2, 3, true, false, {Place::kDisk, 4}, {{"one", {}}, {"two", Bytes(5, std::byte{6})}}};
  const Bytes bytes = encode(sent);
  SegmentDescriptor descriptor;
  CHECK(decode(bytes, descriptor));
  CHECK(descriptor.slot == 1 && descriptor.epoch == 2 && descriptor.size == 3);
  CHECK(descriptor.readable && !descriptor.writable && descriptor.location == sent.location);
  CHECK(*descriptor.key("two") == Bytes(5, std::byte{6}) && descriptor.key("one")->empty());
  CHECK(descriptor.key("three") == nullptr);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK(!decode(std::span(bytes).first(size), descriptor));
  const auto changed = [&](std::size_t at, int value) {
    Bytes other = bytes;
    other[at] = std::byte(value);
    return decode(other, descriptor);
  };
  CHECK(changed(16, 5) && descriptor.guarded);
  CHECK(!changed(16, 8) && !changed(17, 3) && !changed(20, 3) && !changed(20, 17));
  CHECK(!changed(24, 33));
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  CHECK(!decode(longer, descriptor));
}

}  // namespace

int main() {
  test_round_trip();
  test_forbidden_fields();
  test_every_flipped_bit_is_seen();
  test_random_frames();
  test_descriptors();
}

// Reading records where they lie.
#include <algorithm>
#include <cstring>
#include <thread>

#include "../core/crc32c.h"
#include "../core/errors.h"
#include "../core/huge_pages.h"
#include "../core/stream_copy.h"
#include "client.h"
#include "moving.h"

namespace inlay::store {

namespace {

constexpr std::chrono::milliseconds kUnreachablePause(2);
// So long a replica is waited for when there are others, and a millisecond for each 100 KB.
constexpr std::chrono::milliseconds kPatience(500);
constexpr uint64_t kBytesPerMs = 100'000;
// A damaged copy may be one that was just being replaced.
constexpr int kDamagedTries = 3;

// The targets are the payload from its start to its end: its checksum can be compared.
bool is_whole(std::span<const Target> targets, uint64_t payload_bytes) {
  uint64_t at = 0;
  for (const Target& target : targets) {
    if (target.from != at) return false;
    at += target.bytes;
  }
  return at == payload_bytes;
}

void copy_targets(std::span<const Target> targets, const std::byte* payload, uint32_t* crc) {
  uint64_t bytes = 0;
  for (const Target& target : targets) bytes += target.bytes;
  const bool streaming = is_streaming(bytes);
  for (const Target& target : targets) {
    const std::byte* from = payload + target.from;
    if (crc != nullptr)
      *crc = copy_crc32c(target.to, from, target.bytes, streaming, *crc);
    else
      copy_bytes(target.to, from, target.bytes, streaming);
  }
}

// The living record of that key and generation; none: another one is there, or none.
std::optional<RecordHeader> expected_record(std::span<const std::byte> bytes, std::string_view key,
                                            const Location& location) {
  const auto record = parse_record(bytes, location.record_bytes);
  if (!record || record->header.generation != location.generation || record->key != key ||
      record->header.state != static_cast<uint32_t>(RecordState::kLive))
    return {};
  return record->header;
}

}  // namespace

StoreClient::Outcome StoreClient::read_mapped(const Read& read, const Spot& spot) {
  const Location& location = *read.location;
  HostSegment& mapped = *spot.reach->mapped();
  if (location.record_bytes > mapped.memory().size() ||
      spot.offset > mapped.memory().size() - location.record_bytes)
    return Outcome::kStale;
  const auto pin = mapped.pins().pin(spot.offset);
  if (!pin) return Outcome::kUnreachable;
  const auto bytes = mapped.memory().subspan(spot.offset, location.record_bytes);
  if (load_state(bytes.data()) != RecordState::kLive) return Outcome::kStale;
  const auto header = expected_record(bytes, read.key, location);
  if (!header) return Outcome::kStale;
  const bool whole = is_whole(read.targets, header->payload_bytes);
  uint32_t crc = 0;
  copy_targets(read.targets, bytes.data() + header->payload_offset, whole ? &crc : nullptr);
  return whole && crc != header->payload_crc ? Outcome::kDamaged : Outcome::kRead;
}

// A record that is read through the engine.
struct StoreClient::Fetch {
  std::size_t index;  // of the read
  const Spot* spot;
  bool gathered;  // the whole record comes into `buffer`
  bool whole;
  std::shared_ptr<std::vector<std::byte>> buffer;  // else its head alone
  Outcome outcome = Outcome::kUnreachable;
};

void StoreClient::read_remote(std::span<const Read> reads, std::vector<Fetch>& fetches,
                              Clock::time_point until) {
  const auto local = [](std::byte* base, uint64_t bytes, std::shared_ptr<const void> keeper) {
    return std::make_shared<transfer::Segment>(base, bytes, true, transfer::Access::kNone,
                                               std::string(), std::move(keeper));
  };
  const auto request = [](const std::shared_ptr<transfer::Segment>& to,
                          const std::shared_ptr<transfer::RemoteSegment>& remote, uint64_t from) {
    return transfer::Request{
        .op = transfer::Op::kRead, .local = to, .remote = remote, .ranges = {{0, from, to->size}}};
  };
  std::vector<transfer::Request> requests;
  std::vector<transfer::Request> heads;  // again, of those of which parts were read
  std::vector<std::pair<std::size_t, std::size_t>> spans(fetches.size());
  for (std::size_t f = 0; f < fetches.size(); ++f) {
    Fetch& fetch = fetches[f];
    const Read& read = reads[fetch.index];
    const RecordShape shape = shape_of(read.key.size(), read.location->payload_bytes);
    const uint64_t at = fetch.spot->offset;
    spans[f].first = requests.size();
    spans[f].second = requests.size();
    try {
      const auto remote = fetch.spot->reach->remote(until);
      const uint64_t head = fetch.gathered ? shape.payload_offset + read.location->payload_bytes
                                           : sizeof(RecordHeader) + read.key.size();
      if (at > remote->descriptor.size || shape.bytes > remote->descriptor.size - at) {
        fetch.outcome = Outcome::kStale;
        continue;
      }
      fetch.buffer = std::make_shared<std::vector<std::byte>>(head);
      const auto head_to = local(fetch.buffer->data(), head, fetch.buffer);
      requests.push_back(request(head_to, remote, at));
      if (!fetch.gathered) {
        for (const Target& target : read.targets)
          if (target.bytes > 0) {
            requests.push_back(request(local(target.to, target.bytes, nullptr), remote,
                                       at + shape.payload_offset + target.from));
            requests.back().checksum = fetch.whole;
          }
        if (!fetch.whole) heads.push_back(request(head_to, remote, at));
      }
      spans[f].second = requests.size();
    } catch (const TransferFailure&) {
      requests.erase(requests.begin() + static_cast<std::ptrdiff_t>(spans[f].first),
                     requests.end());
    }
  }
  if (requests.empty()) return;
  std::vector<transfer::Batch::Progress> moved(requests.size());
  try {
    Moving moving(*engine_, std::move(requests), until);
    transfer::Batch& batch = moving.finish();
    for (std::size_t i = 0; i < moved.size(); ++i) moved[i] = batch.progress(i);
    // Parts have no checksum of their own. Bytes are given to another record only after this one
    // was marked dead: alive afterwards, it was alive while they were read.
    if (!heads.empty() &&
        Moving(*engine_, std::move(heads), until).finish().state() != transfer::State::kDone)
      for (std::size_t f = 0; f < fetches.size(); ++f)
        if (!fetches[f].gathered && !fetches[f].whole) spans[f].second = spans[f].first;
  } catch (const TransferFailure&) {
    return;
  }
  for (std::size_t f = 0; f < fetches.size(); ++f) {
    Fetch& fetch = fetches[f];
    const Read& read = reads[fetch.index];
    const auto [first, end] = spans[f];
    if (first == end ||
        !std::ranges::all_of(std::span(moved).subspan(first, end - first),
                             [](const transfer::Batch::Progress& one) { return one.complete; }))
      continue;
    const auto header = expected_record(*fetch.buffer, read.key, *read.location);
    if (!header) {
      fetch.outcome = Outcome::kStale;
      continue;
    }
    uint32_t crc = header->payload_crc;
    if (fetch.gathered) {
      const std::byte* payload = fetch.buffer->data() + header->payload_offset;
      crc = crc32c({payload, header->payload_bytes});
      if (crc == header->payload_crc) copy_targets(read.targets, payload, nullptr);
    } else if (fetch.whole) {
      crc = 0;
      std::size_t next = first + 1;  // behind the head
      for (const Target& target : read.targets)
        if (target.bytes > 0) crc = crc32c_combine(crc, moved[next++].checksum, target.bytes);
    }
    fetch.outcome = crc == header->payload_crc ? Outcome::kRead : Outcome::kDamaged;
  }
}

std::vector<bool> StoreClient::read(std::span<const Read> reads, Clock::time_point until,
                                    std::vector<Damage>* damaged) {
  require_open();
  std::vector<bool> done(reads.size());
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    for (const Target& target : reads[i].targets)
      if (target.bytes > reads[i].location->payload_bytes ||
          target.from > reads[i].location->payload_bytes - target.bytes)
        throw ArgumentError("ranges: [" + std::to_string(target.from) + ", +" +
                            std::to_string(target.bytes) + ") reaches beyond the " +
                            std::to_string(reads[i].location->payload_bytes) +
                            " bytes of object '" + std::string(reads[i].key.substr(0, 80)) + "'");
    if (!reads[i].location->spots.empty()) left.push_back(i);
  }
  std::vector<std::size_t> next_spot(reads.size());
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const auto& spots = reads[i].location->spots;
    const auto good = std::ranges::find_if(spots, [now = Clock::now()](const Spot& spot) {
      return spot.reach->mapped() != nullptr || !spot.reach->is_suspect(now);
    });
    if (good != spots.end()) next_spot[i] = static_cast<std::size_t>(good - spots.begin());
  }
  std::vector<int> times_damaged(reads.size());
  bool any_unreachable = false;
  uint64_t tries = 0;
  uint64_t good = 0;
  uint64_t num_damaged = 0;
  uint64_t bytes = 0;
  while (!left.empty()) {
    tries += left.size();
    std::vector<Fetch> fetches;
    std::vector<std::size_t> again;
    const auto over = [&](std::size_t i, Outcome outcome) {
      const Read& read = reads[i];
      if (outcome == Outcome::kRead) {
        done[i] = true;
        ++good;
        for (const Target& target : read.targets) bytes += target.bytes;
        return;
      }
      if (outcome == Outcome::kDamaged) ++times_damaged[i];
      if (outcome == Outcome::kUnreachable) {
        any_unreachable = true;
        read.location->spots[next_spot[i]].reach->suspect();
      }
      // The next replica, unless this one says that the object is no longer that.
      if (outcome != Outcome::kStale && ++next_spot[i] < read.location->spots.size()) {
        again.push_back(i);
        return;
      }
      if (outcome == Outcome::kDamaged && times_damaged[i] >= kDamagedTries) {
        const std::string text = "object '" + std::string(read.key.substr(0, 80)) + "', " +
                                 std::to_string(read.location->payload_bytes) +
                                 " bytes, does not have its checksum on node '" +
                                 read.location->spots.front().reach->about.node +
                                 "' any more: remove it, and put it again";
        ++num_damaged;
        if (damaged == nullptr) {
          counts_.damaged.add(num_damaged);
          throw StoreFailure(StoreStatus::kDamaged, text);
        }
        damaged->push_back({i, text});
        return;
      }
      if (outcome == Outcome::kDamaged) {
        next_spot[i] = 0;
        again.push_back(i);
        return;
      }
      locations_.forget(read.key, read.location);
    };
    Clock::time_point patience = Clock::now() + kPatience;
    for (const std::size_t i : left) {
      const Read& read = reads[i];
      const Spot& spot = read.location->spots[next_spot[i]];
      if (spot.reach->mapped() != nullptr) {
        over(i, read_mapped(read, spot));
        continue;
      }
      const bool gathered = read.location->payload_bytes <= kGatherUpTo;
      const bool whole = is_whole(read.targets, read.location->payload_bytes);
      fetches.push_back({i, &spot, gathered, whole, nullptr});
      if (next_spot[i] + 1 == read.location->spots.size()) patience = until;
      if (patience < until)
        patience += std::chrono::milliseconds(read.location->payload_bytes / kBytesPerMs);
    }
    if (!fetches.empty()) {
      read_remote(reads, fetches, std::min(patience, until));
      for (const Fetch& fetch : fetches) over(fetch.index, fetch.outcome);
    }
    left = std::move(again);
    if (Clock::now() >= until && !left.empty())
      throw StoreFailure(StoreStatus::kTimeout,
                         "object '" + std::string(reads[left.front()].key.substr(0, 80)) +
                             "' was not read in time");
  }
  counts_.read.add(good);
  counts_.read_bytes.add(bytes);
  counts_.again.add(tries - good - num_damaged);
  counts_.damaged.add(num_damaged);
  // The master learns of a node's end later than who asked it for bytes.
  if (any_unreachable) std::this_thread::sleep_for(kUnreachablePause);
  return done;
}

std::optional<ObjectView> StoreClient::view(std::string_view key, bool verify,
                                            Clock::time_point until) {
  while (Clock::now() < until) {
    const LocationPtr location = find({&key, 1}, until).front();
    if (location == nullptr) return {};
    ObjectView view;
    view.generation = location->generation;
    const Spot& spot = location->spots.front();
    if (HostSegment* mapped = spot.reach->mapped()) {
      view.pin = mapped->pins().pin(spot.offset);
      const auto bytes = mapped->memory().subspan(spot.offset, location->record_bytes);
      if (view.pin && load_state(bytes.data()) == RecordState::kLive) {
        if (const auto header = expected_record(bytes, key, *location)) {
          view.bytes = bytes.subspan(header->payload_offset, header->payload_bytes);
          view.reach = spot.reach;
          if (verify && crc32c(view.bytes) != header->payload_crc) {
            counts_.damaged.add(1);
            throw StoreFailure(StoreStatus::kDamaged,
                               "object '" + std::string(key.substr(0, 80)) +
                                   "' does not have its checksum in this host's memory any more");
          }
          counts_.read.add(1);
          counts_.read_bytes.add(view.bytes.size());
          return view;
        }
      }
      locations_.forget(key, location);
      counts_.again.add(1);
      continue;
    }
    view.copy = std::make_unique_for_overwrite<std::byte[]>(location->payload_bytes);
    prefer_huge_pages(view.copy.get(), location->payload_bytes);
    const Target target{0, view.copy.get(), location->payload_bytes};
    const Read one{key, location, {&target, 1}};
    if (!read({&one, 1}, until).front()) continue;
    view.bytes = {view.copy.get(), location->payload_bytes};
    return view;
  }
  throw StoreFailure(StoreStatus::kTimeout,
                     "object '" + std::string(key.substr(0, 80)) + "' was not found in time");
}

}  // namespace inlay::store

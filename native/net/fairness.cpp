#include "fairness.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <system_error>

#include "../core/errors.h"

namespace inlay::net {

namespace {

constexpr uint64_t kLedgerMagic = 0x31525241464c4e49;  // "INLFARR1"
constexpr double kUnlimited = std::numeric_limits<double>::infinity();
// Whose line was not written for so long may lose it to another.
constexpr std::chrono::seconds kAbandoned(1);
constexpr uint32_t kMaxWeight = 1024;
constexpr double kHeadroom = 1.03;
// Who moves so much of what the card is believed to carry learns from it, whether anybody wants
// more or not: on a card that carries a little less than believed all wait for it and none for a
// grant.
constexpr double kNearlyFull = 0.7;
// Room that is left to one who had tokens to spare. More than kHeadroom: a capacity that is so much
// too high squeezes everybody on the link below his share, which must not look like less demand.
constexpr double kSlack = 1.25;
constexpr double kRateHalfLife_s = 0.020;
constexpr double kCapacityHalfLife_s = 0.040;
// Below so much of his share, with a queue and on a full card, one may be starved by another's
// packets or wait for a slow peer. He claims all for a while, which tells them apart: his rate
// grows, or not.
constexpr double kStarved = 0.5;
constexpr double kGrowth = 1.25;
constexpr std::chrono::milliseconds kClaim(100);
constexpr std::chrono::seconds kFirstRest(2);
constexpr std::chrono::seconds kLongestRest(16);
// Nobody is held below this: where less was learned it was a pause.
constexpr double kMinCapacity = 1e6;
// Bytes/s that nobody has to be held back for.
constexpr double kTrickle = 1e5;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

double weight_of_new(Clock::duration elapsed, double half_life_s) {
  return 1 - std::exp2(-seconds(elapsed) / half_life_s);
}

// Of a line that may be damaged: bytes/s, or 0.
double sane(const std::atomic<double>& field) {
  const double rate = field.load(std::memory_order_relaxed);
  return rate > 0 && rate < 1e15 ? rate : 0;
}

uint64_t random_owner() {
  uint64_t value = 0;
  while (value == 0) fill_random(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

// Names are unique in a network namespace only.
std::string network_namespace() {
  struct stat found{};
  return stat("/proc/self/ns/net", &found) == 0 ? std::to_string(found.st_ino) : "0";
}

std::string file_name(const FairnessOptions& options) {
  if (options.nic.empty() || options.nic.size() > 64 || options.nic.find('/') != std::string::npos)
    throw ArgumentError("nic: must be the name of a port, got '" + options.nic + "'");
  if (options.weight < 1 || options.weight > kMaxWeight)
    throw ArgumentError("weight: must be in 1..1024, got " + std::to_string(options.weight));
  if (!(options.capacity >= 0) || options.capacity == kUnlimited)
    throw ArgumentError("capacity: must be bytes per second or 0, got " +
                        std::to_string(options.capacity));
  return options.directory + "/fairness-" + network_namespace() + "-" + options.nic +
         (options.direction == Direction::kSend ? "-send" : "-receive");
}

[[noreturn]] void refuse(const std::string& file, int error) {
  throw ResourceError("the ledger " + file +
                      " cannot be used: " + std::generic_category().message(error));
}

}  // namespace

// Written by its owner alone. An owner that was stopped for a second and goes on may write once
// into a line that is another's by now; the other's next beat corrects it.
struct alignas(64) Fairness::Line {
  std::atomic<uint64_t> owner;  // a random number; 0 free
  std::atomic<int64_t> beat;    // the steady clock's ns, which all processes share
  std::atomic<double> rate;     // bytes/s
  std::atomic<double> demand;   // bytes/s, infinity for more than it has
  std::atomic<double> capacity;
  std::atomic<uint32_t> weight;
  std::atomic<uint32_t> pid;  // for people

  Clock::duration age(Clock::time_point now) const {
    const Clock::duration age =
        now - Clock::time_point(Clock::duration(beat.load(std::memory_order_acquire)));
    // A file that outlived the machine's last start holds times to come.
    return age < Clock::duration::zero() ? -age : age;
  }
};

struct Fairness::Ledger {
  std::atomic<uint64_t> magic;
  std::array<Line, 64> lines;

  // A new file is all zeros, which is a ledger without lines.
  static std::unique_ptr<Ledger, void (*)(Ledger*)> open(const std::string& file);
};

std::unique_ptr<Fairness::Ledger, void (*)(Fairness::Ledger*)> Fairness::Ledger::open(
    const std::string& file) {
  static_assert(std::atomic<double>::is_always_lock_free && sizeof(Line) == 64);
  const Descriptor descriptor(
      ::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!descriptor.valid()) refuse(file, errno);
  struct stat found{};
  if (fstat(descriptor.get(), &found) != 0) refuse(file, errno);
  if (!S_ISREG(found.st_mode) || found.st_uid != geteuid() || (found.st_mode & 077) != 0)
    throw ArgumentError("the ledger " + file +
                        " must be a file of this user with mode 0600; remove it");
  // Allocated, not just made longer: a page that a full disk cannot give would end the process.
  if (const int error = posix_fallocate(descriptor.get(), 0, sizeof(Ledger)); error != 0)
    refuse(file, error);
  void* memory =
      mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  if (memory == MAP_FAILED) refuse(file, errno);
  std::unique_ptr<Ledger, void (*)(Ledger*)> ledger(
      static_cast<Ledger*>(memory), [](Ledger* mapped) { munmap(mapped, sizeof(Ledger)); });
  uint64_t magic = 0;
  if (!ledger->magic.compare_exchange_strong(magic, kLedgerMagic) && magic != kLedgerMagic)
    throw ArgumentError("the ledger " + file + " is of another version of Inlay; remove it");
  return ledger;
}

double share_of(double capacity, double weight, std::vector<Claim> others) {
  std::ranges::sort(others, [](const Claim& a, const Claim& b) {
    return a.demand * b.weight < b.demand * a.weight;
  });
  double weights = weight;
  for (const Claim& other : others) weights += other.weight;
  for (const Claim& other : others) {
    if (other.demand * weights >= capacity * other.weight) break;
    capacity -= other.demand;
    weights -= other.weight;
  }
  return capacity * weight / weights;
}

void CapacityEstimate::add(double rate, bool busy, Clock::duration elapsed) {
  smooth_ += weight_of_new(elapsed, kCapacityHalfLife_s) * (rate - smooth_);
  // What went without anybody wanting more is less than what could go, unless it is about the most.
  if (!busy && smooth_ < kNearlyFull * value()) return;
  if (busy_rates_.size() < kMemory)
    busy_rates_.push_back(smooth_);
  else
    busy_rates_[next_] = smooth_;
  next_ = (next_ + 1) % kMemory;
}

double CapacityEstimate::value() const {
  if (busy_rates_.size() < kWarmUp) return 0;
  return kHeadroom * *std::ranges::max_element(busy_rates_);
}

Fairness::Fairness(const FairnessOptions& options)
    : options_(options),
      owner_(random_owner()),
      generation_(fork_generation()),
      ledger_(Ledger::open(file_name(options))) {}

Fairness::~Fairness() {
  uint64_t expected = owner_;
  if (line_ != nullptr && generation_ == fork_generation())
    line_->owner.compare_exchange_strong(expected, 0);
}

bool Fairness::hold_line(Clock::time_point now) {
  if (line_ != nullptr && line_->owner.load() == owner_) return true;
  line_ = nullptr;
  for (Line& line : ledger_->lines) {
    uint64_t owner = line.owner.load();
    if (owner != 0 && line.age(now) < kAbandoned) continue;
    if (!line.owner.compare_exchange_strong(owner, owner_)) continue;
    line.pid.store(static_cast<uint32_t>(getpid()));
    line.weight.store(options_.weight);
    line.capacity.store(0);
    line_ = &line;
    return true;
  }
  return false;
}

void Fairness::refresh(uint64_t wanted, Clock::time_point now) {
  const Clock::duration elapsed = now - last_beat_;
  const bool resumed = elapsed > kStale;
  last_beat_ = now;
  const uint64_t moved = moved_.load(std::memory_order_relaxed);
  const auto bytes = static_cast<double>(moved - std::exchange(moved_before_, moved));
  if (resumed)
    rate_ = 0;
  else
    rate_ += weight_of_new(elapsed, kRateHalfLife_s) * (bytes / seconds(elapsed) - rate_);
  // Who begins has no rate yet and is refused nothing. Later only what the bucket refuses counts as
  // unmet: who has tokens left waits for a slow peer, and the others may have the rest.
  const bool unmet = std::exchange(refused_, false) ||
                     (resumed && static_cast<double>(std::max(queued_, wanted)) > kMinBurst);
  const bool queues = static_cast<double>(queued_) > rate_ * seconds(kBeat) + kMinBurst;
  const double demand = unmet || claims(queues && !unmet, now) ? kUnlimited : rate_ * kSlack;

  double total = rate_;
  double capacity = options_.capacity;
  bool busy = unmet || queues;
  std::vector<Claim> others;
  const bool listed = hold_line(now);
  for (const Line& line : ledger_->lines) {
    if (&line == line_ || line.owner.load() == 0 || line.age(now) > kStale) continue;
    const double claimed = line.demand.load(std::memory_order_relaxed);
    total += sane(line.rate);
    busy |= claimed == kUnlimited;
    if (options_.capacity == 0) capacity = std::max(capacity, sane(line.capacity));
    if (claimed > kTrickle)
      others.push_back({double(std::clamp(line.weight.load(), 1U, kMaxWeight)), claimed});
  }
  if (!resumed) learned_.add(total, busy, elapsed);
  if (options_.capacity == 0) capacity = std::max(capacity, learned_.value());
  if (listed) {
    line_->rate.store(rate_, std::memory_order_relaxed);
    line_->demand.store(demand, std::memory_order_relaxed);
    line_->capacity.store(learned_.value(), std::memory_order_relaxed);
    line_->beat.store(now.time_since_epoch().count(), std::memory_order_release);
  }
  capacity_.store(capacity, std::memory_order_relaxed);
  card_is_full_ = total > kNearlyFull * capacity;

  refill(now);
  if (!others.empty()) last_company_ = now;
  // Who waits for a processor on a busy machine does not beat either. Until he is gone for good we
  // take what the card carries, and no more: what fills our sockets would be in his way for long.
  const bool in_company = now - last_company_ < kAbandoned;
  // Without a line (64 processes have all of them) nobody reckons with us; neither do we.
  const bool limited = listed && in_company && capacity > 0;
  share_.store(
      limited ? share_of(std::max(capacity, kMinCapacity), options_.weight, std::move(others)) : 0,
      std::memory_order_relaxed);
  if (!limited) tokens_ = kMinBurst;  // the first small message is not held up
}

bool Fairness::claims(bool queues, Clock::time_point now) {
  if (!queues) {  // refused, so he has his share; or nothing waits
    claim_end_ = {};
    claim_rest_ = kFirstRest;
    return false;
  }
  if (claim_end_ == Clock::time_point{}) {
    const bool starved = card_is_full_ && rate_ < kStarved * share_.load(std::memory_order_relaxed);
    if (!starved || now < next_claim_) return false;
  } else if (now < claim_end_) {
    return true;
  } else if (rate_ < kGrowth * claim_rate_) {
    claim_end_ = {};
    next_claim_ = now + claim_rest_;
    claim_rest_ = std::min<Clock::duration>(2 * claim_rest_, kLongestRest);
    return false;
  }
  claim_end_ = now + kClaim;
  claim_rate_ = rate_;
  return true;
}

void Fairness::refill(Clock::time_point now) {
  const double share = share_.load(std::memory_order_relaxed);
  const double burst = std::max(kMinBurst, share * seconds(kBeat));
  if (now > last_refill_ && share > 0)
    tokens_ = std::min(burst, tokens_ + share * seconds(now - last_refill_));
  last_refill_ = std::max(now, last_refill_);
}

uint64_t Fairness::grant(uint64_t wanted, Clock::time_point now) {
  if (wanted == 0) return 0;
  const std::lock_guard lock(mutex_);
  // Beats are left to beat(), before which arrivals are counted.
  if (now - last_beat_ > kStale) {
    refresh(wanted, now);
    resumed_by_grant_ = true;
  }
  const double share = share_.load(std::memory_order_relaxed);
  if (share == 0) return wanted;
  refill(now);
  if (tokens_ <= 0) {
    refused_ = true;
    return 0;
  }
  // More than there is: what is owed is waited for afterwards, so that no grant is a splinter.
  const double burst = std::max(kMinBurst, share * seconds(kBeat));
  const uint64_t granted = std::min(wanted, static_cast<uint64_t>(burst));
  if (granted < wanted) refused_ = true;
  tokens_ -= static_cast<double>(granted);
  return granted;
}

Clock::time_point Fairness::next() const {
  const std::lock_guard lock(mutex_);
  const double share = share_.load(std::memory_order_relaxed);
  const Clock::time_point next_beat = last_beat_ + kBeat;
  if (share == 0 || tokens_ > 0) return std::min(last_refill_, next_beat);
  const auto wait = std::chrono::duration<double>((1 - tokens_) / share);
  return std::min(next_beat, last_refill_ + std::chrono::ceil<Clock::duration>(wait));
}

void Fairness::beat(uint64_t queued, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  queued_ = queued;
  // What arrived before a grant ended the rest was not counted then. In the time since, which may
  // be a hundredth of that, it would be a rate that no card has.
  if (std::exchange(resumed_by_grant_, false))
    moved_before_ = moved_.load(std::memory_order_relaxed);
  if (now - last_beat_ >= kBeat) refresh(0, now);
}

}  // namespace inlay::net

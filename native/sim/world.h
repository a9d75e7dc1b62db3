// Instances that do not exist, in a time of their own: what is submitted to them is computed, sent
// and remembered as engines would, and who asks hears of it as late as a dispatcher does. It knows
// no policy.
//
// What happens at one time happens in this order: ends of steps, ends of transfers, reports, what
// is submitted, starts of steps; at several instances in the order of their slots. Nothing depends
// on addresses or on the order of a container.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <queue>
#include <span>
#include <unordered_map>
#include <vector>

#include "../cluster/digest.h"
#include "../cluster/prefix_index.h"
#include "../cluster/state.h"
#include "instance.h"
#include "links.h"

namespace inlay::sim {

struct WorldConfig {
  uint64_t seed = 0;
  double news_delay_s = 0.002;  // of what instances say
  double report_s = 0.02;       // between two reports of one, at least
  double link_latency_s = 0.0;
  double aim_timeout_s = 60.0;    // a computed prompt waits so long for pages elsewhere
  double come_timeout_s = 600.0;  // and pages for a prompt
  double copy_timeout_s = 10.0;   // and who asked for a copy for its blocks
  bool samples = true;            // reports have what steps took
  TierConfig store;               // that all instances share
};

struct Submission {
  uint64_t request = 0;  // the caller's number
  double arrival_s = 0.0;
  int32_t priority = 0;
  uint32_t prompt_tokens = 1;
  uint32_t output_tokens = 1;
  cluster::Chain blocks;  // full blocks of the prompt
};

// A request that was lost with its instance, and how much of its output had come by then.
struct LostRequest {
  uint64_t request;
  uint32_t produced;
};

// What an instance says. What else it has depends on the kind.
struct News {
  enum Kind : uint8_t {
    kFirst,
    kFinished,
    kReport,
    kCopied,
    kNotCopied,
    kSending,
    kSent,
    kUndivided,
    kBlocks,
    kStoreBlocks,
    kOld
  };

  double heard_s = 0.0;
  Kind kind = kFirst;
  uint16_t slot = 0;
  uint64_t request = 0;  // or number of a copy
  uint32_t output_tokens = 0;
  double bytes = 0.0;     // to be sent by `slot`, or that it has sent
  double seconds = -1.0;  // that sending took; -1: computing was a part of it, or it failed
  Load load;
  std::vector<StepSample> samples;
  std::vector<BlockChange> changes;
};

// What came of a request. Plain, since arrays are made of it.
struct Outcome {
  uint64_t request = 0;
  double arrival_s = 0.0;
  double first_s = 0.0;
  double end_s = 0.0;
  double tbt_s = 0.0;
  double longest_gap_s = 0.0;
  uint32_t cached_tokens = 0;
  uint32_t preemptions = 0;
  uint32_t prefill = 0;
  uint32_t decode = 0;
  std::array<uint32_t, kNumTiers> tier_tokens{};  // of those cached, that were loaded
};

// One step, where steps are kept.
struct KeptChunk {
  uint64_t step = 0;
  double start_s = 0.0;
  double end_s = 0.0;
  uint64_t request = 0;
  uint32_t slot = 0;
  uint32_t start = 0;
  uint32_t stop = 0;
  uint32_t samples = 0;  // 1 where a token of its output came
};

class World {
 public:
  explicit World(const WorldConfig& config);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Returns its slot.
  std::size_t add(const InstanceConfig& config);

  double now_s() const { return now_s_; }
  // Requests that are submitted and not finished.
  std::size_t num_live() const { return live_; }

  // Runs all that comes before what is submitted at that time; not back. Infinite: until there is
  // nothing to do. Or until it is heard that a copy has come or failed, for which somebody waits:
  // then it returns false. An index hears of blocks; its slots are those of the world. Another one
  // hears of those of the store, which has its first slot.
  bool advance(double until_s, cluster::PrefixIndex* index,
               cluster::PrefixIndex* store_index = nullptr);
  // A request goes to an instance, now; where `decode` is another one it gets the keys and values
  // of the prompt. Throws ArgumentError where an instance could never hold it, or no link is there.
  void submit(const Submission& request, std::size_t prefill, std::size_t decode);
  // One instance sends the first blocks of a prompt, which it should have, to another one. Returns
  // a number for the news of it.
  uint64_t copy(cluster::Chain blocks, std::size_t source, std::size_t target);
  // Takes a request away from where it is, or is to be, decoded. It may be submitted once more with
  // its output so far as a part of its prompt. Returns how many tokens that is; nothing where it
  // is not there, having finished.
  std::optional<uint32_t> take_back(uint64_t request, std::size_t slot);
  // An instance is lost with all that it has, until it is back. Prompts that it computed for others
  // are computed where they are decoded. Returns the requests that were, or would have been,
  // decoded there; they may be submitted once more, as those that were taken back.
  std::vector<LostRequest> lose(std::size_t slot);
  void come_back(std::size_t slot);

  // What was heard since the last call, and what finished. A state, of which slots and requests are
  // those of the world, takes over what it can; then the first of what it cannot is returned alone,
  // since what follows may depend on what is made of it, and the next call goes on behind it.
  std::vector<News> take_news(cluster::State* state = nullptr);
  // Requests of which a state has heard since the last call that they are over.
  std::vector<uint64_t> take_finished();
  std::vector<Outcome> take_outcomes();
  // Of all requests that have finished.
  const GapCounts& gap_counts() const { return gap_counts_; }

  // Chunks of all steps from now on; for tests.
  void keep_steps() { keep_steps_ = true; }
  std::vector<KeptChunk> take_steps();

  Instance& instance(std::size_t slot);
  double sent_bytes(std::size_t slot) const { return links_.sent_bytes(places_[slot]->end); }
  // See PageCache::audit().
  void audit() const;

 private:
  static constexpr std::size_t kMaxSamples = 64;  // of a report

  // In the order in which they happen at one time.
  enum Kind : uint8_t { kEnd, kTransfer, kMoved, kTimeout, kReport, kHeard, kSubmit, kStart };
  struct Event {
    double at_s;
    Kind kind;
    uint16_t slot;

    bool operator>(const Event& other) const {
      if (at_s != other.at_s) return at_s > other.at_s;
      if (kind != other.kind) return kind > other.kind;
      return slot > other.slot;
    }
  };
  struct Landing {
    double at_s;
    Sequence* sender;
  };
  // What a request had that was taken back.
  struct Begun {
    uint32_t produced;
    uint32_t preemptions;
    double first_s;
    double last_s;
    std::vector<float> gaps;
  };
  // What an instance moves from and to tiers.
  struct Moving {
    std::vector<Links::Flow> flows;
    std::size_t left = 0;  // of them
    double latency_s = 0.0;
    double over_s = 0.0;  // when nothing is left
  };
  struct Find {
    double answered_s;
    std::shared_ptr<Prefetch> prefetch;
  };
  // Of a flow from or to a tier.
  struct Owner {
    bool open = false;
    uint16_t slot = 0;
    Tiers::Work work = Tiers::kLoad;
  };
  struct Place {
    explicit Place(const InstanceConfig& config, uint64_t seed, uint16_t slot, Tier* store,
                   const double& now_s)
        : instance(config, seed, slot, store, now_s) {}

    Instance instance;
    uint16_t end = 0;  // of `links_`: of the network, and of the instance's own tiers
    uint16_t host_end = 0;
    uint16_t disk_end = 0;
    std::array<Moving, Tiers::kNumWorks> moving;
    std::deque<Find> finds;
    bool starting = false;
    double start_s = 0.0;
    double end_s = 0.0;  // of the step that runs
    bool lost = false;
    double reported_s = -1e300;
    bool untold = true;        // something happened since the last report
    double report_at_s = 0.0;  // the next one, if it is idle then
    std::vector<Sequence*> receiving;
    std::deque<Sequence*> crowded;  // of them, those that wait for pages
    std::vector<Sequence*> copies;  // that come here
    std::vector<StepSample> samples;
    std::size_t heard_report = SIZE_MAX;  // in `heard_`
  };

  void at(double time_s, Kind kind, uint16_t slot) { events_.push({time_s, kind, slot}); }
  bool idle() const;
  void report_at(uint16_t slot, double time_s);
  void happen(const Event& event);
  void kick(uint16_t slot);
  void start(uint16_t slot);
  void end(uint16_t slot);
  void token(Sequence& sequence);
  void finish(Sequence& sequence);
  bool in_step(const Sequence& sequence);
  void remove(Sequence& sequence);
  Sequence* find(uint64_t request, uint16_t slot);
  void withdraw(Sequence& sequence);
  void go_on(Sequence& sequence);
  void report(uint16_t slot);
  void tell(News news);
  void tell_blocks(uint16_t slot);
  void tell_store_blocks();
  void deliver(double until_s, cluster::PrefixIndex* index, cluster::PrefixIndex* store_index);
  void hear(News news);
  bool take_over(const News& news, cluster::State& state);
  void keep(uint16_t slot);

  Sequence& make(const Submission& request, std::size_t slot);
  void free(Sequence& sequence);
  const InstanceConfig& config_of(std::size_t slot) const;
  void require_fits(const Submission& request, std::size_t slot) const;
  void require_links(std::size_t source, std::size_t target) const;
  Place& place(uint16_t slot) { return *places_[slot]; }

  // Tiers behind devices: world_tiers.cpp.
  void add_ends(Place& here);
  void ask_tiers(uint16_t slot);
  void begin_works(uint16_t slot);
  void open_flows(uint16_t slot, Tiers::Work work);
  bool moved(Links::Flow flow);
  void call_ends(uint16_t slot, Moving& moving);
  void settle(uint16_t slot);
  void stop_works(uint16_t slot);

  // Prompts computed for another instance, and copies: world_split.cpp.
  Sequence& divide(const Submission& request, std::size_t prefill, std::size_t decode);
  bool reserve(Sequence& receiver);
  void poll_crowded(uint16_t slot);
  void drop_sender(Sequence& receiver);
  void offer(Sequence& sender);
  void stream_begins(Sequence& sender, const Chunk& chunk, double seconds);
  void stream_ends(const Chunk& chunk);
  void computed_for_other(const Chunk& chunk);
  void tell_moving(News::Kind kind, const Sequence& sender, double seconds = -1.0);
  void drained(Links::Flow flow);
  void landed(Sequence& sender);
  bool landing(const Sequence& sender) const;
  void compute_here(Sequence& receiver);
  void give_up(uint16_t slot);
  void end_copy(Sequence& copy, bool came);
  double bytes_of(const Sequence& sender, uint32_t start, uint32_t stop);

  WorldConfig config_;
  double now_s_ = 0.0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<std::unique_ptr<Place>> places_;
  Links links_;
  std::vector<Sequence*> flow_senders_;  // by flow
  std::vector<Owner> flow_owners_;       // by flow
  std::unique_ptr<Tier> store_;
  uint16_t store_end_ = 0;   // of `links_`
  uint16_t device_end_ = 0;  // of all devices' own links, which are no narrower than tiers'
  std::vector<Tiers::Move> moves_;
  std::deque<Landing> landings_;  // what is on its way after its last byte was sent

  std::deque<Sequence> sequences_;
  std::vector<Sequence*> unused_;
  std::size_t live_ = 0;
  uint64_t submitted_ = 0;
  std::size_t num_reports_ = 0;                // of `events_`
  std::unordered_map<uint64_t, Begun> begun_;  // by request, until it is submitted again

  std::deque<News> said_;
  std::vector<News> heard_;
  std::size_t taken_ = 0;  // of `heard_`
  std::vector<uint64_t> finished_;
  std::vector<Outcome> outcomes_;
  GapCounts gap_counts_;
  std::vector<Digest> run_;  // of deliver()
  bool keep_steps_ = false;
  std::vector<KeptChunk> kept_;
};

}  // namespace inlay::sim

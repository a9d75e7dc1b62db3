// Prompts of late: what of them is gone again, and what is only being computed. The contract is
// src/inlay/cluster/policies/seen.py; the same in Python is src/inlay/cluster/_reference_seen.py.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "digest.h"

namespace inlay::cluster {

class SeenPrompts {
 public:
  static constexpr double kNever_s = -std::numeric_limits<double>::infinity();

  // Each block at a multiple of `stride` is looked at. The seeds keep those who choose prompts from
  // choosing what collides.
  SeenPrompts(uint64_t seed0, uint64_t seed1, std::size_t stride, std::size_t max_digests);

  // When so many leading blocks were, or will be, computed; kNever_s where nothing is known.
  double ready_s(Chain chain, std::size_t num_blocks) const;
  // A prompt was sent to be computed, of which some instance has the first blocks.
  void add(Chain chain, std::size_t num_held, double ready_s);
  double displaced() const { return displaced_; }

 private:
  struct Cell {
    Digest digest;
    double ready_s = kNever_s;  // then it is empty
  };
  // Open addressing, linear probing; at most half full.
  struct Table {
    std::vector<Cell> cells = std::vector<Cell>(1024);
    std::size_t used = 0;
  };

  std::size_t hash(Digest digest) const;
  std::size_t place(const Table& table, Digest digest) const;
  double find(const Table& table, Digest digest) const;
  void put(Digest digest, double ready_s);

  std::array<uint64_t, 2> seed_;
  std::size_t stride_;
  std::size_t max_digests_;
  double displaced_ = 0.0;
  // When each was, or will be, computed first.
  Table new_;
  Table old_;
};

}  // namespace inlay::cluster

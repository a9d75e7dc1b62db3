// What every part of the store says of an object.
#pragma once

#include <cstddef>
#include <cstdint>

namespace inlay::store {

inline constexpr std::size_t kMaxKeyBytes = 1024;
inline constexpr std::size_t kMaxReplicas = 8;  // in memory and on disks together

// Of a record's header, a commit and an advertisement alike.
enum ObjectFlag : uint16_t {
  kMutable = 1,  // put with another `if_exists` than keep: may change under its key
  kSoftPin = 2,  // evicted only when nothing else is left
  kHardPin = 4,  // never evicted
};

// A generation is the epoch of the master that gave it, 24 bits, and a counter, 40 bits: later ones
// are greater, also over a change of masters.
inline constexpr unsigned kEpochShift = 40;
constexpr uint64_t first_generation_of(uint32_t epoch) { return uint64_t{epoch} << kEpochShift; }
constexpr uint32_t epoch_of(uint64_t generation) {
  return static_cast<uint32_t>(generation >> kEpochShift);
}

}  // namespace inlay::store

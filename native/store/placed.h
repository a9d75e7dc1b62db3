#pragma once

#include <cstdint>
#include <vector>

#include "client.h"
#include "record.h"

namespace inlay::store {

// A record's place in a lane.
struct StoreClient::Placed {
  std::size_t index;  // of the value
  RecordShape shape;
  RecordFields fields{};
  bool has_crc = false;
  std::vector<uint64_t> offsets{};  // by cursor, in the segments
  std::vector<uint64_t> gaps{};     // in front of them
};

}  // namespace inlay::store

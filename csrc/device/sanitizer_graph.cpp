// The sanitizer's view of graphs: a capture has an order of its own, a replay is one step of its stream.
#include <algorithm>

#include "device/sanitizer.h"
#include "device/sanitizer_runs.h"

namespace softnpu::sanitizer {

namespace {

using Ranges = std::vector<std::pair<uintptr_t, uintptr_t>>;

void merge(Ranges& ranges) {
  std::sort(ranges.begin(), ranges.end());
  Ranges merged;
  for (const auto& [begin, end] : ranges) {
    if (!merged.empty() && begin <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, end);
    } else {
      merged.emplace_back(begin, end);
    }
  }
  ranges = std::move(merged);
}

bool meets(const Ranges& ranges, uintptr_t from, uintptr_t to) {
  auto at = std::lower_bound(ranges.begin(), ranges.end(), std::make_pair(from, from),
                             [](const auto& a, const auto& b) { return a.second <= b.first; });
  return at != ranges.end() && at->first < to;
}

bool meet(const Ranges& a, const Ranges& b) {
  return std::any_of(a.begin(), a.end(), [&](const auto& one) { return meets(b, one.first, one.second); });
}

}  // namespace

std::shared_ptr<Footprint> Sanitizer::begin_capture(PoolId pool) {
  const StackId stack = here();
  const Lock lock(mutex_);
  auto footprint = std::make_shared<Footprint>();
  footprint->graph = next_graph_++;
  footprint->pool = pool;
  footprint->captured = stack;
  return footprint;
}

void Sanitizer::capture_access(Launch& launch, const Memory& memory, Access access) {
  Footprint& footprint = *launch.capture;
  Shadow& shadow = footprint.shadows[memory.base];
  shadow.bytes = memory.bytes;
  const auto own = shadows_.find(memory.base);
  if (own != shadows_.end()) shadow.allocated = own->second.allocated;
  check(footprint.world, shadow, memory, access, &footprint);
  if (memory.kind == Memory::kPool && memory.pool == footprint.pool) {
    (access.write ? footprint.writes : footprint.reads).emplace_back(access.region.begin, access.region.end);
    return;
  }
  for (const auto& [known, old] : footprint.outside) {
    if (known.base == memory.base && covers(old.region, access.region) && (old.write || !access.write)) return;
  }
  footprint.outside.emplace_back(memory, std::move(access));
}

void Sanitizer::end_capture(const std::shared_ptr<Footprint>& footprint) {
  const Lock lock(mutex_);
  merge(footprint->reads);
  merge(footprint->writes);
  footprint->shadows.clear();
  footprint->world = World();
  pools_[footprint->pool].captured = footprint->graph;
}

void Sanitizer::forget_graph(const std::shared_ptr<Footprint>& footprint) {
  const Lock lock(mutex_);
  const auto found = pools_.find(footprint->pool);
  if (found == pools_.end()) return;
  std::erase_if(found->second.last, [&](const auto& one) { return one.first == footprint; });
  if (found->second.last.empty() && footprint->graph == found->second.captured) pools_.erase(found);
}

uint32_t Sanitizer::last_captured(PoolId pool) {
  const Lock lock(mutex_);
  const auto found = pools_.find(pool);
  return found == pools_.end() ? 0 : found->second.captured;
}

void Sanitizer::input_lost(uintptr_t at, size_t bytes, bool moved, StackId captured) {
  Finding finding;
  finding.kind = 'd';
  finding.first.stack = here();
  finding.first.op = intern("NPUGraph.replay");
  finding.first_actor = "the host";
  finding.first_does = "calls";
  finding.bytes = bytes;
  finding.related = captured;
  finding.related_text = "the graph was captured";
  const Lock lock(mutex_);
  const auto shadow = shadows_.find(at);
  if (shadow != shadows_.end()) finding.allocated = shadow->second.allocated;
  finding.text = "memory of " + std::to_string(bytes) + " bytes that a captured graph uses was " +
                 (moved ? "resized" : "freed") + " before the graph is replayed";
  finding.repair = moved ? "keep the size of what a graph uses: copy_ new values into it"
                         : "keep a reference to every tensor that a graph uses, as long as the graph is replayed";
  report(std::move(finding));
}

void Sanitizer::check_stale(const Launch& launch, const Region& region, PoolId pool, uint32_t graph, Name shape) {
  const Lock lock(mutex_);
  const auto found = pools_.find(pool);
  if (found == pools_.end()) return;
  const std::pair<std::shared_ptr<Footprint>, Access>* newest = nullptr;
  for (const auto& one : found->second.last) {
    if (!meets(one.first->writes, region.begin, region.end)) continue;
    if (newest == nullptr || one.second.step > newest->second.step) newest = &one;
  }
  if (newest == nullptr || newest->first->graph == graph) return;
  Finding finding;
  finding.kind = 'd';
  finding.first = newest->second;
  finding.first.region = region;
  finding.second = finding.first;
  finding.second.stack = launch.stack;
  finding.second.op = launch.op;
  finding.second.shape = shape;
  finding.second.step = launch.step;
  finding.second.write = false;
  finding.first_actor = world_.name_of(newest->second.actor);
  finding.second_actor = world_.name_of(launch.actor);
  finding.first_does = "writes";
  finding.second_does = "reads what another graph had written to";
  finding.related = newest->first->captured;
  finding.related_text = "the graph that overwrote it was captured";
  finding.text = "memory of a graph's pool is read after another graph of that pool was replayed over it";
  finding.repair = "read or copy a graph's results before another graph of its pool is replayed, or keep them alive";
  report(std::move(finding));
}

void Sanitizer::replayed(int device, StreamId stream, const std::shared_ptr<Footprint>& footprint) {
  Launch launch = this->launch(device, stream, intern("NPUGraph.replay"));
  const Lock lock(mutex_);
  launch.graph = footprint->graph;
  Access access;
  access.actor = launch.actor;
  access.time = launch.time;
  access.stack = launch.stack;
  access.step = launch.step;
  access.graph = footprint->graph;
  for (const auto& [memory, captured] : footprint->outside) {
    access.region = captured.region;
    access.write = captured.write;
    access.op = captured.op;
    access.shape = captured.shape;
    if (memory.kind == Memory::kPool) {
      check_replays(memory, access);
      check(world_, pools_[memory.pool].outside, memory, access, nullptr);
      continue;
    }
    if (memory.kind == Memory::kPinned) {
      open_pinned(memory);
      in_flight_.push_back({memory.base, memory.bytes, access});
      begin_run(launch.step);
      launch.pinned = true;
    }
    Shadow& shadow = shadows_[memory.base];
    if (shadow.bytes == 0) shadow.bytes = memory.bytes;
    if (options_.poison && captured.write && !shadow.unwritten.empty()) shadow.unwritten.clear();
    check(world_, shadow, memory, access, nullptr);
  }
  Replays& pool = pools_[footprint->pool];
  const Clock& clock = world_.clock(launch.actor);
  access.op = launch.op;
  access.write = true;
  for (auto& [other, last] : pool.last) {
    if (last.time <= clock.of(last.actor)) continue;
    const bool conflict = meet(footprint->writes, other->writes) || meet(footprint->writes, other->reads) ||
                          meet(footprint->reads, other->writes);
    if (!conflict) continue;
    Shadow whole;
    whole.allocated = other->captured;
    Memory memory{Memory::kPool, 0, 0, footprint->pool};
    race(world_, whole, memory, last, access, nullptr);
  }
  for (const Access& old : pool.outside.accesses) {
    if (old.time <= clock.of(old.actor)) continue;
    const bool conflict = meets(footprint->writes, old.region.begin, old.region.end) ||
                          (old.write && meets(footprint->reads, old.region.begin, old.region.end));
    if (!conflict) continue;
    Shadow whole;
    whole.allocated = footprint->captured;
    race(world_, whole, {Memory::kPool, 0, 0, footprint->pool}, old, access, nullptr);
  }
  std::erase_if(pool.outside.accesses,
                [&](const Access& old) { return meets(footprint->writes, old.region.begin, old.region.end); });
  const auto place =
      std::find_if(pool.last.begin(), pool.last.end(), [&](const auto& one) { return one.first == footprint; });
  if (place != pool.last.end()) {
    place->second = access;
  } else {
    pool.last.emplace_back(footprint, access);
  }
}

// An access from outside to memory of a graph's pool, against what the replays do there.
void Sanitizer::check_replays(const Memory& memory, const Access& access) {
  const auto found = pools_.find(memory.pool);
  if (found == pools_.end()) return;
  const Clock& clock = world_.clock(access.actor);
  for (const auto& [footprint, last] : found->second.last) {
    if (last.time <= clock.of(last.actor)) continue;
    const bool writes = meets(footprint->writes, access.region.begin, access.region.end);
    const bool reads = access.write && meets(footprint->reads, access.region.begin, access.region.end);
    if (!writes && !reads) continue;
    Shadow whole;
    whole.allocated = footprint->captured;
    Access first = last;
    first.write = writes;
    race(world_, whole, memory, first, access, nullptr);
  }
}

}  // namespace softnpu::sanitizer

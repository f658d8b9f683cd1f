// The sanitizer's accesses: races, memory that is recycled too early, memory that nobody wrote.
#include <algorithm>
#include <cstring>

#include "device/sanitizer.h"

namespace softnpu::sanitizer {

namespace {

constexpr size_t kMostAccesses = 128;  // that an allocation remembers
constexpr size_t kMostFreed = 1024;    // blocks of a stream that are remembered after they were freed
constexpr uint64_t kMostRuns = 4096;   // of a strided write that are kept apart
constexpr size_t kMostFilled = size_t{1} << 28;
constexpr int kPattern = 0xff;  // a NaN in every floating type

using Ranges = std::vector<std::pair<uintptr_t, uintptr_t>>;

void subtract(Ranges& ranges, uintptr_t from, uintptr_t to) {
  Ranges left;
  for (const auto& [begin, end] : ranges) {
    if (end <= from || to <= begin) {
      left.emplace_back(begin, end);
      continue;
    }
    if (begin < from) left.emplace_back(begin, from);
    if (to < end) left.emplace_back(to, end);
  }
  ranges = std::move(left);
}

size_t common(const Ranges& ranges, uintptr_t from, uintptr_t to) {
  size_t bytes = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin < to && from < end) bytes += std::min(end, to) - std::max(begin, from);
  }
  return bytes;
}

bool is_communicator(const World& world, ActorId actor) { return world.of(actor).stream >= kFirstCommunicator; }

}  // namespace

bool Sanitizer::ordered(const Access& access, ActorId before) const {
  const Time known = std::max(world_.of(before).clock.of(access.actor), world_.of(host()).clock.of(access.actor));
  return access.time <= known;
}

void Sanitizer::check(World& world, Shadow& shadow, const Memory& memory, Access access, Footprint* capture) {
  const Clock& clock = world.clock(access.actor);
  auto& all = shadow.accesses;
  size_t kept = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    Access& old = all[i];
    if (old.time <= clock.of(old.actor)) {
      if ((access.write || !old.write) && covers(access.region, old.region)) continue;
    } else if ((access.write || old.write) && overlap(access.region, old.region)) {
      if (old.recycled) {
        if (access.write) recycled_race(world, shadow, old, access);
      } else {
        race(world, shadow, memory, old, access, capture);
      }
      continue;  // it was told: what follows compares with the newer one
    }
    if (kept != i) all[kept] = std::move(old);
    ++kept;
  }
  all.resize(kept);
  all.push_back(std::move(access));
  if (all.size() > kMostAccesses) {
    if (capture == nullptr) {  // whatever is launched from now on comes after what the host knows
      const Clock& known = world.clock(host());
      std::erase_if(all, [&](const Access& one) { return one.time <= known.of(one.actor); });
    }
    if (all.size() > kMostAccesses) all.erase(all.begin(), all.begin() + static_cast<int64_t>(kMostAccesses / 4));
  }
}

void Sanitizer::race(World& world, Shadow& shadow, const Memory& memory, const Access& first, const Access& second,
                     Footprint* capture) {
  Finding finding;
  finding.first = first;
  finding.second = second;
  finding.first_actor = world.name_of(first.actor);
  finding.second_actor = world.name_of(second.actor);
  finding.first_does = first.write ? "writes" : "reads";
  finding.second_does = second.write ? "writes" : "reads";
  finding.allocated = shadow.allocated;
  finding.bytes = shadow.bytes;
  finding.kind = memory.kind == Memory::kPinned ? 'c' : 'a';
  const std::string both = first.write && second.write ? "two writes" : "a read and a write";
  finding.text = both + " of the same bytes on " + finding.first_actor + " and " + finding.second_actor +
                 ", with no order between them";
  if (capture != nullptr) finding.text += ", in a capture";
  const World::Actor& later = world.of(second.actor);
  if (first.time <= later.nearly.of(first.actor)) {
    finding.kind = 'f';
    finding.text = "an event was recorded again before its waiter ran: " + both + " on " + finding.first_actor +
                   " and " + finding.second_actor + " have no order between them";
    finding.repair = "use a second event, or wait for the first record before the event is recorded again";
    if (!later.lost.empty()) finding.related = later.lost.begin()->second;
    finding.related_text = "the event was recorded again";
  } else if (is_communicator(world, first.actor)) {
    finding.repair = "work.wait() on the collective before the second access, on its stream";
  } else if (is_communicator(world, second.actor)) {
    finding.repair = "let the current stream of the collective wait for " + finding.first_actor +
                     " first: torch.npu.current_stream().wait_stream(<" + finding.first_actor + ">)";
  } else {
    finding.repair = "<" + finding.second_actor + ">.wait_stream(<" + finding.first_actor +
                     ">) between the two (or an event: record after the first, wait before the second)";
  }
  report(std::move(finding));
}

void Sanitizer::recycled_race(World& world, const Shadow& shadow, const Access& use, const Access& now) {
  Finding finding;
  finding.kind = 'b';
  finding.first = use;
  finding.second = now;
  finding.first_actor = world.name_of(use.actor);
  finding.second_actor = world.name_of(now.actor);
  finding.first_does = use.write ? "writes" : "reads";
  finding.second_does = "writes what it recycled of";
  finding.allocated = use.recycled->allocated;
  finding.bytes = shadow.bytes;
  finding.related = use.recycled->erased != 0 ? use.recycled->erased : use.recycled->freed;
  if (use.recycled->erased != 0) {
    finding.related_text = "erase_stream took the stream back";
    finding.text =
        "erase_stream came too early: memory was freed and recycled while " + finding.first_actor + " still uses it";
    finding.repair = "wait for <" + finding.first_actor + "> before erase_stream";
  } else {
    finding.related_text = "the tensor was freed";
    finding.text = "memory was freed and can be recycled by " + finding.second_actor + " while " + finding.first_actor +
                   " still uses it";
    finding.repair = "tensor.record_stream(<" + finding.first_actor + ">) before the tensor is freed";
  }
  report(std::move(finding));
}

// --- poison --------------------------------------------------------------------------------------------------------

void Sanitizer::check_poison(Shadow& shadow, const Access& access, bool read, bool write, bool some) {
  Ranges& unwritten = shadow.unwritten;
  if (read) {
    size_t fresh = 0, total = 0;
    const bool walked = each_run(access.region, kMostRuns, [&](uintptr_t from, uintptr_t to) {
      fresh += common(unwritten, from, to);
      total += to - from;
    });
    if (!walked) {
      total = access.region.end - access.region.begin;
      fresh = common(unwritten, access.region.begin, access.region.end);
      some = true;  // which of the bytes is not known
    }
    if (fresh > 0 && (!some || fresh == total)) {
      Finding finding;
      finding.kind = 'g';
      finding.first = finding.second = access;
      finding.first_actor = finding.second_actor = world_.name_of(access.actor);
      finding.first_does = finding.second_does = "reads";
      finding.allocated = shadow.allocated;
      finding.bytes = shadow.bytes;
      finding.text = text(access.op) + " reads " + std::to_string(fresh) + " of " + std::to_string(total) +
                     " bytes that nobody has written";
      finding.repair =
          "write the memory before it is read: torch.zeros in place of torch.empty, or fill what is missing";
      report(std::move(finding));
      unwritten.clear();
    }
  }
  if (!write) return;
  const bool walked =
      each_run(access.region, kMostRuns, [&](uintptr_t from, uintptr_t to) { subtract(unwritten, from, to); });
  if (!walked) subtract(unwritten, access.region.begin, access.region.end);
}

void Sanitizer::resized(uintptr_t from, size_t kept, uintptr_t to) {
  const Lock lock(mutex_);
  const auto target = shadows_.find(to);
  if (target == shadows_.end() || target->second.unwritten.empty()) return;
  const auto source = shadows_.find(from);
  subtract(target->second.unwritten, to, to + kept);
  if (source == shadows_.end()) return;
  for (const auto& [begin, end] : source->second.unwritten) {
    if (begin - from < kept) target->second.unwritten.emplace_back(begin - from + to, std::min(end - from, kept) + to);
  }
}

// --- allocations ---------------------------------------------------------------------------------------------------

void Sanitizer::allocated(const Block& block) {
  const StackId stack = here();
  const Lock lock(mutex_);
  const auto base = reinterpret_cast<uintptr_t>(block.ptr);
  if (block.pool != nullptr && block.pool->owner != PoolId{0, 0}) return;
  const int device = block.allocator->device();
  Shadow& shadow = shadows_[base];
  shadow = Shadow();
  shadow.bytes = block.requested;
  shadow.allocated = stack;
  shadow.owner = world_.actor(device, block.stream);
  if (options_.poison) {
    std::memset(block.ptr, kPattern, std::min(block.size, kMostFilled));
    shadow.unwritten.emplace_back(base, base + block.requested);
  }
  const auto found = freed_.find({device, block.stream});
  if (found == freed_.end()) return;
  std::erase_if(found->second, [&](Freed& freed) {
    std::erase_if(freed.uses, [&](const Access& use) { return ordered(use, shadow.owner); });
    const bool here = freed.begin < base + block.size && base < freed.begin + freed.bytes;
    const bool fits = freed.small == (block.size <= kSmallLimit) && block.size <= freed.bytes;
    if (!freed.uses.empty() && (here || fits)) {  // the allocator could give these bytes
      for (Access& use : freed.uses) {
        use.region = dense_region(base, block.size);
        shadow.accesses.push_back(std::move(use));
      }
      freed.uses.clear();
    }
    return freed.uses.empty();
  });
  if (found->second.empty()) freed_.erase(found);
}

void Sanitizer::freed(const Block& block) {
  const auto base = reinterpret_cast<uintptr_t>(block.ptr);
  if (block.pool != nullptr && block.pool->owner != PoolId{0, 0}) {
    const Lock lock(mutex_);
    const auto pool = pools_.find(block.pool->owner);
    if (pool == pools_.end()) return;
    std::erase_if(pool->second.outside.accesses, [&](const Access& access) {
      return base <= access.region.begin && access.region.end <= base + block.size;
    });
    return;
  }
  auto pending = [&](const Shadow& shadow, const Access& use) {
    if (ordered(use, shadow.owner) || is_communicator(world_, use.actor)) return false;
    return std::find(shadow.recorded.begin(), shadow.recorded.end(), use.actor) == shadow.recorded.end();
  };
  bool any = false;
  {
    const Lock lock(mutex_);
    const auto found = shadows_.find(base);
    if (found == shadows_.end()) return;
    for (const Access& use : found->second.accesses) any = any || pending(found->second, use);
    if (!any) {
      shadows_.erase(found);
      return;
    }
  }
  const StackId stack = here();  // asks the interpreter, so without the lock
  const Lock lock(mutex_);
  const auto found = shadows_.find(base);
  if (found == shadows_.end()) return;
  Shadow& shadow = found->second;
  Freed freed{base, block.size, block.size <= kSmallLimit, {}};
  for (Access& use : shadow.accesses) {
    if (!pending(shadow, use)) continue;
    if (use.recycled == nullptr) {
      StackId erased = 0;
      for (const auto& [actor, where] : shadow.erased) {
        if (actor == use.actor) erased = where;
      }
      use.recycled = std::make_shared<const Recycled>(Recycled{shadow.allocated, stack, erased});
    }
    freed.uses.push_back(std::move(use));
  }
  shadows_.erase(found);
  if (freed.uses.empty()) return;
  auto& list = freed_[{block.allocator->device(), block.stream}];
  if (list.size() >= kMostFreed) list.erase(list.begin());
  list.push_back(std::move(freed));
}

void Sanitizer::pinned(uintptr_t base, size_t bytes) {
  const StackId stack = here();
  const Lock lock(mutex_);
  Shadow& shadow = shadows_[base];
  shadow = Shadow();
  shadow.bytes = bytes;
  shadow.allocated = stack;
}

void Sanitizer::record_stream(const Block& block, StreamId stream) {
  const Lock lock(mutex_);
  const auto found = shadows_.find(reinterpret_cast<uintptr_t>(block.ptr));
  if (found == shadows_.end()) return;
  found->second.recorded.push_back(world_.actor(block.allocator->device(), stream));
}

void Sanitizer::erase_stream(const Block& block, StreamId stream) {
  const StackId stack = here();
  const Lock lock(mutex_);
  const auto found = shadows_.find(reinterpret_cast<uintptr_t>(block.ptr));
  if (found == shadows_.end()) return;
  const ActorId actor = world_.actor(block.allocator->device(), stream);
  std::erase(found->second.recorded, actor);
  found->second.erased.emplace_back(actor, stack);
}

void Sanitizer::everything_ordered(int device) {
  const Lock lock(mutex_);
  std::erase_if(freed_, [&](const auto& entry) { return entry.first.first == device; });
}

}  // namespace softnpu::sanitizer

#include "hccl/segment.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <sstream>

#include "hccl/store_values.h"

namespace softnpu::hccl {

namespace {

using std::chrono::milliseconds;

constexpr size_t kLine = 64;  // of the cache: what two ranks write lies in different ones
constexpr size_t kSlots = size_t{16} << 20, kLargestSlot = size_t{1} << 20, kSmallestSlot = size_t{64} << 10;
constexpr int kMostRanks = 64;
constexpr int kYields = 32;         // before a wait sleeps
constexpr milliseconds kLook{100};  // how often a sleeping wait looks whether its rank still exists

size_t lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

size_t slot_bytes_for(int size) {
  const size_t even = kSlots / 2 / static_cast<size_t>(size) / 4096 * 4096;
  return std::clamp(even, kSmallestSlot, kLargestSlot);
}

// The words of a futex lie in memory of several processes: no private operation.
void sleep_while(const std::atomic<uint32_t>& word, uint32_t value, milliseconds time) {
  const timespec limit{0, static_cast<long>(time.count() * 1000000)};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

void wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// A file without a name, which goes with the last process that maps it. Nobody can make it shorter.
int make_file(size_t bytes) {
  const int file = memfd_create("softnpu-hccl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return -1;
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0 || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    close(file);
    return -1;
  }
  return file;
}

// The file of another process of the same user; the system refuses those of others.
int open_file(const std::string& where, size_t bytes) {
  std::istringstream in(where);
  long pid = 0, number = -1;
  if (!(in >> pid >> number) || pid <= 0 || number < 0) return -1;
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat seen{};
  if (file >= 0 && (fstat(file, &seen) != 0 || static_cast<size_t>(seen.st_size) != bytes)) {
    close(file);
    return -1;
  }
  return file;
}

}  // namespace

struct Segment::Member {
  alignas(kLine) std::atomic<uint32_t> arrived;  // turns
  std::atomic<uint32_t> sleepers;                // who wait for the next one
  std::atomic<uint32_t> left;
};

namespace {

// Members, then what they say and their counts in two sets, then the slots in two sets.
struct Layout {
  explicit Layout(int ranks)
      : size(static_cast<size_t>(ranks)),
        notes(lines(sizeof(Segment::Operation)) + lines(size * sizeof(int64_t))),
        first_note(size * kLine),
        first_slot((first_note + 2 * size * notes + 4095) / 4096 * 4096),
        slot(slot_bytes_for(ranks)),
        total(first_slot + 2 * size * slot) {}
  const size_t size, notes, first_note, first_slot, slot, total;
};

}  // namespace

std::unique_ptr<Segment> Segment::share(c10d::Store& store, int rank, int size, std::function<bool(int)> lost) {
  static_assert(sizeof(Member) == kLine && std::atomic<uint32_t>::is_always_lock_free);
  if (size < 2 || size > kMostRanks) return nullptr;
  const size_t bytes = Layout(size).total;
  int file = -1;
  if (rank == 0) {
    file = make_file(bytes);
    store.set("segment", to_bytes(file < 0 ? "none" : std::to_string(getpid()) + " " + std::to_string(file)));
  } else {
    const auto where = store.get("segment");
    file = open_file({where.begin(), where.end()}, bytes);
  }
  void* memory = file < 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const bool mapped = memory != MAP_FAILED;
  std::unique_ptr<Segment> segment(mapped ? new Segment(memory, rank, size, std::move(lost)) : nullptr);
  store.set("mapped/" + std::to_string(rank), to_bytes(mapped ? "yes" : "no"));
  bool all = true;
  for (int r = 0; r < size; ++r) all &= store.get("mapped/" + std::to_string(r)).size() == 3;
  if (file >= 0) close(file);  // who has not mapped it by now never will
  if (!all) segment.reset();
  return segment;
}

Segment::Segment(void* memory, int rank, int size, std::function<bool(int)> lost)
    : rank_(rank),
      size_(size),
      slot_bytes_(slot_bytes_for(size)),
      lost_(std::move(lost)),
      process_(getpid()),
      memory_(static_cast<uint8_t*>(memory)),
      members_(reinterpret_cast<Member*>(memory)) {}

Segment::~Segment() {
  leave();
  munmap(memory_, Layout(size_).total);
}

uint8_t* Segment::slot(int rank) const {
  const Layout layout(size_);
  return memory_ + layout.first_slot + (side() * layout.size + static_cast<size_t>(rank)) * slot_bytes_;
}

Segment::Operation& Segment::said(int rank) const {
  const Layout layout(size_);
  const size_t place = side() * layout.size + static_cast<size_t>(rank);
  return *reinterpret_cast<Operation*>(memory_ + layout.first_note + place * layout.notes);
}

int64_t* Segment::counts(int rank) const {
  return reinterpret_cast<int64_t*>(reinterpret_cast<uint8_t*>(&said(rank)) + lines(sizeof(Operation)));
}

void Segment::leave() {
  if (getpid() != process_ || left_.exchange(true)) return;
  members_[rank_].left = 1;
  wake_all(members_[rank_].arrived);
}

void Segment::meet(Time deadline) {
  TORCH_CHECK(!left_, "the group cannot be used any more");
  const uint32_t turn = ++turn_;
  Member& own = members_[rank_];
  own.arrived = turn;
  if (own.sleepers > 0) wake_all(own.arrived);
  for (int step = 1; step < size_; ++step) await((rank_ + step) % size_, turn, deadline);
}

void Segment::await(int rank, uint32_t turn, Time deadline) {
  Member& other = members_[rank];
  const auto missing = [&] { return static_cast<int32_t>(other.arrived - turn) < 0; };  // turns wrap around
  for (int i = 0; i < kYields && missing(); ++i) sched_yield();
  auto look = std::chrono::steady_clock::now() + kLook;
  while (missing()) {
    const bool has_left = other.left != 0;
    if (has_left && !missing()) return;  // it had come before it left
    TORCH_CHECK(!has_left, "rank ", rank, " has left the group");
    TORCH_CHECK(!left_, "the operation was aborted");
    const auto now = std::chrono::steady_clock::now();
    TORCH_CHECK(now < deadline, "Timed out waiting for rank ", rank);
    if (now >= look) {
      TORCH_CHECK(!lost_(rank) || !missing(), "rank ", rank, " is lost");
      look = now + kLook;
    }
    ++other.sleepers;
    const uint32_t seen = other.arrived;
    if (static_cast<int32_t>(seen - turn) < 0 && other.left == 0) sleep_while(other.arrived, seen, kLook);
    --other.sleepers;
  }
}

}  // namespace softnpu::hccl

// What a group knows about its members, and how it tells which of them is lost.
//
// Each rank publishes its process in the store when the group is made. When an operation fails, the rank says so in the
// store: ranks that wait in other operations of the group then fail too instead of waiting for their own timeout, and
// the ranks that say nothing, or whose process is gone, are the ones that the error names. A rank also says whom it
// blames itself, in its group and as a process: it may leave because of the failure, and whoever misses it then, also
// in a group to which the first one does not belong, names the first one too.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace softnpu::hccl {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kQuiet{1000};  // a wait shorter than this asks nobody

class Peers : public std::enable_shared_from_this<Peers> {
 public:
  // `group`: the name in messages. `generation`: how often the group was made anew. `patience`: how long the search for
  // the one to blame may take.
  Peers(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::string group, int generation,
        Milliseconds patience);

  void publish();  // this process; before the ranks are connected
  void learn();    // the others; after they are connected

  bool on_one_host() const;   // all of them
  bool gone(int rank) const;  // known for certain: a process of this host that exists no more

  // After a failure: says so in the store and returns who is missing, as a sentence.
  std::string missing(const std::string& operation, int peer);

  // A signal ended a wait of this rank: it takes no part any more, and says so.
  void interrupted(const std::string& operation);

  // Called now and then by a rank that has waited for long: begins to look for failures of others.
  void look_for_failures();
  std::optional<std::string> failure() const;  // why the group cannot be used any more
  void fail(const std::string& why);

  // Waits that only Work::abort can end (send and receive).
  void enter(c10d::Work* work);
  void leave(c10d::Work* work);

  int rank() const { return rank_; }
  const std::string& group() const { return group_; }

 private:
  struct Process {
    std::string host;     // host and pid namespace, as one word
    std::string network;  // its network namespace
    long pid = 0;
    std::string start;  // when it began: pids are used again
  };
  std::string key(const std::string& what) const;
  std::string describe(int rank) const;
  bool wanted() const;             // whether anybody waits
  bool elsewhere(int rank) const;  // reached by a network only
  // What rank `r` has said of a failure, in this group.
  struct Told {
    bool told = false;
    std::string blames;  // empty as long as it searches
  };
  Told told_by(int r);
  std::string process_key(int r) const;
  std::string blames_elsewhere(int r);  // as a process, in whatever group
  void tell(const std::string& operation, const std::string& blames);
  std::string search(const std::string& operation, int peer);
  std::string without_store(int peer) const;

  const int rank_, size_, generation_;
  const Milliseconds patience_;
  const std::string group_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<c10d::Store> job_;  // the store of all groups
  std::vector<Process> processes_;

  mutable std::mutex mutex_;
  std::optional<std::string> failure_;
  std::set<c10d::Work*> waits_;
  std::atomic<int64_t> asked_{0};  // when somebody last waited, on the steady clock
  std::atomic<bool> looking_{false};
};

}  // namespace softnpu::hccl

// csrc/hccl's works and what a group knows of its members, under many threads: built with -fsanitize=thread by `make
// tsan`.
//
// Only these files are instrumented; PyTorch's libraries are not, and tests/cpp/tsan.txt hides what they do among
// themselves. The transport is a fake one: a work that another thread ends, fails or aborts.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "hccl/cycles.h"
#include "hccl/interrupt.h"
#include "hccl/work.h"

namespace {
std::atomic<bool> interrupt{false};
}

namespace softnpu::hccl {
// No interpreter here, and no sanitizer of streams. Every thread counts as one of a backward pass.
bool runs_signal_handlers() { return false; }
void run_signal_handlers() {}
bool in_backward() { return true; }
void notice_interrupts() {}
bool interrupted_in_backward() { return interrupt; }
void look_for_cycles() {}
}  // namespace softnpu::hccl

using namespace softnpu::hccl;
using c10::intrusive_ptr;

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::exit(1);
}

class FakeWork final : public c10d::Work {
 public:
  explicit FakeWork() : Work(0, c10d::OpType::ALLREDUCE), future_(make_future({})) {}
  intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  bool wait(Milliseconds timeout) override {  // of a message: ends with `end` or `abort`
    std::unique_lock<std::mutex> lock(own_);
    const bool told = changed_.wait_for(lock, timeout, [&] { return ended_ || aborted_; });
    if (!told) throw std::runtime_error("Timed out");
    return !aborted_;
  }
  void abort() override { set(aborted_); }
  void end(bool well) {
    set(ended_);
    if (well) {
      future_->markCompleted(c10::IValue(tensor_list({})));
    } else {
      future_->setError(std::make_exception_ptr(std::runtime_error("Connection closed by peer")));
    }
  }

 private:
  void set(bool& flag) {
    const std::lock_guard<std::mutex> lock(own_);
    flag = true;
    changed_.notify_all();
  }
  const intrusive_ptr<c10::ivalue::Future> future_;
  std::mutex own_;
  std::condition_variable changed_;
  bool ended_ = false, aborted_ = false;
};

struct Member {
  std::shared_ptr<Peers> peers;
  intrusive_ptr<WorkHCCL> work;
  intrusive_ptr<FakeWork> inner = c10::make_intrusive<FakeWork>();
};

std::vector<Member> group(const intrusive_ptr<c10d::Store>& store, int size, int generation) {
  std::vector<Member> members(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) {
    members[r].peers = std::make_shared<Peers>(store, r, size, "a test", generation, Milliseconds(300));
    members[r].peers->publish();
  }
  for (auto& member : members) member.peers->learn();
  return members;
}

enum class End { Well, Error, Failure, Timeout };

// Several threads wait for a work, poll it and ask for its future while it ends.
void meet(Member& member, bool message, End how) {
  const CollectiveCall call{message ? c10d::OpType::RECV : c10d::OpType::ALLREDUCE, message ? "recv" : "all_reduce", 1,
                            message ? 1 : -1, Milliseconds(how == End::Timeout ? 50 : 20000)};
  member.work = c10::make_intrusive<WorkHCCL>(call, std::vector<at::Tensor>{}, member.peers);
  if (message) {
    member.work->carry(member.inner, {});
  } else {
    member.work->follow(member.inner, [] {});
  }
  std::atomic<int> raised{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      if (t == 1) member.work->isCompleted();
      if (t == 2) member.work->getFuture();
      try {
        member.work->wait();
      } catch (const std::exception&) {
        ++raised;
      }
    });
  }
  if (how == End::Well || how == End::Error) member.inner->end(how == End::Well);
  if (how == End::Failure) {
    member.peers->fail("of the test");
    member.work->abort();
  }
  for (auto& thread : threads) thread.join();
  if (how == End::Timeout) member.inner->end(true);                      // too late
  const bool well = how == End::Well || (message && how == End::Error);  // a fake message has no error
  require(raised == (well ? 0 : 3), "all who wait are told the same");
  require(!well || member.work->isSuccess(), "it succeeded");
}

void everywhere(int rounds) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  int generation = 0;
  for (int i = 0; i < rounds; ++i) {
    for (const bool message : {false, true}) {
      for (const End how : {End::Well, End::Error, End::Failure, End::Timeout}) {
        auto members = group(store, 3, generation++);
        std::vector<std::thread> ranks;
        for (auto& member : members) ranks.emplace_back([&] { meet(member, message, how); });
        for (auto& rank : ranks) rank.join();
        members[0].peers->look_for_failures();
        members[1].peers->interrupted("all_reduce");
        members[2].peers->failure();
      }
    }
  }
}

// Futures that somebody waits for in a backward pass, some of which end by themselves: an interrupt ends the others.
void interrupted(int rounds) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  for (int i = 0; i < rounds; ++i) {
    auto members = group(store, 3, 1000 + i);
    std::vector<std::thread> ranks;
    for (auto& member : members) {
      ranks.emplace_back([&] {
        const CollectiveCall call{c10d::OpType::ALLREDUCE, "all_reduce", 1, -1, Milliseconds(60000)};
        member.work = c10::make_intrusive<WorkHCCL>(call, std::vector<at::Tensor>{}, member.peers);
        member.work->follow(member.inner, [] {});
        member.work->getFuture();
      });
    }
    for (auto& rank : ranks) rank.join();
    members[0].inner->end(true);
    interrupt = true;
    int failed = 0;
    for (auto& member : members) {
      const auto future = member.work->getFuture();
      future->wait();
      failed += future->hasError();
    }
    require(failed == 2, "an interrupt ends what does not end");
    interrupt = false;
    for (size_t r = 1; r < members.size(); ++r) members[r].inner->end(true);  // too late
  }
}

}  // namespace

int main(int count, char** arguments) {
  everywhere(count > 1 ? std::atoi(arguments[1]) : 2);
  interrupted(count > 1 ? std::atoi(arguments[1]) : 2);
  std::this_thread::sleep_for(Milliseconds(1500));  // threads that look for failures end
  std::puts("no race");
  std::fflush(stdout);
  std::_Exit(0);  // the threads of PyTorch are none of ours
}

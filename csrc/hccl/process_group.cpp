// The group itself: connection, names, timeouts, and what every operation shares.
#include "hccl/process_group.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdlib>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "device/device.h"
#include "hccl/deferred_work.h"
#include "hccl/errors.h"
#include "hccl/lone.h"
#include "hccl/one_host.h"
#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/launch.h"
#include "torch/graph/recording.h"
#include "torch/plan/plan.h"
#include "torch/plan/values.h"
#include "torch/runtime/sync.h"

namespace softnpu::hccl {

MakeInner make_inner;

namespace {

constexpr Milliseconds kForever{int64_t{365} * 24 * 3600 * 1000};
constexpr int64_t kDefaultExecTimeout = 1836;    // seconds; upstream's
constexpr int64_t kDefaultConnectTimeout = 120;  // seconds; upstream's
constexpr int64_t kMaxTimeout = 2147483647;      // seconds; upstream's
constexpr size_t kNameLength = 128;

// Groups by name. What is taken out of the table is dropped after the lock: a group that ends with it asks for the
// lock.
using Names = std::unordered_map<std::string, c10::weak_intrusive_ptr<ProcessGroupHCCL>>;
std::mutex names_mutex;
Names& names() {
  static auto* table = new Names();
  return *table;
}

// A variable that is a number of seconds, at most kMaxTimeout: more do not fit in the milliseconds of a transport.
int64_t seconds_of(const char* variable, int64_t otherwise) {
  const char* given = std::getenv(variable);
  const int64_t value = given == nullptr ? -1 : std::strtoll(given, nullptr, 10);
  return value < 0 ? otherwise : std::min(value, kMaxTimeout);
}

// How long the ranks of a group may take to meet.
Milliseconds connect_timeout() {
  return Milliseconds(1000 * seconds_of("HCCL_CONNECT_TIMEOUT", kDefaultConnectTimeout));
}

// How long a failed operation may look for the rank to blame.
Milliseconds patience_of(Milliseconds exec_timeout) { return std::min(Milliseconds(3000), exec_timeout / 4); }

// HCCL_EXEC_TIMEOUT in seconds; 0 means never.
Milliseconds exec_timeout(const HcclOptions& options) {
  int64_t seconds = seconds_of("HCCL_EXEC_TIMEOUT", kDefaultExecTimeout);
  const auto own = options.hccl_config.find("hccl_exec_timeout");
  if (own != options.hccl_config.end() && std::holds_alternative<int64_t>(own->second)) {
    seconds = std::get<int64_t>(own->second);
  }
  return seconds == 0 ? kForever : Milliseconds(seconds * 1000);
}

}  // namespace

ProcessGroupHCCL::ProcessGroupHCCL(const intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   intrusive_ptr<HcclOptions> options)
    : WithOptions(rank, size), store_(store), options_(std::move(options)) {
  HCCL_CHECK(size > 0 && rank >= 0 && rank < size, Value, "ProcessGroupHCCL: rank ", rank,
             " is not in a group of world size ", size);
  connect();
}

ProcessGroupHCCL::~ProcessGroupHCCL() {
  if (peers_) drop_inner();
  Names::node_type other;
  const std::lock_guard<std::mutex> lock(names_mutex);
  const auto found = names().find(name_);
  if (found != names().end() && found->second.expired()) other = names().extract(found);
}

void ProcessGroupHCCL::connect() {
  const std::string label = options_->group_id.empty() ? "hccl" : options_->group_id;
  peers_ = std::make_shared<Peers>(store_, rank_, size_, label, generation_, patience_of(exec_timeout(*options_)));
  if (plan::on()) {
    inner_ = c10::make_intrusive<LoneBackend>(rank_, size_);
    return;
  }
  peers_->publish();
  const auto store = c10::make_intrusive<c10d::PrefixStore>("hccl/" + std::to_string(generation_), store_);
  inner_ = make_inner(store, rank_, size_, connect_timeout());
  compat::set_timeout(*inner_, timeout_for(kUnsetTimeout));
  peers_->learn();
  if (peers_->on_one_host()) {
    auto segment = Segment::share(
        *store, rank_, size_, [peers = peers_](int rank) { return peers->failure().has_value() || peers->gone(rank); });
    if (segment) inner_ = c10::make_intrusive<OneHostBackend>(std::move(inner_), std::move(segment), rank_, size_);
  }
  ++generation_;
}

intrusive_ptr<c10d::Backend> ProcessGroupHCCL::inner() {
  HCCL_CHECK(!closed_, Hccl, "HCCL: this process group was destroyed or shut down and cannot be used any more");
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!inner_) connect();
  used_ = true;
  if (const auto failure = peers_->failure()) {
    TORCH_CHECK_WITH(DistBackendError, false, "HCCL: the process group cannot be used, since ", *failure,
                     ". torch_npu.distributed.reinit_process_group makes it anew", code_text(Code::Hccl));
  }
  return inner_;
}

Milliseconds ProcessGroupHCCL::timeout_for(Milliseconds asked) {
  Milliseconds limit = asked == kUnsetTimeout ? options_->timeout : asked;
  if (limit <= Milliseconds(0)) limit = kForever;
  const Milliseconds exec = exec_timeout(*options_);  // the error, with the name of the rank, comes within it
  limit = std::min(limit, exec - patience_of(exec)) + ephemeral_;
  ephemeral_ = Milliseconds(0);
  return limit;
}

void ProcessGroupHCCL::setTimeout(Milliseconds timeout) {
  options_->timeout = timeout;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (inner_) compat::set_timeout(*inner_, timeout_for(kUnsetTimeout));
}

CollectiveCall ProcessGroupHCCL::call(c10d::OpType type, const char* name, Milliseconds timeout, int peer) {
  // A kernel in Python that communicates is not the sum of the kernels it calls: a graph calls it as a whole.
  if (Recording* recording = Recording::current()) recording->reads_data();
  return {type, name, ++sequence_, peer, timeout_for(timeout)};
}

intrusive_ptr<Work> ProcessGroupHCCL::launch(const CollectiveCall& call, Tensors outputs,
                                             const intrusive_ptr<Work>& inner, std::function<void()> finish) {
  auto work = c10::make_intrusive<WorkHCCL>(call, std::move(outputs), peers_);
  work->follow(inner, std::move(finish));
  return note(work);
}

intrusive_ptr<Work> ProcessGroupHCCL::message(const CollectiveCall& call, Tensors outputs, Tensors wire,
                                              const std::function<intrusive_ptr<Work>(Tensors&)>& begin) {
  auto work = c10::make_intrusive<WorkHCCL>(call, std::move(outputs), peers_);
  intrusive_ptr<Work> inner;
  try {
    inner = begin(wire);
  } catch (const c10::Error&) {
    throw;  // of an argument; the transport's own errors are of other classes
  } catch (const std::exception& error) {
    work->raise(error.what(), false);
  }
  work->carry(std::move(inner), std::move(wire));
  return note(work);
}

intrusive_ptr<Work> ProcessGroupHCCL::note(intrusive_ptr<Work> work) {
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

namespace {

using Ranks = std::shared_ptr<const std::vector<int64_t>>;

// A collective without peers. What all tensors hold is moved if it is known; what others hold is not.
intrusive_ptr<Work> run_alone(Lists& lists, const CollectiveFacts& facts,
                              const std::function<intrusive_ptr<Work>(Lists&)>& run) {
  uint8_t data = plan::kReal;
  bool known = true, any = false;
  auto see = [&](const Tensors& list, bool reads) {
    for (const at::Tensor& tensor : list) {
      any |= reads;
      if (reads) data |= plan::data_of(tensor);
      known &= plan::computes(tensor);
    }
  };
  for (size_t i = 0; i < lists.size(); ++i) see(lists[i], i > 0 || facts.reads || !facts.writes);
  known &= any && (data & plan::kAbsent) == 0;
  struct Still {
    explicit Still(bool on) : before(std::exchange(nothing_moves, on)) {}
    ~Still() { nothing_moves = before; }
    const bool before;
  };
  intrusive_ptr<Work> work;
  if (known) {
    const c10::impl::ExcludeDispatchKeyGuard plain(plan::kKey);
    work = run(lists);
  } else {
    const Still still(true);
    const plan::Catch caught;
    work = run(lists);
  }
  if (facts.writes) {
    for (const at::Tensor& output : lists[0]) {
      plan::set_data(output, known ? data : static_cast<uint8_t>(plan::kAbsent));
    }
  }
  return work;
}

// A collective as a launch: it runs now, or its place on the stream is taken by a work that starts it later.
class CollectiveTask final : public Task {
 public:
  using Start = std::function<intrusive_ptr<Work>()>;
  CollectiveTask(const char* name, int device, bool on_stream, const Lists& lists, Ranks ranks, Start now,
                 Start deferred)
      : name_(name),
        full_name_(std::string("hccl::") + name),
        device_(device),
        on_stream_(on_stream),
        lists_(lists),
        ranks_(std::move(ranks)),
        now_(std::move(now)),
        deferred_(std::move(deferred)) {}
  std::string_view name() const override { return full_name_; }
  int device() const override { return device_; }
  uint32_t stages() const override {  // the profiler has records of its own
    const uint32_t planned = plan::on() ? kTraceStage : 0;
    return on_stream_ ? kFaultStage | kQueueStage | kCaptureStage | planned : 0;
  }
  void each_input(Each each) const override {
    for (const at::Tensor& tensor : lists_.back()) each(tensor);
  }
  void each_output(Each each) const override {
    for (const at::Tensor& tensor : lists_.front()) each(tensor);
  }
  Ranks ranks() const override { return ranks_; }
  void run() override { work = now_(); }
  bool queue(StreamId stream) override {
    if (Queues::shuffled()) {  // other ranks wait for it
      wait_for_stream(device_, stream, name_);
      return false;
    }
    work = deferred_();
    return true;
  }
  bool record(Capture&, StreamId) override {
    work = deferred_();
    return true;
  }
  intrusive_ptr<Work> work;

 private:
  const char* const name_;
  const std::string full_name_;
  const int device_;
  const bool on_stream_;  // inside a kernel it is part of the kernel
  const Lists& lists_;
  const Ranks ranks_;
  const Start now_, deferred_;
};

}  // namespace

intrusive_ptr<Work> ProcessGroupHCCL::submit(c10d::OpType type, const char* name, Lists lists, bool fresh, Run run,
                                             const CollectiveFacts& facts) {
  const at::Tensor* first = nullptr;
  for (const Tensors& list : lists) {
    if (!list.empty()) first = &list[0];
  }
  const bool on_stream = first == nullptr ? KernelScope::device() < 0 : on_npu(*first);
  const int device = first != nullptr && on_npu(*first) ? first->device().index() : current_device();
  Ordered ordered{{}, device};
  if (sanitizer::on() && on_stream && !peers_->failure()) {  // a group that failed says so below
    if (!agreement_) agreement_ = std::make_unique<Agreement>(store_, rank_, size_, peers_->group());
    ordered.order = agreement_->enter(name, device, lists, {facts.reads, facts.writes}, facts.detail);
  }
  if (plan::on()) {
    CollectiveFacts alone = facts;
    alone.reads |= type == c10d::OpType::BROADCAST;  // its root holds what this rank holds
    run = [alone, run = std::move(run)](Lists& given) { return run_alone(given, alone, run); };
    if (members_ == nullptr) {
      const auto& global = options_->global_ranks_in_group;
      std::vector<int64_t> ranks(global.begin(), global.end());
      for (int64_t r = 0; global.empty() && r < size_; ++r) ranks.push_back(r);
      members_ = std::make_shared<const std::vector<int64_t>>(std::move(ranks));
    }
  }
  CollectiveTask task(
      name, device, on_stream, lists, members_, [&] { return run(lists); },
      [&] { return defer(type, name, device, lists, fresh, run); });
  softnpu::launch(task);
  if (ordered.order) {
    if (auto* work = dynamic_cast<WorkHCCL*>(task.work.get())) work->ordered = ordered;
    if (auto* work = dynamic_cast<DeferredWork*>(task.work.get())) work->ordered = ordered;
  }
  return std::move(task.work);
}

intrusive_ptr<Work> ProcessGroupHCCL::defer(c10d::OpType type, const char* name, int device, Lists lists, bool fresh,
                                            Run run) {
  const Tensors outputs = lists[0];
  if (Capture* capture = Capture::of(device, current_stream(device))) {
    for (Tensors& list : lists) {
      for (at::Tensor& tensor : list) tensor = capture->keep(tensor);
    }
  }
  auto self = intrusive_ptr<ProcessGroupHCCL>::unsafe_reclaim_from_nonowning(this);
  return note(DeferredWork::put(rank_, type, name, device, outputs, fresh,
                                [self, lists, run]() mutable { return run(lists); }));
}

void ProcessGroupHCCL::startCoalescing() {
  coalesced_.clear();
  coalescing_ = true;
}

intrusive_ptr<Work> ProcessGroupHCCL::endCoalescing() {
  coalescing_ = false;
  return c10::make_intrusive<WorkBatch>(rank_, std::exchange(coalesced_, {}));
}

c10d::ErrorType ProcessGroupHCCL::getError() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return peers_->failure() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

// gloo ends when its last operation has: at once, or, after a failure, with the timeout of the operation, for which
// nobody should have to wait.
void ProcessGroupHCCL::drop_inner() {
  if (inner_ && peers_->failure()) {
    std::thread([inner = std::move(inner_)]() mutable { inner.reset(); }).detach();
  }
  inner_.reset();
}

void ProcessGroupHCCL::abort() { peers_->fail("it was aborted on rank " + std::to_string(rank_)); }

void ProcessGroupHCCL::shutdown() {
  if (closed_.exchange(true)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (inner_) inner_->shutdown();
  windows_.clear();
}

void ProcessGroupHCCL::abort_and_clear(const std::string& reason) {
  HCCL_CHECK(!closed_, Hccl, "HCCL: this process group was destroyed or shut down and cannot be used any more");
  peers_->fail(reason.empty() ? "it was aborted" : "it was aborted: " + reason);
  const std::lock_guard<std::mutex> lock(mutex_);
  drop_inner();  // the next operation makes it anew, on every rank
  used_ = false;
}

// --- names -------------------------------------------------------------------------------------------------------

void ProcessGroupHCCL::set_comm_name(const std::string& name) {
  HCCL_CHECK(!name.empty() && name.size() < kNameLength, Value, "The length of the name must be between 1 and ",
             kNameLength - 1, ", Invalid hcclCommName:", name);
  HCCL_CHECK(name_.empty() || name_ == name, Value,
             "The current ProcessGroup has already set the name and cannot be duplicated, Invalid hcclCommName:", name,
             ", current hcclCommName:", name_);
  Names::node_type former;
  const std::lock_guard<std::mutex> lock(names_mutex);
  former = names().extract(name);
  auto self = intrusive_ptr<ProcessGroupHCCL>::unsafe_reclaim_from_nonowning(this);
  names().emplace(name, c10::weak_intrusive_ptr<ProcessGroupHCCL>(self));
  name_ = name;
}

std::string ProcessGroupHCCL::comm_name(int rank, bool init) {
  HCCL_CHECK(rank >= 0, Value, "Invalid rank ", rank);
  if (!init && !used_) return "";
  used_ = true;
  if (name_.empty()) {
    const auto given = options_->hccl_config.find("group_name");
    const bool named = given != options_->hccl_config.end() && std::holds_alternative<std::string>(given->second);
    set_comm_name(named ? std::get<std::string>(given->second) : "softnpu%hccl_" + peers_->group());
  }
  return name_;
}

intrusive_ptr<ProcessGroupHCCL> ProcessGroupHCCL::find(const std::string& name) {
  const std::lock_guard<std::mutex> lock(names_mutex);
  const auto found = names().find(name);
  return found == names().end() ? intrusive_ptr<ProcessGroupHCCL>() : found->second.lock();
}

// --- checks --------------------------------------------------------------------------------------------------------

namespace {

// NZ, 5HD, FZ and their like, as ACL numbers them.
bool in_private_format(const at::Tensor& tensor) {
  static const auto format = c10::Dispatcher::singleton().findSchemaOrThrow("npu::get_npu_format", "");
  torch::jit::Stack stack{tensor};
  format.callBoxed(&stack);
  const int64_t code = stack.back().toInt();
  return code == 3 || code == 4 || code == 29 || code == 32 || code == 33;
}

}  // namespace

void ProcessGroupHCCL::check(const at::Tensor& tensor) const {
  // Inside an operator's kernel the tensors are already CPU aliases of NPU memory.
  const bool ours = on_npu(tensor) || (KernelScope::device() >= 0 && tensor.defined() && tensor.is_cpu());
  HCCL_CHECK(ours && tensor.layout() == at::kStrided, Type, "Tensors must be NPU and dense");
  HCCL_CHECK(tensor.is_contiguous(tensor.suggest_memory_format()), Type, "Tensors must be contiguous");
  if (tensor.storage_offset() != 0 && on_npu(tensor)) {
    HCCL_CHECK(!in_private_format(tensor), NotSupport,
               "For a tensor of internal format, it's storage_offset must be 0, but received ",
               tensor.storage_offset());
  }
}

void ProcessGroupHCCL::check_one(const Tensors& tensors) const {
  HCCL_CHECK(!tensors.empty(), Param, "Tensor list must be nonempty");
  HCCL_CHECK(tensors.size() == 1, Value, "Tensor list mustn't be larger than the number of available NPUs");
  check(tensors[0]);
}

void ProcessGroupHCCL::check_reduction(const char* name, const at::Tensor& tensor, const c10d::ReduceOp& op,
                                       bool bytes_too) const {
  using Op = c10d::ReduceOp;
  const auto type = tensor.scalar_type();
  const bool bitwise = op == Op::BAND || op == Op::BOR || op == Op::BXOR;
  HCCL_CHECK(!bitwise, NotSupport, "Cannot use ReduceOp.",
             op == Op::BAND  ? "BAND"
             : op == Op::BOR ? "BOR"
                             : "BXOR",
             " with HCCL");
  if (op == Op::PREMUL_SUM) {
    HCCL_CHECK(type == at::kHalf || type == at::kFloat || type == at::kBFloat16 || type == at::kDouble, Type,
               "PreMulSum Data type must be half, float, bfloat16 or double");
  }
  const bool bytes = type == at::kBool || type == at::kByte;
  bool known = type == at::kChar || type == at::kShort || type == at::kInt || type == at::kLong || type == at::kHalf ||
               type == at::kFloat || type == at::kBFloat16 || (bytes && bytes_too);
  if (options_->wide_types || !options_->strict) known = known || type == at::kDouble || type == at::kUInt64;
  if (!options_->strict) known = known || bytes;
  HCCL_CHECK(known, NotSupport, "HCCL ", name, ": Unsupported data type ", type,
             ", which HCCL does not reduce on this chip");
}

}  // namespace softnpu::hccl

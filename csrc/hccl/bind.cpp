// softnpu._C.hccl: the process group and its options, for Python. Also the clock that DistributedDataParallel asks for.
#include "hccl/bind.h"

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "hccl/errors.h"
#include "hccl/lone.h"
#include "hccl/process_group.h"

namespace py = pybind11;

namespace c10d {
namespace {

class NpuTimer final : public Timer {  // work is done when its launch returns: the host's clock tells the time
 public:
  explicit NpuTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto first = getTimeRef(start), last = getTimeRef(end);
    if (first == kUnsetTime || last == kUnsetTime || last < first) return std::nullopt;
    return last - first;
  }
};

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, NpuTimer)

}  // namespace
}  // namespace c10d

namespace softnpu::hccl {

namespace {

// A Python function that C++ threads may call; never let go of, since threads may outlive the interpreter.
const py::function* kept(py::function function) { return new py::function(std::move(function)); }

}  // namespace

void bind(py::module_& parent) {
  auto m = parent.def_submodule("hccl");
  const auto dist = py::module_::import("torch._C._distributed_c10d");
  using Group = ProcessGroupHCCL;
  using release = py::call_guard<py::gil_scoped_release>;

  m.def("install", [](py::function inner, py::function line) {
    make_inner = [call = kept(std::move(inner))](const intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                 Milliseconds timeout) {
      const py::gil_scoped_acquire gil;
      return (*call)(store, rank, size, timeout).cast<intrusive_ptr<c10d::Backend>>();
    };
    code_line = [call = kept(std::move(line))](int code) {
      const py::gil_scoped_acquire gil;
      return (*call)(code).cast<std::string>();
    };
  });
  m.def("find", &Group::find);
  py::class_<LoneStore, intrusive_ptr<LoneStore>>(m, "LoneStore", dist.attr("Store")).def(py::init<>());
  py::class_<LoneBackend, intrusive_ptr<LoneBackend>>(m, "LoneBackend", dist.attr("Backend"))
      .def(py::init<int, int>(), py::arg("rank"), py::arg("size"));

  auto group = py::class_<Group, intrusive_ptr<Group>>(m, "ProcessGroupHCCL", dist.attr("Backend"));
  py::class_<HcclOptions, intrusive_ptr<HcclOptions>>(group, "Options", dist.attr("Backend").attr("Options"))
      .def(py::init<>())
      .def_readwrite("op_timeout", &HcclOptions::op_timeout)
      .def_readwrite("is_high_priority_stream", &HcclOptions::is_high_priority_stream)
      .def_readwrite("global_ranks_in_group", &HcclOptions::global_ranks_in_group)
      .def_readwrite("hccl_config", &HcclOptions::hccl_config)
      .def_readwrite("group_id", &HcclOptions::group_id)
      .def_readwrite("_strict", &HcclOptions::strict)
      .def_readwrite("_wide_types", &HcclOptions::wide_types);
  group
      .def(py::init<const intrusive_ptr<c10d::Store>&, int, int, intrusive_ptr<HcclOptions>>(), py::arg("store"),
           py::arg("rank"), py::arg("size"), py::arg("options"), release())
      .def(py::init([](const intrusive_ptr<c10d::Store>& store, int rank, int size, Milliseconds timeout) {
             auto options = c10::make_intrusive<HcclOptions>();
             options->timeout = timeout;
             return c10::make_intrusive<Group>(store, rank, size, options);
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout") = kBackendDefaultTimeout, release())
      .def_property_readonly("options", &Group::options)
      .def(
          "get_hccl_comm_name",
          [](Group& self, int rankid, bool init_comm) { return self.comm_name(rankid, init_comm); }, py::arg("rankid"),
          py::arg("init_comm") = true)
      .def("_set_hccl_comm_name", &Group::set_comm_name)
      .def("abort_hccl_comm", &Group::abort_and_clear, release())
      .def("batch_isend_irecv", &Group::batch_isend_irecv, release())
      .def("reduce_scatter_tensor_uneven", &Group::reduce_scatter_uneven, py::arg("output"), py::arg("input"),
           py::arg("input_split_sizes") = Splits{}, py::arg("opts") = c10d::ReduceScatterOptions(), release())
      .def("all_gather_into_tensor_uneven", &Group::allgather_uneven, py::arg("output"), py::arg("input"),
           py::arg("output_split_sizes") = Splits{}, py::arg("opts") = c10d::AllgatherOptions(), release())
      .def("_set_default_timeout", &Group::setTimeout, py::arg("timeout"), release())
      .def("_add_ephemeral_timeout", &Group::add_ephemeral_timeout, py::arg("timeout"))
      .def("_failed", [](Group& self) { return self.getError() != c10d::ErrorType::SUCCESS; })
      .def("_sequence", &Group::getSequenceNumberForGroup)
      .def(
          "_monitored_barrier",
          [](Group& self, Milliseconds timeout, bool wait_all) {
            c10d::BarrierOptions options;
            options.timeout = timeout;
            self.monitoredBarrier(options, wait_all);
          },
          release())
      .def_property("_windows", &Group::windows, &Group::set_windows)
      .def("_group_start", &Group::startCoalescing, release())
      .def("_group_end", &Group::endCoalescing, release());
}

}  // namespace softnpu::hccl

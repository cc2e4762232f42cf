// Rotary embedding, cache writes and merging on CUDA: kernels that any GPU runs.
#include <string>

#include "backend.h"
#include "cuda/any/merge_states.h"
#include "cuda/any/rotary.h"
#include "cuda/device.h"
#include "cuda/select.h"
#include "dlattn/error.h"
#include "element.h"

namespace dlattn::cuda {
namespace {

// why_scalar(): null if rows are moved in pieces of 16 bytes; throws Unsupported if no kernel takes the call.
template <typename F>
Explanation explain_kernel(const char* name, Device device, DType dtype, const F& why_scalar) {
  Explanation e;
  e.backend = "cuda";
  try {
    e.reason = why_device_cannot_run(device.index);
    if (!e.reason.empty()) return e;
    const char* why = why_scalar();
    e.supported = true;
    e.kernel = std::string(name) + suffix_of(dtype) + (why == nullptr ? "_vec16" : "");
    e.reason =
        why == nullptr ? "rows are read and written 16 bytes at a time" : std::string("one element at a time: ") + why;
  } catch (const Unsupported& unsupported) {
    e.reason = unsupported.what();
  } catch (const CudaError& error) {  // no such device
    e.reason = error.what();
  }
  return e;
}

template <typename MakePlan>
void run(const char* op, Device device, const MakePlan& make_plan, Stream stream) {
  require_device(op, device.index);
  const DeviceGuard guard(device.index);
  try {
    launch_rotary(make_plan(), stream);
  } catch (const Unsupported& unsupported) {
    throw Unsupported(std::string(op) + ": " + unsupported.what());
  }
}

}  // namespace

void rotary(const RotaryParams& p, Stream stream) {
  run("rotary_embedding", p.device, [&] { return plan_rotary(p); }, stream);
}

void append_kv(const AppendKVParams& p, Stream stream) {
  run("append_kv", p.device, [&] { return plan_append_kv(p); }, stream);
}

void rotary_append_kv(const RotaryAppendKVParams& p, Stream stream) {
  run("rotary_append_kv", p.rotary.device, [&] { return plan_rotary_append_kv(p); }, stream);
}

void merge(const MergeParams& p, Stream stream) {
  require_device("merge_attention_states", p.device.index);
  const DeviceGuard guard(p.device.index);
  launch_merge(p, stream);
}

Explanation explain(const RotaryParams& p) {
  return explain_kernel("rotary_any", p.device, p.dtype, [&] { return plan_rotary(p).why_scalar; });
}

Explanation explain(const AppendKVParams& p) {
  return explain_kernel("append_kv_any", p.device, p.dtype, [&] { return plan_append_kv(p).why_scalar; });
}

Explanation explain(const RotaryAppendKVParams& p) {
  return explain_kernel("rotary_append_kv_any", p.rotary.device, p.rotary.dtype,
                        [&] { return plan_rotary_append_kv(p).why_scalar; });
}

Explanation explain(const MergeParams& p) {
  return explain_kernel("merge_states_any", p.device, p.dtype, [&] { return why_merge_scalar(p); });
}

}  // namespace dlattn::cuda

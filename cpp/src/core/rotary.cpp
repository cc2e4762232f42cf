// Public rotary and cache functions: validate, then the backend of the device.
#include "dlattn/rotary.h"

#include "backend.h"
#include "core/validate.h"

namespace dlattn {
namespace {

using core::Depth;

bool on_cpu(Device device) { return device.type == DeviceType::kCPU; }

}  // namespace

void rotary_embedding(const RotaryParams& params, Stream stream) {
  core::validate("rotary_embedding", params, Depth::kCall);
  if (!on_cpu(params.device)) return cuda::rotary(params, stream);
  if (params.batch_size == 0 || params.seqlen == 0) return;
  cpu::rotary(params);
}

void append_kv(const AppendKVParams& params, Stream stream) {
  core::validate("append_kv", params, Depth::kCall);
  if (!on_cpu(params.device)) return cuda::append_kv(params, stream);
  if (params.batch_size == 0 || params.seqlen == 0) return;
  cpu::append_kv(params);
}

void rotary_append_kv(const RotaryAppendKVParams& params, Stream stream) {
  core::validate("rotary_append_kv", params, Depth::kCall);
  if (!on_cpu(params.rotary.device)) return cuda::rotary_append_kv(params, stream);
  if (params.rotary.batch_size == 0 || params.rotary.seqlen == 0) return;
  cpu::rotary_append_kv(params);
}

void validate(const RotaryParams& params) { core::validate("rotary_embedding", params, Depth::kInputs); }
void validate(const AppendKVParams& params) { core::validate("append_kv", params, Depth::kInputs); }
void validate(const RotaryAppendKVParams& params) { core::validate("rotary_append_kv", params, Depth::kInputs); }

Explanation explain(const RotaryParams& params) {
  core::validate("rotary_embedding", params, Depth::kShapes);
  return on_cpu(params.device) ? cpu::explain(params) : cuda::explain(params);
}

Explanation explain(const AppendKVParams& params) {
  core::validate("append_kv", params, Depth::kShapes);
  return on_cpu(params.device) ? cpu::explain(params) : cuda::explain(params);
}

Explanation explain(const RotaryAppendKVParams& params) {
  core::validate("rotary_append_kv", params, Depth::kShapes);
  return on_cpu(params.rotary.device) ? cpu::explain(params) : cuda::explain(params);
}

}  // namespace dlattn

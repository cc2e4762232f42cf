// Rotary embedding and writes into a paged cache.
#pragma once

#include "dlattn/attention.h"
#include "dlattn/export.h"
#include "dlattn/params.h"

namespace dlattn {

// Rotate q and k in one pass.
DLATTN_EXPORT void rotary_embedding(const RotaryParams& params, Stream stream = nullptr);

// Write new keys and values into a paged cache.
DLATTN_EXPORT void append_kv(const AppendKVParams& params, Stream stream = nullptr);

// Rotate q and k and write k and v into a paged cache, in one pass.
DLATTN_EXPORT void rotary_append_kv(const RotaryAppendKVParams& params, Stream stream = nullptr);

// Every check of the call; see attention.h. A null q_out or k_out is one that is made later.
DLATTN_EXPORT void validate(const RotaryParams& params);
DLATTN_EXPORT void validate(const AppendKVParams& params);
DLATTN_EXPORT void validate(const RotaryAppendKVParams& params);

// Which kernel a call would run and why; see attention.h.
DLATTN_EXPORT Explanation explain(const RotaryParams& params);
DLATTN_EXPORT Explanation explain(const AppendKVParams& params);
DLATTN_EXPORT Explanation explain(const RotaryAppendKVParams& params);

}  // namespace dlattn

// Every check of every parameter, once, before anything runs. Throws InvalidArgument; fills nothing.
#pragma once

#include "core/check.h"
#include "dlattn/attention.h"
#include "dlattn/params.h"

namespace dlattn::core {

// Questions (explain, workspace sizes) know shapes and options; a call has pointers, and values that the CPU can read.
// kInputs: as kCall, but a null output is one that is made later.
enum class Depth { kShapes, kInputs, kCall };

void validate(const char* op, const AttentionParams& params, Depth depth);
void validate(const char* op, const VarlenAttentionParams& params, Depth depth);
void validate(const char* op, const PagedAttentionParams& params, Depth depth);
void validate(const char* op, const RotaryParams& params, Depth depth);
void validate(const char* op, const AppendKVParams& params, Depth depth);
void validate(const char* op, const RotaryAppendKVParams& params, Depth depth);
void validate(const char* op, const MergeParams& params, Depth depth);

}  // namespace dlattn::core

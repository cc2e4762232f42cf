// What a backend defines. core/ calls these after validation; each folder cpu/, cuda/ (or no_cuda/) defines one namespace.
#pragma once

#include <string>
#include <vector>

#include "dlattn/attention.h"
#include "dlattn/params.h"

namespace dlattn::cpu {

void attention(const AttentionParams& params, AttentionOp op);
void attention(const VarlenAttentionParams& params);
void attention(const PagedAttentionParams& params);
void rotary(const RotaryParams& params);
void append_kv(const AppendKVParams& params);
void rotary_append_kv(const RotaryAppendKVParams& params);
void merge(const MergeParams& params);

// Names of the kernels that the calls above run.
Explanation explain(const AttentionParams& params, AttentionOp op);
Explanation explain(const VarlenAttentionParams& params);
Explanation explain(const PagedAttentionParams& params);
Explanation explain(const RotaryParams& params);
Explanation explain(const AppendKVParams& params);
Explanation explain(const RotaryAppendKVParams& params);
Explanation explain(const MergeParams& params);

std::vector<std::string> available_isas();  // best last
std::string current_isa();                  // throws InvalidArgument if DLATTN_CPU_ISA names one that is not there

void set_num_threads(int n);
int num_threads();

}  // namespace dlattn::cpu

namespace dlattn::cuda {

bool compiled();
std::vector<std::string> families();
std::vector<std::string> devices();
std::vector<std::string> architectures();  // "80", "90a-real"
std::vector<std::string> kernels();
std::string runtime_version();  // "13.0"
std::string driver_version();   // empty without a driver

int device_of(const void* pointer);                    // cuda_device_of()
void order(int device, Stream earlier, Stream later);  // cuda_order_streams()

void attention(const AttentionParams& params, AttentionOp op, Stream stream);
void attention(const VarlenAttentionParams& params, Stream stream);
void attention(const PagedAttentionParams& params, Stream stream);
void rotary(const RotaryParams& params, Stream stream);
void append_kv(const AppendKVParams& params, Stream stream);
void rotary_append_kv(const RotaryAppendKVParams& params, Stream stream);
void merge(const MergeParams& params, Stream stream);

size_t workspace_size(const AttentionParams& params, AttentionOp op);
size_t workspace_size(const VarlenAttentionParams& params);
size_t workspace_size(const PagedAttentionParams& params);

Explanation explain(const AttentionParams& params, AttentionOp op);
Explanation explain(const VarlenAttentionParams& params);
Explanation explain(const PagedAttentionParams& params);
Explanation explain(const RotaryParams& params);
Explanation explain(const AppendKVParams& params);
Explanation explain(const RotaryAppendKVParams& params);
Explanation explain(const MergeParams& params);

}  // namespace dlattn::cuda

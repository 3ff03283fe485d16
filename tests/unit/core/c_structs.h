/* The public structs of rankfold as a C header would declare them. Enumerations are int32_t. */
#pragma once

#include <stdint.h>

typedef struct {
  uint16_t bits;
} C_Half;
typedef struct {
  uint16_t bits;
} C_BFloat16;
typedef struct {
  int32_t type, index;
} C_Device;
typedef struct {
  const void* data;
  int32_t dtype, num_dims;
  int64_t sizes[4], strides[4];
  C_Device device;
} C_ConstTensorView;
typedef struct {
  void* data;
  int32_t dtype, num_dims;
  int64_t sizes[4], strides[4];
  C_Device device;
} C_TensorView;
typedef struct {
  void* handle;
} C_Stream;
typedef struct {
  void* handle;
} C_Event;
typedef struct {
  int32_t code_;
  char text_[1020];
} C_Status;
typedef struct {
  const void *a, *b;
  int32_t rank;
  float scaling;
  const float* bias;
  int64_t a_row_stride, b_row_stride, in_limit, reserved;
} C_AdapterEntry;
typedef struct {
  int32_t num_slots, num_experts, num_slices, max_rank;
  int64_t in, out[16];
  int32_t a_dtype, b_dtype;
} C_TableShape;
typedef struct {
  C_TableShape shape;
  const C_AdapterEntry* entries;
  int64_t slot_stride;
  C_Device device;
} C_AdapterTableView;
typedef struct {
  int32_t mode, uniform_slot;
  int64_t num_tokens;
  const int32_t *token_slots, *token_order, *segment_offsets, *segment_slots, *num_segments;
  int64_t max_segments, active_rows_bound;
  const float* token_weights;
  int32_t pairs_per_token, reserved;
  C_Device device;
} C_LoraAddressing;
typedef struct {
  int32_t mode, x_rows;
  int64_t num_tokens, num_rows, row_begin, row_end, bound_rows;
  const int32_t *expert_offsets, *row_tokens, *expert_ids;
  int32_t top_k, expert_base;
  const int32_t* token_slots;
  const float *row_weights, *token_weights;
  C_Device device;
} C_ExpertAddressing;
typedef struct {
  int32_t batch_invariant, strategy, y_mode, configuration, overlap;
} C_CallOptions;
typedef struct {
  void* data;
  uint64_t bytes;
  C_Device device;
} C_Workspace;
typedef struct {
  int64_t num_tokens;
  int32_t num_slots;
  const int32_t* token_slots;
  void* memory;
  uint64_t memory_bytes;
  C_Device device;
} C_GroupTokensArgs;
typedef struct {
  C_ConstTensorView x;
  C_AdapterTableView table;
  C_LoraAddressing addressing;
  C_TensorView h;
  C_CallOptions options;
} C_ShrinkArgs;
typedef struct {
  C_ConstTensorView h;
  C_AdapterTableView table;
  C_LoraAddressing addressing;
  C_TensorView y;
  C_CallOptions options;
} C_ExpandArgs;
typedef struct {
  C_ConstTensorView x;
  C_AdapterTableView table;
  C_LoraAddressing addressing;
  C_TensorView y;
  C_CallOptions options;
} C_ApplyLinearArgs;
typedef struct {
  C_ConstTensorView ids;
  C_AdapterTableView table;
  C_LoraAddressing addressing;
  C_TensorView h;
  C_CallOptions options;
} C_GatherShrinkArgs;
typedef struct {
  C_ConstTensorView ids;
  C_AdapterTableView table;
  C_LoraAddressing addressing;
  C_TensorView y;
  C_CallOptions options;
} C_ApplyEmbeddingArgs;
typedef struct {
  C_ConstTensorView x;
  C_AdapterTableView table;
  C_ExpertAddressing addressing;
  C_TensorView h;
  C_CallOptions options;
} C_ShrinkExpertsArgs;
typedef struct {
  C_ConstTensorView h;
  C_AdapterTableView table;
  C_ExpertAddressing addressing;
  C_TensorView y;
  C_CallOptions options;
} C_ExpandExpertsArgs;
typedef struct {
  C_ConstTensorView x;
  C_AdapterTableView table;
  C_ExpertAddressing addressing;
  C_TensorView y;
  C_CallOptions options;
} C_ApplyExpertsArgs;
typedef struct {
  uint64_t seed;
  int64_t row_base;
  float p;
  int32_t reserved;
} C_Dropout;
typedef struct {
  C_ConstTensorView x;
  C_AdapterTableView table;
  C_LoraAddressing addressing;
  C_TensorView y, h;
  C_Dropout dropout;
  C_CallOptions options;
} C_ForwardArgs;
typedef struct {
  float *const *da, *const *db, *const *dbias;
  int32_t mode, reserved;
} C_Gradients;
typedef struct {
  C_ConstTensorView dy, x, h;
  C_AdapterTableView table;
  C_LoraAddressing addressing;
  C_TensorView dx;
  C_Gradients grads;
  C_TensorView ds;
  C_Dropout dropout;
  C_CallOptions options;
} C_BackwardArgs;
typedef struct {
  C_ConstTensorView ids;
  C_AdapterTableView table;
  C_LoraAddressing addressing;
  C_TensorView y, h;
  C_CallOptions options;
} C_ForwardEmbeddingArgs;
typedef struct {
  C_ConstTensorView dy, ids, h;
  C_AdapterTableView table;
  C_LoraAddressing addressing;
  C_Gradients grads;
  C_TensorView ds;
  C_CallOptions options;
} C_BackwardEmbeddingArgs;
typedef struct {
  C_ConstTensorView dy, x, h;
  C_AdapterTableView table;
  C_ExpertAddressing addressing;
  C_TensorView dx;
  C_Gradients grads;
  C_TensorView ds;
  C_CallOptions options;
} C_BackwardExpertsArgs;
typedef struct {
  int64_t rows, tokens, segments, active_rows;
} C_Bounds;
typedef struct {
  int32_t op, addressing;
  C_TableShape shape;
  int32_t x_dtype, y_dtype;
  C_Bounds bounds;
  int32_t expert_mode, x_rows;
  uint32_t outputs;
  float dropout_p;
  C_CallOptions options;
} C_Problem;
typedef struct {
  int64_t rows, columns;
} C_MatrixShape;
typedef struct {
  int32_t op, strategy;
  const char *conditions, *configurations;
} C_StrategyInfo;
typedef struct {
  int32_t strategy, configuration, from_tuning, reserved;
} C_Choice;
typedef struct {
  const char *backend, *device;
  int32_t kernels, reserved;
} C_TuningTarget;
typedef struct {
  int32_t strategy, configuration;
} C_TunedChoice;
typedef struct {
  int32_t index, reserved;
  int64_t memory_bytes;
  char name[112];
} C_DeviceDescription;
typedef struct {
  int32_t usable, is_accelerator, num_devices, kernels;
  C_DeviceDescription devices[16];
  char reason[512], detail[256];
} C_BackendDescription;
typedef struct {
  const char* name;
  int32_t interface_version, priority;
  void (*describe)(C_BackendDescription*);
  void (*create)(void); /* C++ of one release: LoraBackend is a class */
} C_BackendDescriptor;
typedef struct {
  const char *name, *option, *reason;
} C_MissingBackend;
typedef struct {
  char name[64];
  int32_t built, taken_by_auto;
  C_BackendDescription description;
} C_BackendListing;
typedef struct {
  char name[64];
  int32_t device, reserved;
} C_BackendChoice;
typedef struct {
  const char* module;
  int64_t out, out_begin, out_full;
  C_ConstTensorView base_weight;
  const char* pair_path;
} C_SliceSpec;
typedef struct {
  const char* key;
  int32_t kind, num_slices;
  const C_SliceSpec* slices;
  int64_t in, in_begin, in_full;
  int32_t num_experts;
  const char* fused_module;
  int32_t bias_owner, orientation;
  float delta_scale;
  int32_t reserved;
} C_TargetSpec;
typedef struct {
  int32_t target, slice, expert, rank;
  float scaling;
  C_ConstTensorView a, b, bias;
} C_AdapterBinding;
typedef struct {
  int32_t kind;
  const char *tensor, *target, *detail;
} C_TensorBinding;
typedef struct {
  int32_t severity, code;
  const char *subject, *text;
} C_Finding;
typedef struct {
  int32_t unbound, num_allowed_keys;
  const char* const* allowed_keys;
} C_AdapterOptions;
typedef struct {
  int32_t target, slice, expert, reserved;
  double alpha;
  C_ConstTensorView a, b, bias;
} C_AdapterWeights;
typedef struct {
  int32_t scaling, reserved;
  double dropout;
  const char *base_model, *task_type;
} C_SaveAdapterOptions;
typedef struct {
  int32_t slot, reserved;
  uint64_t version;
} C_AdapterHandle;
typedef struct {
  const char *key, *value;
} C_SafetensorsMetadata;
typedef struct {
  const char* name;
  int32_t dtype, num_dims;
  int64_t sizes[8];
  const void* data;
} C_SafetensorsTensor;
typedef struct {
  const char *name, *dtype_name;
  int32_t has_dtype, dtype, num_dims, reserved;
  int64_t sizes[8];
  const void* data;
  uint64_t bytes;
} C_SafetensorsEntry;
typedef struct {
  const char* path;
  int32_t is_embedding, has_bias;
  int64_t rank;
  double alpha;
  float scaling;
  int64_t in, out;
  int32_t a_dtype, b_dtype;
  int64_t bytes;
  int32_t is_parameter, num_experts;
} C_AdapterModule;
typedef struct {
  int32_t num_slots, max_rank;
  uint64_t arena_bytes, staging_bytes;
  int32_t a_dtype, b_dtype, narrowing, x_dtype, y_dtype;
} C_PoolOptions;
typedef struct {
  uint64_t arena_bytes, arena_in_use, weight_bytes, table_bytes;
  int64_t num_resident, num_pinned;
  uint64_t num_loads, num_evictions;
} C_PoolStats;

// Loading what AdapterFile has bound. Apart from pool.cpp, so that a program that publishes weights
// from memory does not link the readers of files.
#include "rankfold/adapter.hpp"
#include "rankfold/pool.hpp"

RANKFOLD_NAMESPACE_BEGIN

Result<Pending> AdapterPool::prepare(const Adapter& adapter, Stream upload_stream) {
  return prepare(adapter.bindings(), upload_stream);
}

Result<AdapterHandle> AdapterPool::load(const Adapter& adapter, Stream upload_stream,
                                        std::span<const Stream> step_streams) {
  return load(adapter.bindings(), upload_stream, step_streams);
}

RANKFOLD_NAMESPACE_END

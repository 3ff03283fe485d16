// What AdapterPool and Pending point to.
#pragma once

#include <memory>
#include <utility>

#include "pool/state.hpp"
#include "rankfold/pool.hpp"

RANKFOLD_NAMESPACE_BEGIN

struct AdapterPool::State : detail::PoolState {
  using PoolState::PoolState;
};

struct Pending::State {
  explicit State(std::shared_ptr<detail::PoolState> owner) noexcept : pool(std::move(owner)) {}
  ~State() { pool->cancel(load); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::shared_ptr<detail::PoolState> pool;
  detail::Load load;
};

RANKFOLD_NAMESPACE_END

// Asynchronous copies into shared memory, and what waits for them: cp.async, barriers in shared
// memory that count bytes, and the fences and 8 x 8 matrix moves of those who read what was copied.
// Where the target lacks an instruction, the code compiles to nothing; who calls it has chosen
// another way.
#pragma once

#include <cstdint>

#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// The address of what stands in shared memory, in its own 32 bits.
__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// 16 bytes, of which the first `bytes` are read and the rest is zero.
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
/// 8 bytes, by way of the first level of cache.
__device__ __forceinline__ void copy_8(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
/// 4 bytes, of which the first `bytes` are read.
__device__ __forceinline__ void copy_4(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Until all but the last kPending groups of this thread have come.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Before a barrier: what this thread wrote to shared memory will be seen by matrix instructions
/// and the copy engine after it.
__device__ __forceinline__ void publish_to_matrices() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/// A barrier of the four warps of a warpgroup.
__device__ __forceinline__ void warpgroup_barrier(int id) {
  asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

/// Four 8 x 8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8,
/// and has of each the elements 2 (l % 4) and the next of row l / 4, as in the sums of a product.
__device__ __forceinline__ void load_matrices(std::uint32_t (&m)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void store_matrices(std::uint32_t to, const std::uint32_t (&m)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(m[0]),
               "r"(m[1]), "r"(m[2]), "r"(m[3])
               : "memory");
#endif
}

// Barriers in shared memory: a phase ends when all arrivals and all bytes are there.

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int arrivals) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
}
/// After barrier_init, before the block's next barrier: the copy engine sees them.
__device__ __forceinline__ void barrier_publish() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
/// Arrives, and lets the phase wait for so many bytes of copies besides.
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, int parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n .reg .pred p;\nagain:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra "
      "done;\n bra again;\n"
      "done:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END

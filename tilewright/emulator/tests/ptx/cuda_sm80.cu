#include <cuda_fp16.h>
#include <mma.h>
#include <cooperative_groups.h>
using namespace nvcuda;
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) { int i = blockIdx.x*blockDim.x+threadIdx.x; if (i < n) y[i] = a*x[i]+y[i]; }
extern "C" __global__ void reduce(const float *x, float *s, int n) {
  __shared__ float part[32]; float v = 0; for (int i = blockIdx.x*blockDim.x+threadIdx.x; i < n; i += gridDim.x*blockDim.x) v += x[i];
  for (int o = 16; o; o >>= 1) v += __shfl_down_sync(~0u, v, o);
  if (threadIdx.x % 32 == 0) part[threadIdx.x/32] = v; __syncthreads();
  if (threadIdx.x < 32) { v = threadIdx.x < blockDim.x/32 ? part[threadIdx.x] : 0.f; for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o); if (!threadIdx.x) atomicAdd(s, v); } }
extern "C" __global__ void sgemm(const float *A, const float *B, float *C, int M, int N, int K) {
  __shared__ float a[16][16], b[16][17]; int r = blockIdx.y*16+threadIdx.y, c = blockIdx.x*16+threadIdx.x; float acc = 0;
  for (int k = 0; k < K; k += 16) { a[threadIdx.y][threadIdx.x] = (r < M && k+threadIdx.x < K) ? A[r*K+k+threadIdx.x] : 0.f; b[threadIdx.y][threadIdx.x] = (c < N && k+threadIdx.y < K) ? B[(k+threadIdx.y)*N+c] : 0.f; __syncthreads();
    for (int i = 0; i < 16; i++) acc += a[threadIdx.y][i]*b[i][threadIdx.x]; __syncthreads(); }
  if (r < M && c < N) C[r*N+c] = acc; }
extern "C" __global__ void wgemm(const half *A, const half *B, float *C, int N, int K) {
  wmma::fragment<wmma::matrix_a,16,16,16,half,wmma::row_major> a; wmma::fragment<wmma::matrix_b,16,16,16,half,wmma::row_major> b; wmma::fragment<wmma::accumulator,16,16,16,float> c;
  wmma::fill_fragment(c, 0.f); int i = blockIdx.y*16, j = (blockIdx.x*blockDim.x/32+threadIdx.x/32)*16;
  for (int k = 0; k < K; k += 16) { wmma::load_matrix_sync(a, A+i*K+k, K); wmma::load_matrix_sync(b, B+k*N+j, N); wmma::mma_sync(c,a,b,c); }
  wmma::store_matrix_sync(C+i*N+j, c, N, wmma::mem_row_major); }
extern "C" __global__ void hist(const unsigned char *x, unsigned *h, int n) { __shared__ unsigned s[256]; for (int i = threadIdx.x; i < 256; i += blockDim.x) s[i] = 0; __syncthreads();
  for (int i = blockIdx.x*blockDim.x+threadIdx.x; i < n; i += gridDim.x*blockDim.x) atomicAdd(&s[x[i]], 1); __syncthreads(); for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&h[i], s[i]); }
__device__ __noinline__ float poly(float x, float *t) { float s = 0; for (int i = 0; i < 4; i++) { t[i] = s*x+i; s = t[i]; } return s; }
extern "C" __global__ void mathk(const float *x, float *y, double *z, int n) { int i = blockIdx.x*blockDim.x+threadIdx.x; if (i >= n) return; float t[4]; float v = x[i];
  y[i] = sinf(v)+expf(v)*logf(fabsf(v)+1.f)+tanhf(v)+poly(v, t)+t[(i&3)]+rsqrtf(fabsf(v)+1)+powf(fabsf(v), 1.5f)+v/(1.f+fabsf(v))+__sinf(v)+floorf(v)+fmodf(v, 0.7f); z[i] = exp((double)v)/(1.0+v*v)+sqrt(fabs((double)v)); }
extern "C" __global__ void ints(const int *x, const long long *w, int *y, unsigned long long *z, int n) { int i = blockIdx.x*blockDim.x+threadIdx.x; if (i >= n) return; int v = x[i]; unsigned u = v;
  switch (v & 7) { case 0: v = __popc(u); break; case 1: v = __clz(u); break; case 2: v = __brev(u); break; case 3: v = __ffs(u); break; case 4: v = __byte_perm(u, ~u, 0x5410); break; case 5: v = v/7 + v%5; break; case 6: v = __funnelshift_l(u, ~u, 5); break; default: v = __vadd4(u, 0x01020304); }
  y[i] = v + __dp4a(v, 0x01020304, 7) + max(v, -3) + abs(v) + __mulhi(v, 1234567); z[i] = w[i]/3 + __umul64hi(w[i], 0x123456789abcdefULL) + (w[i] >> 3) + __popcll(w[i]) + (unsigned long long)(w[i]) % 10; }
extern "C" __global__ void halfk(const half2 *x, half2 *y, int n) { int i = blockIdx.x*blockDim.x+threadIdx.x; if (i < n) { half2 v = x[i]; y[i] = __hfma2(v, v, __hmax2(v, __float2half2_rn(0.5f))); y[i] = __hadd2(y[i], h2exp(v)); } }
extern "C" __global__ void warp(const int *x, int *y, const void* f) { int v = x[threadIdx.x]; unsigned m = __ballot_sync(~0u, v > 3); int a = __any_sync(~0u, v == 5), b = __all_sync(~0u, v < 100); unsigned mm = __match_any_sync(~0u, v); y[threadIdx.x] = __popc(m)+a*100+b*1000+__popc(mm)*10000+__reduce_add_sync(~0u, v); extern __shared__ int sh[]; if (threadIdx.x & 1) sh[threadIdx.x] = v; __syncwarp(); y[threadIdx.x] += sh[threadIdx.x|1]; }
extern "C" __global__ void lock(int *l, int *c) { bool done = false; while (!done) { if (atomicCAS(l, 0, 1) == 0) { *(volatile int*)c = *(volatile int*)c + 1; __threadfence(); atomicExch(l, 0); done = true; } } }
__constant__ float tab[8] = {1,2,3,4,5,6,7,8}; __device__ int counter = 5;
extern "C" __global__ void consts(float *y) { y[threadIdx.x] = tab[threadIdx.x & 7] + counter; __syncthreads(); if (!threadIdx.x) counter += 1; }

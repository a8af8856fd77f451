#pragma once

struct float4;
float4 make_float4(float, float, float, float);
using __nv_fp8x4_storage_t = unsigned;
struct __nv_fp8x4_e4m3 {
  explicit __nv_fp8x4_e4m3(float4);
  __nv_fp8x4_storage_t __x;
};

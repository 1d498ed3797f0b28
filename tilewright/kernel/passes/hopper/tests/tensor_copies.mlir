// RUN: tilewright opt -p tensor-copies %s | filecheck %s

// A loop over slices of k: boxes of both operands, and products of four warps on them. Rows of b are 64 columns wide.
// CHECK-LABEL: @plain
// CHECK-SAME:    attributes {warps = array<i64: 4, 1>}
// CHECK:         %[[S:.*]], %[[A:.*]], %[[B:.*]] = tile.circular_buffer 1 : memref<2xi64, "shared">, memref<4096xf16, "shared">, memref<8192xf16, "shared">
// CHECK:         scf.for %k
// CHECK:           %[[N:.*]] = arith.divui
// CHECK:           tile.produce %[[S]][%[[N]]] when %{{.*}} {
// CHECK-NEXT:        tile.bulk_load %a[%{{.*}}, %k] to %[[A]] at 0 extents [128, 128] strides [128, 1] box [64, 64] swizzle 128
// CHECK-NEXT:        tile.bulk_load %b[%k, %{{.*}}] to %[[B]] at 0 extents [128, 128] strides [128, 1] box [64, 64] swizzle 128
// CHECK-NEXT:        tile.bulk_load %b[%k, %{{.*}}] to %[[B]] at 4096 extents [128, 128] strides [128, 1] box [64, 64] swizzle 128
// CHECK-NEXT:      }
// CHECK:           tile.consumer_wait %[[S]][%[[N]]]
// CHECK:           %[[D:.*]] = tile.staged_dot "wgmma_m64n128k16_f16_f32" %[[A]] memory "#nvmma<swizzle=128, bits=16, transposed=false>", %[[B]] memory "#nvmma<swizzle=128, bits=16, transposed=false>"[%[[N]]] depth 64, %acc
// CHECK:           %d = tile.finish 0 %[[D]]
// CHECK:           tile.consumer_release %[[S]][%[[N]]]

// Bounds are those of the tensor, whatever the tile; more than 128 sums for a thread take more warps.
// CHECK-LABEL: @ragged
// CHECK-SAME:    attributes {warps = array<i64: 8, 1>}
// CHECK:         tile.bulk_load %a[%{{.*}}, %k] to %{{.*}} at 0 extents [200, 72] strides [72, 1] box [128, 32] swizzle 64
// CHECK:         tile.bulk_load %b[%k, %{{.*}}] to %{{.*}} at 0 extents [72, 136] strides [136, 1] box [32, 64] swizzle 128
// CHECK:         tile.staged_dot "wgmma_m64n256k16_f16_f32"

// Without bounds, what lies behind the end of a row is not zero: tiles whose columns may hang over stay loads.
// CHECK-LABEL: @over_the_end
// CHECK:         tile.load
// CHECK:         tile.dot

// An operand with another use, products of other types, and rows that are no multiple of 16 bytes stay as they are.
// CHECK-LABEL: @used_twice
// CHECK-NOT:     tile.circular_buffer
// CHECK-LABEL: @bytes
// CHECK-NOT:     tile.circular_buffer
// CHECK-LABEL: @odd_rows
// CHECK-NOT:     tile.circular_buffer

// Of f32 threads read the fragments of what does not lie along k: of b, whose columns are rows of instructions then; of a
// with rows along m. Where neither operand lies along k, products stay as they are.
// CHECK-LABEL: @along_n
// CHECK-SAME:    attributes {warps = array<i64: 1, 8>}
// CHECK:         tile.bulk_load %a[%{{.*}}, %{{.*}}] to %{{.*}} at 0 extents [256, 128] strides [128, 1] box [256, 32] swizzle 128
// CHECK:         tile.bulk_load %b[%{{.*}}, %{{.*}}] to %{{.*}} at 0 extents [128, 128] strides [128, 1] box [32, 32] swizzle 128
// CHECK:         tile.staged_dot "wgmma_m64n256k8_tf32_f32" %{{.*}} memory "#nvmma<swizzle=128, bits=32, transposed=false>", %{{.*}} memory "#nvmma<swizzle=128, bits=32, transposed=false>"[%{{.*}}] depth 32 registers "b", %acc
// CHECK-LABEL: @along_m
// CHECK-SAME:    attributes {warps = array<i64: 8, 1>}
// CHECK:         tile.staged_dot "wgmma_m64n128k8_tf32_f32" %{{.*}} memory "#nvmma<swizzle=128, bits=32, transposed=true>", %{{.*}} memory "#nvmma<swizzle=128, bits=32, transposed=true>"[%{{.*}}] depth 32 registers "a", %acc
// CHECK-LABEL: @along_both
// CHECK-NOT:     tile.circular_buffer
// A tile of several dimensions is a box: a window moves it, and bounds are those of the image. What a load of a box has
// outside of its tensor is zeros, which the copy engine knows by itself.
// CHECK-LABEL: @window
// CHECK:         tile.bulk_load %a[%{{.*}}, %{{.*}}, %{{.*}}] to %{{.*}} at 0 extents [10, 8, 64] strides [640, 64, 1] box [8, 8, 64] swizzle 128
// CHECK:         tile.staged_dot "wgmma_m64n64k16_f16_f32"
// CHECK-LABEL: @outside
// CHECK:         tile.bulk_load %a[%{{.*}}, %{{.*}}, %{{.*}}] to %{{.*}} at 0 extents [8, 8, 64] strides [512, 64, 1] box [8, 8, 64] swizzle 128
// CHECK:         tile.staged_dot "wgmma_m64n64k16_f16_f32"

// Boxes begin at multiples of 16 bytes of a row: at element 8 of 16 bits, not at 4, nor where a program may be anywhere.
// CHECK-LABEL: @from_eight
// CHECK:         tile.bulk_load %a[%{{.*}}, %{{.*}}] to %{{.*}} at 0 extents [64, 128] strides [128, 1] box [64, 64] swizzle 128
// CHECK-LABEL: @from_four
// CHECK-NOT:     tile.circular_buffer
// CHECK-LABEL: @from_anywhere
// CHECK-NOT:     tile.circular_buffer
// CHECK-LABEL: @box_from_four
// CHECK-NOT:     tile.circular_buffer

// A first factor that is loaded before the loop is brought once; one that is computed stays in registers.
// CHECK-LABEL: @chain
// CHECK:         tile.circular_buffer 1
// CHECK-NEXT:    tile.circular_buffer 1
// CHECK-NEXT:    %[[R:.*]], %[[Q:.*]] = tile.circular_buffer 1 : memref<2xi64, "shared">, memref<8192xf16, "shared">
// CHECK:         tile.produce %[[R]][%[[N:.*]]] when
// CHECK:         tile.consumer_wait %[[R]][%[[N]]]
// CHECK:         scf.for %j
// CHECK:           tile.staged_dot "wgmma_m64n64k16_f16_f32" %[[Q]] memory "#nvmma<swizzle=128, bits=16, transposed=false>"[%[[N]]], %{{.*}} memory "#nvmma<swizzle=128, bits=16, transposed=true>"[%{{.*}}] depth 128, %none
// CHECK:           tile.staged_dot "wgmma_m64n128k16_f16_f32" %weights, %{{.*}} memory "#nvmma<swizzle=128, bits=16, transposed=false>"[%{{.*}}] depth 64, %less
// CHECK:         }
// CHECK-NEXT:    tile.consumer_release %[[R]][%[[N]]]

// Where the kernel does not say how its warps are distributed, such products stay.
// CHECK-LABEL: @chain_of_any_warps
// CHECK-NOT:     tile.staged_dot
builtin.module attributes {"tile.target" = {units = "mbarrier tma wgmma", multiprocessors = 2 : i64, shared_bytes = 232448 : i64}} {
tile.func @plain(%a: memref<16384xf16>, %b: memref<16384xf16>, %c: memref<16384xf32>) grid [2] {
  %p = tile.program_id 0
  %bm = arith.constant 64 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 64 : index
  %width = arith.constant 128 : index
  %i = arith.muli %p, %bm : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %ao = arith.addi %rows, %k : index
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %co = arith.muli %i, %width : index
  tile.store %r, %c[%co] strides [128, 1] align 16 : tensor<64x128xf32>, memref<16384xf32>
  tile.return
}
tile.func @ragged(%a: memref<14400xf16>, %b: memref<9792xf16>, %c: memref<27200xf32>) grid [2] {
  %p = tile.program_id 0
  %bm = arith.constant 128 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 72 : index
  %step = arith.constant 32 : index
  %width = arith.constant 136 : index
  %i = arith.muli %p, %bm : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<128x256xf32>
  %m = arith.constant 200 : index
  %down = arith.subi %m, %i : index
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<128x256xf32>) {
    %ao = arith.addi %rows, %k : index
    %bo = arith.muli %k, %width : index
    %left = arith.subi %depth, %k : index
    %x = tile.load %a[%ao] bounds(%down, %left) strides [72, 1] align 16 : memref<14400xf16> -> tensor<128x32xf16>
    %y = tile.load %b[%bo] bounds(%left, %width) strides [136, 1] align 16 : memref<9792xf16> -> tensor<32x256xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<128x32xf16>, tensor<32x256xf16>, tensor<128x256xf32>
    scf.yield %d : tensor<128x256xf32>
  }
  %co = arith.muli %i, %width : index
  tile.store %r, %c[%co] bounds(%down, %width) strides [136, 1] align 16 : tensor<128x256xf32>, memref<27200xf32>
  tile.return
}
tile.func @over_the_end(%a: memref<9216xf16>, %b: memref<9216xf16>, %c: memref<16384xf32>) grid [2] {
  %p = tile.program_id 0
  %bm = arith.constant 64 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 72 : index
  %step = arith.constant 64 : index
  %width = arith.constant 128 : index
  %i = arith.muli %p, %bm : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %ao = arith.addi %rows, %k : index
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%ao] strides [72, 1] align 16 : memref<9216xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<9216xf16> -> tensor<64x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %co = arith.muli %i, %width : index
  tile.store %r, %c[%co] strides [128, 1] align 16 : tensor<64x128xf32>, memref<16384xf32>
  tile.return
}
tile.func @used_twice(%a: memref<16384xf16>, %b: memref<16384xf16>, %c: memref<16384xf32>) grid [2] {
  %p = tile.program_id 0
  %bm = arith.constant 64 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 64 : index
  %width = arith.constant 128 : index
  %i = arith.muli %p, %bm : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %ao = arith.addi %rows, %k : index
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x128xf16>
    %x2 = arith.addf %x, %x : tensor<64x64xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x2, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %co = arith.muli %i, %width : index
  tile.store %r, %c[%co] strides [128, 1] align 16 : tensor<64x128xf32>, memref<16384xf32>
  tile.return
}
tile.func @bytes(%a: memref<16384xi8>, %b: memref<16384xi8>, %c: memref<16384xi32>) grid [2] {
  %p = tile.program_id 0
  %bm = arith.constant 64 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 64 : index
  %width = arith.constant 128 : index
  %i = arith.muli %p, %bm : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0> : tensor<64x128xi32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xi32>) {
    %ao = arith.addi %rows, %k : index
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<16384xi8> -> tensor<64x64xi8>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<16384xi8> -> tensor<64x128xi8>
    %d = tile.dot "mma_m16n8k32_s8_s32" %x, %y, %acc unsigned "" : tensor<64x64xi8>, tensor<64x128xi8>, tensor<64x128xi32>
    scf.yield %d : tensor<64x128xi32>
  }
  %co = arith.muli %i, %width : index
  tile.store %r, %c[%co] strides [128, 1] align 16 : tensor<64x128xi32>, memref<16384xi32>
  tile.return
}
tile.func @odd_rows(%a: memref<16384xf16>, %b: memref<16896xf16>, %c: memref<16896xf32>) grid [2] {
  %p = tile.program_id 0
  %bm = arith.constant 64 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 64 : index
  %width = arith.constant 132 : index
  %i = arith.muli %p, %bm : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %m = arith.constant 128 : index
  %down = arith.subi %m, %i : index
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %ao = arith.addi %rows, %k : index
    %bo = arith.muli %k, %width : index
    %left = arith.subi %depth, %k : index
    %x = tile.load %a[%ao] bounds(%down, %left) strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] bounds(%left, %width) strides [132, 1] align 16 : memref<16896xf16> -> tensor<64x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %co = arith.muli %i, %width : index
  tile.store %r, %c[%co] bounds(%down, %width) strides [132, 1] align 16 : tensor<64x128xf32>, memref<16896xf32>
  tile.return
}
tile.func @along_n(%a: memref<32768xf32>, %b: memref<16384xf32>, %c: memref<32768xf32>) grid [1] {
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 32 : index
  %one = arith.constant 1 : index
  %z = arith.constant dense<0.0> : tensor<256x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<256x128xf32>) {
    %ao = arith.muli %k, %one : index
    %bo = arith.muli %k, %depth : index
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<32768xf32> -> tensor<256x32xf32>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<16384xf32> -> tensor<32x128xf32>
    %d = tile.dot "mma_m16n8k8_tf32_f32" %x, %y, %acc unsigned "" : tensor<256x32xf32>, tensor<32x128xf32>, tensor<256x128xf32>
    scf.yield %d : tensor<256x128xf32>
  }
  tile.store %r, %c[%low] strides [128, 1] align 16 : tensor<256x128xf32>, memref<32768xf32>
  tile.return
}
tile.func @along_m(%a: memref<32768xf32>, %b: memref<16384xf32>, %c: memref<32768xf32>) grid [1] {
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 32 : index
  %one = arith.constant 1 : index
  %am = arith.constant 256 : index
  %z = arith.constant dense<0.0> : tensor<256x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<256x128xf32>) {
    %ao = arith.muli %k, %am : index
    %bo = arith.muli %k, %one : index
    %x = tile.load %a[%ao] strides [1, 256] align 16 : memref<32768xf32> -> tensor<256x32xf32>
    %y = tile.load %b[%bo] strides [1, 128] align 16 : memref<16384xf32> -> tensor<32x128xf32>
    %d = tile.dot "mma_m16n8k8_tf32_f32" %x, %y, %acc unsigned "" : tensor<256x32xf32>, tensor<32x128xf32>, tensor<256x128xf32>
    scf.yield %d : tensor<256x128xf32>
  }
  tile.store %r, %c[%low] strides [128, 1] align 16 : tensor<256x128xf32>, memref<32768xf32>
  tile.return
}
tile.func @along_both(%a: memref<32768xf32>, %b: memref<16384xf32>, %c: memref<32768xf32>) grid [1] {
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 32 : index
  %one = arith.constant 1 : index
  %am = arith.constant 256 : index
  %z = arith.constant dense<0.0> : tensor<256x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<256x128xf32>) {
    %ao = arith.muli %k, %am : index
    %bo = arith.muli %k, %depth : index
    %x = tile.load %a[%ao] strides [1, 256] align 16 : memref<32768xf32> -> tensor<256x32xf32>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<16384xf32> -> tensor<32x128xf32>
    %d = tile.dot "mma_m16n8k8_tf32_f32" %x, %y, %acc unsigned "" : tensor<256x32xf32>, tensor<32x128xf32>, tensor<256x128xf32>
    scf.yield %d : tensor<256x128xf32>
  }
  tile.store %r, %c[%low] strides [128, 1] align 16 : tensor<256x128xf32>, memref<32768xf32>
  tile.return
}
tile.func @window(%a: memref<6400xf16>, %b: memref<12288xf16>, %c: memref<4096xf32>) grid [1] {
  %low = arith.constant 0 : index
  %three = arith.constant 3 : index
  %one = arith.constant 1 : index
  %ten = arith.constant 10 : index
  %side = arith.constant 8 : index
  %row = arith.constant 640 : index
  %matrix = arith.constant 4096 : index
  %channels = arith.constant 64 : index
  %z = arith.constant dense<0.0> : tensor<64x64xf32>
  %r = scf.for %t = %low to %three step %one iter_args(%acc = %z) -> (tensor<64x64xf32>) {
    %ao = arith.muli %t, %row : index
    %bo = arith.muli %t, %matrix : index
    %left = arith.subi %ten, %t : index
    %x = tile.load %a[%ao] bounds (%left, %side, %channels) strides [640, 64, 1] : memref<6400xf16> -> tensor<8x8x64xf16>
    %m = tile.reshape %x : tensor<8x8x64xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [64, 1] : memref<12288xf16> -> tensor<64x64xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %m, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x64xf16>, tensor<64x64xf32>
    scf.yield %d : tensor<64x64xf32>
  }
  tile.store %r, %c[%low] strides [64, 1] : tensor<64x64xf32>, memref<4096xf32>
  tile.return
}
tile.func @outside(%a: memref<4096xf16>, %b: memref<12288xf16>, %c: memref<4096xf32>) grid [1] {
  %low = arith.constant 0 : index
  %three = arith.constant 3 : index
  %one = arith.constant 1 : index
  %matrix = arith.constant 4096 : index
  %z = arith.constant dense<0.0> : tensor<64x64xf32>
  %r = scf.for %t = %low to %three step %one iter_args(%acc = %z) -> (tensor<64x64xf32>) {
    %i = arith.subi %t, %one : index
    %bo = arith.muli %t, %matrix : index
    %x = tile.load_box %a[%i, %low, %low] extents [8, 8, 64] strides [512, 64, 1] : memref<4096xf16> -> tensor<8x8x64xf16>
    %m = tile.reshape %x : tensor<8x8x64xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [64, 1] : memref<12288xf16> -> tensor<64x64xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %m, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x64xf16>, tensor<64x64xf32>
    scf.yield %d : tensor<64x64xf32>
  }
  tile.store %r, %c[%low] strides [64, 1] : tensor<64x64xf32>, memref<4096xf32>
  tile.return
}
tile.func @from_eight(%a: memref<8192xf16>, %b: memref<4096xf16>, %c: memref<4096xf32>) grid [4] {
  %p = tile.program_id 0
  %low = arith.constant 0 : index
  %depth = arith.constant 64 : index
  %z = arith.constant dense<0.0> : tensor<64x64xf32>
  %from = arith.constant 8 : index
  %r = scf.for %k = %low to %depth step %depth iter_args(%acc = %z) -> (tensor<64x64xf32>) {
    %ao = arith.addi %from, %k : index
    %bo = arith.muli %k, %depth : index
    %x = tile.load %a[%ao] strides [128, 1] : memref<8192xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [64, 1] : memref<4096xf16> -> tensor<64x64xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x64xf16>, tensor<64x64xf32>
    scf.yield %d : tensor<64x64xf32>
  }
  tile.store %r, %c[%low] strides [64, 1] : tensor<64x64xf32>, memref<4096xf32>
  tile.return
}
tile.func @from_four(%a: memref<8192xf16>, %b: memref<4096xf16>, %c: memref<4096xf32>) grid [4] {
  %p = tile.program_id 0
  %low = arith.constant 0 : index
  %depth = arith.constant 64 : index
  %z = arith.constant dense<0.0> : tensor<64x64xf32>
  %from = arith.constant 4 : index
  %r = scf.for %k = %low to %depth step %depth iter_args(%acc = %z) -> (tensor<64x64xf32>) {
    %ao = arith.addi %from, %k : index
    %bo = arith.muli %k, %depth : index
    %x = tile.load %a[%ao] strides [128, 1] : memref<8192xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [64, 1] : memref<4096xf16> -> tensor<64x64xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x64xf16>, tensor<64x64xf32>
    scf.yield %d : tensor<64x64xf32>
  }
  tile.store %r, %c[%low] strides [64, 1] : tensor<64x64xf32>, memref<4096xf32>
  tile.return
}
tile.func @from_anywhere(%a: memref<8192xf16>, %b: memref<4096xf16>, %c: memref<4096xf32>) grid [4] {
  %p = tile.program_id 0
  %low = arith.constant 0 : index
  %depth = arith.constant 64 : index
  %z = arith.constant dense<0.0> : tensor<64x64xf32>
  %from = arith.constant 8 : index
  %r = scf.for %k = %low to %depth step %depth iter_args(%acc = %z) -> (tensor<64x64xf32>) {
    %ao = arith.addi %p, %k : index
    %bo = arith.muli %k, %depth : index
    %x = tile.load %a[%ao] strides [128, 1] : memref<8192xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [64, 1] : memref<4096xf16> -> tensor<64x64xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x64xf16>, tensor<64x64xf32>
    scf.yield %d : tensor<64x64xf32>
  }
  tile.store %r, %c[%low] strides [64, 1] : tensor<64x64xf32>, memref<4096xf32>
  tile.return
}
tile.func @box_from_four(%a: memref<8192xf16>, %b: memref<4096xf16>, %c: memref<4096xf32>) grid [4] {
  %p = tile.program_id 0
  %low = arith.constant 0 : index
  %depth = arith.constant 64 : index
  %z = arith.constant dense<0.0> : tensor<64x64xf32>
  %from = arith.constant 4 : index
  %r = scf.for %k = %low to %depth step %depth iter_args(%acc = %z) -> (tensor<64x64xf32>) {
    %ao = arith.addi %from, %k : index
    %bo = arith.muli %k, %depth : index
    %x = tile.load_box %a[%low, %ao] extents [64, 128] strides [128, 1] : memref<8192xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [64, 1] : memref<4096xf16> -> tensor<64x64xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x64xf16>, tensor<64x64xf32>
    scf.yield %d : tensor<64x64xf32>
  }
  tile.store %r, %c[%low] strides [64, 1] : tensor<64x64xf32>, memref<4096xf32>
  tile.return
}
tile.func @chain(%q: memref<65536xf16>, %k: memref<65536xf16>, %v: memref<65536xf16>, %o: memref<65536xf32>) grid [2] attributes {warps = array<i64: 4, 1>} {
  %low = arith.constant 0 : index
  %step = arith.constant 64 : index
  %rows = arith.constant 512 : index
  %width = arith.constant 128 : index
  %qs = tile.load %q[%low] strides [128, 1] align 16 : memref<65536xf16> -> tensor<64x128xf16>
  %none = arith.constant dense<0.0> : tensor<64x64xf32>
  %zero = arith.constant dense<0.0> : tensor<64x128xf32>
  %half = arith.constant dense<0.5> : tensor<64x128xf32>
  %r = scf.for %j = %low to %rows step %step iter_args(%acc = %zero) -> (tensor<64x128xf32>) {
    %jw = arith.muli %j, %width : index
    %ks = tile.load %k[%jw] strides [1, 128] align 16 : memref<65536xf16> -> tensor<128x64xf16>
    %vs = tile.load %v[%jw] strides [128, 1] align 16 : memref<65536xf16> -> tensor<64x128xf16>
    %dots = tile.dot "wgmma_m64n64k16_f16_f32" %qs, %ks, %none unsigned "" : tensor<64x128xf16>, tensor<128x64xf16>, tensor<64x64xf32>
    %weights = tile.cast %dots : tensor<64x64xf32> -> tensor<64x64xf16>
    %less = arith.mulf %acc, %half : tensor<64x128xf32>
    %d = tile.dot "wgmma_m64n128k16_f16_f32" %weights, %vs, %less unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  tile.store %r, %o[%low] strides [128, 1] align 16 : tensor<64x128xf32>, memref<65536xf32>
  tile.return
}
tile.func @chain_of_any_warps(%q: memref<65536xf16>, %k: memref<65536xf16>, %v: memref<65536xf16>, %o: memref<65536xf32>) grid [2] {
  %low = arith.constant 0 : index
  %step = arith.constant 64 : index
  %rows = arith.constant 512 : index
  %width = arith.constant 128 : index
  %qs = tile.load %q[%low] strides [128, 1] align 16 : memref<65536xf16> -> tensor<64x128xf16>
  %none = arith.constant dense<0.0> : tensor<64x64xf32>
  %zero = arith.constant dense<0.0> : tensor<64x128xf32>
  %half = arith.constant dense<0.5> : tensor<64x128xf32>
  %r = scf.for %j = %low to %rows step %step iter_args(%acc = %zero) -> (tensor<64x128xf32>) {
    %jw = arith.muli %j, %width : index
    %ks = tile.load %k[%jw] strides [1, 128] align 16 : memref<65536xf16> -> tensor<128x64xf16>
    %vs = tile.load %v[%jw] strides [128, 1] align 16 : memref<65536xf16> -> tensor<64x128xf16>
    %dots = tile.dot "wgmma_m64n64k16_f16_f32" %qs, %ks, %none unsigned "" : tensor<64x128xf16>, tensor<128x64xf16>, tensor<64x64xf32>
    %weights = tile.cast %dots : tensor<64x64xf32> -> tensor<64x64xf16>
    %less = arith.mulf %acc, %half : tensor<64x128xf32>
    %d = tile.dot "wgmma_m64n128k16_f16_f32" %weights, %vs, %less unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  tile.store %r, %o[%low] strides [128, 1] align 16 : tensor<64x128xf32>, memref<65536xf32>
  tile.return
}
}

// RUN: tilewright opt -p remove-conversions %s | filecheck %s

// Counts, constants and what is computed from them are made in the layout that is wanted.
// CHECK-LABEL: @mask
// CHECK-NEXT:    %o =
// CHECK-NEXT:    %i = tile.iota 0 : tensor<256xi64, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">
// CHECK-NEXT:    %n = arith.constant dense<100> : tensor<256xi64, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">
// CHECK-NEXT:    %m = tile.compare "lt" %i, %n
// CHECK-NEXT:    tile.load
tile.func @mask(%x: memref<256xf32>, %y: memref<256xf32>) grid [1] {
  %o = arith.constant 0 : index
  %i = tile.iota 0 : tensor<256xi64, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">
  %n = arith.constant dense<100> : tensor<256xi64, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">
  %m = tile.compare "lt" %i, %n : tensor<256xi64, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>"> -> tensor<256xi1, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">
  %c = tile.convert %m : tensor<256xi1, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>"> -> tensor<256xi1, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">
  %a = tile.load %x[%o] mask %c : tensor<256xi1, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>"> strides [1] : memref<256xf32> -> tensor<256xf32, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">
  tile.store %a, %y[%o] strides [1] : tensor<256xf32, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">, memref<256xf32>
  tile.return
}

// What a cast makes wide is converted while it is narrow.
// CHECK-LABEL: @widened
// CHECK:         %a = tile.load
// CHECK-NEXT:    %[[C:.*]] = tile.convert %a : {{.*}}f16{{.*}} -> tensor<256xf16, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">
// CHECK-NEXT:    %w = tile.cast %[[C]]
// CHECK-NEXT:    tile.store %w
tile.func @widened(%x: memref<256xf16>, %y: memref<256xf32>) grid [1] {
  %o = arith.constant 0 : index
  %a = tile.load %x[%o] strides [1] align 16 : memref<256xf16> -> tensor<256xf16, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">
  %w = tile.cast %a : tensor<256xf16, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>"> -> tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">
  %c = tile.convert %w : tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>"> -> tensor<256xf32, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">
  tile.store %c, %y[%o] strides [1] : tensor<256xf32, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">, memref<256xf32>
  tile.return
}

// What a cast makes narrow is converted behind it, and so is a sum of two tiles of memory.
// CHECK-LABEL: @narrowed
// CHECK:         %n = tile.cast
// CHECK-NEXT:    tile.convert %n
// CHECK-LABEL: @sum
// CHECK:         %s = arith.addf
// CHECK-NEXT:    tile.convert %s
tile.func @narrowed(%x: memref<256xf32>, %y: memref<256xf16>) grid [1] {
  %o = arith.constant 0 : index
  %a = tile.load %x[%o] strides [1] align 16 : memref<256xf32> -> tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">
  %n = tile.cast %a : tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>"> -> tensor<256xf16, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">
  %c = tile.convert %n : tensor<256xf16, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>"> -> tensor<256xf16, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">
  tile.store %c, %y[%o] strides [1] : tensor<256xf16, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">, memref<256xf16>
  tile.return
}
tile.func @sum(%x: memref<256xf32>, %y: memref<256xf32>) grid [1] {
  %o = arith.constant 0 : index
  %a = tile.load %x[%o] strides [1] align 16 : memref<256xf32> -> tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">
  %b = tile.load %y[%o] strides [1] align 16 : memref<256xf32> -> tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">
  %s = arith.addf %a, %b : tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">
  %c = tile.convert %s : tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>"> -> tensor<256xf32, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">
  tile.store %c, %y[%o] strides [1] : tensor<256xf32, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">, memref<256xf32>
  tile.return
}

// A conversion of a conversion is one, and none where that gives the first layout.
// CHECK-LABEL: @there_and_back
// CHECK:         %a = tile.load
// CHECK-NEXT:    %b = arith.negf %a
// CHECK-NEXT:    tile.store %b
tile.func @there_and_back(%x: memref<256xf32>, %y: memref<256xf32>) grid [1] {
  %o = arith.constant 0 : index
  %a = tile.load %x[%o] strides [1] align 16 : memref<256xf32> -> tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">
  %c = tile.convert %a : tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>"> -> tensor<256xf32, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">
  %d = tile.convert %c : tensor<256xf32, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>"> -> tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">
  %b = arith.negf %d : tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">
  tile.store %b, %y[%o] strides [1] : tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">, memref<256xf32>
  tile.return
}

// What a loop does not change is converted before it, once for all that read it.
// CHECK-LABEL: @loop
// CHECK:         %a = tile.load
// CHECK-NEXT:    %[[C:.*]] = tile.convert %a
// CHECK-NEXT:    scf.for
// CHECK-NOT:     tile.convert
// CHECK:         arith.addf %[[C]], %[[C]]
tile.func @loop(%x: memref<256xf32>, %y: memref<1024xf32>) grid [1] {
  %o = arith.constant 0 : index
  %step = arith.constant 256 : index
  %end = arith.constant 1024 : index
  %a = tile.load %x[%o] strides [1] align 16 : memref<256xf32> -> tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>">
  scf.for %i = %o to %end step %step {
  %c = tile.convert %a : tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>"> -> tensor<256xf32, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">
  %d = tile.convert %a : tensor<256xf32, "#linear<r=[(1)], l=[(2),(4),(8),(16),(32)], w=[(64),(128)]>"> -> tensor<256xf32, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">
    %s = arith.addf %c, %d : tensor<256xf32, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">
    tile.store %s, %y[%i] strides [1] : tensor<256xf32, "#linear<r=[(128)], l=[(1),(2),(4),(8),(16)], w=[(32),(64)]>">, memref<1024xf32>
  }
  tile.return
}

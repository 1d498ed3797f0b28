"""Public architectures with random weights, and a runner that compares each through both front ends."""

"""Run modules of GPU code: through the CUDA driver, or in the emulator where there is none.

`driver` says what is asked of a device, `bindings` and `emulated` are the two that there are, `devices` opens them;
`module` is what users call; `arrays` finds users' arrays on the device; `measure` is what a tuner needs.
"""

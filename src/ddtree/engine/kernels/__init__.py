"""Triton kernels of a round: one launch each where plain torch takes dozens.

Importing them needs Triton, which comes with torch for GPUs. Their slow twins are in
`ddtree.engine.fixed`; `triton.knobs.runtime.interpret` runs them on a CPU for tests.
"""
